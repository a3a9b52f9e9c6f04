package federationplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/errors"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/pkg/upstream"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/hostname"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// elsewhere is the rest of DNS, as the next plugin. The text of a name is the
// records of a chain, one a line in the form "TTL TYPE RDATA", in which the target
// of a CNAME is the name of the next record; or it is an rcode, or one of the words
// in ServeDNS. A name without a text does not exist.
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
	if code, ok := dns.StringToRcode[says]; ok {
		return code, nil
	}
	name := state.QName()
	for line := range strings.Lines(says) {
		rr, err := dns.NewRR(name + " " + line)
		if err != nil {
			return dns.RcodeServerFailure, err
		}
		if cname, ok := rr.(*dns.CNAME); ok {
			name = cname.Target
		} else if rr.Header().Rrtype != state.QType() {
			continue
		}
		m.Answer = append(m.Answer, rr)
	}
	_ = w.WriteMsg(m)
	return dns.RcodeSuccess, nil
}

func TestHosts(t *testing.T) {
	names := map[string]string{
		"gw.example.net.":       "20 A 198.51.100.7",
		"many.example.net.":     "20 A 198.51.100.9\n10 A 198.51.100.8\n25 A 198.51.100.7",
		"same.example.net.":     "60 A 192.0.2.1",
		"six.example.net.":      "20 AAAA 2001:db8::7",
		"chain.example.net.":    "15 CNAME a.example.net.\n40 CNAME b.example.net.\n25 A 198.51.100.7",
		"zero.example.net.":     "0 A 198.51.100.7",
		"servfail.example.net.": "SERVFAIL",
		"drop.example.net.":     "drop",
		"hang.example.net.":     "hang",
		"panic.example.net.":    "panic",
		"tc.example.net.":       "TC 20 A 198.51.100.7",
		"meta.example.net.":     "20 A 169.254.169.254",
		"self.example.net.":     "20 A 127.0.0.1\n20 A 198.51.100.7",
		"huge.example.net.":     "4294967295 A 198.51.100.7",
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
		{"zero.example.net", "NOERROR, 0 198.51.100.7"},
		{"huge.example.net", "NOERROR, 30 198.51.100.7"},
		{"six.example.net", "NOERROR, SOA"},
		{"nx.example.net", "NOERROR, SOA"},
		{"nx.example.net 192.0.2.1", "NOERROR, 30 192.0.2.1"},
		{"servfail.example.net", failure},
		{"drop.example.net", failure},
		{"hang.example.net", failure},
		{"panic.example.net", failure},
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
				c := newChain(t, &elsewhere{names: names}, []corefile.Block{newBlock(t)}, newService(t, "web.fed.example", endpoints...))
				defer hostname.Close(c.hosts)
				start := time.Now()
				if got := c.lookup("web.fed.example.", dns.TypeA); got != tt.want {
					t.Errorf("answer is %q, want %q", got, tt.want)
				}
				if d := time.Since(start); d > hostname.Patience {
					t.Errorf("answer took %v", d)
				}
			})
		})
	}
}

// What A denies is no target of SRV records either: not for one address of many, nor for
// one of the other type.
func TestHostsAsTargets(t *testing.T) {
	names := map[string]string{
		"gw.example.net.":       "20 A 198.51.100.7",
		"meta.example.net.":     "20 A 169.254.169.254",
		"self.example.net.":     "20 A 127.0.0.1\n20 A 198.51.100.7",
		"six.example.net.":      "20 A 198.51.100.7\n20 AAAA fd00:ec2::254",
		"servfail.example.net.": "SERVFAIL",
		"hang.example.net.":     "hang",
	}
	const (
		own   = "30 0 100 443 192-0-2-1.addr.web.fed.example."
		gw    = "30 0 100 443 gw.example.net."
		empty = "NOERROR, EDE 15, SOA"
	)
	tests := []struct {
		endpoints, want string
	}{
		{"gw.example.net", "NOERROR, " + gw},
		{"meta.example.net", empty},
		{"self.example.net", empty},
		{"six.example.net", empty},
		{"nx.example.net", "NOERROR, 30 0 100 443 nx.example.net."},
		{"192.0.2.1 gw.example.net meta.example.net self.example.net six.example.net", "NOERROR, EDE 15, " + own + ", " + gw},
		{"servfail.example.net", "SERVFAIL, EDE 22"},
		{"hang.example.net", "SERVFAIL, EDE 22"},
		{"192.0.2.1 hang.example.net", "NOERROR, 5" + own[2:]},
		{"meta.example.net hang.example.net", "SERVFAIL, EDE 15, EDE 22"},
		{"meta.fed.example", empty},
		{"via.fed.example", empty},
		{"192.0.2.1 via.fed.example good.fed.example", "NOERROR, EDE 15, " + own + ", 30 0 100 443 good.fed.example."},
	}
	for _, tt := range tests {
		t.Run(tt.endpoints, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				endpoints := strings.Fields(tt.endpoints)
				for i := range endpoints {
					endpoints[i] += ":443"
				}
				c := newChain(t, &elsewhere{names: names}, []corefile.Block{newBlock(t)}, newService(t, "web.fed.example", endpoints...),
					newService(t, "meta.fed.example", "meta.example.net:443"), newService(t, "via.fed.example", "192.0.2.1:443", "meta.fed.example:443"),
					newService(t, "good.fed.example", "gw.example.net:443"))
				defer hostname.Close(c.hosts)
				start := time.Now()
				for _, name := range []string{"web.fed.example.", "_https._tcp.web.fed.example."} {
					if got := c.lookup(name, dns.TypeSRV); got != tt.want {
						t.Errorf("answer for %s is %q, want %q", name, got, tt.want)
					}
				}
				if d := time.Since(start); d > hostname.Patience {
					t.Errorf("answers took %v", d)
				}
			})
		})
	}
}

// SRV is decided by the look-ups of A and AAAA, and makes no others.
func TestTargetsShareLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{"gw.example.net.": "20 A 198.51.100.7"}}
		c := newChain(t, e, []corefile.Block{newBlock(t)}, newService(t, "web.fed.example", "gw.example.net:443", "gw.example.net:444"))
		defer hostname.Close(c.hosts)
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV} {
			c.lookup("web.fed.example.", qtype)
		}
		if n := e.asked.Load(); n != 2 {
			t.Errorf("%d look-ups, want one of each type", n)
		}
	})
}

// Targets elsewhere come with the addresses that the look-ups of the query have found: all of
// a host or none, with what is left of their TTL, and as far as there is room.
func TestTargetGlue(t *testing.T) {
	names := map[string]string{
		"gw.example.net.":       "20 A 198.51.100.7\n10 A 198.51.100.6\n20 A 198.51.100.7\n30 AAAA 2001:db8::7",
		"four.example.net.":     "40 A 198.51.100.4",
		"meta.example.net.":     "20 A 169.254.169.254\n20 A 198.51.100.8",
		"servfail.example.net.": "SERVFAIL",
		"tc.example.net.":       "TC 20 A 198.51.100.9",
		"alias.example.net.":    "20 CNAME four.example.net.\n20 A 198.51.100.4",
	}
	const (
		own  = "30 192-0-2-1.addr.web.fed.example. 192.0.2.1"
		gw   = "10 gw.example.net. 198.51.100.6, 10 gw.example.net. 198.51.100.7, 10 gw.example.net. 2001:db8::7"
		four = "40 four.example.net. 198.51.100.4"
	)
	type ask struct {
		tcp, signed bool
		size        uint16 // of EDNS; 0: there is none
		again       time.Duration
	}
	for name, tt := range map[string]struct {
		endpoints string
		ask       ask
		want      string
	}{
		"one":                   {"gw.example.net:443", ask{}, gw},
		"with several ports":    {"gw.example.net:443 gw.example.net:444", ask{}, gw},
		"in order":              {"gw.example.net:443 192.0.2.1:443 four.example.net:443", ask{size: 1232}, own + ", " + four + ", " + gw},
		"over TCP":              {"gw.example.net:443", ask{tcp: true}, gw},
		"with signatures":       {"gw.example.net:443 192.0.2.1:443", ask{tcp: true, signed: true, size: 1232}, own},
		"signatures over UDP":   {"gw.example.net:443 192.0.2.1:443", ask{signed: true, size: 1232}, ""},
		"without addresses":     {"nx.example.net:443 four.example.net:443", ask{}, four},
		"refused":               {"meta.example.net:443 four.example.net:443", ask{}, four},
		"unknown":               {"servfail.example.net:443 four.example.net:443", ask{}, four},
		"perhaps a part":        {"tc.example.net:443 four.example.net:443", ask{}, four},
		"behind a name of ours": {"via.fed.example:443 four.example.net:443", ask{}, four},
		"an alias":              {"alias.example.net:443 four.example.net:443", ask{}, four},
		"later":                 {"four.example.net:443", ask{again: 15 * time.Second}, "25" + four[2:]},
		"stale":                 {"gw.example.net:443", ask{again: 40 * time.Second}, ""},
		"for which there is no room": {
			"four.example.net:443 gw.example.net:443 a.very.long.name.of.a.host.that.takes.room.in.the.message.example.net:443 " +
				"another.very.long.name.of.a.host.that.takes.room.in.the.message.example.net:443 " +
				"yet.another.very.long.name.of.a.host.that.takes.room.in.the.message.example.net:443 " +
				"and.yet.another.long.name.of.a.host.that.takes.room.in.the.message.example.net:443", ask{}, four,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &elsewhere{names: maps.Clone(names)}
				c := newChain(t, e, []corefile.Block{newBlock(t)}, newService(t, "web.fed.example", strings.Fields(tt.endpoints)...),
					newService(t, "via.fed.example", "gw.example.net:443"))
				defer hostname.Close(c.hosts)
				query := new(dns.Msg)
				query.SetQuestion("web.fed.example.", dns.TypeSRV)
				if tt.ask.size > 0 {
					query.SetEdns0(tt.ask.size, tt.ask.signed)
				}
				m := c.ask(&test.ResponseWriter{TCP: tt.ask.tcp}, query)
				if tt.ask.again > 0 {
					synctest.Wait()
					e.names["gw.example.net."] = "SERVFAIL"
					time.Sleep(tt.ask.again)
					m = c.ask(&test.ResponseWriter{TCP: tt.ask.tcp}, query)
				}
				var glue []string
				for _, rr := range m.Extra {
					if h := rr.Header(); h.Rrtype != dns.TypeOPT {
						glue = append(glue, fmt.Sprintf("%d %s %s", h.Ttl, h.Name, strings.TrimPrefix(rr.String(), h.String())))
					}
				}
				if got := strings.Join(glue, ", "); got != tt.want || m.Rcode != dns.RcodeSuccess || m.Truncated {
					t.Errorf("glue is %q, want %q, in\n%v", got, tt.want, m)
				}
			})
		})
	}
}

// Of a shared name, a host is looked up for the owner that says it, and may lead to what that owner may
// publish: whatever other owners may, and wherever they stand in the Corefile. If several say it, one is enough.
func TestHostsShared(t *testing.T) {
	const self, gw = "self.example.net:443", "gw.example.net:443"
	for _, tt := range []struct {
		open, strict, a, srv string // of one owner that may publish 127.0.0.0/8, and one that may not
	}{
		{"192.0.2.1:443", self, "NOERROR, EDE 15, 20 192.0.2.1", "NOERROR, EDE 15, 30 0 100 443 192-0-2-1.addr.web.fed.example."},
		{self, "192.0.2.1:443", "NOERROR, 20 127.0.0.1, 20 192.0.2.1", "NOERROR, 30 0 100 443 192-0-2-1.addr.web.fed.example., 30 0 100 443 self.example.net."},
		{self, self, "NOERROR, 20 127.0.0.1", "NOERROR, 30 0 100 443 self.example.net."},
		{gw, self, "NOERROR, EDE 15, 20 198.51.100.7", "NOERROR, EDE 15, 30 0 100 443 gw.example.net."},
	} {
		for first := range 2 {
			t.Run(fmt.Sprintf("%s and %s, %d", tt.open, tt.strict, first), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					blocks := make([]corefile.Block, 2)
					for i := range blocks {
						blocks[i] = newBlock(t)
						blocks[i].Owner.Name = fmt.Sprint("owner", i)
						blocks[i].Zone.Sharing = zone.Sharing{Names: []pattern.Name{must.Value(pattern.ParseName("web.fed.example"))}, Min: 1}
					}
					blocks[first].Owner.Policy.AllowAddresses = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
					e := &elsewhere{names: map[string]string{"self.example.net.": "20 A 127.0.0.1", "gw.example.net.": "20 A 198.51.100.7"}}
					c := newChain(t, e, blocks)
					defer hostname.Close(c.hosts)
					c.builder.Put(first, newService(t, "web.fed.example", tt.open), 0)
					c.builder.Put(1-first, newService(t, "web.fed.example", tt.strict), 0)
					c.builder.Put(first, newService(t, "gw.fed.example", gw), 0)
					c.publish()
					if got := c.lookup("web.fed.example.", dns.TypeA); got != tt.a {
						t.Errorf("answer is %q, want %q", got, tt.a)
					}
					if got := c.lookup("web.fed.example.", dns.TypeSRV); got != tt.srv {
						t.Errorf("answer is %q, want %q", got, tt.srv)
					}
					asked := e.asked.Load()
					c.lookup("gw.fed.example.", dns.TypeA)
					if again := e.asked.Load() == asked+1; again == (tt.open == gw) {
						t.Errorf("gw.example.net was looked up again: %v", again)
					}
				})
			})
		}
	}
}

// A tier whose hosts have no address, of either type, does not hide the next one, in the time that one look-up may take.
func TestHostsSharedTiers(t *testing.T) {
	const none = "NOERROR, SOA"
	for _, tt := range []struct{ gw, near, far, a, aaaa, srv string }{
		{"20 A 198.51.100.7", "gw.example.net", "192.0.2.1", "NOERROR, 20 198.51.100.7", none, "1 100 443 192-0-2-1.addr"},
		{"20 AAAA 2001:db8::7", "gw.example.net", "192.0.2.1", none, "NOERROR, 20 2001:db8::7", "1 100 443 192-0-2-1.addr"},
		{"20 A 127.0.0.1", "gw.example.net", "192.0.2.1", "NOERROR, 30 192.0.2.1", none, "1 100 443 192-0-2-1.addr"},
		{"", "gw.example.net", "192.0.2.1", "NOERROR, 30 192.0.2.1", none, "1 100 443 192-0-2-1.addr"},
		{"SERVFAIL", "gw.example.net", "192.0.2.1", "NOERROR, 5 192.0.2.1", none, "1 100 443 192-0-2-1.addr"},
		{"hang", "gw.example.net", "192.0.2.1", "NOERROR, 5 192.0.2.1", none, "1 100 443 192-0-2-1.addr"},
		{"hang", "gw.example.net", "far.example.net", "NOERROR, 5 198.51.100.8", none, "1 100 443 far.example.net."},
		{"SERVFAIL", "gw.fed.example", "192.0.2.1", "NOERROR, 5 192.0.2.1", none, "1 100 443 192-0-2-1.addr"},
		{"hang", "nope.fed.example", "192.0.2.1", "NOERROR, 30 192.0.2.1", none, "1 100 443 192-0-2-1.addr"},
		{"SERVFAIL", "gw.example.net", "gw.fed.example", "SERVFAIL, EDE 22", "SERVFAIL, EDE 22", ""},
	} {
		t.Run(tt.gw+" "+tt.near+" "+tt.far, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				blocks := make([]corefile.Block, 2)
				for i := range blocks {
					blocks[i] = newBlock(t)
					blocks[i].Owner.Name = fmt.Sprint("owner", i)
					blocks[i].Zone.Sharing = zone.Sharing{Names: []pattern.Name{must.Value(pattern.ParseName("web.fed.example"))}, Tiers: []zone.TierRule{{N: i}}, Min: 1}
				}
				e := &elsewhere{names: map[string]string{"gw.example.net.": tt.gw, "far.example.net.": "20 A 198.51.100.8"}}
				c := newChain(t, e, blocks)
				defer hostname.Close(c.hosts)
				c.builder.Put(0, newService(t, "web.fed.example", tt.near+":443"), 0)
				c.builder.Put(1, newService(t, "web.fed.example", tt.far+":443"), 0)
				c.builder.Put(0, newService(t, "gw.fed.example", "gw.example.net:443"), 0)
				c.publish()
				for range 2 { // the second time, what is known of hosts is remembered
					began := time.Now()
					if got := c.lookup("web.fed.example.", dns.TypeA); got != tt.a {
						t.Errorf("A is %q, want %q", got, tt.a)
					}
					if got := c.lookup("web.fed.example.", dns.TypeAAAA); got != tt.aaaa {
						t.Errorf("AAAA is %q, want %q", got, tt.aaaa)
					}
					if took := time.Since(began); took > 2*hostname.Patience {
						t.Errorf("two answers have taken %s", took)
					}
				}
				if got := c.lookup("web.fed.example.", dns.TypeSRV); !strings.Contains(got, tt.srv) {
					t.Errorf("SRV is %q, want %q", got, tt.srv)
				}
			})
		})
	}
}

// The answer says where all of its addresses are stale, until the retention of the owner is over that
// has named the hosts. It lacks nothing, so its TTL is not that of a partial one.
func TestHostsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{"gw.example.net.": "20 A 198.51.100.7"}}
		block := newBlock(t)
		block.Owner.Rules.Retention = time.Hour
		c := newChain(t, e, []corefile.Block{block}, newService(t, "web.fed.example", "gw.example.net:443", "192.0.2.1:443"),
			newService(t, "gw.fed.example", "gw.example.net:443"))
		defer hostname.Close(c.hosts)
		for _, want := range [][]string{
			{"NOERROR, 20 192.0.2.1, 20 198.51.100.7", "NOERROR, 20 198.51.100.7"},
			{"NOERROR, 30 192.0.2.1, 30 198.51.100.7", "NOERROR, EDE 3, 30 198.51.100.7"},
		} {
			for i, name := range []string{"web.fed.example.", "gw.fed.example."} {
				if got := c.lookup(name, dns.TypeA); got != want[i] {
					t.Errorf("answer is %q, want %q", got, want[i])
				}
			}
			e.names["gw.example.net."] = "SERVFAIL"
			time.Sleep(20 * time.Second)
		}
		time.Sleep(time.Hour)
		if got, want := c.lookup("gw.fed.example.", dns.TypeA), "SERVFAIL, EDE 22"; got != want {
			t.Errorf("after the retention the answer is %q, want %q", got, want)
		}
	})
}

// A host that leads back to the server fails at once.
func TestHostsLoop(t *testing.T) {
	up := upstream.New()
	var asked atomic.Int32
	// As plugin file does with a CNAME out of its zone.
	back := plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		asked.Add(1)
		time.Sleep(time.Nanosecond) // all look-ups of one depth are under way, and so shared
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
		c := newChain(t, back, []corefile.Block{newBlock(t)}, newService(t, "web.fed.example", "gw.example.net:443", "gw2.example.net:443"))
		start := time.Now()
		if got, want := c.lookup("web.fed.example.", dns.TypeA), "SERVFAIL, EDE 22"; got != want {
			t.Errorf("answer is %q, want %q", got, want)
		}
		if d := time.Since(start); d > hostname.MaxDepth*time.Nanosecond {
			t.Errorf("answer took %v", d)
		}
		if got := asked.Load(); got > 2*hostname.MaxDepth {
			t.Errorf("%d look-ups for two hosts", got)
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
	own := newChain(t, e, []corefile.Block{newBlock(t)}, services()...)
	if got, want := own.lookup("web.fed.example.", dns.TypeA), "NOERROR, SOA"; got != want {
		t.Errorf("without fallthrough, answer is %q, want %q", got, want)
	}
	if e.asked.Load() != 0 {
		t.Error("a name that is ours alone was looked up elsewhere")
	}
	through := newBlock(t)
	through.Fall.SetZonesFromArgs(nil)
	shared := newChain(t, e, []corefile.Block{through}, services()...)
	for name, want := range map[string]string{
		"web": "NOERROR, 20 198.51.100.7", "a": "NOERROR, SOA", "c": "NOERROR, 20 192.0.2.1, 20 198.51.100.7",
	} {
		if got := shared.lookup(name+".fed.example.", dns.TypeA); got != want {
			t.Errorf("with fallthrough, answer for %s is %q, want %q", name, got, want)
		}
	}
	// Before the first catalog the name may exist. When the grace of the owner is over, it may be the
	// next plugin's.
	const unknown, partial = "SERVFAIL, EDE 22", "NOERROR, 5 192.0.2.1"
	for _, tt := range []struct {
		*chain
		grace  time.Duration
		web, c string
	}{
		{own, time.Hour, unknown, partial},
		{own, -time.Second, unknown, partial},
		{shared, time.Hour, unknown, partial},
		{shared, -time.Second, "NOERROR, 20 198.51.100.7", "NOERROR, 20 192.0.2.1, 20 198.51.100.7"},
	} {
		tt.builder.SetStatus(0, zone.Status{Grace: time.Now().Add(tt.grace)})
		tt.publish()
		for name, want := range map[string]string{"web": tt.web, "c": tt.c} {
			if got := tt.lookup(name+".fed.example.", dns.TypeA); got != want {
				t.Errorf("with a grace of %s the answer for %s is %q, want %q", tt.grace, name, got, want)
			}
		}
	}
}

// A look-up holds nothing of the query that began it: neither what its client sent,
// nor what plugins added.
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
		must.Do(t, err)
		_, err = w.Write(packed) // some plugins do
		return dns.RcodeSuccess, err
	})
	c := newChain(t, next, []corefile.Block{newBlock(t)}, newService(t, "web.fed.example", "gw.example.net:443"))
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
