// Command clusters runs two clusters that federate, on one machine: west and east,
// each a control plane of Kubernetes with an owner and a CoreDNS. It shows that a
// Service exported in one of them is resolved in the other, or with -import becomes a
// Service of the other, and leaves all of it running until Ctrl-C.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

//go:embed west.yaml
var westObjects string

//go:embed east.yaml
var eastObjects string

const (
	patience = 2 * time.Minute      // bounds the wait for an answer
	interval = 2 * time.Millisecond // between two queries
)

func main() {
	once := flag.Bool("once", false, "end after the look-ups")
	dir := flag.String("dir", "run/clusters", "`folder` of all files; what is in it is removed")
	imports := flag.Bool("import", false, "show federationctl import instead of the plugin")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, *dir, *once, *imports)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "clusters:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, dir string, once, imports bool) error {
	if err := domain.Find(); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	s := &show{out: out}
	world := new(domain.Federation)
	defer world.Stop()
	defer func() {
		if s.importer != nil {
			_ = s.importer.Stop()
		}
	}()
	if err := world.Start(ctx, dir, s.sayf, domain.Options{Name: "west"}, domain.Options{Name: "east"}); err != nil {
		return err
	}
	west, east := world.Domains[0], world.Domains[1]
	tour := s.tour
	if imports {
		tour = s.importTour
	}
	if err := tour(ctx, west, east); err != nil {
		return err
	}
	if once {
		return nil
	}
	kubectl, err := realserver.FindKubectl()
	if err != nil {
		kubectl = "kubectl"
	}
	s.sayf(`
All of it is up. In another terminal:

  alias west='%[1]s --kubeconfig %[2]s' east='%[1]s --kubeconfig %[3]s'
  west get services,serviceexports -A
  west label service -n shop admin hamlet-federation.github.io/export=true
  bin/lookup -server %[4]s -wait 5s admin.shop.%[5]s A     (in east; or:)
  dig @127.0.0.1 -p %[6]s admin.shop.%[5]s
  west delete serviceexport -n shop db

What was applied is in test/suites/kubernetes/clusters, the logs and all other
files are in %[7]s. Ctrl-C ends it.`,
		short(kubectl), short(west.Cluster.Kubeconfig), short(east.Cluster.Kubeconfig),
		east.DNS.Address, west.Zone, port(east.DNS.Address), dir)
	return watch(ctx, world)
}

// watch waits until Ctrl-C, or until a process ends by itself.
func watch(ctx context.Context, world *domain.Federation) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for _, p := range world.Processes() {
			if !p.Running() {
				return fmt.Errorf("%s has ended; the end of %s:\n%s", p.Name, p.Log(), p.Tail())
			}
		}
	}
}

// show prints what is done, and what is answered.
type show struct {
	out      io.Writer
	importer *realserver.Process // nil unless it is shown
}

func (s *show) sayf(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// webExport is what west exports its Service web with.
const webExport = "{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceExport, metadata: {name: web, namespace: shop}}"

// tour shows what federation does.
func (s *show) tour(ctx context.Context, west, east *domain.Domain) error {
	s.sayf("Applying test/suites/kubernetes/clusters/west.yaml and east.yaml")
	for _, err := range []error{west.Cluster.Apply(ctx, westObjects), east.Cluster.Apply(ctx, eastObjects)} {
		if err != nil {
			return err
		}
	}
	steps := []func() error{
		func() error {
			s.sayf("\nA Service of west, exported with a ServiceExport. East has its address, and its port:")
			return errors.Join(s.ask(ctx, east, "web.shop."+west.Zone, dns.TypeA, 1), s.ask(ctx, east, "web.shop."+west.Zone, dns.TypeSRV, 1))
		},
		func() error {
			s.sayf("\nA StatefulSet of west, and one of its pods by name:")
			return errors.Join(s.ask(ctx, east, "db.shop."+west.Zone, dns.TypeA, 2), s.ask(ctx, east, "db-0.db.shop."+west.Zone, dns.TypeA, 1))
		},
		func() error {
			s.sayf("\nThe other way round, west asks for what east exports:")
			return errors.Join(
				s.ask(ctx, west, "api.billing."+east.Zone, dns.TypeSRV, 1),
				s.ask(ctx, west, "ledger-1.ledger.billing."+east.Zone, dns.TypeA, 1))
		},
		func() error {
			s.sayf("\ncluster.local stays local: west has its own Service, and east knows nothing of it:")
			return errors.Join(
				s.ask(ctx, west, "web.shop.svc."+domain.ClusterZone, dns.TypeA, 1),
				s.ask(ctx, east, "web.shop.svc."+domain.ClusterZone, dns.TypeA, 0))
		},
		func() error {
			s.sayf("\nA Service that is not exported:")
			return s.ask(ctx, east, "admin.shop."+west.Zone, dns.TypeA, 0)
		},
		func() error {
			s.sayf("\nWest deletes the ServiceExport of web, and creates it again:")
			return errors.Join(
				s.timed(ctx, func() error { return west.Cluster.Delete(ctx, webExport) }, east, "web.shop."+west.Zone, 0),
				s.timed(ctx, func() error { return west.Cluster.Apply(ctx, webExport) }, east, "web.shop."+west.Zone, 1))
		},
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// timed is ask behind a change, and says how long after the change the answer came.
func (s *show) timed(ctx context.Context, change func() error, d *domain.Domain, name string, answers int) error {
	if err := change(); err != nil {
		return err
	}
	begin := time.Now()
	err := s.ask(ctx, d, name, dns.TypeA, answers)
	s.sayf("    (%v after the API server had taken it)", time.Since(begin).Round(time.Millisecond))
	return err
}

// ask asks the CoreDNS of a domain until there is this number of answers, and prints
// the reply. With 0 it asks until the name does not exist.
func (s *show) ask(ctx context.Context, d *domain.Domain, name string, qtype uint16, answers int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		reply, err := d.DNS.Ask(ctx, name, qtype)
		if err == nil && len(reply.Answer) == answers && (answers > 0 || reply.Rcode == dns.RcodeNameError) {
			s.print(d, name, reply)
			return nil
		}
		select {
		case <-ctx.Done():
			answer := fmt.Sprint(err)
			if err == nil {
				answer = domain.Short(reply)
			}
			return fmt.Errorf("%s, asked for %s: %s, %w", d.Name, name, answer, ctx.Err())
		case <-ticker.C:
		}
	}
}

// print prints a question as a command, and the reply.
func (s *show) print(d *domain.Domain, name string, reply *dns.Msg) {
	qtype := dns.TypeToString[reply.Question[0].Qtype]
	s.sayf("  %s$ dig @127.0.0.1 -p %s %s %s", d.Name, port(d.DNS.Address), name, qtype)
	if len(reply.Answer) == 0 {
		s.sayf("    %s", dns.RcodeToString[reply.Rcode])
	}
	for _, rr := range reply.Answer {
		s.sayf("    %s", strings.Join(strings.Fields(rr.String()), " "))
	}
}

func port(address string) string { return address[strings.LastIndex(address, ":")+1:] }

// short returns a path as it is from the working directory, where that is shorter.
func short(path string) string {
	dir, err := os.Getwd()
	if err != nil {
		return path
	}
	if relative, err := filepath.Rel(dir, path); err == nil && len(relative) < len(path) {
		return relative
	}
	return path
}
