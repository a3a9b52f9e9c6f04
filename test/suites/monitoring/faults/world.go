package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// The identities of the certificates.
const (
	eastID    = "spiffe://east.example/owner"
	westID    = "spiffe://west.example/owner"
	coreDNSID = "spiffe://here.example/coredns"
)

const interval = 50 * time.Millisecond // between two looks at what is waited for

// World is what the person on call is responsible for: two owners, a CoreDNS that follows
// both, and a Prometheus that watches all of it, where there is one.
type World struct {
	*place.Place

	Bin  string // folder of coredns and federationctl
	East *Owner
	West *Owner
	DNS  *CoreDNS

	prometheus *realserver.Process // nil: there is none on this machine
	pager      string              // its address
}

// Owner is a federationctl serve.
type Owner struct {
	*realserver.Process

	Name    string // of its files
	Metrics string
	Status  string

	id      string
	address string // of its consumers
}

// CoreDNS is a CoreDNS with the plugin.
type CoreDNS struct {
	*realserver.Process
	domain.DNS

	Port    string // of its Address
	Metrics string
	Status  string
}

// New starts owners and CoreDNS, with their files in dir. It must be ended with End, also
// after an error.
func New(ctx context.Context, dir string) (*World, error) {
	root, err := realserver.Root()
	if err != nil {
		return nil, err
	}
	w := &World{Bin: filepath.Join(root, "bin")}
	if w.Place, err = place.New(dir); err != nil {
		return w, err
	}
	if w.East, err = w.newOwner(ctx, "east", eastID); err != nil {
		return w, err
	}
	if w.West, err = w.newOwner(ctx, "west", westID); err != nil {
		return w, err
	}
	return w, w.newCoreDNS(ctx)
}

// End ends every process.
func (w *World) End() {
	for _, p := range w.processes() {
		p.Kill() // there is nothing to save
	}
}

func (w *World) processes() []*realserver.Process {
	var all []*realserver.Process
	for _, o := range []*Owner{w.East, w.West} {
		if o != nil {
			all = append(all, o.Process)
		}
	}
	if w.DNS != nil {
		all = append(all, w.DNS.Process)
	}
	if w.prometheus != nil {
		all = append(all, w.prometheus)
	}
	return all
}

// addresses returns free addresses of loopback.
func addresses(all ...*string) error {
	for _, at := range all {
		address, err := loopback.FreeAddress()
		if err != nil {
			return err
		}
		*at = address
	}
	return nil
}

// newOwner starts an owner with the two usual services of its domain.
func (w *World) newOwner(ctx context.Context, name, id string) (*Owner, error) {
	o := &Owner{Name: name, id: id}
	if err := addresses(&o.address, &o.Metrics, &o.Status); err != nil {
		return nil, err
	}
	if err := errors.Join(w.Issue(name, id, 0), w.Write(name+"-allow.txt", coreDNSID+"\n"), w.publish(o, usual(name)...), w.configure(o, "")); err != nil {
		return nil, err
	}
	o.Process = &realserver.Process{
		Name: name, Path: filepath.Join(w.Bin, "federationctl"), Dir: w.Dir, Args: []string{"serve", "--config", name + ".yaml"},
		Ready: func(ctx context.Context) error { return get(ctx, "http://"+o.Metrics+"/readyz") },
	}
	return o, o.Start(ctx)
}

// configure writes the configuration of an owner, with more keys of its one catalog.
func (w *World) configure(o *Owner, more string) error {
	return w.Write(o.Name+".yaml", fmt.Sprintf(`listen: %q
metrics: %q
status: %q
identity:
  files: {cert: %[4]s.pem, key: %[4]s-key.pem, ca: ca.pem}
allow:
  file: %[4]s-allow.txt
catalogs:
- sources:
  - file: {path: %[4]s-catalog.yaml}
%[5]s`, o.address, o.Metrics, o.Status, o.Name, more))
}

// service is what a catalog says of one service.
type service struct{ name, zone, address, label string }

func (s service) fqdn() string { return s.name + "." + s.zone + ".fed.example" }

// usual returns the services that a domain publishes on a quiet day.
func usual(zone string) []service {
	last := map[string]string{"east": "1", "west": "2"}[zone]
	return []service{
		{"bank", zone, "192.0.2.1" + last, "gold"}, {"shop", zone, "192.0.2.2" + last, "gold"}, {"stock", zone, "192.0.2.3" + last, "gold"},
	}
}

// publish writes the catalog of an owner.
func (w *World) publish(o *Owner, all ...service) error {
	var text strings.Builder
	text.WriteString("services:\n")
	for _, s := range all {
		fmt.Fprintf(&text, "- name: %s\n  fqdn: %s\n  labels: {tier: %s}\n  endpoints: [{address: %s, port: 443}]\n  instances: [{id: v1, protocol: HTTPS}]\n",
			s.name, s.fqdn(), s.label, s.address)
	}
	return w.Write(o.Name+"-catalog.yaml", text.String())
}

// newCoreDNS starts a CoreDNS that follows both owners: east in its own zone and in the
// shared one, before west.
func (w *World) newCoreDNS(ctx context.Context) error {
	c := &CoreDNS{}
	if err := errors.Join(addresses(&c.Address, &c.Metrics, &c.Status), w.Issue("coredns", coreDNSID, 0)); err != nil {
		return err
	}
	var err error
	if _, c.Port, err = net.SplitHostPort(c.Address); err != nil {
		return err
	}
	block := func(o *Owner) string {
		return fmt.Sprintf(`    federation %s.fed.example shared.fed.example {
        owner %s
        tls coredns.pem coredns-key.pem ca.pem
        owner_id %s
        status %s
        retention 2m
        import_labels tier=gold
        ttl 5
        negative_ttl 1
    }
`, o.Name, o.address, o.id, c.Status)
	}
	corefile := fmt.Sprintf("fed.example:%s {\n    bind 127.0.0.1\n    errors\n    prometheus %s\n%s%s}\n", c.Port, c.Metrics, block(w.East), block(w.West))
	if err := w.Write("Corefile", corefile); err != nil {
		return err
	}
	c.Process = &realserver.Process{
		Name: "coredns", Path: filepath.Join(w.Bin, "coredns"), Dir: w.Dir, Args: []string{"-conf", "Corefile"},
		Ready: func(ctx context.Context) error {
			for _, s := range append(usual("east"), usual("west")...) {
				if got := c.Answer(ctx, s.fqdn(), dns.TypeA); got != "NOERROR "+s.address {
					return fmt.Errorf("%s: %s", s.fqdn(), got)
				}
			}
			return nil
		},
	}
	w.DNS = c
	return c.Start(ctx)
}

// What makes alerts wait: until they fire, and how far they look back.
var (
	pending = regexp.MustCompile(`(?m)^(\s*for:) .*$`)
	window  = regexp.MustCompile(`(\[|offset )(\d+)m`)
)

// StartPager starts a Prometheus with the alerts of the project, for which a minute is a
// second and which then fire at once. Without a prometheus on this machine it does nothing.
func (w *World) StartPager(ctx context.Context) error {
	path, err := exec.LookPath("prometheus")
	if err != nil {
		return nil //nolint:nilerr // the pager is silent then, and the complaint of a user has to do
	}
	text, err := os.ReadFile(filepath.Join(w.Bin, "..", "deploy", "monitoring", "rules.yaml"))
	if err != nil {
		return err
	}
	if err := addresses(&w.pager); err != nil {
		return err
	}
	config := fmt.Sprintf(`global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [rules.yaml]
scrape_configs:
- job_name: coredns
  static_configs: [{targets: [%q]}]
- job_name: federation-owner
  static_configs: [{targets: [%q, %q]}]
`, w.DNS.Metrics, w.East.Metrics, w.West.Metrics)
	if err := errors.Join(w.Write("rules.yaml", window.ReplaceAllString(pending.ReplaceAllString(string(text), "$1 1s"), "${1}${2}s")), w.Write("prometheus.yaml", config)); err != nil {
		return err
	}
	w.prometheus = &realserver.Process{
		Name: "prometheus", Path: path, Dir: w.Dir,
		Args:  []string{"--config.file=prometheus.yaml", "--storage.tsdb.path=tsdb", "--web.listen-address=" + w.pager},
		Ready: func(ctx context.Context) error { return get(ctx, "http://"+w.pager+"/-/ready") },
	}
	return w.prometheus.Start(ctx)
}

// HasPager reports whether StartPager has started it.
func (w *World) HasPager() bool { return w.prometheus != nil }

// GoWrong makes a fault happen, waits until it shows, and returns the alerts that fire.
func (w *World) GoWrong(ctx context.Context, f Fault) (firing []string, err error) {
	if f.since && w.prometheus != nil {
		if err := Eventually(ctx, w.watched); err != nil {
			return nil, err
		}
	}
	if err := f.happen(ctx, w); err != nil {
		return nil, err
	}
	err = Eventually(ctx, func(ctx context.Context) error { return w.answers(ctx, f.Ask, f.Shows) })
	if err != nil || w.prometheus == nil || len(f.Alerts) == 0 {
		return nil, err
	}
	err = Eventually(ctx, func(ctx context.Context) (err error) {
		firing, err = w.alerts(ctx)
		for _, a := range f.Alerts {
			if err == nil && !slices.ContainsFunc(firing, func(text string) bool { return strings.HasPrefix(text, a.Name+" ") }) {
				err = fmt.Errorf("%s does not fire; what does: %q", a.Name, firing)
			}
		}
		return err
	})
	return firing, err
}

// Mend ends a fault, and waits until all is as usual.
func (w *World) Mend(ctx context.Context, f Fault) error {
	for _, o := range []*Owner{w.East, w.West} {
		if err := errors.Join(w.Write(o.Name+"-allow.txt", coreDNSID+"\n"), w.publish(o, usual(o.Name)...), w.configure(o, "")); err != nil {
			return err
		}
	}
	if f.mend != nil {
		if err := f.mend(ctx, w); err != nil {
			return err
		}
	}
	return Eventually(ctx, w.DNS.Ready)
}

// watched fails unless the pager has watched everything for what is a quarter of an hour to
// its alerts.
func (w *World) watched(ctx context.Context) error {
	text, err := read(ctx, "http://"+w.pager+"/api/v1/query?query="+url.QueryEscape("count(up offset 15s == 1) == 3"))
	if err == nil && !strings.Contains(string(text), `"3"`) {
		err = fmt.Errorf("watched for less than 15 s: %s", text)
	}
	return err
}

// alerts returns the alerts that fire, each with its summary and its runbook.
func (w *World) alerts(ctx context.Context) ([]string, error) {
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

// get fails unless a page is there.
func get(ctx context.Context, url string) error {
	_, err := read(ctx, url)
	return err
}

// read returns a page.
func read(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, text)
	}
	return text, err
}

// Eventually waits until check returns nil.
func Eventually(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain: %w", err)
		case <-ticker.C:
		}
	}
}
