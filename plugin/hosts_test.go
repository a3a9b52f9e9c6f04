package federationplugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	golog "log"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/errors"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// twoOwners returns a chain of the first owner's services, which are loud, and
// the second one's, which are quiet.
func twoOwners(t testing.TB, next plugin.Handler, loud []*federation.Service, quiet ...*federation.Service) *chain {
	t.Helper()
	second := newConfig(t)
	second.Addresses = []string{"quiet.example:8008"}
	c := newChain(t, next, []Config{newConfig(t), second}, loud...)
	for _, s := range quiet {
		c.builder.Put(1, s, 0)
	}
	c.publish()
	return c
}

// withErrors puts CoreDNS's plugin errors before the chain, and returns what it
// logs.
func (c *chain) withErrors(t testing.TB, next plugin.Handler) *bytes.Buffer {
	t.Helper()
	config := &dnsserver.Config{Zone: ".", Transport: "dns", ListenHosts: []string{""}, Port: "53"}
	setup, err := caddy.DirectiveAction("dns", "errors")
	if err != nil {
		t.Fatal(err)
	}
	controller := caddy.NewTestController("dns", "errors")
	if err := setup(controller); err != nil {
		t.Fatal(err)
	}
	config.AddPlugin(dnsserver.GetConfig(controller).Plugin[0])
	config.AddPlugin(func(plugin.Handler) plugin.Handler { return c.Federation })
	config.AddPlugin(func(plugin.Handler) plugin.Handler { return next })
	if c.server, err = dnsserver.NewServer("dns://:53", []*dnsserver.Config{config}); err != nil {
		t.Fatal(err)
	}
	lines := new(bytes.Buffer)
	golog.SetOutput(lines)
	t.Cleanup(func() { golog.SetOutput(os.Stderr) })
	return lines
}

// behind is a service with n hosts in a domain.
func behind(t testing.TB, fqdn string, n int, domain string) *federation.Service {
	t.Helper()
	label, _, _ := strings.Cut(fqdn, ".")
	var endpoints []string
	for i := range n {
		endpoints = append(endpoints, fmt.Sprintf("%s-gw%d.%s:443", label, i, domain))
	}
	return newService(t, fqdn, endpoints...)
}

// deadForwarder answers for hosts of one domain at once and for all others not
// at all, as forward does whose servers are away: after five seconds with an error.
type deadForwarder struct {
	live  string
	asked atomic.Int32 // in vain
}

func (*deadForwarder) Name() string { return "forward" }

func (d *deadForwarder) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	if !dns.IsSubDomain(d.live, state.Name()) {
		d.asked.Add(1)
		time.Sleep(5 * time.Second)
		return dns.RcodeServerFailure, errors.New("i/o timeout")
	}
	m := new(dns.Msg)
	m.SetReply(r)
	if state.QType() == dns.TypeA {
		m.Answer = []dns.RR{test.A(state.QName() + " 1 IN A 198.51.100.7")}
	}
	_ = w.WriteMsg(m)
	return dns.RcodeSuccess, nil
}

// A minute in which clients ask ten times a second for hosts of one owner behind
// a dead forwarder harms neither the host of another owner nor the log.
func TestHostsOfOneOwnerStarveNoOther(t *testing.T) {
	for _, domains := range []int{1, 1000} {
		t.Run(fmt.Sprintf("%d domains", domains), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const minute = 600 // tenths of a second
				var loud []*federation.Service
				for i := range minute {
					loud = append(loud, behind(t, fmt.Sprintf("s%d.fed.example", i), maxHosts, fmt.Sprintf("dead%d.example", i%domains)))
				}
				next := &deadForwarder{live: "live.example."}
				c := twoOwners(t, next, loud, newService(t, "quiet.fed.example", "gw.live.example:443"))
				lines := c.withErrors(t, next)
				var clients sync.WaitGroup
				failed := 0
				for i := range minute {
					clients.Go(func() { c.lookup(loud[i].FQDN.String(), dns.TypeA) })
					synctest.Wait()
					if got := c.lookup("quiet.fed.example.", dns.TypeA); !strings.HasSuffix(got, " 198.51.100.7") {
						failed++
					}
					time.Sleep(time.Second / 10)
				}
				clients.Wait()
				c.hosts.close()
				logged := strings.Count(lines.String(), "\n")
				t.Logf("%d of %d queries for the other owner's host failed; %d look-ups in vain, %d lines", failed, minute, next.asked.Load(), logged)
				if failed > 0 {
					t.Errorf("%d of %d queries for the other owner's host failed", failed, minute)
				}
				most := maxPlaces
				if domains == 1 {
					most = maxDomainPlaces
				}
				if logged > most+most/10 { // the minute has begun again for the first of them
					t.Errorf("%d lines in a minute, want %d", logged, most)
				}
			})
		})
	}
}

// A dead domain harms no other domain of its owner, and is asked for again a
// minute later.
func TestHostsOfADeadDomainStarveNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var services []*federation.Service
		for i := range 10 {
			services = append(services, behind(t, fmt.Sprintf("s%d.fed.example", i), maxHosts, fmt.Sprintf("sub%d.dead.example", i)))
		}
		next := &deadForwarder{live: "live.example."}
		c := newChain(t, next, []Config{newConfig(t)}, append(services, newService(t, "web.fed.example", "gw.live.example:443"))...)
		defer c.hosts.close()
		ask := func(name, want string, within time.Duration) {
			t.Helper()
			start := time.Now()
			if got := c.lookup(name, dns.TypeA); got != want {
				t.Errorf("answer for %s is %q, want %q", name, got, want)
			}
			if d := time.Since(start); d > within {
				t.Errorf("answer for %s took %v", name, d)
			}
		}
		const failure = "SERVFAIL, EDE 22"
		ask("s0.fed.example.", failure, hostTimeout)
		synctest.Wait()
		for i := range 10 { // there is no place left, and so nothing to wait for
			ask(fmt.Sprintf("s%d.fed.example.", i), failure, 0)
		}
		ask("web.fed.example.", "NOERROR, 1 198.51.100.7", 0)
		if got := next.asked.Load(); got != maxDomainPlaces {
			t.Errorf("%d look-ups in a dead domain, want %d", got, maxDomainPlaces)
		}
		time.Sleep(5*time.Second + placeHeld)
		next.live = "dead.example."
		ask("s1.fed.example.", "NOERROR, 1 198.51.100.7", 0)
	})
}

// An owner that names hosts without end fills its own memory, and no other's.
func TestHostsRememberedForEachOwner(t *testing.T) {
	const hosts = maxKnown + 1000
	e := &elsewhere{names: map[string]string{"quiet.example.net.": "600 A 198.51.100.7"}}
	var services []*federation.Service
	for i := 0; i < hosts; i += maxHosts {
		services = append(services, behind(t, fmt.Sprintf("s%d.fed.example", i), maxHosts, "loud.example"))
	}
	c := twoOwners(t, e, services, newService(t, "quiet.fed.example", "quiet.example.net:443"))
	want := "NOERROR, 30 198.51.100.7"
	if got := c.lookup("quiet.fed.example.", dns.TypeA); got != want {
		t.Fatalf("answer is %q, want %q", got, want)
	}
	for _, s := range services {
		for i := range maxHosts {
			label, _, _ := strings.Cut(s.FQDN.String(), ".")
			e.names[fmt.Sprintf("%s-gw%d.loud.example.", label, i)] = "600 A 198.51.100.8"
		}
		c.lookup(s.FQDN.String(), dns.TypeA)
	}
	before := e.asked.Load()
	if got := c.lookup("quiet.fed.example.", dns.TypeA); got != want || e.asked.Load() != before {
		t.Errorf("after the flood the answer is %q and %d more look-ups, want %q and none", got, e.asked.Load()-before, want)
	}
	for owner, s := range c.hosts.shares {
		size := 0
		for _, k := range s.known {
			size += 1 + len(k.addresses)
		}
		if size != s.size || size > maxKnown {
			t.Errorf("memory of %s is %d large and counts as %d, want %d at most", owner, size, s.size, maxKnown)
		}
	}
}

// Addresses of a host that cannot be looked up any more are used for a while (RFC
// 8767), and the answer says so.
func TestHostsStale(t *testing.T) {
	const (
		fresh   = "NOERROR, 20 198.51.100.7"
		stale   = "NOERROR, EDE 3, 30 198.51.100.7"
		failure = "SERVFAIL, EDE 22"
	)
	const hour = time.Hour
	for _, tt := range []struct {
		name      string
		retention time.Duration
		then      string        // what becomes of the host after 20 s
		at        time.Duration // when it is asked for, from then on
		want      string
		took      time.Duration
	}{
		{"refused", 0, "REFUSED", 1, stale, 0},
		{"failed for nearly a day", 0, "SERVFAIL", maxStale - 1, stale, 0},
		{"failed for a day", 0, "SERVFAIL", maxStale, failure, 0},
		{"failed for as long as the owner's records are kept", hour, "SERVFAIL", hour, failure, 0},
		{"failed for nearly as long", hour, "SERVFAIL", hour - 1, stale, 0},
		{"retention of days", 1000 * hour, "SERVFAIL", maxStale, failure, 0},
		{"hangs", 0, "hang", 1, stale, hostTimeout},
		{"gone", 0, "", 1, "NOERROR, SOA", 0},
		{"has another type", 0, "20 AAAA 2001:db8::7", 1, "NOERROR, SOA", 0},
		{"has moved", 0, "20 A 198.51.100.8", 1, "NOERROR, 20 198.51.100.8", 0},
		{"cut off", 0, "TC 20 A 198.51.100.8", 1, "NOERROR, 5 198.51.100.8", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := newConfig(t)
				config.Retention = tt.retention
				e := &elsewhere{names: map[string]string{"gw.example.net.": "20 A 198.51.100.7"}}
				c := newChain(t, e, []Config{config}, newService(t, "web.fed.example", "gw.example.net:443"))
				defer c.hosts.close()
				if got := c.lookup("web.fed.example.", dns.TypeA); got != fresh {
					t.Fatalf("answer is %q, want %q", got, fresh)
				}
				if e.names["gw.example.net."] = tt.then; tt.then == "" {
					clear(e.names)
				}
				time.Sleep(20*time.Second + tt.at)
				for _, took := range []time.Duration{tt.took, 0} { // the second one does not wait again
					start := time.Now()
					if got := c.lookup("web.fed.example.", dns.TypeA); got != tt.want {
						t.Errorf("answer is %q, want %q", got, tt.want)
					}
					if d := time.Since(start); d != took {
						t.Errorf("answer took %v, want %v", d, took)
					}
				}
			})
		})
	}
}

// While the addresses of a host are stale, it is looked up now and then, and what
// is found counts from then on. What is left out is not stale: the TTL is not cut.
func TestHostsStaleRecheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{"gw.example.net.": "20 A 198.51.100.7"}}
		c := newChain(t, e, []Config{newConfig(t)}, newService(t, "web.fed.example", "gw.example.net:443", "192.0.2.1:443"))
		c.lookup("web.fed.example.", dns.TypeA)
		e.names["gw.example.net."] = "SERVFAIL"
		time.Sleep(20 * time.Second)
		for range 600 {
			if got, want := c.lookup("web.fed.example.", dns.TypeA), "NOERROR, EDE 3, 30 192.0.2.1, 30 198.51.100.7"; got != want {
				t.Fatalf("answer is %q, want %q", got, want)
			}
			time.Sleep(time.Second)
		}
		// One before, three that are 30 s apart, and then one a minute.
		if got, want := e.asked.Load(), int32(1+3+9); got < want-1 || got > want+1 {
			t.Errorf("%d look-ups in ten minutes, want %d", got, want)
		}
		e.names["gw.example.net."] = "20 A 198.51.100.8"
		time.Sleep(maxRetry)
		if got, want := c.lookup("web.fed.example.", dns.TypeA), "NOERROR, 20 192.0.2.1, 20 198.51.100.8"; got != want {
			t.Errorf("answer is %q, want %q", got, want)
		}
	})
}

// A host that is asked for all the time is looked up before its TTL is over, once
// each time, so that only the first client waits.
func TestHostsPrefetched(t *testing.T) {
	for _, tt := range []struct {
		record string
		asked  int32 // in five minutes
	}{
		{"20 A 198.51.100.7", 300 / 19},  // 2 s before the end, and it takes 1 s
		{"100 A 198.51.100.7", 300 / 91}, // 10 s before the end
		{"20 AAAA 2001:db8::7", 300 / 4}, // a negative answer is used for 5 s
		{"2 A 198.51.100.7", 300 / 2},    // 1 s before the end
	} {
		t.Run(tt.record, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &elsewhere{names: map[string]string{"gw.example.net.": tt.record}}
				slow := plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
					time.Sleep(999 * time.Millisecond)
					return e.ServeDNS(ctx, w, r)
				})
				c := newChain(t, slow, []Config{newConfig(t)}, newService(t, "web.fed.example", "gw.example.net:443"))
				defer c.hosts.close()
				c.lookup("web.fed.example.", dns.TypeA)
				for range 3000 {
					start := time.Now()
					if got := c.lookup("web.fed.example.", dns.TypeA); strings.HasPrefix(got, "SERVFAIL") || strings.Contains(got, "EDE") {
						t.Fatalf("answer is %q", got)
					}
					if d := time.Since(start); d != 0 {
						t.Fatalf("a client waited for %v", d)
					}
					time.Sleep(100 * time.Millisecond)
				}
				if got := e.asked.Load(); got > tt.asked+1 {
					t.Errorf("%d look-ups, want %d", got, tt.asked)
				}
			})
		})
	}
}

// As plugin acl does: the client's address decides.
type byClient map[string]string

func (byClient) Name() string { return "acl" }

func (b byClient) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	says := b[state.IP()]
	if says == "drop" {
		return dns.RcodeSuccess, nil
	}
	m := new(dns.Msg)
	m.SetReply(r)
	if says != "filter" {
		m.Answer = []dns.RR{test.A(state.QName() + " 20 IN A " + says)}
	}
	_ = w.WriteMsg(m)
	return dns.RcodeSuccess, nil
}

// What one client may not see, another does, and the other way round: the look-up
// of a host is the server's, whoever asks first.
func TestHostsAreLookedUpForNoClient(t *testing.T) {
	const server, one, two = "127.0.0.1", "192.0.2.1", "192.0.2.2"
	const found = "NOERROR, 20 198.51.100.7"
	for _, tt := range []struct {
		name  string
		rules byClient
		want  string
	}{
		{"one is filtered", byClient{server: "198.51.100.7", one: "filter", two: "198.51.100.7"}, found},
		{"one is dropped", byClient{server: "198.51.100.7", one: "drop", two: "198.51.100.7"}, found},
		{"each has a view", byClient{server: "198.51.100.7", one: "198.51.100.1", two: "198.51.100.2"}, found},
		{"the server is filtered", byClient{server: "filter", one: "198.51.100.1", two: "198.51.100.2"}, "NOERROR, SOA"},
		{"the server is dropped", byClient{server: "drop", one: "198.51.100.1", two: "198.51.100.2"}, "SERVFAIL, EDE 22"},
	} {
		for _, clients := range [][]string{{one, two}, {two, one}} {
			t.Run(tt.name+", first "+clients[0], func(t *testing.T) {
				c := newChain(t, tt.rules, []Config{newConfig(t)}, newService(t, "web.fed.example", "gw.example.net:443"))
				for _, client := range clients {
					query := new(dns.Msg)
					query.SetQuestion("web.fed.example.", dns.TypeA).SetEdns0(4096, false)
					if got := short(c.ask(&test.ResponseWriter{RemoteIP: client}, query)); got != tt.want {
						t.Errorf("answer for %s is %q, want %q", client, got, tt.want)
					}
				}
			})
		}
	}
}

// Nothing of the query that began a look-up is in it: neither what its client
// sent, nor what plugins made of it.
func TestHostsAreLookedUpWithoutTheQuery(t *testing.T) {
	type httpRequest struct{}
	asked := false
	next := plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		asked = true
		for _, key := range []any{dnsserver.ViewKey{}, httpRequest{}} {
			if v := ctx.Value(key); v != nil {
				t.Errorf("context has %T: %v", key, v)
			}
		}
		if labels := metadata.Labels(ctx); len(labels) > 0 {
			t.Errorf("context has metadata: %v", labels)
		}
		for _, a := range []net.Addr{w.RemoteAddr(), w.LocalAddr()} {
			if a.Network() != "tcp" || a.String() != "127.0.0.1:53" {
				t.Errorf("address is %s %v", a.Network(), a)
			}
		}
		if r.IsEdns0() != nil || r.CheckingDisabled || r.AuthenticatedData || r.Question[0].Name != "gw.example.net." {
			t.Errorf("query is %v", r)
		}
		m := new(dns.Msg)
		m.SetReply(r)
		m.Answer = []dns.RR{test.A("gw.example.net. 20 IN A 198.51.100.7")}
		packed, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write(packed) // some plugins do
		return dns.RcodeSuccess, err
	})
	c := newChain(t, next, []Config{newConfig(t)}, newService(t, "web.fed.example", "gw.example.net:443"))
	ctx := metadata.ContextWithMetadata(context.WithValue(t.Context(), dnsserver.Key{}, c.server))
	ctx = context.WithValue(context.WithValue(ctx, dnsserver.ViewKey{}, "inside"), httpRequest{}, "GET")
	metadata.SetValueFunc(ctx, "client/secret", func() string { return "" })
	query := new(dns.Msg)
	query.SetQuestion("WEB.fed.example.", dns.TypeA).SetEdns0(512, true)
	query.CheckingDisabled, query.AuthenticatedData = true, true
	query.IsEdns0().Option = append(query.IsEdns0().Option, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(192, 0, 2, 0)})
	c.server.ServeDNS(ctx, &test.ResponseWriter{}, query)
	if !asked {
		t.Error("the host was not looked up")
	}
}
