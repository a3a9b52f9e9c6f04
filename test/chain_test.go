package test

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// transferZone asks for a zone as a secondary does: for all of it (AXFR), or for
// what has changed since a serial that is not 0 (IXFR).
func transferZone(address, zone string, serial uint32) ([]dns.RR, error) {
	return transferFrom("127.0.0.1", address, zone, serial)
}

// transferFrom is transferZone from an address of this machine.
func transferFrom(source, address, zone string, serial uint32) ([]dns.RR, error) {
	query := new(dns.Msg)
	if query.SetAxfr(zone); serial != 0 {
		query.SetIxfr(zone, serial, "ns.dns."+zone, "hostmaster."+zone)
	}
	dialer := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	client := &dns.Transfer{Conn: &dns.Conn{Conn: conn}, ReadTimeout: patience}
	envelopes, err := client.In(query, address)
	if err != nil {
		return nil, err
	}
	var all []dns.RR
	for e := range envelopes {
		if e.Error != nil {
			return nil, e.Error
		}
		all = append(all, e.RR...)
	}
	return all, nil
}

// TestTransfer has the rows of section 8 of the decision table that are about zone
// transfer.
func TestTransfer(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	n := startNameserver(t, map[string]string{"gw.example.net.": "20 A 198.51.100.7"})
	secondary := startSecondary(t)
	o1 := startOwner(t, p.owner, "", append(firstOwner(t),
		fixtureService(t, "through", "web.through.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}))...)
	o2 := startOwner(t, p.owner, "", fixtureService(t, "sub", "web.sub.fed.example", []string{"192.0.2.2:443"}, []string{"v1 HTTPS"}))
	transfer := "transfer {\n\tto *\n}"
	d := startCoreDNS(t, federationBlock(p, "plain.example", "", o1.address)+
		federationBlock(p, "through.example", transfer, o1.address+" fallthrough")+
		federationBlock(p, "away.example", transfer, freeAddress(t))+
		fmt.Sprintf(`fed.example:PORT {
	bind 127.0.0.1
	transfer {
		to * %s
	}
	federation {
		owner %s
		%s
	}
	federation sub.fed.example {
		owner %s
		%s
	}
}
.:PORT {
	bind 127.0.0.1
	forward . %s
}`, secondary.address, o1.address, p.tls(), o2.address, p.tls(), n.address))
	secondary.primary.Store(&d.address)
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	d.awaitAnswer(t, "web.sub.fed.example", dns.TypeA, "NOERROR 192.0.2.2")
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1 198.51.100.7") // its host has been looked up

	t.Run("8.5 at start-up", func(t *testing.T) {
		eventually(t, patience, func() string { return secondary.behind(t, "fed.example.") })
		eventually(t, patience, func() string { return secondary.behind(t, "sub.fed.example.") })
	})
	settledSerial(t, d.address, "fed.example")
	all := must.Get(transferZone(d.address, "fed.example.", 0))(t)
	t.Run("8.2 and coredns#4689, #2997: counts and order", func(t *testing.T) { checkZone(t, all) })
	t.Run("8.4 TTLs, and no addresses of other zones", func(t *testing.T) {
		for _, rr := range all {
			if strings.Contains(rr.String(), "198.51.100.7") {
				t.Errorf("address of a host elsewhere: %v", rr)
			}
			h := rr.Header()
			if want := uint32(30); h.Ttl != want && h.Rrtype != dns.TypeSOA && h.Rrtype != dns.TypeNS {
				t.Errorf("TTL of %v is not %d", rr, want)
			}
		}
	})
	t.Run("8.2 what was transferred is what is answered", func(t *testing.T) {
		checked := make(map[string]bool)
		for _, rr := range all {
			h := rr.Header()
			key := h.Name + " " + dns.TypeToString[h.Rrtype]
			if checked[key] || h.Rrtype == dns.TypeA || h.Rrtype == dns.TypeAAAA {
				continue // a transfer has no addresses of hosts elsewhere
			}
			checked[key] = true
			query := new(dns.Msg)
			query.SetQuestion(h.Name, h.Rrtype)
			m := must.Get(exchangeRaw("tcp", d.address, query))(t)
			same := slices.DeleteFunc(slices.Clone(all[1:]), func(rr dns.RR) bool {
				return rr.Header().Name != h.Name || rr.Header().Rrtype != h.Rrtype
			})
			if d := cmp.Diff(lines(m.Answer), lines(same)); d != "" {
				t.Errorf("%s (-answer +transfer):\n%s", key, d)
			}
		}
	})
	t.Run("8.3 a zone within is delegated", func(t *testing.T) {
		sub := must.Get(transferZone(d.address, "sub.fed.example.", 0))(t)
		if !slices.ContainsFunc(sub, func(rr dns.RR) bool { return rr.Header().Name == "v1.web.sub.fed.example." }) {
			t.Errorf("zone is %v", sub)
		}
		// No glue: the server is bound to loopback only, so its name has no address.
		below := slices.DeleteFunc(slices.Clone(all), func(rr dns.RR) bool { return !dns.IsSubDomain("sub.fed.example.", rr.Header().Name) })
		if d := cmp.Diff([]string{"sub.fed.example.\t5\tIN\tNS\tns.dns.sub.fed.example."}, lines(below)); d != "" {
			t.Errorf("the zone around it (-want +got):\n%s", d)
		}
	})
	for _, tt := range []struct {
		number, zone string
		rcode        int
	}{
		{"8.1 not an apex", "web.fed.example.", dns.RcodeRefused},
		{"8.1 falls through", "through.example.", dns.RcodeRefused},
		{"8.1 not known yet", "away.example.", dns.RcodeServerFailure},
		{"8.6 without transfer", "plain.example.", dns.RcodeRefused},
	} {
		t.Run(tt.number, func(t *testing.T) {
			got, err := transferZone(d.address, tt.zone, 0)
			if want := fmt.Sprintf("bad xfr rcode: %d", tt.rcode); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d records, error is %v, want %s", len(got), err, want)
			}
		})
	}
	t.Run("8.6 over UDP", func(t *testing.T) {
		if m := mustQuery(t, d.address, "fed.example", dns.TypeAXFR); m.Rcode != dns.RcodeRefused || len(m.Answer) > 0 {
			t.Errorf("reply is %v", m)
		}
	})
	t.Run("8.3 IXFR by serial", func(t *testing.T) {
		serial := all[0].(*dns.SOA).Serial
		for ahead, want := range map[int32]int{0: 1, 5: 1, -1: len(all), -1 << 30: len(all), 1 << 30: 1} {
			got := must.Get(transferZone(d.address, "fed.example.", serial+uint32(ahead)))(t)
			if len(got) != want {
				t.Errorf("a secondary that is %d ahead gets %d records, want %d", ahead, len(got), want)
			}
		}
	})
	t.Run("8.5 and coredns#4941: a burst", func(t *testing.T) {
		before := secondary.heard("fed.example.")
		start := time.Now()
		for i := range 200 {
			mustUpsert(t, o1, fixtureService(t, "burst", "burst.fed.example", []string{fmt.Sprintf("192.0.2.1:%d", 1000+i)}, []string{"v1 TCP"}))
		}
		eventually(t, patience, func() string {
			m := mustQuery(t, d.address, "burst.fed.example", dns.TypeSRV)
			if len(m.Answer) != 1 || m.Answer[0].(*dns.SRV).Port != 1199 {
				return fmt.Sprintf("the last change is not there: %v", m.Answer)
			}
			if secondary.heard("fed.example.") == before {
				return "the secondary was not notified"
			}
			return secondary.behind(t, "fed.example.")
		})
		if got, most := secondary.heard("fed.example.")-before, 2+int(time.Since(start)/time.Second); got == 0 || got > most {
			t.Errorf("%d NOTIFY messages for one burst, want 1 to %d", got, most)
		}
		if got := secondary.heard("sub.fed.example."); got != 1 {
			t.Errorf("%d NOTIFY messages for a zone that did not change since start-up, want 1", got)
		}
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

// checkZone checks the records of a transfer of fed.example: its SOA records, its
// counts, that none stands twice, and the order of the names.
func checkZone(t *testing.T, all []dns.RR) {
	t.Helper()
	counts := make(map[uint16]int)
	for _, rr := range all {
		if h := rr.Header(); h.Rrtype != dns.TypeNS || h.Name == all[0].Header().Name { // other NS delegate
			counts[h.Rrtype]++
		}
	}
	if counts[dns.TypeSOA] != 2 || counts[dns.TypeNS] != 1 || counts[dns.TypeCNAME] != 0 {
		t.Errorf("zone has %v records by type", counts)
	}
	first, last := all[0], all[len(all)-1]
	if first.Header().Rrtype != dns.TypeSOA || first.String() != last.String() {
		t.Errorf("zone begins with %v and ends with %v", first, last)
	}
	srv := 0
	seen := make(map[string]bool)
	var names []string
	for _, rr := range all[1 : len(all)-1] {
		h := rr.Header()
		if seen[rr.String()] {
			t.Errorf("twice in the zone: %v", rr)
		}
		seen[rr.String()] = true
		if h.Name == "web.fed.example." && h.Rrtype == dns.TypeSRV {
			srv++
		}
		if len(names) == 0 || names[len(names)-1] != h.Name {
			names = append(names, h.Name)
		}
	}
	if srv != 3 {
		t.Errorf("web has %d SRV records, want 3", srv)
	}
	inOrder := slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "ns.dns.") }) // they come first
	if !slices.IsSortedFunc(inOrder, compareNames) {
		t.Errorf("names are not in the order of RFC 4034: %q", inOrder)
	}
}

// compareNames compares names in the canonical order of RFC 4034 section 6.1.
func compareNames(a, b string) int {
	x, y := dns.SplitDomainName(a), dns.SplitDomainName(b)
	slices.Reverse(x)
	slices.Reverse(y)
	return slices.Compare(x, y)
}

// secondary is a name server that gets NOTIFY messages and then asks the primary
// for the serial of the zone.
type secondary struct {
	address string
	primary atomic.Pointer[string] // its address; nil until it is known

	mu    sync.Mutex        // guards the fields below
	count map[string]int    // messages by zone
	seen  map[string]uint32 // serial at the last message by zone; 0 is unknown
}

func startSecondary(t testing.TB) *secondary {
	t.Helper()
	s := &secondary{count: make(map[string]int), seen: make(map[string]uint32)}
	conn := must.Get(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	s.address = conn.LocalAddr().String()
	server := &dns.Server{
		PacketConn: conn, Handler: s,
		MsgAcceptFunc: func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept },
	}
	var running sync.WaitGroup
	running.Go(func() { _ = server.ActivateAndServe() })
	t.Cleanup(func() { _ = server.Shutdown(); running.Wait() })
	return s
}

// ServeDNS implements dns.Handler.
func (s *secondary) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(r)
	_ = w.WriteMsg(m) // a primary without an answer notifies again
	zone := r.Question[0].Name
	var serial uint32
	if primary := s.primary.Load(); primary != nil {
		if reply, err := query(*primary, zone, dns.TypeSOA); err == nil && len(reply.Answer) == 1 {
			serial = reply.Answer[0].(*dns.SOA).Serial
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[zone]++
	s.seen[zone] = serial
}

// heard returns the number of NOTIFY messages about a zone.
func (s *secondary) heard(zone string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[zone]
}

// behind returns "" once the secondary was notified of the newest serial of a zone.
// It is a condition for eventually.
func (s *secondary) behind(t testing.TB, zone string) string {
	t.Helper()
	now := mustQuery(t, *s.primary.Load(), zone, dns.TypeSOA).Answer[0].(*dns.SOA).Serial
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[zone] != now {
		return fmt.Sprintf("%s has the serial %d, the secondary was notified of %d", zone, now, s.seen[zone])
	}
	return ""
}

// signingKey writes a key pair for a zone, and returns the public key and the path
// that plugin dnssec takes: the common part of the names of both files.
func signingKey(t testing.TB, zone string) (path string, public *dns.DNSKEY) {
	t.Helper()
	public = &dns.DNSKEY{
		Hdr:   dns.RR_Header{Name: zone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600},
		Flags: dns.ZONE | dns.SEP, Protocol: 3, Algorithm: dns.ECDSAP256SHA256,
	}
	private := must.Get(public.Generate(256))(t)
	path = filepath.Join(t.TempDir(), fmt.Sprintf("K%s+%03d+%05d", zone, public.Algorithm, public.KeyTag()))
	writeFile(t, path+".key", public.String()+"\n")
	writeFile(t, path+".private", public.PrivateKeyString(private))
	return path, public
}

// TestDNSSEC checks every signature that plugin dnssec makes of our answers.
func TestDNSSEC(t *testing.T) {
	p := newPKI(t)
	n := startNameserver(t, map[string]string{
		"gw.example.net.": "20 A 198.51.100.7", "dup.example.net.": "60 A 192.0.2.1", "servfail.example.net.": "SERVFAIL",
	})
	key, public := signingKey(t, "fed.example.")
	o := startOwner(t, p.owner, "", firstOwner(t)...)
	d := startCoreDNS(t, federationBlock(p, "fed.example", "dnssec {\n\tkey file "+key+"\n}", o.address)+
		fmt.Sprintf(".:PORT {\n\tbind 127.0.0.1\n\tforward . %s\n}", n.address))
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	for _, tt := range signedQuestions() {
		name := strings.TrimPrefix(tt.name+".fed.example.", ".")
		t.Run("8.7 "+tt.name, func(t *testing.T) {
			for qtype := range strings.FieldsSeq(tt.types) {
				for _, over := range []transport{{"udp", "udp", 4096, true, false}, {"tcp", "tcp", 4096, true, true}} {
					query := new(dns.Msg)
					query.SetQuestion(name, dns.StringToType[qtype]).SetEdns0(over.size, true)
					if over.mixed {
						query.Question[0].Name = mixedCase(name)
					}
					m, err := exchangeRaw(over.network, d.address, query)
					if err != nil {
						t.Fatalf("%s over %s: %v", qtype, over.name, err)
					}
					if wrong := unsigned(m, public); wrong != "" || tt.negative != (len(m.Answer) == 0) || m.Truncated {
						t.Errorf("%s over %s: %s\n%v", qtype, over.name, wrong, m)
					}
				}
			}
		})
	}
}

// signedQuestion is a name below fed.example that has records of all of the types,
// or, where negative is set, of none of them.
type signedQuestion struct {
	name, types string
	negative    bool
}

// signedQuestions returns questions about the services of firstOwner.
func signedQuestions() []signedQuestion {
	return []signedQuestion{
		{"", "SOA NS A SRV TXT ANY DNSKEY", false},
		{"", "AAAA MX DS CNAME HTTPS", true},
		{"web", "A AAAA SRV TXT ANY", false},
		{"web", "CNAME MX NS SOA DS HTTPS SVCB CAA", true},
		{"v1.web", "A SRV TXT", false},
		{"v1.web", "AAAA CNAME HTTPS", true},
		{"_http._tcp.web", "SRV ANY", false},
		{"_http._tcp.web", "A TXT", true},
		{"_tcp.web", "A SRV TXT ANY", true},
		{"_grpc._tcp.web", "SRV", true},
		{"addr.web", "A", true},
		{"192-0-2-1.addr.web", "A", false},
		{"192-0-2-1.addr.web", "AAAA SRV", true},
		{"192-0-2-2.addr.web", "A", true},
		{"mixed", "A", false},
		{"ports", "A SRV", false},
		{"eight", "A SRV", false},
		{"text", "TXT", false},
		{"db.r1.deep.a.b", "A SRV TXT", false},
		{"r1.deep.a.b", "A", true},
		{"b", "A AAAA SRV TXT NS SOA", true},
		{"nope", "A AAAA SRV TXT NS SOA CNAME HTTPS ANY DS", true},
		{"*.web", "A", true},
		{"nx", "A", true},
		{"dns", "A", true},
	}
}

// unsigned says what a validating resolver would reject in a reply, and returns ""
// where it would accept it.
func unsigned(m *dns.Msg, key *dns.DNSKEY) string {
	if m.Rcode != dns.RcodeSuccess {
		// Plugin dnssec answers NXDOMAIN as NODATA: compact denial, RFC 9824.
		return "code is " + dns.RcodeToString[m.Rcode] + ", want NOERROR"
	}
	denied := false
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		sets := make(map[string][]dns.RR)
		var signatures []*dns.RRSIG
		for _, rr := range section {
			switch rr := rr.(type) {
			case *dns.OPT:
			case *dns.RRSIG:
				signatures = append(signatures, rr)
			default:
				id := rr.Header().Name + " " + dns.TypeToString[rr.Header().Rrtype]
				sets[id] = append(sets[id], rr)
			}
			if nsec, ok := rr.(*dns.NSEC); ok {
				denied = true
				if slices.Contains(nsec.TypeBitMap, m.Question[0].Qtype) {
					return fmt.Sprintf("NSEC does not deny the type: %v", nsec)
				}
				if nsec.Hdr.Name != m.Question[0].Name {
					return fmt.Sprintf("NSEC is for another name: %v", nsec)
				}
			}
		}
		for id, set := range sets {
			verified := 0
			for _, s := range signatures {
				if s.Hdr.Name+" "+dns.TypeToString[s.TypeCovered] != id {
					continue
				}
				if err := s.Verify(key, set); err != nil {
					return fmt.Sprintf("signature of %s: %v", id, err)
				}
				verified++
			}
			if verified != 1 {
				return fmt.Sprintf("%s has %d signatures", id, verified)
			}
		}
	}
	if denied != (len(m.Answer) == 0) {
		return fmt.Sprintf("%d answers, and a denial: %t", len(m.Answer), denied)
	}
	return ""
}

// TestChain has the rows of the decision table that are about other plugins of the
// server block. Each has a server block of its own.
func TestChain(t *testing.T) {
	p := newPKI(t)
	n := startNameserver(t, map[string]string{
		"gw.example.net.": "20 A 198.51.100.7", "gw2.example.net.": "20 A 198.51.100.8",
		"nope.fall.example.": "60 A 198.51.100.1", "nope.part.example.": "60 A 198.51.100.1", "x.a.part.example.": "60 A 198.51.100.1",
		"target.fall.example.": "60 A 198.51.100.2", "web.fall.example.": "60 MX 10 wrong.example.net.", "web.class.example.": `60 TXT "of another class"`,
	})
	zone := filepath.Join(t.TempDir(), "dynamic")
	writeFile(t, zone, "@ 60 IN SOA ns hostmaster 1 60 60 60 60\n@ 60 IN NS ns\n")
	simple := func(fqdn string, endpoints ...string) *federation.Service {
		for i := range endpoints {
			endpoints[i] += ":443"
		}
		return fixtureService(t, fqdn, fqdn, endpoints, []string{"v1 HTTPS"})
	}
	var services []*federation.Service
	for _, z := range []string{"cache", "rewrite", "any", "balance", "meta", "fall", "part", "class", "update"} {
		services = append(services, simple("web."+z+".example", "192.0.2.1", "192.0.2.2", "192.0.2.3", "[2001:db8::1]"))
	}
	services = append(services,
		simple("inner.fall.example", "target.fall.example"), simple("host.rewrite.example", "gw.example.net", "gw2.example.net", "192.0.2.9"),
		simple("host.meta.example", "gw.example.net", "gw2.example.net"))
	o := startOwner(t, p.owner, "", services...)
	gone := startOwner(t, p.owner, "", simple("old.cache.example", "192.0.2.7"))
	forward := "forward . " + n.address
	d := startCoreDNS(t, federationBlock(p, "cache.example", "cache 3600", o.address+" ttl 3", gone.address)+
		federationBlock(p, "rewrite.example", "cache 30\nrewrite ttl regex .* 77-77\nloadbalance\nlog", o.address)+
		federationBlock(p, "any.example", "any", o.address)+
		federationBlock(p, "balance.example", "loadbalance round_robin", o.address)+
		federationBlock(p, "meta.example", "metadata\nlog . \"seen {name} {type} <{/federation/owner}> <{/federation/service}> <{/federation/fqdn}> "+
			"<{/federation/instance}> <{/federation/protocol}> <{/federation/state}>\"\n"+forward, o.address)+
		federationBlock(p, "fall.example", "cache 60\n"+forward, o.address+" fallthrough")+
		federationBlock(p, "part.example", forward, o.address+" fallthrough a.part.example")+
		federationBlock(p, "class.example", forward, o.address)+
		federationBlock(p, "update.example", "dynupdate dynamic.example {\n\tfile "+zone+"\n\tallow key.example. * *\n}", o.address)+
		fmt.Sprintf("example.net:PORT {\n\tbind 127.0.0.1\n\tlog\n\t%s\n}\n", forward))
	for _, z := range []string{"cache", "rewrite", "any", "balance", "meta", "class", "update"} {
		d.awaitAnswer(t, "up."+z+".example", dns.TypeA, "NXDOMAIN")
	}
	checkTable(t, d.address, "cache.example.", []tableRow{
		{"web", "A", "NOERROR, 3 A 192.0.2.1, 3 A 192.0.2.2, 3 A 192.0.2.3"},
		{"nope", "A", nxDomain},
	})
	t.Run("7.8 a change is seen at once", func(t *testing.T) {
		mustUpsert(t, o, simple("web.cache.example", "192.0.2.4"))
		d.awaitAnswer(t, "web.cache.example", dns.TypeA, "NOERROR 192.0.2.4")
		o.Delete("web.cache.example")
		d.awaitAnswer(t, "web.cache.example", dns.TypeA, "NXDOMAIN")
		gone.stop()
		d.awaitStale(t, "old.cache.example")
	})
	t.Run("7.4 and coredns#6718, #7335, #4432: rewritten TTLs", func(t *testing.T) { hammer(t, d, "rewrite.example") })
	t.Run("5.7 plugin any", func(t *testing.T) {
		m := mustQuery(t, d.address, "web.any.example", dns.TypeANY)
		if got, want := summary(m), `NOERROR "ANY obsoleted" "See RFC 8482"`; got != want {
			t.Errorf("reply is %s, want %s", got, want)
		}
	})
	t.Run("7.1 plugin loadbalance", func(t *testing.T) {
		first := make(map[string]bool)
		for range 100 {
			m := mustQuery(t, d.address, "web.balance.example", dns.TypeA)
			if got, want := summary(m), "NOERROR 192.0.2.1 192.0.2.2 192.0.2.3"; got != want {
				t.Fatalf("reply is %s, want %s", got, want)
			}
			first[m.Answer[0].(*dns.A).A.String()] = true
			srv := mustQuery(t, d.address, "web.balance.example", dns.TypeSRV)
			if got := srv.Answer[0].(*dns.SRV).Target; !strings.HasPrefix(got, "192-0-2-1.") {
				t.Fatalf("first of the SRV records is %s", got)
			}
		}
		if len(first) < 2 {
			t.Errorf("first address was always %v", first)
		}
	})
	t.Run("8.10 metadata", func(t *testing.T) { checkMetadata(t, d, o.address) })
	t.Run("8.8 fallthrough", func(t *testing.T) {
		for _, tt := range []struct {
			name  string
			qtype uint16
			want  string
		}{
			{"nope.fall.example", dns.TypeA, "NOERROR 198.51.100.1"},
			{"x.web.fall.example", dns.TypeA, "NXDOMAIN"}, // from the next plugin
			{"web.fall.example", dns.TypeA, "NOERROR 192.0.2.1 192.0.2.2 192.0.2.3"},
			{"web.fall.example", dns.TypeMX, "NOERROR"},
			{"web.fall.example", dns.TypeHTTPS, "NOERROR"},
			{"_tcp.web.fall.example", dns.TypeA, "NOERROR"},
			{"fall.example", dns.TypeMX, "NOERROR"},
			{"inner.fall.example", dns.TypeA, "NOERROR 198.51.100.2"}, // coredns#6088
			{"nope.part.example", dns.TypeA, "NXDOMAIN"},
			{"x.a.part.example", dns.TypeA, "NOERROR 198.51.100.1"},
		} {
			d.awaitAnswer(t, tt.name, tt.qtype, tt.want)
		}
	})
	t.Run("5.8 another class", func(t *testing.T) {
		m := mustQuery(t, d.address, "web.class.example", dns.TypeTXT, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })
		if got, want := summary(m), `NOERROR "of another class"`; got != want {
			t.Errorf("reply is %s, want %s from the next plugin", got, want)
		}
		if got := n.times("web.class.example.", dns.TypeTXT); got != 1 {
			t.Errorf("the next plugin was asked %d times, want 1", got)
		}
	})
	t.Run("5.9 UPDATE and NOTIFY", func(t *testing.T) {
		for zone, want := range map[string]int{"update.example.": dns.RcodeNotAuth, "any.example.": dns.RcodeNotImplemented} {
			m := mustQuery(t, d.address, zone, dns.TypeSOA, func(m *dns.Msg) { m.SetUpdate(zone) })
			if m.Rcode != want { // plugin dynupdate says NOTAUTH of a zone that is not its own
				t.Errorf("UPDATE of %s: reply is %v, want %s", zone, m, dns.RcodeToString[want])
			}
			m = mustQuery(t, d.address, zone, dns.TypeSOA, func(m *dns.Msg) { m.SetNotify(zone) })
			if m.Rcode != dns.RcodeNotImplemented || m.Authoritative {
				t.Errorf("NOTIFY of %s: reply is %v, want NOTIMP without AA", zone, m)
			}
		}
	})
	t.Run("coredns#1455: a reload that fails changes nothing", func(t *testing.T) {
		d.write(t, federationBlock(p, "any.example", "any", o.address+" ttl 9")+federationBlock(p, "bad.example", "", o.address+" ttl none"))
		d.signal(syscall.SIGUSR1)
		d.awaitLog(t, 1, "Restart failed")
		checkTable(t, d.address, "any.example.", []tableRow{
			{"v1.web", "A", "NOERROR, 30 A 192.0.2.1, 30 A 192.0.2.2, 30 A 192.0.2.3"},
		})
	})
}

// times returns how often the name server was asked a question.
func (n *nameserver) times(name string, qtype uint16) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[name+" "+dns.TypeToString[qtype]]
}

// hammer asks a zone whose TTLs plugin rewrite sets to 77, from many clients at a
// time.
func hammer(t *testing.T, d *coreDNS, zone string) {
	var clients sync.WaitGroup
	questions := []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"web", dns.TypeA, "NOERROR 192.0.2.1 192.0.2.2 192.0.2.3"},
		{"host", dns.TypeA, "NOERROR 192.0.2.9 198.51.100.7 198.51.100.8"},
		{"web", dns.TypeTXT, fmt.Sprintf(`NOERROR "txtvers=1" "id=v1" "protocol=HTTPS" "txtvers=1" "name=web.%s"`, zone)},
		{"nope", dns.TypeA, "NXDOMAIN"},
	}
	for i := range 8 {
		clients.Go(func() {
			for range 50 {
				for _, q := range questions {
					m, err := query(d.address, q.name+"."+zone, q.qtype, func(m *dns.Msg) {
						if i%2 == 0 {
							m.SetEdns0(4096, i%4 == 0)
						}
					})
					if err != nil {
						t.Error(err)
						return
					}
					if got := summary(m); got != q.want {
						t.Errorf("%s %s is %s, want %s", q.name, dns.TypeToString[q.qtype], got, q.want)
						return
					}
					for _, rr := range m.Answer {
						if rr.Header().Ttl != 77 {
							t.Errorf("TTL is not rewritten: %v", rr)
							return
						}
					}
				}
			}
		})
	}
	clients.Wait()
}

// checkMetadata asks for names, and looks for their metadata in the query log.
func checkMetadata(t *testing.T, d *coreDNS, owner string) {
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"web.meta.example.", dns.TypeA, "<" + owner + "> <web.meta.example> <web.meta.example> <> <> <live>"},
		{"v1.web.meta.example.", dns.TypeTXT, "<" + owner + "> <web.meta.example> <web.meta.example> <v1> <HTTPS> <live>"},
		{"_https._tcp.web.meta.example.", dns.TypeSRV, "<" + owner + "> <web.meta.example> <web.meta.example> <> <HTTPS> <live>"},
		{"host.meta.example.", dns.TypeA, "<" + owner + "> <host.meta.example> <host.meta.example> <> <> <live>"},
		{"nope.meta.example.", dns.TypeA, "<> <> <> <> <> <>"},
	} {
		mustQuery(t, d.address, tt.name, tt.qtype)
		d.awaitLog(t, 1, "seen "+tt.name+" "+dns.TypeToString[tt.qtype]+" "+tt.want)
	}
}

// TestResync stops and starts an owner several times while clients ask. A name
// that the owner has before and after is answered all the time.
func TestResync(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	var services []*federation.Service
	for i := range 500 {
		services = append(services, fixtureService(t, fmt.Sprint(i), fmt.Sprintf("s%d.fed.example", i), []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}))
	}
	o := startOwner(t, p.owner, "", services...)
	d := startCoreDNS(t, federationBlock(p, "fed.example", "", o.address))
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	done := make(chan struct{})
	var clients sync.WaitGroup
	var asked atomic.Int64
	for c := range 2 {
		clients.Go(func() {
			for i := c; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				name := fmt.Sprintf("s%d.fed.example", i%len(services))
				m, err := query(d.address, name, dns.TypeA)
				if err != nil {
					t.Error(err)
					return
				}
				if got := summary(m); got != "NOERROR 192.0.2.1" {
					t.Errorf("coredns#1365: %s is %s", name, got)
					return
				}
				asked.Add(1)
			}
		})
	}
	for range 3 {
		o.stop()
		d.awaitStale(t, "s1.fed.example")
		o = startOwner(t, p.owner, o.address, services...)
		eventually(t, patience, func() string {
			for _, name := range []string{"s0.fed.example", "s499.fed.example"} {
				if got := extendedError(mustQuery(t, d.address, name, dns.TypeA, withEDNS)); got != -1 {
					return fmt.Sprintf("extended error of %s is %d", name, got)
				}
			}
			return ""
		})
	}
	close(done)
	clients.Wait()
	if asked.Load() == 0 {
		t.Error("no client got an answer")
	}
	t.Logf("%d answers", asked.Load())
}
