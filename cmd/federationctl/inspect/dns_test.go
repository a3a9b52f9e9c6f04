package inspect_test

import (
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// nameServer answers from a zone over UDP and TCP, with faults.
type nameServer struct {
	zone *zone.Zone

	// fault changes or withholds the answer to the nth query for a name and a type over a
	// network. It may be nil.
	fault func(answer *dns.Msg, network string, n int) *dns.Msg

	mu    sync.Mutex
	asked map[dns.Question]int
}

// newNameServer starts a server of the zone fed.example with these services and perhaps a
// fault, and returns its address.
func newNameServer(t *testing.T, fault func(answer *dns.Msg, network string, n int) *dns.Msg, services ...*federation.Service) string {
	t.Helper()
	origin := must.Get(federation.ParseOrigin("fed.example"))(t)
	b := zonetest.NewBuilder(zone.Config{Owners: []zone.Owner{{ID: "o", Origins: []federation.FQDN{origin}, TTL: 30, NegativeTTL: 5}}}, nil)
	b.SetStatus(0, zone.Status{Live: 1, Known: true})
	for _, service := range services {
		b.Put(0, service, 1)
	}
	s := &nameServer{zone: b.Publish(time.Now()), fault: fault, asked: make(map[dns.Question]int)}
	address, err := loopback.FreeAddress() // one port for both
	if err != nil {
		t.Fatal(err)
	}
	packets := must.Get(new(net.ListenConfig).ListenPacket(t.Context(), "udp", address))(t)
	listener := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", address))(t)
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	for _, server := range []*dns.Server{{PacketConn: packets, Handler: s}, {Listener: listener, Handler: s}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		running.Go(func() {
			if err := server.ActivateAndServe(); err != nil {
				t.Error(err)
			}
		})
		<-started
		t.Cleanup(func() {
			if err := server.Shutdown(); err != nil {
				t.Error(err)
			}
		})
	}
	return address
}

func (s *nameServer) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	q := query.Question[0]
	s.mu.Lock()
	s.asked[q]++
	n := s.asked[q]
	s.mu.Unlock()
	answer := new(dns.Msg).SetReply(query)
	r := s.zone.Lookup(strings.ToLower(q.Name), q.Qtype, time.Now())
	switch r.Kind {
	case zone.Success, zone.Indirect:
		answer.Answer = reply.Answer(nil, &r, q.Name, 0)
	case zone.NameError, zone.Outside:
		answer.Rcode = dns.RcodeNameError
	}
	network := w.LocalAddr().Network()
	if s.fault != nil {
		if answer = s.fault(answer, network, n); answer == nil {
			return
		}
	}
	_ = w.WriteMsg(answer)
}

func compare(t *testing.T, address string, timeout time.Duration, c *inspect.Catalog) (string, inspect.Compared, error) {
	t.Helper()
	server := must.Get(inspect.NewDNS(address, timeout, 100_000))(t)
	var text strings.Builder
	compared, err := server.Compare(t.Context(), &text, c, func(int, int) {})
	return text.String(), compared, err
}

func TestCompareWithDNS(t *testing.T) {
	web := service(t, "web", "web.fed.example", "192.0.2.1", "192.0.2.2", "2001:db8::1")
	web.Labels = []federation.Pair{{Key: "k", Value: "a\x1b\"é"}}
	changed := service(t, "web", "web.fed.example", "192.0.2.1", "192.0.2.9", "2001:db8::1")
	changed.Labels = web.Labels
	host := service(t, "host", "host.fed.example", "192.0.2.7", "gw.example.net")
	gone := service(t, "gone", "gone.fed.example", "192.0.2.3")
	shadow := service(t, "x-shadow", "web.fed.example", "192.0.2.77")
	reserved := service(t, "reserved", "ns.dns", "192.0.2.78")
	address := newNameServer(t, nil, changed, host)

	text, compared, err := compare(t, address, time.Minute, catalogOf(t, web, host, gone, shadow, reserved))
	if err != nil {
		t.Fatal(err)
	}
	const want = `- gone.fed.example A 192.0.2.3
- gone.fed.example SRV 0 100 443 192-0-2-3.addr.gone.fed.example.
- gone.fed.example TXT "txtvers=1" "id=v1" "protocol=HTTPS"
- gone.fed.example TXT "txtvers=1" "name=gone"
- v1.gone.fed.example A 192.0.2.3
- v1.gone.fed.example SRV 0 100 443 192-0-2-3.addr.gone.fed.example.
- v1.gone.fed.example TXT "txtvers=1" "id=v1" "protocol=HTTPS"
- web.fed.example A 192.0.2.2
+ web.fed.example A 192.0.2.9
- web.fed.example SRV 0 100 443 192-0-2-2.addr.web.fed.example.
+ web.fed.example SRV 0 100 443 192-0-2-9.addr.web.fed.example.
- v1.web.fed.example A 192.0.2.2
+ v1.web.fed.example A 192.0.2.9
- v1.web.fed.example SRV 0 100 443 192-0-2-2.addr.web.fed.example.
+ v1.web.fed.example SRV 0 100 443 192-0-2-9.addr.web.fed.example.
`
	if diff := cmp.Diff(want, text); diff != "" {
		t.Error(diff)
	}
	if want := (inspect.Compared{Names: 6, Left: 1, Hosts: 4, Differs: true}); compared != want {
		t.Errorf("%+v, expected %+v", compared, want)
	}
	if text, compared, err := compare(t, address, time.Minute, catalogOf(t, changed, host)); text != "" || compared.Differs || err != nil {
		t.Errorf("of the same: %q, %+v, %v", text, compared, err)
	}
}

// TestCompareOverABadNetwork loses answers, truncates them, and fails.
func TestCompareOverABadNetwork(t *testing.T) {
	web := service(t, "web", "web.fed.example", "192.0.2.1")
	address := newNameServer(t, func(answer *dns.Msg, network string, n int) *dns.Msg {
		switch answer.Question[0].Qtype {
		case dns.TypeA:
			if n == 1 {
				return nil // lost
			}
		case dns.TypeTXT:
			if network == "udp" {
				answer.Answer, answer.Truncated = nil, true
			}
		case dns.TypeSRV:
			answer.Answer, answer.Rcode = nil, dns.RcodeServerFailure
			answer.SetEdns0(1232, false)
			answer.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: 14, ExtraText: "\x1b[2J"}}
		}
		return answer
	}, web)
	text, compared, err := compare(t, address, time.Second, catalogOf(t, web))
	const want = `! web.fed.example SRV SERVFAIL, 14 (Not Ready): (\x1b[2J)
! v1.web.fed.example SRV SERVFAIL, 14 (Not Ready): (\x1b[2J)
`
	if diff := cmp.Diff(want, text); diff != "" || err != nil || !compared.Differs {
		t.Errorf("%v, %s", err, diff)
	}
}

// TestCompareWithoutAnswers asks a server that answers nothing, or something else.
func TestCompareWithoutAnswers(t *testing.T) {
	web := service(t, "web", "web.fed.example", "192.0.2.1")
	for name, fault := range map[string]func(*dns.Msg, string, int) *dns.Msg{
		"silent": func(*dns.Msg, string, int) *dns.Msg { return nil },
		"another question": func(answer *dns.Msg, _ string, _ int) *dns.Msg {
			answer.Question[0].Name = "\x1b.example."
			return answer
		},
		"truncated over TCP": func(answer *dns.Msg, network string, _ int) *dns.Msg {
			answer.Truncated = true
			if network == "tcp" {
				return nil
			}
			return answer
		},
	} {
		t.Run(name, func(t *testing.T) {
			address := newNameServer(t, fault, web)
			_, _, err := compare(t, address, 20*time.Millisecond, catalogOf(t, web))
			oneLine(t, err)
			if !strings.Contains(err.Error(), "does not answer") {
				t.Error(err)
			}
		})
	}
}

func TestUnusableServers(t *testing.T) {
	for _, address := range []string{"", ":53", "a b", "http://localhost"} {
		if _, err := inspect.NewDNS(address, time.Second, 1); err == nil {
			t.Errorf("NewDNS(%q) succeeds", address)
		}
	}
	for _, rate := range []int{-1, 0, math.MaxInt} {
		if _, err := inspect.NewDNS("::1", time.Second, rate); err == nil {
			t.Errorf("a rate of %d is taken", rate)
		}
	}
}
