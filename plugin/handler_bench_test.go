package federationplugin

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/hosts"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// BenchmarkServeDNS compares this handler with CoreDNS's own for the same records,
// from the query as the server has read it to the reply that it packs.
func BenchmarkServeDNS(b *testing.B) {
	const services = 1000
	catalog := make([]*federation.Service, services)
	var hosts, records strings.Builder
	records.WriteString("@ 5 IN SOA ns hostmaster 1 300 60 86400 5\n@ 5 IN NS ns\nns 5 IN A 192.0.2.53\n")
	for i := range catalog {
		name, v4, v6 := fmt.Sprintf("s%d", i), fmt.Sprintf("198.51.%d.%d", i/250, i%250), fmt.Sprintf("2001:db8::%x", i)
		catalog[i] = newService(b, name+".fed.example", v4+":443", "["+v6+"]:443")
		fmt.Fprintf(&hosts, "%s %s.fed.example\n%s %s.fed.example\n", v4, name, v6, name)
		fmt.Fprintf(&records, "%[1]s 30 IN A %[2]s\n%[1]s 30 IN AAAA %[3]s\nv4.%[1]s 30 IN A %[2]s\nv6.%[1]s 30 IN AAAA %[3]s\n"+
			"%[1]s 30 IN SRV 0 100 443 v4.%[1]s\n%[1]s 30 IN SRV 0 100 443 v6.%[1]s\n", name, v4, v6)
	}
	db := filepath.Join(b.TempDir(), "db")
	must.Do(b, os.WriteFile(db, []byte(records.String()), 0o600))
	handlers := []struct {
		name string
		plugin.Handler
	}{
		{"federation", newChain(b, nil, []corefile.Block{newBlock(b)}, catalog...).Federation},
		{"hosts", inTree(b, "hosts", "hosts "+os.DevNull+" {\n"+hosts.String()+"ttl 30\nreload 0\n}")},
		{"file", inTree(b, "file", "file "+db+" {\nreload 0\n}")},
	}
	for _, bench := range []struct {
		name  string
		qtype uint16
		code  int
		extra int // additional records
	}{
		{"s500.fed.example.", dns.TypeA, dns.RcodeSuccess, 0},
		{"s500.fed.example.", dns.TypeSRV, dns.RcodeSuccess, 2},
		{"s500.fed.example.", dns.TypeMX, dns.RcodeSuccess, 0},
		{"nope.fed.example.", dns.TypeA, dns.RcodeNameError, 0},
	} {
		for _, h := range handlers {
			if h.name == "hosts" && bench.qtype != dns.TypeA || h.name == "hosts" && bench.code != dns.RcodeSuccess {
				continue // it has no such records, and no zone
			}
			b.Run(fmt.Sprintf("type=%s/rcode=%s/plugin=%s", dns.TypeToString[bench.qtype], dns.RcodeToString[bench.code], h.name), func(b *testing.B) {
				query := new(dns.Msg)
				query.SetQuestion(bench.name, bench.qtype)
				w := &lastReply{}
				ctx := context.Background()
				buf := make([]byte, dns.MaxMsgSize)
				b.ReportAllocs()
				for b.Loop() {
					must.Get(h.ServeDNS(ctx, w, query))(b)
					must.Get(w.reply.PackBuffer(buf))(b)
				}
				if w.reply.Rcode != bench.code || len(w.reply.Extra) != bench.extra {
					b.Fatalf("reply is %v", w.reply)
				}
			})
		}
	}
}

// BenchmarkServeDNSLargest measures what a client over UDP can make the server do
// with the largest service that is accepted: from the query as the server has read
// it to the reply that it truncates and packs.
func BenchmarkServeDNSLargest(b *testing.B) {
	largest := newService(b, "largest.fed.example")
	largest.Instances = nil
	for i := range 1000 { // limits.Endpoints, limits.Instances
		ep := newService(b, "one.fed.example", fmt.Sprintf("198.18.%d.%d:%d", i/256, i%256, 1+i)).Endpoints[0]
		in := federation.Instance{ID: fmt.Sprintf("i%d", i), Protocol: federation.HTTP}
		for j := range 64 { // limits.Metadata
			in.Metadata = append(in.Metadata, federation.Pair{Key: fmt.Sprintf("key-%02d", j), Value: "value"})
		}
		largest.Endpoints, largest.Instances = append(largest.Endpoints, ep), append(largest.Instances, in)
	}
	h := newChain(b, nil, []corefile.Block{newBlock(b)}, largest)
	for _, q := range []struct {
		name  string
		qtype uint16
	}{
		{"largest.fed.example.", dns.TypeA},
		{"largest.fed.example.", dns.TypeAAAA},
		{"largest.fed.example.", dns.TypeSRV},
		{"largest.fed.example.", dns.TypeTXT},
		{"largest.fed.example.", dns.TypeANY},
		{"nope.largest.fed.example.", dns.TypeA},
	} {
		b.Run(fmt.Sprintf("type=%s/name=%s", dns.TypeToString[q.qtype], q.name), func(b *testing.B) {
			query := new(dns.Msg)
			query.SetQuestion(q.name, q.qtype).SetEdns0(1232, false)
			w := &lastReply{}
			ctx := context.Background()
			buf := make([]byte, dns.MaxMsgSize)
			b.ReportAllocs()
			for b.Loop() {
				must.Get(h.ServeDNS(ctx, request.NewScrubWriter(query, w), query))(b)
				if packed, err := w.reply.PackBuffer(buf); err != nil || len(packed) > 1232 {
					b.Fatalf("%d octets, %v", len(packed), err)
				}
			}
		})
	}
}

// inTree returns a handler of CoreDNS for fed.example.
func inTree(b *testing.B, name, corefile string) plugin.Handler {
	b.Helper()
	c := caddy.NewTestController("dns", corefile)
	c.ServerBlockKeys = []string{"fed.example."}
	setup := must.Get(caddy.DirectiveAction("dns", name))(b)
	must.Do(b, setup(c))
	return dnsserver.GetConfig(c).Plugin[0](nil)
}

// lastReply is a client over UDP that keeps the last reply.
type lastReply struct {
	dns.ResponseWriter
	client net.UDPAddr
	reply  *dns.Msg
}

func (w *lastReply) RemoteAddr() net.Addr { return &w.client }

func (w *lastReply) WriteMsg(m *dns.Msg) error {
	w.reply = m
	return nil
}
