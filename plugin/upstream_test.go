package federationplugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/pkg/upstream"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/zone"
)

// elsewhere is the rest of DNS: what stands for a name is records of the form
// "TTL TYPE RDATA", each with a CNAME's target as the owner of the next, or what
// goes wrong.
type elsewhere struct {
	names map[string]string
	asked atomic.Int32
}

func (*elsewhere) Name() string { return "elsewhere" }

func (e *elsewhere) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	e.asked.Add(1)
	state := request.Request{W: w, Req: r}
	if state.Proto() != "tcp" || r.IsEdns0() != nil {
		return dns.RcodeServerFailure, errors.New("a look-up for ourselves goes over TCP and has no OPT")
	}
	m := new(dns.Msg)
	m.SetReply(r)
	says, ok := e.names[state.Name()]
	switch {
	case !ok:
		m.Rcode = dns.RcodeNameError
	case says == "drop":
		return dns.RcodeSuccess, nil // as acl does
	case says == "hang":
		time.Sleep(5 * time.Second) // as forward does, which does not look at the context
		return dns.RcodeServerFailure, nil
	case says == "panic":
		panic("a plugin's bug")
	case strings.HasPrefix(says, "TC "):
		m.Truncated = true
		says = says[3:]
	}
	says, everything := strings.CutPrefix(says, "ALL ")
	if code, ok := dns.StringToRcode[says]; ok {
		return code, nil
	}
	owner := state.QName()
	for line := range strings.Lines(says) {
		rr, err := dns.NewRR(owner + " " + line)
		if err != nil {
			return dns.RcodeServerFailure, err
		}
		if cname, ok := rr.(*dns.CNAME); ok {
			owner = cname.Target
		} else if rr.Header().Rrtype != state.QType() && !everything {
			continue
		}
		m.Answer = append(m.Answer, rr)
	}
	_ = w.WriteMsg(m)
	return dns.RcodeSuccess, nil
}

// cnames is a chain of n.
func cnames(n int) string {
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "20 CNAME c%d.example.net.\n", i)
	}
	lines.WriteString("20 A 198.51.100.7")
	return lines.String()
}

func TestHosts(t *testing.T) {
	names := map[string]string{
		"gw.example.net.":       "20 A 198.51.100.7",
		"many.example.net.":     "20 A 198.51.100.9\n10 A 198.51.100.8\n25 A 198.51.100.7",
		"same.example.net.":     "60 A 192.0.2.1",
		"six.example.net.":      "20 AAAA 2001:db8::7",
		"chain.example.net.":    "15 CNAME a.example.net.\n40 CNAME b.example.net.\n25 A 198.51.100.7",
		"cut.example.net.":      "15 CNAME a.example.net.",
		"eight.example.net.":    cnames(8),
		"nine.example.net.":     cnames(9),
		"loop.example.net.":     "20 CNAME LOOP.example.net.",
		"zero.example.net.":     "0 A 198.51.100.7",
		"servfail.example.net.": "SERVFAIL",
		"refused.example.net.":  "REFUSED",
		"drop.example.net.":     "drop",
		"hang.example.net.":     "hang",
		"panic.example.net.":    "panic",
		"tc.example.net.":       "TC 20 A 198.51.100.7",
		"meta.example.net.":     "20 A 169.254.169.254",
		"self.example.net.":     "20 A 127.0.0.1\n20 A 198.51.100.7",
		"huge.example.net.":     "4294967295 A 198.51.100.7",
		"all.example.net.":      "ALL 7 AAAA 2001:db8::7\n8 TXT text\n20 A 198.51.100.7",
	}
	const failure = "SERVFAIL, EDE 22"
	tests := []struct {
		endpoints, want string
	}{
		{"gw.example.net", "NOERROR, 20 198.51.100.7"},
		{"192.0.2.1 gw.example.net", "NOERROR, 20 192.0.2.1, 20 198.51.100.7"},
		{"192.0.2.1 same.example.net gw.example.net", "NOERROR, 20 192.0.2.1, 20 198.51.100.7"},
		{"same.example.net", "NOERROR, 30 192.0.2.1"},
		{"many.example.net gw.example.net", "NOERROR, 10 198.51.100.7, 10 198.51.100.8, 10 198.51.100.9"},
		{"chain.example.net", "NOERROR, 15 198.51.100.7"},
		{"eight.example.net", "NOERROR, 20 198.51.100.7"},
		{"zero.example.net", "NOERROR, 0 198.51.100.7"},
		{"huge.example.net", "NOERROR, 30 198.51.100.7"},
		{"six.example.net", "NOERROR, SOA"},
		{"cut.example.net", "NOERROR, SOA"},
		{"nx.example.net", "NOERROR, SOA"},
		{"nx.example.net 192.0.2.1", "NOERROR, 30 192.0.2.1"},
		{"all.example.net", "NOERROR, 20 198.51.100.7"},
		{"nine.example.net", failure},
		{"loop.example.net", failure},
		{"servfail.example.net", failure},
		{"refused.example.net", failure},
		{"drop.example.net", failure},
		{"hang.example.net", failure},
		{"panic.example.net", failure},
		{"nx.example.net hang.example.net", failure},
		{"hang.example.net 192.0.2.1", "NOERROR, 5 192.0.2.1"},
		{"hang.example.net gw.example.net", "NOERROR, 5 198.51.100.7"},
		{"tc.example.net", "NOERROR, 5 198.51.100.7"},
		{"meta.example.net", "NOERROR, EDE 15, SOA"},
		{"self.example.net", "NOERROR, EDE 15, 20 198.51.100.7"},
		{"meta.example.net hang.example.net", "SERVFAIL, EDE 15, EDE 22"},
	}
	for _, tt := range tests {
		t.Run(tt.endpoints, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				endpoints := strings.Fields(tt.endpoints)
				for i := range endpoints {
					endpoints[i] += ":443"
				}
				c := newChain(t, &elsewhere{names: names}, []Config{newConfig(t)}, newService(t, "web.fed.example", endpoints...))
				defer c.hosts.close()
				start := time.Now()
				if got := c.lookup("web.fed.example.", dns.TypeA); got != tt.want {
					t.Errorf("answer is %q, want %q", got, tt.want)
				}
				if d := time.Since(start); d > hostTimeout {
					t.Errorf("answer took %v", d)
				}
			})
		})
	}
}

// Addresses that were opened for an owner may stand behind its hosts as well.
func TestHostsAllowed(t *testing.T) {
	config := newConfig(t)
	config.AllowAddresses = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	e := &elsewhere{names: map[string]string{"self.example.net.": "20 A 127.0.0.1\n20 A 169.254.169.254"}}
	c := newChain(t, e, []Config{config}, newService(t, "web.fed.example", "self.example.net:443"))
	if got, want := c.lookup("web.fed.example.", dns.TypeA), "NOERROR, EDE 15, 20 127.0.0.1"; got != want {
		t.Errorf("answer is %q, want %q", got, want)
	}
}

// What is known of a host is used for as long as its TTL, a negative answer for
// five seconds, and a failure for longer each time (RFC 9520 section 3.2).
func TestHostsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{
			"gw.example.net.": "20 A 198.51.100.7", "bad.example.net.": "SERVFAIL", "huge.example.net.": "4294967295 A 198.51.100.7",
		}}
		c := newChain(t, e, []Config{newConfig(t)},
			newService(t, "web.fed.example", "gw.example.net:443"), newService(t, "bad.fed.example", "bad.example.net:443"),
			newService(t, "nx.fed.example", "nx.example.net:443"), newService(t, "huge.fed.example", "huge.example.net:443"))
		began := time.Now()
		steps := []struct {
			at         time.Duration
			name, want string
			asked      int32
		}{
			{0, "web", "NOERROR, 20 198.51.100.7", 1},
			{time.Second / 2, "web", "NOERROR, 20 198.51.100.7", 1},
			{3 * time.Second, "web", "NOERROR, 17 198.51.100.7", 1},
			{17*time.Second + 999*time.Millisecond, "web", "NOERROR, 3 198.51.100.7", 1},
			{22 * time.Second, "web", "NOERROR, 20 198.51.100.7", 2},
			{30 * time.Second, "bad", "SERVFAIL, EDE 22", 3},
			{34 * time.Second, "bad", "SERVFAIL, EDE 22", 3},
			{35 * time.Second, "bad", "SERVFAIL, EDE 22", 4},
			{44 * time.Second, "bad", "SERVFAIL, EDE 22", 4},
			{45 * time.Second, "bad", "SERVFAIL, EDE 22", 5},
			{50 * time.Second, "nx", "NOERROR, SOA", 6},
			{52 * time.Second, "nx", "NOERROR, SOA", 6},
			{55 * time.Second, "nx", "NOERROR, SOA", 7},
			{60 * time.Second, "huge", "NOERROR, 30 198.51.100.7", 8},
			{60*time.Second + maxTTL*time.Second, "huge", "NOERROR, 30 198.51.100.7", 9},
		}
		for _, s := range steps {
			time.Sleep(time.Until(began.Add(s.at)))
			synctest.Wait()
			if got := c.lookup(s.name+".fed.example.", dns.TypeA); got != s.want {
				t.Errorf("after %v: answer is %q, want %q", s.at, got, s.want)
			}
			if got := e.asked.Load(); got != s.asked {
				t.Errorf("after %v: %d look-ups, want %d", s.at, got, s.asked)
			}
		}
	})
}

// One look-up serves everybody who asks meanwhile, and nobody waits for it once
// it is overdue.
func TestHostsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{"hang.example.net.": "hang"}}
		c := newChain(t, e, []Config{newConfig(t)}, newService(t, "web.fed.example", "hang.example.net:443", "192.0.2.1:443"))
		ask := func(want time.Duration) {
			start := time.Now()
			if got := c.lookup("web.fed.example.", dns.TypeA); got != "NOERROR, 5 192.0.2.1" {
				t.Errorf("answer is %q", got)
			}
			if d := time.Since(start); d != want {
				t.Errorf("answer took %v, want %v", d, want)
			}
		}
		var clients sync.WaitGroup
		for range 100 {
			clients.Go(func() { ask(hostTimeout) })
		}
		clients.Wait()
		time.Sleep(time.Second)
		ask(0) // three seconds after the start of the look-up, which goes on
		if got := e.asked.Load(); got != 1 {
			t.Errorf("%d look-ups, want 1", got)
		}
		c.hosts.close()
		c.hosts.close()
		ask(0) // remembered
		time.Sleep(minRetry)
		ask(0) // closed
		if got := e.asked.Load(); got != 1 {
			t.Errorf("%d look-ups after the end, want 1", got)
		}
	})
}

// A client that goes away takes no look-up with it.
func TestHostsClientGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{"hang.example.net.": "hang"}}
		c := newChain(t, e, []Config{newConfig(t)}, newService(t, "web.fed.example", "hang.example.net:443"))
		defer c.hosts.close()
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), dnsserver.Key{}, c.server))
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		query := new(dns.Msg)
		query.SetQuestion("web.fed.example.", dns.TypeA)
		c.server.ServeDNS(ctx, &test.ResponseWriter{}, query)
		if d := time.Since(start); d != time.Second {
			t.Errorf("query took %v, its client was gone after 1s", d)
		}
	})
}

// A catalog can name any number of hosts. One query begins a bounded number of
// look-ups and builds on those of the last one.
func TestHostsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: make(map[string]string)}
		var endpoints []string
		for i := range 150 {
			host := fmt.Sprintf("gw%d.example.net", i)
			e.names[host+"."] = fmt.Sprintf("60 A 198.51.100.%d", i)
			endpoints = append(endpoints, host+":443")
		}
		c := newChain(t, e, []Config{newConfig(t)}, newService(t, "web.fed.example", endpoints...))
		for _, want := range []int{maxHosts, 2 * maxHosts, 150, 150} {
			query := new(dns.Msg)
			query.SetQuestion("web.fed.example.", dns.TypeA)
			reply := c.ask(&test.ResponseWriter{TCP: true}, query)
			if len(reply.Answer) != want || int(e.asked.Load()) != want {
				t.Errorf("%d addresses after %d look-ups, want %d", len(reply.Answer), e.asked.Load(), want)
			}
			if ttl := reply.Answer[0].Header().Ttl; (ttl == partialTTL) != (want < 150) {
				t.Errorf("TTL is %d with %d of 150 hosts", ttl, len(reply.Answer))
			}
		}
	})
}

// A host that leads back to us is a failure, at once.
func TestHostsLoop(t *testing.T) {
	up := upstream.New()
	var asked atomic.Int32
	// As plugin file does with a CNAME out of its zone.
	back := plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		asked.Add(1)
		state := request.Request{W: w, Req: r}
		loop, _ := ctx.Value(dnsserver.LoopKey{}).(int)
		m := new(dns.Msg)
		m.SetReply(r)
		reply, err := up.Lookup(context.WithValue(ctx, dnsserver.LoopKey{}, loop+1), state, "web.fed.example.", state.QType())
		if err != nil || reply == nil {
			return dns.RcodeServerFailure, err
		}
		m.Rcode = reply.Rcode
		m.Answer = append([]dns.RR{test.CNAME(state.QName() + " 20 IN CNAME web.fed.example.")}, reply.Answer...)
		_ = w.WriteMsg(m)
		return dns.RcodeSuccess, nil
	})
	synctest.Test(t, func(t *testing.T) {
		c := newChain(t, back, []Config{newConfig(t)}, newService(t, "web.fed.example", "gw.example.net:443", "gw2.example.net:443"))
		start := time.Now()
		if got, want := c.lookup("web.fed.example.", dns.TypeA), "SERVFAIL, EDE 22"; got != want {
			t.Errorf("answer is %q, want %q", got, want)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("answer took %v", d)
		}
		if got := asked.Load(); got > 2*maxLoop {
			t.Errorf("%d look-ups for two hosts", got)
		}
	})
}

// A chain of hosts that is too long from its beginning is not too long from its
// middle.
func TestHostsLoopIsNotRemembered(t *testing.T) {
	up := upstream.New()
	next := plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		state := request.Request{W: w, Req: r}
		var n int
		if _, err := fmt.Sscanf(state.Name(), "gw%d.example.net.", &n); err != nil {
			return dns.RcodeServerFailure, err
		}
		target := fmt.Sprintf("s%d.fed.example.", n+1)
		m := new(dns.Msg)
		m.SetReply(r)
		reply, err := up.Lookup(ctx, state, target, state.QType())
		if err != nil || reply == nil {
			return dns.RcodeServerFailure, err
		}
		m.Rcode = reply.Rcode
		m.Answer = append([]dns.RR{test.CNAME(state.QName() + " 20 IN CNAME " + target)}, reply.Answer...)
		_ = w.WriteMsg(m)
		return dns.RcodeSuccess, nil
	})
	synctest.Test(t, func(t *testing.T) {
		services := []*federation.Service{newService(t, "s10.fed.example", "192.0.2.1:443")}
		for i := range 10 {
			services = append(services, newService(t, fmt.Sprintf("s%d.fed.example", i), fmt.Sprintf("gw%d.example.net:443", i)))
		}
		c := newChain(t, next, []Config{newConfig(t)}, services...)
		for _, step := range []struct{ name, want string }{
			{"s0.fed.example.", "SERVFAIL, EDE 22"}, {"s5.fed.example.", "NOERROR, 20 192.0.2.1"}, {"s2.fed.example.", "NOERROR, 20 192.0.2.1"},
		} {
			if got := c.lookup(step.name, dns.TypeA); got != step.want {
				t.Errorf("answer for %s is %q, want %q", step.name, got, step.want)
			}
		}
	})
}

// A target in our own zones that no owner has may be the next plugin's.
func TestHostsInZone(t *testing.T) {
	e := &elsewhere{names: map[string]string{"gw.fed.example.": "20 A 198.51.100.7"}}
	services := func() []*federation.Service {
		return []*federation.Service{
			newService(t, "web.fed.example", "gw.fed.example:443"), newService(t, "a.fed.example", "b.fed.example:443"),
			newService(t, "b.fed.example", "a.fed.example:443"), newService(t, "c.fed.example", "web.fed.example:443", "192.0.2.1:443"),
		}
	}
	own := newChain(t, e, []Config{newConfig(t)}, services()...)
	if got, want := own.lookup("web.fed.example.", dns.TypeA), "NOERROR, SOA"; got != want {
		t.Errorf("without fallthrough, answer is %q, want %q", got, want)
	}
	if e.asked.Load() != 0 {
		t.Error("a name that is ours alone was looked up elsewhere")
	}
	through := newConfig(t)
	through.Fall.SetZonesFromArgs(nil)
	shared := newChain(t, e, []Config{through}, services()...)
	for name, want := range map[string]string{
		"web": "NOERROR, 20 198.51.100.7", "a": "NOERROR, SOA", "c": "NOERROR, 20 192.0.2.1, 20 198.51.100.7",
	} {
		if got := shared.lookup(name+".fed.example.", dns.TypeA); got != want {
			t.Errorf("with fallthrough, answer for %s is %q, want %q", name, got, want)
		}
	}
	// Before the other owner's catalog is here, its name may well exist.
	for _, c := range []*chain{own, shared} {
		c.builder.SetStatus(0, zone.Status{Grace: time.Now().Add(time.Hour)})
		c.publish()
		for name, want := range map[string]string{"web": "SERVFAIL, EDE 22", "c": "NOERROR, 5 192.0.2.1"} {
			if got := c.lookup(name+".fed.example.", dns.TypeA); got != want {
				t.Errorf("unsynced, answer for %s is %q, want %q", name, got, want)
			}
		}
	}
}

// Look-ups of one query run at the same time as each other and as the query,
// whose metadata they must not write.
func TestHostsMetadata(t *testing.T) {
	e := &elsewhere{names: map[string]string{"gw.example.net.": "20 A 198.51.100.7", "gw2.example.net.": "20 A 198.51.100.8"}}
	labelling := plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		for i := range 100 {
			metadata.SetValueFunc(ctx, fmt.Sprintf("forward/%d", i), func() string { return "" })
		}
		return e.ServeDNS(ctx, w, r)
	})
	c := newChain(t, labelling, []Config{newConfig(t)}, newService(t, "web.fed.example", "gw.example.net:443", "gw2.example.net:443"))
	ctx := metadata.ContextWithMetadata(context.WithValue(t.Context(), dnsserver.Key{}, c.server))
	query := new(dns.Msg)
	query.SetQuestion("web.fed.example.", dns.TypeA)
	c.server.ServeDNS(ctx, &test.ResponseWriter{}, query)
	if labels := metadata.Labels(ctx); slices.Contains(labels, "forward/0") {
		t.Errorf("metadata of the look-ups is in that of the query: %v", labels)
	}
}

func TestOwnAddress(t *testing.T) {
	for listen, want := range map[string]string{
		"dns://:53": "127.0.0.1:53", "dns://0.0.0.0:1053": "127.0.0.1:1053", "tls://[::]:853": "127.0.0.1:853",
		"dns://192.0.2.53:53": "192.0.2.53:53", "https://[2001:db8::53]:443": "[2001:db8::53]:443",
		"dns://[fe80::1%eth0]:53": "[fe80::1%eth0]:53", "192.0.2.53:53": "192.0.2.53:53", "": "127.0.0.1:0",
	} {
		if got := ownAddress(listen); got.String() != want || got.Network() != "tcp" {
			t.Errorf("own address of a server on %q is %v, want %s", listen, got, want)
		}
	}
}
