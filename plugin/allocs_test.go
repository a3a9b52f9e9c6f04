package federationplugin

import (
	"context"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestAllocations bounds what a query allocates in our code: the records are new for
// each reply, because a plugin behind may change them, and little else is.
func TestAllocations(t *testing.T) {
	one := newService(t, "one.fed.example", "192.0.2.1:80")
	one.Instances = []federation.Instance{{ID: "v1", Protocol: federation.HTTP}}
	three := newService(t, "three.fed.example", "192.0.2.1:80", "192.0.2.2:80", "[2001:db8::1]:80")
	three.Instances = []federation.Instance{
		{ID: "v1", Protocol: federation.HTTP}, {ID: "v2", Protocol: federation.HTTP}, {ID: "v3", Protocol: federation.GRPC},
	}
	h := newChain(t, nil, []corefile.Block{newBlock(t)}, one, three)
	for _, tt := range []struct {
		name               string
		qtype              uint16
		rcode, answer, all int // all: the records of all sections
		most               float64
	}{
		{"one.fed.example.", dns.TypeA, dns.RcodeSuccess, 1, 1, 2},
		{"one.fed.example.", dns.TypeAAAA, dns.RcodeSuccess, 0, 1, 2},
		{"one.fed.example.", dns.TypeSRV, dns.RcodeSuccess, 1, 2, 4},
		{"one.fed.example.", dns.TypeTXT, dns.RcodeSuccess, 2, 2, 9}, // made for each query
		{"one.fed.example.", dns.TypeSOA, dns.RcodeSuccess, 0, 1, 2},
		{"v1.one.fed.example.", dns.TypeA, dns.RcodeSuccess, 1, 1, 2},
		{"v1.one.fed.example.", dns.TypeTXT, dns.RcodeSuccess, 1, 1, 9},
		{"_http._tcp.one.fed.example.", dns.TypeSRV, dns.RcodeSuccess, 1, 2, 4},
		{"nope.fed.example.", dns.TypeA, dns.RcodeNameError, 0, 1, 2},
		{"nope.one.fed.example.", dns.TypeA, dns.RcodeNameError, 0, 1, 2},
		{"_grpc_config.one.fed.example.", dns.TypeTXT, dns.RcodeNameError, 0, 1, 2}, // gRPC asks for it at each resolution
		{"one.fed.example.", dns.TypeHTTPS, dns.RcodeSuccess, 0, 1, 2},              // and browsers for that
		{"three.fed.example.", dns.TypeA, dns.RcodeSuccess, 2, 2, 2},
		{"three.fed.example.", dns.TypeAAAA, dns.RcodeSuccess, 1, 1, 2},
		{"three.fed.example.", dns.TypeSRV, dns.RcodeSuccess, 3, 6, 6},
		{"three.fed.example.", dns.TypeTXT, dns.RcodeSuccess, 4, 4, 4},
	} {
		query := new(dns.Msg)
		query.SetQuestion(tt.name, tt.qtype)
		w := &lastReply{}
		ctx := context.Background()
		allocated := testing.AllocsPerRun(100, func() {
			must.Get(h.ServeDNS(ctx, w, query))(t)
		})
		m := w.reply
		if all := len(m.Answer) + len(m.Ns) + len(m.Extra); m.Rcode != tt.rcode || len(m.Answer) != tt.answer || all != tt.all {
			t.Errorf("%s %s: the reply is\n%v", tt.name, dns.TypeToString[tt.qtype], m)
		}
		if allocated > tt.most {
			t.Errorf("%s %s: %v allocations, at most %v are allowed", tt.name, dns.TypeToString[tt.qtype], allocated, tt.most)
		}
	}
}
