package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/domain"
	"github.com/hamlet-federation/coredns-federation/test/loopback"
	"github.com/hamlet-federation/coredns-federation/test/realserver"
)

// The identities of the certificates.
const (
	eastID    = "spiffe://east.example/owner"
	westID    = "spiffe://west.example/owner"
	coreDNSID = "spiffe://here.example/coredns"
)

const interval = 50 * time.Millisecond // between two looks at what is waited for

// world is what the person on call is responsible for: two owners, a CoreDNS that follows
// both, and a Prometheus that watches all of it, where there is one.
type world struct {
	dir  string
	bin  string // folder of coredns and federationctl
	east *owner
	west *owner
	dns  *coreDNS

	authority  *mtls.Authority
	prometheus *realserver.Process // nil: there is none on this machine
	pager      string              // its address
}

// owner is a federationctl serve.
type owner struct {
	*realserver.Process

	name    string // of its files
	id      string
	address string // of its consumers
	metrics string
	status  string
}

// coreDNS is a CoreDNS with the plugin.
type coreDNS struct {
	*realserver.Process
	domain.DNS

	port    string // of its Address
	metrics string
	status  string
}

// newWorld starts all of it, with its files in dir. It must be ended with end, also after
// an error.
func newWorld(ctx context.Context, dir string) (*world, error) {
	root, err := realserver.Root()
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir, bin: filepath.Join(root, "bin")}
	if w.authority, err = mtls.NewAuthority("drill", 30*24*time.Hour); err != nil {
		return w, err
	}
	if w.east, err = w.newOwner(ctx, "east", eastID); err != nil {
		return w, err
	}
	if w.west, err = w.newOwner(ctx, "west", westID); err != nil {
		return w, err
	}
	if err := w.newCoreDNS(ctx); err != nil {
		return w, err
	}
	return w, w.newPrometheus(ctx, filepath.Join(root, "deploy", "monitoring", "rules.yaml"))
}

// end ends every process.
func (w *world) end() {
	for _, p := range w.processes() {
		p.Kill() // there is nothing to save
	}
}

func (w *world) processes() []*realserver.Process {
	var all []*realserver.Process
	for _, o := range []*owner{w.east, w.west} {
		if o != nil {
			all = append(all, o.Process)
		}
	}
	if w.dns != nil {
		all = append(all, w.dns.Process)
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

// pem returns the files of a certificate.
func (w *world) pem(name string) mtls.Files {
	in := func(file string) string { return filepath.Join(w.dir, file) }
	return mtls.Files{Cert: in(name + ".pem"), Key: in(name + "-key.pem"), CA: in("ca.pem")}
}

// issue writes a certificate.
func (w *world) issue(name, id string) error {
	issued, err := w.authority.Issue(mtls.Leaf{Name: name, URIs: []string{id}, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	if err != nil {
		return err
	}
	return issued.WriteFiles(w.pem(name))
}

// write writes a file as a whole: what follows it never sees a part.
func (w *world) write(name, text string) error {
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path+".part", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// newOwner starts an owner with the two usual services of its domain.
func (w *world) newOwner(ctx context.Context, name, id string) (*owner, error) {
	o := &owner{name: name, id: id}
	if err := addresses(&o.address, &o.metrics, &o.status); err != nil {
		return nil, err
	}
	if err := errors.Join(w.issue(name, id), w.write(name+"-allow.txt", coreDNSID+"\n"), w.publish(o, usual(name)...), w.configure(o, "")); err != nil {
		return nil, err
	}
	o.Process = &realserver.Process{
		Name: name, Path: filepath.Join(w.bin, "federationctl"), Dir: w.dir, Args: []string{"serve", "--config", name + ".yaml"},
		Ready: func(ctx context.Context) error { return get(ctx, "http://"+o.metrics+"/readyz") },
	}
	return o, o.Start(ctx)
}

// configure writes the configuration of an owner, with more keys of its one catalog.
func (w *world) configure(o *owner, more string) error {
	return w.write(o.name+".yaml", fmt.Sprintf(`listen: %q
metrics: %q
status: %q
identity:
  files: {cert: %[4]s.pem, key: %[4]s-key.pem, ca: ca.pem}
allow:
  file: %[4]s-allow.txt
catalogs:
- sources:
  - file: {path: %[4]s-catalog.yaml}
%[5]s`, o.address, o.metrics, o.status, o.name, more))
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
func (w *world) publish(o *owner, all ...service) error {
	var text strings.Builder
	text.WriteString("services:\n")
	for _, s := range all {
		fmt.Fprintf(&text, "- name: %s\n  fqdn: %s\n  labels: {tier: %s}\n  endpoints: [{address: %s, port: 443}]\n  instances: [{id: v1, protocol: HTTPS}]\n",
			s.name, s.fqdn(), s.label, s.address)
	}
	return w.write(o.name+"-catalog.yaml", text.String())
}

// newCoreDNS starts a CoreDNS that follows both owners: east in its own zone and in the
// shared one, before west.
func (w *world) newCoreDNS(ctx context.Context) error {
	c := &coreDNS{}
	if err := errors.Join(addresses(&c.Address, &c.metrics, &c.status), w.issue("coredns", coreDNSID)); err != nil {
		return err
	}
	var err error
	if _, c.port, err = net.SplitHostPort(c.Address); err != nil {
		return err
	}
	block := func(o *owner) string {
		return fmt.Sprintf(`    federation %s.fed.example shared.fed.example {
        owner %s
        tls coredns.pem coredns-key.pem ca.pem
        owner_id %s
        status %s
        keepalive 10s
        retention 2m
        import_labels tier=gold
        ttl 5
        negative_ttl 1
    }
`, o.name, o.address, o.id, c.status)
	}
	corefile := fmt.Sprintf("fed.example:%s {\n    bind 127.0.0.1\n    errors\n    prometheus %s\n%s%s}\n", c.port, c.metrics, block(w.east), block(w.west))
	if err := w.write("Corefile", corefile); err != nil {
		return err
	}
	c.Process = &realserver.Process{
		Name: "coredns", Path: filepath.Join(w.bin, "coredns"), Dir: w.dir, Args: []string{"-conf", "Corefile"},
		Ready: func(ctx context.Context) error {
			for _, s := range append(usual("east"), usual("west")...) {
				if got := c.Answer(ctx, s.fqdn(), dns.TypeA); got != "NOERROR "+s.address {
					return fmt.Errorf("%s: %s", s.fqdn(), got)
				}
			}
			return nil
		},
	}
	w.dns = c
	return c.Start(ctx)
}

// What makes alerts wait: until they fire, and how far they look back.
var (
	pending = regexp.MustCompile(`(?m)^(\s*for:) .*$`)
	window  = regexp.MustCompile(`(\[|offset )(\d+)m`)
)

// newPrometheus starts a Prometheus with the alerts of the project, for which a minute is a
// second and which then fire at once.
func (w *world) newPrometheus(ctx context.Context, rules string) error {
	path, err := exec.LookPath("prometheus")
	if err != nil {
		return nil //nolint:nilerr // the pager is silent then, and the complaint of a user has to do
	}
	text, err := os.ReadFile(rules)
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
`, w.dns.metrics, w.east.metrics, w.west.metrics)
	if err := errors.Join(w.write("rules.yaml", window.ReplaceAllString(pending.ReplaceAllString(string(text), "$1 1s"), "${1}${2}s")), w.write("prometheus.yaml", config)); err != nil {
		return err
	}
	w.prometheus = &realserver.Process{
		Name: "prometheus", Path: path, Dir: w.dir,
		Args:  []string{"--config.file=prometheus.yaml", "--storage.tsdb.path=tsdb", "--web.listen-address=" + w.pager},
		Ready: func(ctx context.Context) error { return get(ctx, "http://"+w.pager+"/-/ready") },
	}
	return w.prometheus.Start(ctx)
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

// eventually waits until check returns nil.
func eventually(ctx context.Context, check func(context.Context) error) error {
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
