package hostname

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// elsewhere is an upstream. The text of a name is the records of a chain, one a
// line in the form "TTL TYPE RDATA", in which the target of a CNAME is the name of
// the next record; or it is an rcode, or one of the words in Ask. A name without a
// text does not exist.
type elsewhere struct {
	address string
	names   map[string]string // as it was when Ask was called
	delay   time.Duration     // of every reply
	asked   atomic.Int32
	depths  atomic.Int32 // the sum of those in Ask
}

func (e *elsewhere) Address() string { return e.address }

func (e *elsewhere) Ask(ctx context.Context, host string, qtype uint16, depth int) *dns.Msg {
	e.asked.Add(1)
	e.depths.Add(int32(depth))
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > Patience || ctx.Value(secret{}) != nil {
		panic("the context of a look-up is that of a query")
	}
	time.Sleep(e.delay)
	m := new(dns.Msg)
	m.SetQuestion(host, qtype)
	m.Response = true
	says, ok := e.names[host]
	switch {
	case !ok:
		m.Rcode = dns.RcodeNameError
	case says == "drop":
		return nil
	case says == "hang":
		time.Sleep(5 * time.Second) // forward does not look at the context, either
		return nil
	case strings.HasPrefix(says, "TC "):
		m.Truncated = true
		says = says[3:]
	}
	if code, ok := dns.StringToRcode[says]; ok {
		m.Rcode = code
		return m
	}
	name := host
	for line := range strings.Lines(says) {
		rr, err := dns.NewRR(name + " " + line)
		if err != nil {
			panic(err)
		}
		if cname, ok := rr.(*dns.CNAME); ok {
			name = cname.Target
		}
		m.Answer = append(m.Answer, rr)
	}
	return m
}

// secret is the key of a value in the context of a query.
type secret struct{}

// ask resolves hosts of the owner "one" for a client, and returns the answer as
// text: the TTL and the addresses, or what is wrong.
func ask(r *Resolver, up Upstream, hosts ...string) string {
	return askFor(r, up, queryFor("one", dns.TypeA, hosts...))
}

// queryFor returns the query for hosts of an owner.
func queryFor(owner string, qtype uint16, hosts ...string) Query {
	q := Query{Type: qtype}
	for _, host := range hosts {
		q.Hosts = append(q.Hosts, Host{owner, host})
	}
	return q
}

// resolve returns what was found for all hosts of a query.
func resolve(ctx context.Context, r *Resolver, up Upstream, q Query) Answer {
	all := Answer{TTL: math.MaxUint32}
	for _, one := range r.Resolve(ctx, up, q) {
		all.addAnswer(one)
	}
	return all
}

func askFor(r *Resolver, up Upstream, q Query) string {
	ctx := context.WithValue(context.Background(), secret{}, "value")
	a := resolve(ctx, r, up, q)
	var words []string
	if len(a.Addresses) > 0 {
		words = append(words, fmt.Sprint(a.TTL))
	}
	for _, address := range a.Addresses {
		words = append(words, address.String())
	}
	if a.Stale {
		words = append(words, "stale")
	}
	if a.Failed {
		words = append(words, "failed")
	}
	return strings.Join(words, " ")
}

func newResolver(retention time.Duration) *Resolver {
	return New(map[string]time.Duration{"one": retention, "two": 0}, nil)
}

// cnames returns a chain of n.
func cnames(n int) string {
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "20 CNAME c%d.example.\n", i)
	}
	lines.WriteString("20 A 198.51.100.7")
	return lines.String()
}

func TestResolve(t *testing.T) {
	names := map[string]string{
		"gw.":       "20 A 198.51.100.7",
		"many.":     "20 A 198.51.100.9\n10 A 198.51.100.8\n25 A 198.51.100.7",
		"six.":      "20 AAAA 2001:db8::7",
		"all.":      "7 AAAA 2001:db8::7\n8 TXT text\n20 A 198.51.100.7",
		"mapped.":   "20 AAAA ::ffff:198.51.100.7",
		"chain.":    "15 CNAME a.example.\n40 CNAME B.example.\n25 A 198.51.100.7",
		"cut.":      "15 CNAME a.example.",
		"eight.":    cnames(8),
		"nine.":     cnames(9),
		"loop.":     "20 CNAME LOOP.",
		"zero.":     "0 A 198.51.100.7",
		"huge.":     "4294967295 A 198.51.100.7",
		"servfail.": "SERVFAIL",
		"refused.":  "REFUSED",
		"drop.":     "drop",
		"hang.":     "hang",
		"tc.":       "TC 20 A 198.51.100.7",
	}
	for _, tt := range []struct {
		hosts string
		qtype uint16
		want  string
	}{
		{"", dns.TypeA, ""},
		{"gw.", dns.TypeA, "20 198.51.100.7"},
		{"many. gw.", dns.TypeA, "10 198.51.100.9 198.51.100.8 198.51.100.7 198.51.100.7"},
		{"six.", dns.TypeA, ""},
		{"six.", dns.TypeAAAA, "20 2001:db8::7"},
		{"all.", dns.TypeA, "20 198.51.100.7"},
		{"mapped.", dns.TypeAAAA, "20 198.51.100.7"},
		{"chain.", dns.TypeA, "15 198.51.100.7"},
		{"cut.", dns.TypeA, ""},
		{"eight.", dns.TypeA, "20 198.51.100.7"},
		{"zero.", dns.TypeA, "0 198.51.100.7"},
		{"huge.", dns.TypeA, "3600 198.51.100.7"},
		{"nx.", dns.TypeA, ""},
		{"nx. gw.", dns.TypeA, "20 198.51.100.7"},
		{"nine.", dns.TypeA, "failed"},
		{"loop.", dns.TypeA, "failed"},
		{"servfail.", dns.TypeA, "failed"},
		{"refused.", dns.TypeA, "failed"},
		{"drop.", dns.TypeA, "failed"},
		{"hang.", dns.TypeA, "failed"},
		{"nx. hang.", dns.TypeA, "failed"},
		{"hang. gw.", dns.TypeA, "18 198.51.100.7 failed"},
		{"tc.", dns.TypeA, "20 198.51.100.7 failed"},
	} {
		t.Run(tt.hosts+" "+dns.TypeToString[tt.qtype], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newResolver(0)
				defer Close(r)
				start := time.Now()
				q := queryFor("one", tt.qtype, strings.Fields(tt.hosts)...)
				if got := askFor(r, &elsewhere{names: names}, q); got != tt.want {
					t.Errorf("answer is %q, want %q", got, tt.want)
				}
				if d := time.Since(start); d > Patience {
					t.Errorf("answer took %v", d)
				}
			})
		})
	}
}

func TestResolveWithoutUpstreamOrOwner(t *testing.T) {
	r := newResolver(0)
	for _, got := range []string{
		ask(r, nil, "gw."),
		askFor(r, &elsewhere{names: map[string]string{"gw.": "20 A 198.51.100.7"}}, queryFor("three", dns.TypeA, "gw.")),
	} {
		if got != "failed" {
			t.Errorf("answer is %q, want a failure", got)
		}
	}
	if got := ask(r, nil); got != "" {
		t.Errorf("answer without hosts is %q", got)
	}
}

func TestResolveSeparatesUpstreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(0)
		for range 2 {
			for _, address := range []string{"198.51.100.7", "198.51.100.8"} {
				up := &elsewhere{address: "dns://" + address, names: map[string]string{"gw.": "20 A " + address}}
				if got, want := ask(r, up, "gw."), "20 "+address; got != want {
					t.Errorf("answer is %q, want %q", got, want)
				}
			}
		}
	})
}

// What is known of a host is used for as long as its TTL, a negative answer for
// five seconds, and a failure for longer each time (RFC 9520 section 3.2).
func TestResolveRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{
			"gw.": "20 A 198.51.100.7", "bad.": "SERVFAIL", "huge.": "4294967295 A 198.51.100.7",
		}}
		r := newResolver(0)
		began := time.Now()
		for _, s := range []struct {
			at         time.Duration
			host, want string
			asked      int32
		}{
			{0, "gw.", "20 198.51.100.7", 1},
			{time.Second / 2, "gw.", "20 198.51.100.7", 1},
			{3 * time.Second, "gw.", "17 198.51.100.7", 1},
			{17*time.Second + 999*time.Millisecond, "gw.", "3 198.51.100.7", 1},
			{22 * time.Second, "gw.", "20 198.51.100.7", 2},
			{30 * time.Second, "bad.", "failed", 3},
			{34 * time.Second, "bad.", "failed", 3},
			{35 * time.Second, "bad.", "failed", 4},
			{44 * time.Second, "bad.", "failed", 4},
			{45 * time.Second, "bad.", "failed", 5},
			{50 * time.Second, "nx.", "", 6},
			{52 * time.Second, "nx.", "", 6},
			{55 * time.Second, "nx.", "", 7},
			{60 * time.Second, "huge.", "3600 198.51.100.7", 8},
			{60*time.Second + maxTTL*time.Second, "huge.", "3600 198.51.100.7", 9},
		} {
			time.Sleep(time.Until(began.Add(s.at)))
			synctest.Wait()
			if got := ask(r, e, s.host); got != s.want {
				t.Errorf("after %v: answer is %q, want %q", s.at, got, s.want)
			}
			if got := e.asked.Load(); got != s.asked {
				t.Errorf("after %v: %d look-ups, want %d", s.at, got, s.asked)
			}
		}
	})
}

// A host that is asked for all the time is looked up before its TTL is over, once
// each time, so that only the first client waits.
func TestResolvePrefetches(t *testing.T) {
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
				e := &elsewhere{names: map[string]string{"gw.": tt.record}, delay: 999 * time.Millisecond}
				r := newResolver(0)
				defer Close(r)
				ask(r, e, "gw.")
				for range 3000 {
					start := time.Now()
					if got := ask(r, e, "gw."); strings.Contains(got, "failed") || strings.Contains(got, "stale") {
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

// Addresses of a host that cannot be looked up any more are used for a while (RFC
// 8767), and the answer says so.
func TestResolveStale(t *testing.T) {
	const (
		fresh = "20 198.51.100.7"
		stale = "30 198.51.100.7 stale"
		hour  = time.Hour
	)
	for _, tt := range []struct {
		name      string
		retention time.Duration
		then      string        // what becomes of the host after 20 s
		at        time.Duration // when it is asked for, from then on
		want      string
		took      time.Duration
	}{
		{"refused", 0, "REFUSED", 1, stale, 0},
		{"failed for nearly a day", 0, "SERVFAIL", maxStale - 30*time.Second, stale, 0},
		{"has a few seconds left", 0, "SERVFAIL", maxStale - 7900*time.Millisecond, "7 198.51.100.7 stale", 0},
		{"has less than a second left", 0, "SERVFAIL", maxStale - 1, "failed", 0},
		{"failed for a day", 0, "SERVFAIL", maxStale, "failed", 0},
		{"failed for as long as the owner's records are kept", hour, "SERVFAIL", hour, "failed", 0},
		{"failed for nearly as long", hour, "SERVFAIL", hour - 1500*time.Millisecond, "1 198.51.100.7 stale", 0},
		{"retention of days", 1000 * hour, "SERVFAIL", maxStale, "failed", 0},
		{"hangs", 0, "hang", 1, stale, Patience},
		{"gone", 0, "", 1, "", 0},
		{"has another type", 0, "20 AAAA 2001:db8::7", 1, "", 0},
		{"has moved", 0, "20 A 198.51.100.8", 1, "20 198.51.100.8", 0},
		{"truncated", 0, "TC 20 A 198.51.100.8", 1, "20 198.51.100.8 failed", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &elsewhere{names: map[string]string{"gw.": "20 A 198.51.100.7"}}
				r := newResolver(tt.retention)
				defer Close(r)
				if got := ask(r, e, "gw."); got != fresh {
					t.Fatalf("answer is %q, want %q", got, fresh)
				}
				synctest.Wait() // for those who read the names
				if e.names["gw."] = tt.then; tt.then == "" {
					clear(e.names)
				}
				time.Sleep(20*time.Second + tt.at)
				for _, took := range []time.Duration{tt.took, 0} { // the second one does not wait again
					start := time.Now()
					if got := ask(r, e, "gw."); got != tt.want {
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

// While the addresses of a host are stale, it is looked up now and then, and the
// result counts from then on.
func TestResolveRechecksStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{"gw.": "20 A 198.51.100.7"}}
		r := newResolver(0)
		ask(r, e, "gw.")
		synctest.Wait() // for those who read the names
		e.names["gw."] = "SERVFAIL"
		time.Sleep(20 * time.Second)
		for range 600 {
			if got, want := ask(r, e, "gw."), "30 198.51.100.7 stale"; got != want {
				t.Fatalf("answer is %q, want %q", got, want)
			}
			time.Sleep(time.Second)
		}
		// One before, three that are 30 s apart, and then one a minute.
		if got, want := e.asked.Load(), int32(1+3+9); got < want-1 || got > want+1 {
			t.Errorf("%d look-ups in ten minutes, want %d", got, want)
		}
		synctest.Wait() // for those who read the names
		e.names["gw."] = "20 A 198.51.100.8"
		time.Sleep(maxRetry)
		if got, want := ask(r, e, "gw."), "20 198.51.100.8"; got != want {
			t.Errorf("answer is %q, want %q", got, want)
		}
	})
}

// One look-up serves all queries that come meanwhile, nobody waits for it once it
// is overdue, and there is none after Close.
func TestResolveShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{"hang.": "hang"}}
		r := newResolver(0)
		fails := func(within time.Duration) {
			start := time.Now()
			if got := ask(r, e, "hang."); got != "failed" {
				t.Errorf("answer is %q", got)
			}
			if d := time.Since(start); d != within {
				t.Errorf("answer took %v, want %v", d, within)
			}
		}
		var clients sync.WaitGroup
		for range 100 {
			clients.Go(func() { fails(Patience) })
		}
		clients.Wait()
		time.Sleep(time.Second)
		fails(0) // three seconds after the start of the look-up, which goes on
		if got := e.asked.Load(); got != 1 {
			t.Errorf("%d look-ups, want 1", got)
		}
		Close(r)
		Close(r)
		fails(0) // remembered
		time.Sleep(minRetry)
		fails(0) // closed
		if got := e.asked.Load(); got != 1 {
			t.Errorf("%d look-ups after Close, want 1", got)
		}
	})
}

// A query that is cancelled ends at once, and the look-up that it has begun goes on.
func TestResolveCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{"gw.": "60 A 198.51.100.7"}, delay: 1900 * time.Millisecond}
		r := newResolver(0)
		defer Close(r)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		a := resolve(ctx, r, e, queryFor("one", dns.TypeA, "gw."))
		if d := time.Since(start); d != time.Second || !a.Failed || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("answer is %+v after %v", a, d)
		}
		time.Sleep(time.Second)
		if got, want := ask(r, e, "gw."), "60 198.51.100.7"; got != want || e.asked.Load() != 1 {
			t.Errorf("answer is %q after %d look-ups, want %q after one", got, e.asked.Load(), want)
		}
	})
}

// One query begins a bounded number of look-ups and builds on those of the last
// one.
func TestResolveManyHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: make(map[string]string)}
		var hosts []string
		for i := range 150 {
			host := fmt.Sprintf("gw%d.example.", i)
			e.names[host] = fmt.Sprintf("60 A 198.51.100.%d", i)
			hosts = append(hosts, host)
		}
		r := newResolver(0)
		for _, want := range []int{MaxHosts, 2 * MaxHosts, 150, 150} {
			a := resolve(t.Context(), r, e, queryFor("one", dns.TypeA, hosts...))
			if len(a.Addresses) != want || int(e.asked.Load()) != want || a.Failed != (want < 150) {
				t.Errorf("%d addresses after %d look-ups, failed: %t; want %d", len(a.Addresses), e.asked.Load(), a.Failed, want)
			}
		}
	})
}

// Look-ups within look-ups end at MaxDepth, and what they find is not remembered.
func TestResolveDepth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{"gw.": "20 A 198.51.100.7"}}
		r := newResolver(0)
		q := queryFor("one", dns.TypeA, "gw.")
		for range 2 {
			for q.Depth = 1; q.Depth < MaxDepth; q.Depth++ {
				if got, want := askFor(r, e, q), "20 198.51.100.7"; got != want {
					t.Errorf("depth %d: answer is %q, want %q", q.Depth, got, want)
				}
			}
		}
		if got := askFor(r, e, q); got != "failed" {
			t.Errorf("depth %d: answer is %q, want a failure", q.Depth, got)
		}
		if asked, depths := e.asked.Load(), e.depths.Load(); asked != 2*(MaxDepth-1) || depths != 2*(2+3+4+5+6+7+8) {
			t.Errorf("%d look-ups with a sum of depths of %d", asked, depths)
		}
	})
}

// What is remembered of an owner is bounded, also with what another resolver has found, and what is newest stays.
func TestMemoryIsBounded(t *testing.T) {
	now := time.Now()
	full := func(domain string) *ownerShare {
		s := newShare(0)
		for i := range maxRemembered {
			q := hostQuestion{"", fmt.Sprintf("h%d.%s", i, domain), dns.TypeA}
			s.rememberEntry(q, &rememberedResult{lookupResult: lookupResult{addresses: make([]netip.Addr, 1+i%3), at: now}})
			if s.entries[q] == nil {
				t.Fatalf("%s is forgotten at once", q.host)
			}
		}
		return s
	}
	s := full("one.example.")
	s.inheritResults(full("other.example."))
	size := 0
	for _, e := range s.entries {
		size += 1 + len(e.addresses)
	}
	if s.size != size || size > maxRemembered || size < maxRemembered-4 {
		t.Errorf("the memory is %d large and counts as %d, want %d at most", size, s.size, maxRemembered)
	}
}

// A minute in which clients ask ten times a second for hosts of one owner behind
// a dead forwarder does not harm the host of another owner. The number of
// look-ups in vain is bounded.
func TestSlotsOfEachOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const minute = 600 // tenths of a second
		e := &elsewhere{names: map[string]string{"quiet.": "1 A 198.51.100.7"}}
		r := newResolver(0)
		var clients sync.WaitGroup
		failed, quiet := 0, int32(0)
		for i := range minute {
			synctest.Wait() // for those who read the names
			var loud []string
			for j := range MaxHosts {
				loud = append(loud, fmt.Sprintf("s%d-gw%d.dead%d.example.", i, j, i))
				e.names[loud[j]] = "hang"
			}
			clients.Go(func() { ask(r, e, loud...) })
			synctest.Wait()
			before := e.asked.Load()
			if got := askFor(r, e, queryFor("two", dns.TypeA, "quiet.")); !strings.HasSuffix(got, "198.51.100.7") {
				failed++
			}
			synctest.Wait()
			quiet += e.asked.Load() - before
			time.Sleep(time.Second / 10)
		}
		clients.Wait()
		Close(r)
		if failed > 0 {
			t.Errorf("%d of %d queries for the other owner's host failed", failed, minute)
		}
		if got := e.asked.Load() - quiet; got < maxSlots || got > maxSlots+maxSlots/10 { // the minute has begun again for the first of them
			t.Errorf("%d look-ups in vain, want %d", got, maxSlots)
		}
	})
}

// A dead domain harms no other domain of its owner, and is asked for again a
// minute later.
func TestSlotsOfEachDomain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{"gw.live.example.": "1 A 198.51.100.7"}}
		dead := func(i int) (hosts []string) {
			for j := range MaxHosts {
				hosts = append(hosts, fmt.Sprintf("gw%d.sub%d.dead.example.", j, i))
			}
			return hosts
		}
		for i := range 10 {
			for _, host := range dead(i) {
				e.names[host] = "hang"
			}
		}
		r := newResolver(0)
		defer Close(r)
		asks := func(hosts []string, want string, took time.Duration) {
			t.Helper()
			start := time.Now()
			if got := ask(r, e, hosts...); got != want {
				t.Errorf("answer for %.40q is %q, want %q", hosts, got, want)
			}
			if d := time.Since(start); d != took {
				t.Errorf("answer for %.40q took %v, want %v", hosts, d, took)
			}
		}
		asks(dead(0), "failed", Patience)
		for i := range 10 { // there is no slot left, and so nothing to wait for
			asks(dead(i), "failed", 0)
		}
		asks([]string{"gw.live.example."}, "1 198.51.100.7", 0)
		if got := e.asked.Load(); got != maxDomainSlots+1 {
			t.Errorf("%d look-ups, want %d in the dead domain and one in the other", got, maxDomainSlots)
		}
		time.Sleep(5*time.Second + failureHold)
		synctest.Wait() // for those who read the names
		for host := range e.names {
			e.names[host] = "1 A 198.51.100.8"
		}
		asks(dead(1)[:1], "1 198.51.100.8", 0)
	})
}

// For targets of SRV records each host has an answer of its own, with addresses of both types.
func TestResolveEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &elsewhere{names: map[string]string{"gw.": "20 A 198.51.100.7\n10 AAAA 2001:db8::7", "dead.": "SERVFAIL"}}
		r := New(map[string]time.Duration{"one": 0}, nil)
		defer Close(r)
		for range 2 { // the second time from memory
			got := r.Resolve(t.Context(), e, queryFor("one", dns.TypeSRV, "dead.", "gw.", "nx."))
			slices.SortFunc(got[1].Addresses, netip.Addr.Compare)
			want := []Answer{
				{TTL: math.MaxUint32, Failed: true},
				{TTL: 10, Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7")}},
				{TTL: math.MaxUint32},
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("answers are %+v, want %+v", got, want)
			}
		}
	})
}

// panicking panics for some of the hosts.
type panicking struct {
	elsewhere

	hosts []string
}

func (p *panicking) Ask(ctx context.Context, host string, qtype uint16, depth int) *dns.Msg {
	if slices.Contains(p.hosts, host) {
		panic("asked for " + host)
	}
	return p.elsewhere.Ask(ctx, host, qtype, depth)
}

// TestPanic has a look-up panic: it has failed, for all who wait for it, and is done again later.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var causes []any
		r := New(map[string]time.Duration{"one": 0}, func(cause any) { causes = append(causes, cause) })
		defer Close(r)
		p := &panicking{elsewhere{names: map[string]string{"gw.": "20 A 198.51.100.7", "bad.": "20 A 198.51.100.8"}}, []string{"bad."}}
		for range 2 { // the second time from memory
			if got := ask(r, p, "gw.", "bad."); got != "20 198.51.100.7 failed" {
				t.Errorf("the answer is %q", got)
			}
		}
		if !slices.Equal(causes, []any{"asked for bad."}) {
			t.Errorf("panicked with %v", causes)
		}
		p.hosts = nil
		time.Sleep(minRetry)
		if got := ask(r, p, "bad."); got != "20 198.51.100.8" {
			t.Errorf("later the answer is %q", got)
		}
	})
}

// What another resolver has found is answered while its TTL lasts, and looked up anew in the
// background: the first answer may be another's, the second one is not.
func TestTakeOver(t *testing.T) {
	for name, tt := range map[string]struct {
		then   string // what the resolver finds that takes over
		after  time.Duration
		first  string
		second string
	}{
		"the same":         {"20 A 198.51.100.7", 5 * time.Second, "15 198.51.100.7", "20 198.51.100.7"},
		"another":          {"20 A 198.51.100.8", 5 * time.Second, "15 198.51.100.7", "20 198.51.100.8"},
		"none":             {"", 5 * time.Second, "15 198.51.100.7", ""},
		"a failure":        {"SERVFAIL", 5 * time.Second, "15 198.51.100.7", "15 198.51.100.7"},
		"nothing in time":  {"hang", 5 * time.Second, "15 198.51.100.7", "15 198.51.100.7"},
		"none, after TTL":  {"", time.Minute, "", ""},
		"failure, then":    {"SERVFAIL", time.Minute, "30 198.51.100.7 stale", "30 198.51.100.7 stale"},
		"failure, too old": {"SERVFAIL", 25 * time.Hour, "failed", "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				up := &elsewhere{names: map[string]string{"gw.": "20 A 198.51.100.7", "nx.": ""}}
				before := newResolver(0)
				ask(before, up, "gw.")
				ask(before, up, "servfail.")
				Close(before)
				time.Sleep(tt.after)

				r := New(map[string]time.Duration{"one": 0, "three": 0}, nil) // there was no "three"
				defer Close(r)
				r.TakeOver(before)
				r.TakeOver(r)
				up = &elsewhere{names: map[string]string{"gw.": tt.then, "servfail.": "20 A 198.51.100.9"}}
				if tt.then == "" {
					delete(up.names, "gw.")
				}
				start := time.Now()
				if got := ask(r, up, "gw."); got != tt.first {
					t.Errorf("the first answer is %q, want %q", got, tt.first)
				}
				if took := time.Since(start); took > 0 {
					t.Errorf("the first answer took %v", took)
				}
				synctest.Wait()
				if got := ask(r, up, "gw."); got != tt.second {
					t.Errorf("the second answer is %q, want %q", got, tt.second)
				}
				if got := ask(r, up, "servfail."); got != "20 198.51.100.9" {
					t.Errorf("a host that could not be looked up before is %q", got)
				}
				if n := up.asked.Load(); n != 2 {
					t.Errorf("%d look-ups, want one for each host", n)
				}
			})
		})
	}
}

// Resolvers are closed together: what one waits for, the others wait for as well.
func TestCloseTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := &elsewhere{names: map[string]string{"gw.": "hang"}}
		resolvers := []*Resolver{newResolver(0), newResolver(0), newResolver(0)}
		for _, r := range resolvers {
			go ask(r, up, "gw.")
		}
		synctest.Wait()
		start := time.Now()
		Close(resolvers...)
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("took %v, want as long as one look-up", took)
		}
		if got, n := ask(resolvers[2], up, "gw."), up.asked.Load(); got != "failed" || n != 3 {
			t.Errorf("a closed resolver finds %q with %d look-ups", got, n)
		}
	})
}
