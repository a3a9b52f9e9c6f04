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
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	name := flag.String("fault", "", "`name` of the fault; by default one is chosen at random")
	names := flag.Bool("names", false, "show the names of the faults, and end")
	dir := flag.String("dir", "run/drill", "`folder` of all files; what is in it is removed")
	flag.Parse()
	if *names {
		for _, f := range faults() {
			fmt.Fprintln(os.Stdout, f.name)
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
	all := faults()
	f := all[rand.IntN(len(all))]
	if name != "" {
		var err error
		if f, err = find(name); err != nil {
			return err
		}
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o750)); err != nil {
		return err
	}
	fmt.Fprintln(out, "Starting two owners and a CoreDNS that follows both ...")
	w, err := newWorld(ctx, dir)
	if w != nil {
		defer w.end()
	}
	if err != nil {
		return err
	}
	firing, err := w.goWrong(ctx, f)
	if err != nil {
		return err
	}
	began := time.Now()
	w.brief(out, f, firing)
	if err := enter(ctx, in); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nIt was (%s, after %v): %s\n", f.name, time.Since(began).Round(time.Second), f.cause)
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

// goWrong makes a fault happen, waits until it shows, and returns the alerts that fire.
func (w *world) goWrong(ctx context.Context, f fault) (firing []string, err error) {
	if f.since && w.prometheus != nil {
		if err := eventually(ctx, w.watched); err != nil {
			return nil, err
		}
	}
	if err := f.happen(ctx, w); err != nil {
		return nil, err
	}
	err = eventually(ctx, func(ctx context.Context) error { return w.answers(ctx, f.ask, f.shows) })
	if err != nil || w.prometheus == nil || f.alert == "" {
		return nil, err
	}
	err = eventually(ctx, func(ctx context.Context) (err error) {
		firing, err = w.alerts(ctx)
		if err == nil && !slices.ContainsFunc(firing, func(text string) bool { return strings.HasPrefix(text, f.alert+" ") }) {
			err = fmt.Errorf("%s does not fire; what does: %q", f.alert, firing)
		}
		return err
	})
	return firing, err
}

// watched fails unless the pager has watched everything for what is a quarter of an hour to
// its alerts.
func (w *world) watched(ctx context.Context) error {
	text, err := read(ctx, "http://"+w.pager+"/api/v1/query?query="+url.QueryEscape("count(up offset 15s == 1) == 3"))
	if err == nil && !strings.Contains(string(text), `"3"`) {
		err = fmt.Errorf("watched for less than 15 s: %s", text)
	}
	return err
}

// alerts returns the alerts that fire, each with its summary and its runbook.
func (w *world) alerts(ctx context.Context) ([]string, error) {
	text, err := read(ctx, "http://"+w.pager+"/api/v1/alerts")
	if err != nil {
		return nil, err
	}
	var reply struct {
		Data struct {
			Alerts []struct {
				State       string            `json:"state"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"alerts"`
		} `json:"data"`
	}
	if err := json.Unmarshal(text, &reply); err != nil {
		return nil, err
	}
	var firing []string
	for _, a := range reply.Data.Alerts {
		if a.State == "firing" {
			firing = append(firing, fmt.Sprintf("%s (%s): %s\n    %s", a.Labels["alertname"], a.Labels["severity"],
				a.Annotations["summary"], a.Annotations["runbook_url"]))
		}
	}
	slices.Sort(firing)
	return firing, nil
}

// brief shows what there is to begin with.
func (w *world) brief(out io.Writer, f fault, firing []string) {
	pager := strings.Join(firing, "\n  ")
	if w.prometheus == nil {
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
  docs/operating.md, and the logs in %[11]s

Press Enter when you know what it is.
`, cmp.Or(pager, "(nothing)"), f.complaint, f.ask, w.dns.status, w.east.status, w.west.status,
		w.dns.metrics, w.east.metrics, w.west.metrics, w.dns.port, w.dir)
}
