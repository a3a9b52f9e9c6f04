package registration_test

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// A convergence that is over at once, for tests of other things.
const none = time.Nanosecond

// settled returns an owner whose convergence is over.
func settled(t testing.TB, config registration.Config) *testOwner {
	t.Helper()
	config.Convergence = none
	w := newOwner(t, config)
	time.Sleep(2 * time.Second)
	w.expect("at first")
	return w
}

func TestRegisterAndClear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		p := w.connect("web")
		p.active(web, one)
		p.expect(granted(web, one))
		w.expect("one node", "web.acme.example 192.0.2.1:8443")
		p.active(web, two)
		p.expect(granted(web, two))
		p.active(web, one)
		p.expect(granted(web, one))
		w.expect("two nodes", "web.acme.example 192.0.2.1:8443 192.0.2.2:8443")
		p.clear(web, one)
		w.expect("one cleared", "web.acme.example 192.0.2.2:8443")
		p.clear(web, two)
		w.expect("both cleared")
		p.expect()
	})
}

// TestRegisterWhileTheCatalogIsAway says of a node that is stored that it waits, until consumers can
// have the catalog.
func TestRegisterWhileTheCatalogIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var available atomic.Bool
		w := settled(t, registration.Config{Published: func(service string) bool { return available.Load() && service == "registration/web.acme.example" }})
		p := w.connect("web")
		for range 2 {
			p.active(web, one)
			p.expect(granted(web, one) + ", and waits")
		}
		available.Store(true)
		p.active(web, one)
		p.expect(granted(web, one))
	})
}

// TestGrowth registers more nodes for a service than it can have endpoints. The first by
// their URIs are published, and each that comes or goes changes one place.
func TestGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		p := w.dial("spiffe://many.example/p", 10000)
		p.say(&registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Open{Open: &registrationv1.Open{Version: 1}}})
		p.expect("Open 1")
		const service, beyond = "web.many.example", 3
		node := func(i int) string { return fmt.Sprintf("tcp://10.0.%d.%d:1", i/250, i%250) }
		long := ttl(10 * time.Minute)
		for i := 1; i <= limits.Endpoints+beyond; i++ {
			p.active(service, node(i), long)
		}
		if told := strings.Join(p.told(), "\n"); strings.Count(told, "Granted ") != limits.Endpoints+beyond {
			t.Fatalf("told %s", told)
		}
		expect := func(step string, first, last, over int) {
			t.Helper()
			synctest.Wait()
			w.part.mu.Lock()
			defer w.part.mu.Unlock()
			var endpoints []federation.Endpoint
			if s := w.part.services["registration/"+service]; s != nil {
				endpoints = s.Service().Endpoints
			}
			if n := len(endpoints); n != limits.Endpoints {
				t.Fatalf("%s: %d endpoints", step, n)
			}
			for at, i := range map[int]int{0: first, limits.Endpoints - 1: last} {
				if got := "tcp://" + net.JoinHostPort(endpoints[at].Address.String(), strconv.Itoa(int(endpoints[at].Port))); got != node(i) {
					t.Errorf("%s: endpoint %d is %s, expected %s", step, at, got, node(i))
				}
			}
			if got := w.part.refused["limit"]; got != over {
				t.Errorf("%s: %d nodes are counted, expected %d", step, got, over)
			}
		}
		expect("too many", 1, limits.Endpoints, beyond)
		p.clear(service, node(7))
		expect("one goes", 1, limits.Endpoints+1, beyond-1)
		p.active(service, node(7), long)
		p.told()
		expect("it is back", 1, limits.Endpoints, beyond)
		p.active(service, node(0), long)
		p.told()
		expect("one before all", 0, limits.Endpoints-1, beyond+1)
		for i := range beyond + 1 {
			p.clear(service, node(limits.Endpoints+i))
		}
		expect("as many as it can have", 0, limits.Endpoints-1, 0)
		if n := strings.Count(w.log.String(), "a service has more nodes than it may have endpoints"); n != 1 {
			t.Errorf("%d log lines tell of it:\n%s", n, w.log.String())
		}
	})
}

// When a node is gone after its provider was killed: its ttl after the stream has ended.
func TestKilledProviderIsGoneAfterItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		p := w.connect("web")
		p.active(web, one, ttl(20*time.Second))
		p.active(web, two, ttl(3*time.Second))
		synctest.Wait()
		p.breakStream()
		time.Sleep(3*time.Second - time.Nanosecond)
		w.expect("before the first ttl", "web.acme.example 192.0.2.1:8443 192.0.2.2:8443")
		time.Sleep(time.Nanosecond)
		w.expect("after the first ttl", "web.acme.example 192.0.2.1:8443")
		time.Sleep(17*time.Second - time.Nanosecond)
		w.expect("before the second ttl", "web.acme.example 192.0.2.1:8443")
		time.Sleep(time.Nanosecond)
		w.expect("after the second ttl")
		if s := w.source.Stats(); s.Expired["broken"] != 2 || s.Nodes != 0 || s.Streams != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A provider whose stream is open and that says nothing for its ttl, counted from when
// it should have said something.
func TestSilentProviderExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		p := w.connect("web")
		p.active(web, one)
		p.expect(granted(web, one))
		for range 100 {
			time.Sleep(14 * time.Second) // stopped for less than the ttl at any point
			p.active(web, one)
			p.expect(granted(web, one))
			w.expect("kept up", "web.acme.example 192.0.2.1:8443")
		}
		time.Sleep(15*time.Second - time.Nanosecond)
		w.expect("before", "web.acme.example 192.0.2.1:8443")
		p.expect()
		time.Sleep(time.Nanosecond)
		w.expect("after")
		p.expect("Expired web.acme.example https://192.0.2.1:8443")
		p.active(web, one)
		p.expect(granted(web, one))
		w.expect("again", "web.acme.example 192.0.2.1:8443")
		if s := w.source.Stats(); s.Expired["silent"] != 1 || s.Granted != 2 {
			t.Errorf("%+v", s)
		}
	})
}

func TestLastNodeLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{Linger: 30 * time.Second})
		p := w.connect("web")
		p.active(web, one)
		p.active(web, two)
		synctest.Wait()
		p.breakStream()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := w.part.shown(); len(got) != 1 || len(got[0]) != len("web.acme.example 192.0.2.1:8443") {
			t.Fatalf("one of two should linger: %q", got)
		}
		time.Sleep(30*time.Second - time.Nanosecond)
		synctest.Wait()
		if got := w.part.shown(); len(got) != 1 {
			t.Errorf("before the end of its lingering: %q", got)
		}
		time.Sleep(time.Nanosecond)
		w.expect("after")

		// Another node ends it, and another provider may have the place.
		p = w.connect("web")
		p.active(web, one)
		synctest.Wait()
		p.breakStream()
		time.Sleep(15 * time.Second)
		w.expect("it lingers", "web.acme.example 192.0.2.1:8443")
		other := w.connect("other")
		other.active(web, two)
		other.expect(granted(web, two))
		w.expect("another node", "web.acme.example 192.0.2.2:8443")
		other.clear(web, two)
		w.expect("cleared, which does not linger")

		// The provider is back in time.
		p = w.connect("web")
		p.active(web, one)
		p.expect(granted(web, one))
		time.Sleep(20 * time.Second)
		p.expect("Expired web.acme.example https://192.0.2.1:8443")
		w.expect("it lingers", "web.acme.example 192.0.2.1:8443")
		p.active(web, one)
		p.expect(granted(web, one))
		time.Sleep(10 * time.Second)
		p.active(web, one)
		time.Sleep(14 * time.Second)
		w.expect("it is back", "web.acme.example 192.0.2.1:8443")

		// Another identity takes what lingers.
		time.Sleep(10 * time.Second)
		other.active(web, one)
		if s := w.source.Stats(); s.Refused["taken"] != 0 {
			t.Errorf("%+v", s)
		}
		other.expect(granted(web, one))
	})
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{Nodes: 7})
		p, other := w.connect("web"), w.connect("other")
		p.active(web, one)
		p.expect(granted(web, one))
		for _, tc := range []struct {
			rule, service, node string
			change              func(*registrationv1.Active)
		}{
			{"malformed", "web..acme.example", two, nil},
			{"malformed", web, "https://192.0.2.1/path", nil},
			{"malformed", web, two, func(a *registrationv1.Active) { a.Instance = "A" }},
			{"malformed", web, two, func(a *registrationv1.Active) { a.Description = strings.Repeat("x", 300) }},
			{"malformed", web, two, func(a *registrationv1.Active) { a.Metadata = map[string]string{"a": strings.Repeat("x", 5000)} }},
			{"no-rule", "web.evil.example", two, nil},
			{"address", web, "https://198.51.100.1", nil},
			{"address", web, "https://host.acme.example", nil},
			{"ttl", web, two, ttl(time.Hour)},
			{"ttl", web, two, ttl(-time.Second)},
			{"ttl", web, two, func(a *registrationv1.Active) { a.Ttl = &durationpb.Duration{Seconds: 1 << 62} }},
		} {
			if tc.change == nil {
				tc.change = func(*registrationv1.Active) {}
			}
			p.active(tc.service, tc.node, tc.change)
			p.expect("Refused " + tc.service + " " + tc.node + " " + tc.rule)
		}
		w.expect("the other node lives on", "web.acme.example 192.0.2.1:8443")
		other.active(web, one)
		other.expect("Refused " + web + " " + one + " taken")
		other.clear(web, one)
		w.expect("another identity does not withdraw it", "web.acme.example 192.0.2.1:8443")
		for _, address := range []string{two, three, "tcp://192.0.2.1:1", "tcp://192.0.2.1:2"} {
			p.active(web, address)
			p.expect(granted(web, address))
		}
		p.active(web, "tcp://192.0.2.1:3")
		p.expect("Refused web.acme.example tcp://192.0.2.1:3 quota")
		other.active(web, "tcp://192.0.2.1:4")
		other.active(web, "tcp://192.0.2.1:5")
		other.expect(granted(web, "tcp://192.0.2.1:4"), granted(web, "tcp://192.0.2.1:5"))
		other.active(web, "tcp://192.0.2.1:6")
		other.expect("Refused web.acme.example tcp://192.0.2.1:6 full")
		p.clear(web, two)
		p.expect()
		p.active(web, "tcp://192.0.2.1:3")
		p.expect(granted(web, "tcp://192.0.2.1:3"))

		// An Active of a registered node that is refused ends the registration.
		p.active(web, one, ttl(time.Hour))
		p.expect("Refused " + web + " " + one + " ttl")
		other.active(web, one)
		other.expect(granted(web, one))
	})
}

func TestChangedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		p := w.connect("web")
		p.active(web, one, ttl(20*time.Second))
		p.expect("Granted web.acme.example https://192.0.2.1:8443 20s https://192.0.2.1:8443")
		instance := func() string {
			synctest.Wait()
			in := w.part.services["registration/web.acme.example"].Service().Instances[0]
			return fmt.Sprint(in.ID, in.Metadata)
		}
		p.active("WEB.acme.example.", "HTTPS://192.0.2.1:8443/", func(a *registrationv1.Active) { a.Instance, a.Metadata = "v1", map[string]string{"a": "b"} })
		p.expect("Granted WEB.acme.example. HTTPS://192.0.2.1:8443/ 10s https://192.0.2.1:8443")
		if got := instance(); got != "v1[{a b}]" {
			t.Error(got)
		}
		p.active(web, one, func(a *registrationv1.Active) { a.Instance, a.Metadata = "v1", map[string]string{"a": "c"} })
		p.expect(granted(web, one))
		if got := instance(); got != "v1[{a c}]" {
			t.Error(got)
		}
		p.active(web, "https://:8443")
		p.expect("Granted web.acme.example https://:8443 10s https://192.0.2.200:8443")
	})
}

func TestTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		former := w.connect("web")
		former.active(web, one)
		former.expect(granted(web, one))
		newer := w.connect("web")
		newer.active(web, one)
		newer.expect(granted(web, one))
		former.active(web, one)
		former.expect("Refused web.acme.example https://192.0.2.1:8443 taken")
		former.clear(web, one)
		former.breakStream()
		time.Sleep(14 * time.Second)
		w.expect("the newer stream has it", "web.acme.example 192.0.2.1:8443")
		newer.active(web, one)
		newer.expect(granted(web, one))
		newer.breakStream()
		newest := w.connect("web")
		newest.clear(web, one)
		w.expect("cleared by a stream that did not register it")
	})
}

func TestCloseOfProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		p := w.connect("web")
		p.active(web, one)
		p.active(web, two)
		p.clear(web, one)
		p.close()
		<-p.ended
		if p.err != nil {
			t.Error(p.err)
		}
		if got := p.told(); len(got) == 0 || got[len(got)-1] != granted(web, two) {
			t.Errorf("told %q", got)
		}
		w.expect("what was not cleared stays", "web.acme.example 192.0.2.2:8443")
		time.Sleep(10 * time.Second)
		w.expect("for its ttl")
	})
}

func TestCloseOfOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		p := w.connect("web")
		p.active(web, one)
		p.expect(granted(web, one))
		stuck := w.dial("spiffe://acme.example/stuck", 0)
		synctest.Wait()
		w.stop()
		<-p.ended
		<-stuck.ended
		if p.err != nil {
			t.Error(p.err)
		}
		p.expect("Close PARTING_FRIENDS this owner ends")
		late := w.dial("spiffe://acme.example/web", 1)
		<-late.ended
		if status.Code(late.err) != codes.Unavailable {
			t.Error(late.err)
		}
		w.expect("nothing is withdrawn", "web.acme.example 192.0.2.1:8443")
	})
}

// sleepHalf waits for less than what a provider may be silent for, with the usual ttl: seven
// of them are longer than any ttl of the rules.
func sleepHalf() { time.Sleep(14 * time.Second) }

// A node that lingers goes at once when the rules do not allow it any more.
func TestLingeringNodeMayNotStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{Linger: 30 * time.Second})
		p := w.connect("web")
		p.active(web, one)
		synctest.Wait()
		p.breakStream()
		time.Sleep(11 * time.Second)
		w.expect("it lingers", "web.acme.example 192.0.2.1:8443")
		w.source.SetRules(rulesOf(t, anyone))
		w.expect("rules that allow it", "web.acme.example 192.0.2.1:8443")
		w.source.SetRules(rulesOf(t, strings.ReplaceAll(anyone, "acme.example", "corp.example")))
		w.expect("rules that do not")
		if s := w.source.Stats(); s.Refused["no-rule"] != 1 || s.Nodes != 0 || s.Pending != 0 {
			t.Errorf("%+v", s)
		}
	})
}
