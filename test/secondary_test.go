package test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// program returns the path of a program of another project, which is in the Debian
// package pkg. Where it is not installed the test is skipped, except in CI.
func program(t testing.TB, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	path = filepath.Join("/usr/sbin", name) // may not be in PATH
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is not installed; it is in the package %s", name, pkg)
	}
	t.Skipf("%s is not installed; it is in the package %s", name, pkg)
	return ""
}

// startServer runs a program of another project until the test ends.
func startServer(t testing.TB, name, pkg, dir string, args ...string) *realserver.Process {
	t.Helper()
	p := &realserver.Process{Name: name, Path: program(t, name, pkg), Dir: dir, Args: args}
	p.StartFor(t)
	return p
}

// startNSD runs NSD as a secondary of the zone at primary.
func startNSD(t testing.TB, address, zone, primary string) *realserver.Process {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "nsd.conf")
	writeFile(t, config, fmt.Sprintf(`server:
	ip-address: %[1]s
	username: ""
	chroot: ""
	zonesdir: "%[2]s"
	zonelistfile: "%[2]s/zone.list"
	database: ""
	pidfile: "%[2]s/nsd.pid"
	xfrdir: "%[2]s"
	xfrdfile: "%[2]s/xfrd.state"
	server-count: 1
	rrl-ratelimit: 0
	verbosity: 1
remote-control:
	control-enable: no
zone:
	name: "%[3]s"
	request-xfr: %[4]s NOKEY
	allow-notify: 127.0.0.1 NOKEY
	provide-xfr: 127.0.0.1 NOKEY
`, strings.Replace(address, ":", "@", 1), dir, zone, strings.Replace(primary, ":", "@", 1)))
	return startServer(t, "nsd", "nsd", dir, "-d", "-c", config)
}

// startKnot runs Knot DNS as a secondary of the zone at primary. It checks the zone
// that each transfer makes.
func startKnot(t testing.TB, address, zone, primary string) *realserver.Process {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "knot.conf")
	writeFile(t, config, fmt.Sprintf(`server:
  rundir: "%[2]s"
  listen: %[1]s
log:
  - target: stderr
    any: info
database:
  storage: "%[2]s"
remote:
  - id: primary
    address: %[4]s
acl:
  - id: primary
    address: 127.0.0.1
    action: [notify, transfer]
zone:
  - domain: "%[3]s"
    storage: "%[2]s"
    master: primary
    acl: primary
    semantic-checks: on
`, strings.Replace(address, ":", "@", 1), dir, zone, strings.Replace(primary, ":", "@", 1)))
	return startServer(t, "knotd", "knot", dir, "-c", config)
}

// transferZone asks for all of a zone, as a secondary does.
func transferZone(t testing.TB, address, zone string) (all []dns.RR) {
	t.Helper()
	envelopes := must.Get((&dns.Transfer{ReadTimeout: await.Patience}).In(new(dns.Msg).SetAxfr(zone), address))(t)
	for e := range envelopes {
		must.Do(t, e.Error)
		all = append(all, e.RR...)
	}
	return all
}

// outgoing is what the plugin transfer logs of a transfer that has more than the SOA.
var outgoing = regexp.MustCompile(`Outgoing transfer of (\d+) records of zone "fed\.example\." to `)

// TestSecondaries lets other name servers transfer a federated zone. They must take it, give the
// same answers, and follow its changes by differences (RFC 1995), until a reload. What a difference
// has is in packages zone and plugin.
func TestSecondaries(t *testing.T) {
	t.Parallel()
	program(t, "nsd", "nsd")
	program(t, "knotd", "knot")
	p := newPlace(t)
	hosts := startNameserver(t, map[string]string{"gw.example.net.": "20 A 198.51.100.7"})
	o := startOwner(t, p, firstOwner()...)
	addresses := []string{loopback.Address(t), loopback.Address(t)}
	corefile := federationBlock(p, "fed.example", "transfer {\n\tto "+strings.Join(addresses, " ")+"\n}", o.address) +
		fmt.Sprintf(".:PORT {\n\tbind 127.0.0.1\n\tforward . %s\n}", hosts)
	d := startCoreDNS(t, corefile)
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	startNSD(t, addresses[0], "fed.example", d.address)
	knot := startKnot(t, addresses[1], "fed.example", d.address)
	all := transferZone(t, d.address, "fed.example.")
	for _, address := range addresses {
		(&coreDNS{address: address}).awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
		compareServers(t, all, d.address, address)
	}

	// wholes returns how often all of the zone was transferred, or most of it.
	wholes := func() (n int) {
		for _, match := range outgoing.FindAllStringSubmatch(string(must.Get(os.ReadFile(d.Log()))(t)), -1) {
			if must.Get(strconv.Atoi(match[1]))(t) > len(all)/2 {
				n++
			}
		}
		return n
	}
	n := 0
	// follow changes the zone, and waits until the secondaries have that and no serial moves.
	follow := func() {
		t.Helper()
		n++
		mustUpsert(t, o, fixtureService("moving", "moving.fed.example", []string{fmt.Sprintf("192.0.2.9:%d", 1000+n)}, []string{"v1 HTTPS"}))
		for _, address := range addresses {
			await.Eventually(t, func() string {
				var said [2]string
				for i, server := range []string{d.address, address} {
					soa, err := query(server, "fed.example", dns.TypeSOA)
					moving, err2 := query(server, "moving.fed.example", dns.TypeSRV)
					if err != nil || err2 != nil {
						return fmt.Sprint(err, err2)
					}
					said[i] = summary(soa) + summary(moving)
				}
				if want := fmt.Sprintf(" %d 192-0-2-9.addr.moving.", 1000+n); said[0] != said[1] || !strings.Contains(said[1], want) {
					return fmt.Sprintf("%s says %s, want %s", address, said[1], said[0])
				}
				return ""
			})
		}
	}
	follow() // the first serial of a process is not kept
	follow()
	before := wholes()
	o.Delete("s-eight")
	follow()
	for _, address := range addresses {
		(&coreDNS{address: address}).awaitAnswer(t, "eight.fed.example", dns.TypeA, "NXDOMAIN")
	}
	if got := wholes() - before; got != 0 {
		t.Errorf("%d whole zones were transferred for a change", got)
	}
	awaitLog(t, knot, 1, "IXFR, incoming", "finished")
	d.reload(t, corefile)
	follow()                            // the serials of another configuration are not kept
	await.Eventually(t, func() string { // the line of the log comes after the transfer
		if wholes() == before {
			return "after a reload no whole zone was transferred"
		}
		return ""
	})
}

// lines returns records as text, sorted.
func lines(rrs []dns.RR) []string {
	all := make([]string, len(rrs))
	for i, rr := range rrs {
		all[i] = rr.String()
	}
	slices.Sort(all)
	return all
}

// compareServers asks two servers for every name of a transferred zone, and for
// some that are not in it. Below dns.<zone> there is nothing to transfer: the
// server is bound to loopback only, so its name has no address.
func compareServers(t *testing.T, zone []dns.RR, ours, theirs string) {
	t.Helper()
	names := make(map[string]bool) // to whether one of its hosts is elsewhere, so that a transfer lacks addresses
	for _, rr := range zone {
		srv, ok := rr.(*dns.SRV)
		names[rr.Header().Name] = names[rr.Header().Name] || ok && !dns.IsSubDomain("fed.example.", srv.Target)
	}
	for _, name := range []string{
		"x.dns", "b", "a.b", "x.b", "nope", "*", "*.web", "_tcp.web", "_udp.web", "_grpc._tcp.web", "addr.web", "192-0-2-2.addr.web",
		"r1.deep.a.b", "x.v1.web", "_tcp.v1.web",
	} {
		names[name+".fed.example."] = false
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeSOA, dns.TypeNS, dns.TypeMX, dns.TypeCNAME} {
			if names[name] && (qtype == dns.TypeA || qtype == dns.TypeAAAA) {
				continue
			}
			// A secondary that takes a new version answers with the old one until then, and
			// may close the connections to it.
			await.Eventually(t, func() string {
				var replies [2]string
				for i, address := range []string{ours, theirs} {
					var err error
					if replies[i], err = transferred(address, name, qtype); err != nil {
						return fmt.Sprintf("%s %s of %s: %v", name, dns.TypeToString[qtype], address, err)
					}
				}
				if d := cmp.Diff(replies[0], replies[1]); d != "" {
					return fmt.Sprintf("%s %s (-ours +theirs):\n%s", name, dns.TypeToString[qtype], d)
				}
				return ""
			})
		}
	}
	t.Logf("%d names", len(names))
}

// transferred returns the parts of a reply that follow from the transferred zone:
// code, flags and answers, or the authority section where there are none. The
// serial is left out, as a newer one may be on its way.
func transferred(address, name string, qtype uint16) (string, error) {
	m, err := exchange("tcp", address, new(dns.Msg).SetQuestion(name, qtype))
	if err != nil {
		return "", err
	}
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		if soa, ok := rr.(*dns.SOA); ok {
			soa.Serial = 0
		}
	}
	said := append([]string{dns.RcodeToString[m.Rcode], fmt.Sprint(m.Authoritative, m.Truncated)}, lines(m.Answer)...)
	if len(m.Answer) == 0 {
		said = append(said, lines(m.Ns)...)
	}
	return strings.Join(said, "\n"), nil
}
