// Command drill puts its user on call: it starts two owners, a CoreDNS that follows both,
// and a Prometheus with the alerts of deploy/monitoring, lets one thing go wrong without
// saying which, and shows what the pager and a user say. What it was is shown in the end.
//
// The test of this package looks whether each of the faults can be found with what is
// there: the alert, and what federationctl why and status say.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/suites/monitoring/faults"
)

func main() {
	name := flag.String("fault", "", "`name` of the fault; by default one is chosen at random")
	names := flag.Bool("names", false, "show the names of the faults, and end")
	dir := flag.String("dir", "run/drill", "`folder` of all files; what is in it is removed")
	flag.Parse()
	if *names {
		for _, f := range faults.All() {
			fmt.Fprintln(os.Stdout, f.Name)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdin, os.Stdout, *name, *dir)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "drill:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in io.Reader, out io.Writer, name, dir string) error {
	all := faults.All()
	f := all[rand.IntN(len(all))]
	if name != "" {
		var err error
		if f, err = faults.Find(name); err != nil {
			return err
		}
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o750)); err != nil {
		return err
	}
	fmt.Fprintln(out, "Starting two owners and a CoreDNS that follows both ...")
	w, err := faults.New(ctx, dir)
	if w != nil {
		defer w.End()
	}
	if err != nil {
		return err
	}
	if err := w.StartPager(ctx); err != nil {
		return err
	}
	firing, err := w.GoWrong(ctx, f)
	if err != nil {
		return err
	}
	began := time.Now()
	brief(out, w, f, firing)
	if err := enter(ctx, in); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nIt was (%s, after %v): %s\n", f.Name, time.Since(began).Round(time.Second), f.Cause)
	return nil
}

// enter waits for a line of input.
func enter(ctx context.Context, in io.Reader) error {
	line := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(in).ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		line <- err
	}()
	select {
	case err := <-line:
		return err
	case <-ctx.Done():
		return nil
	}
}

// brief shows what there is to begin with.
func brief(out io.Writer, w *faults.World, f faults.Fault, firing []string) {
	pager := strings.Join(firing, "\n  ")
	if !w.HasPager() {
		pager = "(there is no prometheus on this machine)"
	}
	fmt.Fprintf(out, `
It is three in the morning. The pager says:

  %s

and a user:

  %s

This is what you have:

  bin/federationctl why %s --at http://%s
  bin/federationctl status --at http://%[4]s
  http://%[4]s/       the status page of CoreDNS, in a browser
  http://%[5]s/       that of the owner east
  http://%[6]s/       that of the owner west
  http://%[7]s/metrics, http://%[8]s/metrics, http://%[9]s/metrics
  dig @127.0.0.1 -p %[10]s NAME
  docs/runbook.md, docs/symptoms.md, and the logs in %[11]s

Press Enter when you know what it is.
`, cmp.Or(pager, "(nothing)"), f.Complaint, f.Ask, w.DNS.Status, w.East.Status, w.West.Status,
		w.DNS.Metrics, w.East.Metrics, w.West.Metrics, w.DNS.Port, w.Dir)
}
