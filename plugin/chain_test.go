package federationplugin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/plugin/transfer"
	"github.com/coredns/coredns/request"
	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// transferred asks for a zone and returns the records, or the error.
func transferred(f *Federation, name string, serial uint32) ([]dns.RR, error) {
	records, err := f.Transfer(name, serial)
	var all []dns.RR
	if err == nil {
		for rrs := range records {
			all = append(all, rrs...)
		}
	}
	return all, err
}

func TestTransferOrigins(t *testing.T) {
	through := newBlock(t, "through.example.")
	through.Fall.SetZonesFromArgs(nil)
	c := newChain(t, nil, []corefile.Block{newBlock(t), through}, newService(t, "web.fed.example", "192.0.2.1:443"))
	for _, tt := range []struct {
		zone string
		want error
	}{
		{"fed.example.", nil},
		{"web.fed.example.", transfer.ErrNotAuthoritative},
		{"example.", transfer.ErrNotAuthoritative},
		{"through.example.", transfer.ErrNotAuthoritative}, // the next plugin's names are not ours to deny
	} {
		//nolint:errorlint // the transfer plugin compares it so
		if _, err := transferred(c.Federation, tt.zone, 0); err != tt.want {
			t.Errorf("error of %s is %v, want %v", tt.zone, err, tt.want)
		}
	}
	c.builder.SetStatus(0, zone.Status{})
	c.publish()
	if _, err := transferred(c.Federation, "fed.example.", 0); !errors.Is(err, errUnsynced) {
		t.Errorf("error before the first catalog is %v", err)
	}
}

func TestTransferSerial(t *testing.T) {
	c := newChain(t, nil, []corefile.Block{newBlock(t)}, newService(t, "web.fed.example", "192.0.2.1:443"))
	c.builder.Put(0, newService(t, "api.fed.example", "192.0.2.1:443"), 0)
	c.setBlock(fixed{zone: c.builder.Publish(time.Unix(1<<31+7, 0))}) // from 2038 on, serials are behind 0 (RFC 1982)
	serial := c.newestZone().SOA("fed.example.").Serial
	full := must.Get(transferred(c.Federation, "fed.example.", 0))(t)
	for _, tt := range []struct {
		ahead uint32 // of our serial
		want  int
	}{
		{0, 1},
		{math.MaxInt32, 1},
		{1<<31 + 1, len(full)}, // RFC 1982: behind
		{math.MaxUint32, len(full)},
	} {
		got := must.Get(transferred(c.Federation, "fed.example.", serial+tt.ahead))(t)
		if len(got) != tt.want || got[0].(*dns.SOA).Serial != serial {
			t.Errorf("a secondary that is %d ahead gets %d records, want %d", int32(tt.ahead), len(got), tt.want)
		}
	}
}

// A secondary that goes away in the middle of a transfer leaves no goroutine behind:
// the bubble would not end.
func TestTransferReceiverGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var services []*federation.Service
		for i := range 2000 {
			services = append(services, newService(t, fmt.Sprintf("s%d.fed.example", i), "192.0.2.1:443", "192.0.2.2:443"))
		}
		c := newChain(t, nil, []corefile.Block{newBlock(t)}, services...)
		controller := caddy.NewTestController("dns", "transfer {\nto *\n}")
		controller.ServerBlockKeys = []string{"fed.example."}
		setup := must.Get(caddy.DirectiveAction("dns", "transfer"))(t)
		must.Do(t, setup(controller))
		x := dnsserver.GetConfig(controller).Plugin[0](nil).(*transfer.Transfer)
		x.Transferers = []transfer.Transferer{c.Federation}
		for written := range int32(4) {
			w := &hangingUp{ResponseWriter: test.ResponseWriter{TCP: true}}
			w.left.Store(written)
			query := new(dns.Msg)
			query.SetAxfr("fed.example.")
			if _, err := x.ServeDNS(context.Background(), w, query); !errors.Is(err, net.ErrClosed) {
				t.Errorf("error after %d messages is %v", written, err)
			}
		}
	})
}

// panicking is a block whose transfers panic when they look whether queries want the processor.
type panicking struct{ fixed }

func (panicking) Work() func(time.Duration) bool {
	return func(time.Duration) bool { panic("while\nit sends") }
}

// TestTransferPanics has a transfer panic in its middle: it ends, and so does nothing else.
func TestTransferPanics(t *testing.T) {
	var services []*federation.Service
	for i := range 100 {
		services = append(services, newService(t, fmt.Sprintf("s%d.fed.example", i), "192.0.2.1:443"))
	}
	c := newChain(t, nil, []corefile.Block{newBlock(t)}, services...)
	whole := must.Get(transferred(c.Federation, "fed.example.", 0))(t)
	var lines testlog.Buffer
	logger := panics
	panics = panicReporter{lines.Logger()}
	t.Cleanup(func() { panics = logger })
	registry := prometheus.NewRegistry()
	must.Do(t, registry.Register(vars.Panic))
	counted := func() float64 { return must.Get(registry.Gather())(t)[0].GetMetric()[0].GetCounter().GetValue() }
	before := counted()
	c.setBlock(panicking{fixed{zone: c.newestZone()}})
	some := must.Get(transferred(c.Federation, "fed.example.", 0))(t)
	if n := len(some); n < pauseShare || n > len(whole)/2 || some[0].String() != whole[0].String() || some[n-1].Header().Rrtype == dns.TypeSOA {
		t.Errorf("%d records of %d, the last is %v", n, len(whole), some[n-1])
	}
	if n := counted() - before; n != 1 {
		t.Errorf("%v panics are counted", n)
	}
	if all := lines.Lines(); len(all) != 1 || lines.Count("level=ERROR", `during=transfer`, `error="while\\nit sends"`, "panicking.Work") != 1 {
		t.Errorf("logged: %q", all)
	}
}

// hangingUp is a client that accepts a number of messages and then closes.
type hangingUp struct {
	test.ResponseWriter
	left atomic.Int32
}

func (w *hangingUp) WriteMsg(*dns.Msg) error {
	if w.left.Add(-1) < 0 {
		return net.ErrClosed
	}
	return nil
}

func TestMetadata(t *testing.T) {
	web := newService(t, "web.fed.example", "192.0.2.1:443", "gw.fed.example:443")
	web.Name = "Web"
	web.Instances[0].ID = "V1"
	old := newService(t, "old.fed.example", "192.0.2.9:443")
	second := newBlock(t)
	second.Owner.Name = "second.example:8008"
	c := newChain(t, nil, []corefile.Block{newBlock(t), second}, web, newService(t, "gw.fed.example", "old.fed.example:443"))
	c.builder.Put(1, old, 0)
	c.builder.SetStatus(1, zone.Status{Known: true, Live: 1})
	c.publish()
	values := func(owner, service, fqdn, instance, protocol, state string) map[string]string {
		return map[string]string{
			"owner": owner, "service": service, "fqdn": fqdn, "instance": instance, "protocol": protocol, "state": state,
		}
	}
	const first = "owner.example:8008"
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  map[string]string
	}{
		{"web.fed.example.", dns.TypeSRV, values(first, "Web", "web.fed.example", "", "", "live")},
		{"WEB.fed.example.", dns.TypeMX, values(first, "Web", "web.fed.example", "", "", "live")},
		{"web.fed.example.", dns.TypeA, values(first, "Web", "web.fed.example", "", "", "live")}, // through gw; old is not all
		{"v1.web.fed.example.", dns.TypeTXT, values(first, "Web", "web.fed.example", "V1", "HTTPS", "live")},
		{"_https._tcp.web.fed.example.", dns.TypeSRV, values(first, "Web", "web.fed.example", "", "HTTPS", "live")},
		{"old.fed.example.", dns.TypeA, values("second.example:8008", "old.fed.example", "old.fed.example", "", "", "stale")},
		{"fed.example.", dns.TypeSOA, values("", "", "", "", "", "")},
		{"nope.fed.example.", dns.TypeA, values("", "", "", "", "", "")},
		{"other.example.", dns.TypeA, map[string]string{}},
	} {
		query := new(dns.Msg)
		query.SetQuestion(tt.name, tt.qtype)
		ctx := metadata.ContextWithMetadata(t.Context())
		ctx = c.Metadata(ctx, request.Request{W: &test.ResponseWriter{}, Req: query})
		c.builder.Remove(0, "Web") // the query keeps the version that it has begun with
		c.publish()
		got := make(map[string]string)
		for label, value := range metadata.ValueFuncs(ctx) {
			got[label[len("federation/"):]] = value()
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s %s (-want +got):\n%s", tt.name, dns.TypeToString[tt.qtype], d)
		}
		c.builder.Put(0, web, 0)
		c.publish()
	}
}

// Owners choose names and IDs. Their metadata cannot end a field or a line of a log,
// and does not control the terminal that shows it.
func TestMetadataEscapes(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, tt := range []struct{ value, want string }{
		{"web", "web"},
		{"Web shop", `Web\032shop`},
		{`\010`, `\092010`}, // not a line feed
		{"a\nb\r\tc\x1b[31m\x00\x7f", `a\010b\013\009c\027[31m\000\127`},
		{"Bücher\xff", `B\195\188cher\255`},
		{long[:maxWord], long[:maxWord]},
		{long[:maxWord+1], long[:maxWord-4] + `\...`},
		{long[:maxWord-4] + "\n", long[:maxWord-4] + `\010`},
		{long[:maxWord-3] + "\n", long[:maxWord-4] + `\...`},
		{strings.Repeat("\x1b", 1<<20), strings.Repeat(`\027`, maxWord/4-1) + `\...`},
	} {
		web := newService(t, "web.fed.example", "192.0.2.1:443")
		web.Name = tt.value
		c := newChain(t, nil, []corefile.Block{newBlock(t)}, web)
		query := new(dns.Msg)
		query.SetQuestion("web.fed.example.", dns.TypeA)
		ctx := c.Metadata(metadata.ContextWithMetadata(t.Context()), request.Request{W: &test.ResponseWriter{}, Req: query})
		if got := metadata.ValueFunc(ctx, "federation/service")(); got != tt.want {
			t.Errorf("service %.40q is %q, want %q", tt.value, got, tt.want)
		}
	}
}

func TestReady(t *testing.T) {
	f := newFederation([]corefile.Block{newBlock(t)})
	if f.Ready() {
		t.Error("ready before start-up")
	}
	f.setBlock(fixed{})
	if f.Ready() {
		t.Error("ready before the block is")
	}
	f.setBlock(fixed{ready: true})
	if !f.Ready() {
		t.Error("not ready when the block is")
	}
}

// The zones of a Corefile may be in any case.
func TestCacheBypassZones(t *testing.T) {
	through := newBlock(t, "Through.Example.")
	through.Fall.SetZonesFromArgs([]string{"Sub.Through.Example."})
	f := newFederation([]corefile.Block{newBlock(t, "FED.example.", "sub.fed.example."), newBlock(t), through})
	if d := cmp.Diff([]string{"fed.example.", "sub.fed.example."}, f.CacheBypassZones()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// A secondary with a recent serial gets what has changed since.
func TestTransferDifference(t *testing.T) {
	c := newChain(t, nil, []corefile.Block{newBlock(t)}, newService(t, "web.fed.example", "192.0.2.1:443"), newService(t, "old.fed.example", "192.0.2.1:443"))
	at := time.Now()
	var serials []uint32
	for _, name := range []string{"a", "b", "c"} {
		at = at.Add(time.Second)
		c.builder.Put(0, newService(t, name+".fed.example", "192.0.2.2:443"), 0)
		c.setBlock(fixed{c.builder.Publish(at), true})
		serials = append(serials, c.newestZone().SOA("fed.example.").Serial)
	}
	got := must.Get(transferred(c.Federation, "fed.example.", serials[1]))(t)
	var said []uint32
	for _, rr := range got {
		if soa, ok := rr.(*dns.SOA); ok {
			said = append(said, soa.Serial)
		} else if !dns.IsSubDomain("c.fed.example.", rr.Header().Name) {
			t.Errorf("among what has changed: %s", rr)
		}
	}
	if d := cmp.Diff([]uint32{serials[2], serials[1], serials[2], serials[2]}, said); d != "" || len(got) < 6 {
		t.Errorf("%d records with the serials (-want +got):\n%s", len(got), d)
	}
}
