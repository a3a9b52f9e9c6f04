package test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

// site is an owner that shares a name: federationctl serve with a catalog file.
type site struct {
	*process

	name, fqdn string
	files      *pki
	address    string // of the process
	catalog    string // path
}

// startSite starts a site whose one service has the fqdn.
func startSite(t *testing.T, p *pki, name, fqdn string, endpoints ...string) *site {
	t.Helper()
	s := &site{name: name, fqdn: fqdn, files: p, address: freeAddress(t), catalog: filepath.Join(t.TempDir(), "catalog.yaml")}
	s.write(t, endpoints...)
	s.start(t)
	return s
}

// write replaces the endpoints of the service, which is there while it has some. The last
// octet of an address stands for it, and "@" for that its endpoint has the label zone/near.
func (s *site) write(t *testing.T, endpoints ...string) {
	t.Helper()
	all := make([]string, len(endpoints))
	for i, e := range endpoints {
		octet, near := strings.CutSuffix(e, "@")
		label := ""
		if near {
			label = "zone/near"
		}
		all[i] = fmt.Sprintf("{address: 192.0.2.%s, port: 80, labels: [%s]}", octet, label)
	}
	content := "services: []\n"
	if len(all) > 0 {
		content = fmt.Sprintf("services:\n- {name: %s, fqdn: %s, endpoints: [%s], instances: [{id: %[1]s, protocol: HTTP}]}\n", s.name, s.fqdn, strings.Join(all, ", "))
	}
	writeFile(t, s.catalog, content)
}

// start starts the process, or another one after its end, and waits until it takes connections.
func (s *site) start(t *testing.T) {
	t.Helper()
	s.process = serveCatalog(t, s.address, s.catalog, s.files.owner)
	eventually(t, patience, func() string {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			return err.Error()
		}
		_ = conn.Close()
		return ""
	})
}

// owner returns the owner as federationBlock takes it.
func (s *site) owner(properties string) string {
	return s.address + " share " + s.fqdn + "\n" + properties
}

// answerOf returns the answer that has these addresses, in the form of summary.
func answerOf(octets ...string) string {
	all := make([]string, len(octets))
	for i, o := range octets {
		all[i] = "192.0.2." + strings.TrimSuffix(o, "@")
	}
	slices.Sort(all)
	return "NOERROR " + strings.Join(all, " ")
}

// priorities returns the answer to SRV as OCTET:PRIORITY.
func priorities(m *dns.Msg) string {
	var all []string
	for _, rr := range m.Answer {
		if srv, ok := rr.(*dns.SRV); ok {
			label, _, _ := strings.Cut(srv.Target, ".")
			all = append(all, fmt.Sprintf("%s:%d", label[strings.LastIndexByte(label, '-')+1:], srv.Priority))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// unlike returns "" once a server answers as wanted: the addresses of a name, and if that is
// not empty its SRV records. It says what is different until then.
func unlike(address, name, want, srv string) string {
	m, err := query(address, name, dns.TypeA, withEDNS)
	if err != nil {
		return err.Error()
	}
	if got := summary(m); got != want {
		return fmt.Sprintf("%s answers %s with %s, want %s", address, name, got, want)
	}
	if srv == "" {
		return ""
	}
	if m, err = query(address, name, dns.TypeSRV, withEDNS); err != nil {
		return err.Error()
	}
	if got := priorities(m); got != srv {
		return fmt.Sprintf("%s answers SRV of %s with %s, want %s", address, name, got, srv)
	}
	return ""
}

// fleet are the addresses of name servers that follow the same owners.
type fleet []string

// await waits until all of them answer as wanted.
func (f fleet) await(t *testing.T, name, want, srv string) {
	t.Helper()
	eventually(t, patience, func() string {
		var whys []string
		for _, address := range f {
			if why := unlike(address, name, want, srv); why != "" {
				whys = append(whys, why)
			}
		}
		return strings.Join(whys, "; ")
	})
}

// TestSharedNames has sites share names: of two the endpoints come and go, and then the sites; and
// one is near, and fills up before the other is left. Three replicas and Knot, a secondary of the
// first, agree after all that happens, and delv validates what the third signs.
func TestSharedNames(t *testing.T) {
	t.Parallel()
	program(t, "knotd", "knot")
	path, key := signingKey(t, "fed.example.")
	delv := delvOf(t, key)
	p := newPKI(t)
	a := startSite(t, p, "a", "web.fed.example", "1", "2")
	b := startSite(t, p, "b", "web.fed.example", "3", "4", "5")
	near := startSite(t, p, "near", "big.fed.example")
	spare := []string{"201", "202", "203"}
	far := startSite(t, p, "far", "big.fed.example", spare...)
	const options = "retention 5m\n"
	const tiers = options + "tier 0 zone/near\ntier 1\nmin 3"

	knot := freeAddress(t)
	var r fleet
	var primary, signer *coreDNS
	for _, more := range []string{"transfer {\n\tto " + knot + "\n}", "", "dnssec {\n\tkey file " + path + "\n}"} {
		signer = startCoreDNS(t, federationBlock(p, "fed.example", more, a.owner(options), b.owner(options), near.owner(tiers), far.owner(tiers)))
		if primary == nil {
			primary = signer
		}
		r = append(r, signer.address)
		signer.awaitComplete(t, "nope.fed.example")
	}
	secondary := startKnot(t, knot, "fed.example", primary.address)
	r = append(r, knot)
	known := map[string]string{"web": answerOf("1", "2", "3", "4", "5"), "big": answerOf(spare...)}
	for name, want := range known {
		r.await(t, name+".fed.example", want, "")
	}

	var many []string
	for i := range 30 {
		many = append(many, fmt.Sprint(1+i, "@"))
	}
	whole := 0 // transfers of all of the zone
	for i, step := range []struct {
		what      string
		do        func()
		name      string
		want, srv string
	}{
		{what: "one more, which both have", do: func() { a.write(t, "1", "2", "3") }, name: "a.web", want: answerOf("1", "2", "3")},
		{what: "one withdraws it", do: func() { b.write(t, "4", "5") }, name: "b.web", want: answerOf("4", "5")},
		{what: "both do", do: func() { a.write(t, "1", "2") }, name: "web", want: answerOf("1", "2", "4", "5"), srv: "1:0 2:0 4:0 5:0"},
		{what: "one is killed", do: func() { b.end(t, syscall.SIGKILL) }, name: "web", want: answerOf("1", "2"), srv: "1:0 2:0 4:10 5:10"},
		{what: "both are", do: func() { a.end(t, syscall.SIGKILL) }, name: "web", want: answerOf("1", "2", "4", "5"), srv: "1:10 2:10 4:10 5:10"},
		{what: "one is back", do: func() { b.start(t) }, name: "web", want: answerOf("4", "5"), srv: "1:10 2:10 4:0 5:0"},
		{what: "both are back", do: func() { a.start(t) }, name: "web", want: answerOf("1", "2", "4", "5"), srv: "1:0 2:0 4:0 5:0"},

		{what: "one is near", do: func() { near.write(t, many[:1]...) }, name: "big", want: answerOf(append(many[:1:1], spare...)...), srv: "1:0 201:1 202:1 203:1"},
		{what: "two", do: func() { near.write(t, many[:2]...) }, name: "big", want: answerOf(append(many[:2:2], spare...)...), srv: "1:0 201:1 202:1 203:1 2:0"},
		{what: "thirty", do: func() { near.write(t, many...) }, name: "big", want: answerOf(many...)},
	} {
		if known[step.name] != "" {
			known[step.name] = step.want
		}
		step.do()
		r.await(t, step.name+".fed.example", step.want, step.srv)
		for name, want := range known {
			r.await(t, name+".fed.example", want, "")
		}
		for _, qtype := range []string{"A", "SRV", "TXT"} {
			delv(t, signer.address, step.name+".fed.example", qtype, validated)
		}
		if step.what == "both are" {
			for _, address := range r[:3] {
				(&coreDNS{address: address}).awaitStale(t, "web.fed.example")
			}
		}
		if i == 0 { // from the first serial of a process there is no difference
			whole = secondary.log.Count("AXFR, incoming", "finished")
		}
	}
	secondary.awaitLog(t, 9, "IXFR, incoming", "finished")
	if n := secondary.log.Count("AXFR, incoming", "finished"); n != whole {
		t.Errorf("Knot has had %d whole zones more", n-whole)
	}
}

// TestNotShared has two owners of which only one shares the name: the first in the Corefile has it.
func TestNotShared(t *testing.T) {
	p := newPKI(t)
	a := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	b := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.2"))
	metrics := freeAddress(t)
	d := startCoreDNS(t, federationBlock(p, "fed.example", "prometheus "+metrics, a.address, b.address+" share *"))
	d.awaitComplete(t, "nope.fed.example")
	if got := summary(mustQuery(t, d.address, "web.fed.example", dns.TypeA)); got != answerOf("1") {
		t.Errorf("the answer is %s", got)
	}
	samples := place.Scrape(t, metrics)
	for address, want := range map[string]float64{a.address: 0, b.address: 1} {
		if got := samples.Sum("coredns_federation_conflicts", address); got != want {
			t.Errorf("%v conflicts of %s, want %v", got, address, want)
		}
	}
}

// TestSharedExample has the owners of the example for shared names there: each has endpoints in the
// zone that is near, and what the first has elsewhere comes before what the second has.
func TestSharedExample(t *testing.T) {
	p := newPKI(t)
	owners := make(map[string]string)
	for name, endpoints := range map[string][]string{
		"mesh-a.example:8008": {"192.0.2.1:80@[zone/eu-1a]", "192.0.2.2:80"},
		"mesh-b.example:8008": {"192.0.2.3:80@[zone/eu-1a]", "192.0.2.4:80"},
	} {
		owners[name] = startOwner(t, p.owner, "", fixtureService(t, "web", "web.fed.example", endpoints, []string{"v1 HTTP"})).address
	}
	corefile := must.Get(os.ReadFile("../corefile-examples/shared/Corefile"))(t)
	d := bootExample(t, p, string(corefile), owners)
	eventually(t, patience, func() string {
		return unlike(d.address, "web.fed.example", answerOf("1", "2", "3"), "1:0 2:1 3:0 4:2")
	})
}
