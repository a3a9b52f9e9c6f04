package federationplugin

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/hostname"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
)

// slow is an upstream whose answers come late, and hold for nobody but who has asked.
type slow struct{}

func (slow) Address() string { return "slow" }

func (slow) Ask(_ context.Context, host string, qtype uint16, _ int) *dns.Msg {
	time.Sleep(hostname.Patience - time.Nanosecond)
	m := new(dns.Msg)
	m.SetQuestion(host, qtype)
	m.Response = true
	rr, err := dns.NewRR(host + " 0 A 198.51.100.7")
	if err != nil {
		panic(err)
	}
	m.Answer = []dns.RR{rr}
	return m
}

// However slow the hosts of a name are, they keep no one for long who asks why: all that are looked
// up again are looked up at the same time.
func TestExplainSlowHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var endpoints []string
		for i := range hostname.MaxHosts {
			endpoints = append(endpoints, fmt.Sprintf("h%d.example.net:443", i))
		}
		c := newChain(t, nil, []corefile.Block{newBlock(t)}, newService(t, "web.fed.example", endpoints...))
		defer hostname.Close(c.hosts)
		s := &startedServer{Federation: c.Federation}
		begun := time.Now()
		hosts := s.explainHosts(context.WithValue(t.Context(), lookupsKey{}, hostname.Upstream(slow{})), s.newestZone(), "web.fed.example.", dns.TypeA)
		if took := time.Since(begun); took > hostname.Patience {
			t.Errorf("it took %v", took)
		}
		if len(hosts) != hostname.MaxHosts {
			t.Fatalf("%d hosts", len(hosts))
		}
		for _, h := range hosts {
			if len(h.Addresses) != 1 || h.Failure != "" {
				t.Errorf("%+v", h)
			}
		}
	})
}
