package inspect_test

import (
	"context"
	"errors"
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

// TestWait waits for an answer behind an error and a denial, for one to go, and for what does
// not come.
func TestWait(t *testing.T) {
	changing := func(answer *dns.Msg, _ string, n int) *dns.Msg {
		switch {
		case answer.Question[0].Name == "web.fed.example." && n == 1:
			answer.Rcode, answer.Answer = dns.RcodeServerFailure, nil
		case answer.Question[0].Name == "web.fed.example." && n < 4, answer.Question[0].Name == "old.fed.example." && n > 2:
			answer.Rcode, answer.Answer = dns.RcodeNameError, nil
		}
		return answer
	}
	address := newNameServer(t, changing, service(t, "web", "web.fed.example", "192.0.2.1"), service(t, "old", "old.fed.example", "192.0.2.2"))
	server := must.Get(inspect.NewDNS(address, time.Second, 1000))(t)
	late := errors.New("late")
	for _, tc := range []struct {
		name string
		gone bool
		want []string
		said []string
		err  error
	}{
		{"web.fed.example", false, []string{"192.0.2.1"}, []string{"SERVFAIL", "no records"}, nil},
		{"old.fed.example", true, nil, []string{"192.0.2.2"}, nil},
		{"nope.fed.example", true, nil, nil, nil},
		{"nope.fed.example", false, nil, []string{"no records"}, late},
	} {
		name, qtype, err := inspect.NewQuestion(tc.name, "")
		must.Do(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		var said []string
		got, err := server.Wait(ctx, name, qtype, tc.gone, func(text string) {
			if said = append(said, text); tc.err != nil {
				cancel(late)
			}
		})
		cancel(nil)
		if !errors.Is(err, tc.err) {
			t.Errorf("%s, gone %v: %v, want %v", tc.name, tc.gone, err, tc.err)
		}
		if diff := cmp.Diff([][]string{tc.want, tc.said}, [][]string{got, said}); diff != "" {
			t.Errorf("%s, gone %v (-want +got):\n%s", tc.name, tc.gone, diff)
		}
	}
}

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
