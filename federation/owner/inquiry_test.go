package owner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// holding opens a stream of a consumer that says what it may hold, and takes the catalog.
func (f *fixture) holding(t *testing.T, id string, said receipt.Receipt, responses int) *client {
	t.Helper()
	ctx := t.Context()
	if said.Holder != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, receipt.Header, said.Header())
	}
	c := &client{t, must.Get(rdpb.NewDiscoveryServiceClient(f.dial(t, id)).EstablishStream(ctx))(t)}
	c.request(wire.Subscribe(""))
	c.nextN(responses)
	return c
}

// asked is what is said about whether a service is gone.
func asked(i *Inquiry) string {
	synctest.Wait()
	s := i.Look()
	text := fmt.Sprintf("%d of %d", s.Done, s.Consumers)
	if s.Settled {
		text = "gone, " + text
	}
	for _, m := range s.Missing {
		text += "; " + m.Reason
		if m.Unknown {
			text += " (unknown)"
		}
		if !m.Until.IsZero() {
			text += " " + m.Until.Sub(s.Now).Round(time.Millisecond).String()
		}
	}
	return text
}

func wantAsked(t *testing.T, i *Inquiry, want string) {
	t.Helper()
	if got := asked(i); got != want {
		t.Errorf("it is %q, expected %q", got, want)
	}
}

// about is a question about a service.
func about(name string, ignore ...string) Question {
	return Question{Matches: func(e *wire.Encoded) bool { return e.Name() == name }, Ignore: ignore}
}

func remembering(t *testing.T) func(*Config) {
	t.Helper()
	return func(c *Config) { c.Receipts = t.TempDir() + "/receipts" }
}

func TestInquiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, remembering(t))
		set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1)})
		c := f.holding(t, consumerID, receipt.Receipt{Holder: "x", TTL: 3 * time.Second, Hold: 20 * time.Second}, 3)
		i := f.server.Inquire(about("a"))
		wantAsked(t, i, "0 of 0") // it is there
		f.registry.Delete("a")
		wantAsked(t, i, "0 of 1; it has yet to acknowledge the change")
		c.next()
		wantAsked(t, i, "0 of 1; its answers are kept for their TTL 3s")
		wantAsked(t, f.server.Inquire(about("a")), "0 of 1; its answers are kept for their TTL 3s")
		time.Sleep(3 * time.Second)
		wantAsked(t, i, "gone, 1 of 1")

		// It comes back and goes between two looks.
		upsert(t, f.registry, service("a", 2))
		c.next()
		f.registry.Delete("a")
		wantAsked(t, i, "0 of 1; it has yet to acknowledge the change")
		must.Do(t, c.stream.CloseSend())
		wantAsked(t, i, "0 of 1; it is lost, and answers what it holds until then at most 23s")
		back := f.holding(t, consumerID, receipt.Receipt{Holder: "x", TTL: 2 * time.Second, Hold: time.Minute}, 2)
		wantAsked(t, i, "0 of 1; its answers are kept for their TTL 2s")
		must.Do(t, back.stream.CloseSend())
		wantAsked(t, i, "0 of 1; its answers are kept for their TTL 2s") // it was told before
		time.Sleep(2 * time.Second)
		wantAsked(t, i, "gone, 1 of 1")
	})
}

// A consumer that refuses a change has what it had before, until something else takes that away.
func TestRefusalIsNotGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, remembering(t))
		set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1)})
		c := f.holding(t, consumerID, receipt.Receipt{Holder: "x", TTL: 5 * time.Second, Hold: receipt.Forever}, 3)
		first := func(e *wire.Encoded) bool {
			return e.Name() == "a" && e.Service().Description == service("a", 1).Description
		}
		i := f.server.Inquire(Question{Matches: first})
		asked(i)
		upsert(t, f.registry, service("a", 2))
		response, _ := c.receive()
		c.request(wire.Nack(response.GetNonce(), "", federation.Invalidf("description", federation.ReasonUndecodable, "no")))
		time.Sleep(time.Minute)
		wantAsked(t, i, `0 of 1; it refuses what this owner says of the service "a"`)
		hides, mistakes := policy.New([]policy.Rule{{FQDNs: []string{"none.example"}, To: []string{"*"}}})
		if len(mistakes) > 0 {
			t.Fatal(mistakes)
		}
		f.registry.SetPolicy(hides)
		c.nextN(2)
		wantAsked(t, i, "0 of 1; its answers are kept for their TTL 5s")
		wantAsked(t, f.server.Inquire(Question{Matches: first}), "0 of 1; its answers are kept for their TTL 5s")
		time.Sleep(5 * time.Second)
		wantAsked(t, i, "gone, 1 of 1")
	})
}

// A consumer that refuses what it never had answers nothing of it.
func TestRefusalOfWhatIsNotHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, remembering(t))
		set(t, f.registry, []*federation.Service{service("a", 1)})
		c := f.holding(t, consumerID, receipt.Receipt{Holder: "x", TTL: 5 * time.Second, Hold: time.Hour}, 2)
		i := f.server.Inquire(Question{Matches: func(e *wire.Encoded) bool { return e.Name() == "a" }})
		asked(i)
		refuse := func(unheld bool) {
			response, _ := c.receive()
			invalid := federation.Invalidf("fqdn", federation.ReasonOutOfZone, "no")
			invalid.Unheld = unheld
			c.request(wire.Nack(response.GetNonce(), "", invalid))
		}
		upsert(t, f.registry, service("b", 1))
		refuse(true)
		f.registry.Delete("a")
		c.nextN(1)
		wantAsked(t, i, "0 of 1; its answers are kept for their TTL 5s")
		time.Sleep(5 * time.Second)
		wantAsked(t, i, "gone, 1 of 1")
		upsert(t, f.registry, service("c", 1))
		refuse(false)
		time.Sleep(time.Minute)
		wantAsked(t, f.server.Inquire(Question{Matches: func(e *wire.Encoded) bool { return e.Name() == "a" }}),
			`0 of 1; it refuses what this owner says of the service "c"`)
	})
}

// It is so even if the version that the consumer has was hidden from it when it was replaced.
func TestRefusalOfWhatWasHidden(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, remembering(t))
		set(t, f.registry, []*federation.Service{service("a", 1)})
		c := f.holding(t, consumerID, receipt.Receipt{Holder: "x", Hold: time.Hour}, 2)
		hides, _ := policy.New([]policy.Rule{{FQDNs: []string{"none.example"}, To: []string{"*"}}})
		release := f.registry.Hold()
		f.registry.SetPolicy(hides)
		upsert(t, f.registry, service("a", 2))
		f.registry.SetPolicy(nil)
		release()
		response, _ := c.receive()
		c.request(wire.Nack(response.GetNonce(), "", federation.Invalidf("description", federation.ReasonUndecodable, "no")))
		i := f.server.Inquire(Question{Matches: func(e *wire.Encoded) bool {
			return e.Name() == "a" && e.Service().Description == service("a", 1).Description
		}})
		wantAsked(t, i, `0 of 1; it refuses what this owner says of the service "a"`)
	})
}

// What a policy does not tell any more was told, and nobody asked yet.
func TestPolicyBeforeTheInquiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, remembering(t))
		set(t, f.registry, []*federation.Service{service("a", 1)})
		c := f.holding(t, consumerID, receipt.Receipt{Holder: "x", TTL: 5 * time.Second, Hold: time.Hour}, 2)
		f.holding(t, strangerID, receipt.Receipt{}, 2)
		hides, _ := policy.New([]policy.Rule{{FQDNs: []string{"none.example"}, To: []string{"*"}}})
		f.registry.SetPolicy(hides)
		f.registry.Delete("a")
		i := f.server.Inquire(about("a", strangerID))
		wantAsked(t, i, "0 of 1; it has yet to acknowledge the change")
		c.next()
		wantAsked(t, i, "0 of 1; its answers are kept for their TTL 5s")
		time.Sleep(5 * time.Second)
		wantAsked(t, i, "gone, 0 of 0") // it was never told by this policy, and has nothing else
	})
}

// A catalog that is not served any more is still held.
func TestCatalogOfBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, remembering(t))
		set(t, f.registry, []*federation.Service{service("a", 1)})
		f.holding(t, consumerID, receipt.Receipt{Holder: "x", TTL: 5 * time.Second, Hold: time.Minute}, 2)
		f.server.SetCatalogs(map[string]*registry.Registry{"": registry.New()})
		i := f.server.Inquire(about("a"))
		wantAsked(t, i, "0 of 1; it is lost, and answers what it holds until then at most 1m5s")
		f.server.SetCatalogs(nil)
		wantAsked(t, f.server.Inquire(about("a")), "0 of 1; it is lost, and answers what it holds until then at most 1m5s")
		time.Sleep(65 * time.Second)
		wantAsked(t, i, "gone, 0 of 0")
	})
}

// Of a relay, and of a consumer with a file, only what they report is settled.
func TestReports(t *testing.T) {
	t.Parallel()
	for _, said := range []receipt.Receipt{
		{Holder: "x", Hold: receipt.Forever, Relay: true}, {Holder: "x", Hold: receipt.Forever, TTL: 4 * time.Second, File: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, remembering(t))
			set(t, f.registry, []*federation.Service{service("a", 1)})
			c := f.holding(t, consumerID, said, 2)
			report := func(r receipt.Report) { c.request(must.Get(wire.Report(r, ""))(t)) }
			waiting, forever := "it has yet to acknowledge the change, or to save it in its file", "-1ns"
			if said.Relay {
				waiting = "not all of its own consumers are settled"
			}
			i := f.server.Inquire(about("a"))
			asked(i)
			f.registry.Delete("a")
			if said.Relay {
				wantAsked(t, i, "0 of 1; "+notYetReported)
				if hold, unknown := f.server.Holding(""); unknown != notYetReported {
					t.Errorf("it is held for %v, %q", hold, unknown)
				}
			}
			report(receipt.Report{Hold: 1500 * time.Millisecond})
			c.next()
			wantAsked(t, i, "0 of 1; "+waiting)
			report(receipt.Report{Settled: "4", Hold: receipt.Forever}) // which was not sent
			report(receipt.Report{Settled: "2", Hold: receipt.Forever})
			wantAsked(t, i, "0 of 1; "+waiting)
			synctest.Wait()
			if hold, unknown := f.server.Holding(""); hold.String() != forever || unknown != "" {
				t.Errorf("it is held for %v, %q", hold, unknown)
			}
			report(receipt.Report{Settled: "3", Hold: 90 * time.Second})
			if said.Relay {
				wantAsked(t, i, "gone, 1 of 1")
			} else {
				wantAsked(t, i, "0 of 1; its answers are kept for their TTL 4s")
			}
			time.Sleep(4 * time.Second)
			wantAsked(t, i, "gone, 1 of 1")
			if said.Relay {
				report(receipt.Report{Settled: "3", Hold: 90 * time.Second, Unknown: "who knows"})
			}
			upsert(t, f.registry, service("b", 1))
			synctest.Wait()
			f.registry.Delete("b")
			synctest.Wait()
			must.Do(t, c.stream.CloseSend())
			got := asked(f.server.Inquire(about("b")))
			if want := "it is lost; who knows (unknown)"; said.Relay && !strings.HasSuffix(got, want) {
				t.Errorf("it is %q, expected %q", got, want)
			}
			if hold, _ := f.server.Holding(""); hold.String() != forever { // as by one that may come
				t.Errorf("it is held for %v", hold)
			}
		})
	}
}

// Who comes to a relay that is cut off may hold as long as those before: its owner hears of them
// only later.
func TestHolding(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, remembering(t))
		set(t, f.registry, []*federation.Service{service("a", 1)})
		holds := func(want time.Duration) {
			t.Helper()
			if hold, unknown := f.server.Holding(""); hold != want || unknown != "" {
				t.Errorf("it is held for %v, %q, expected %v", hold, unknown, want)
			}
		}
		holds(25 * time.Hour) // nobody was there yet
		for _, hold := range []time.Duration{time.Minute, time.Hour, time.Second} {
			c := f.holding(t, consumerID, receipt.Receipt{Holder: "x" + strconv.Itoa(int(hold)), Hold: hold, TTL: 5 * time.Second}, 2)
			synctest.Wait()
			must.Do(t, c.stream.CloseSend())
			time.Sleep(2 * time.Hour) // all is over
		}
		holds(time.Hour + 5*time.Second)
	})
}

// tellOnly has a policy tell a service to one consumer, and nothing else to anybody.
func (f *fixture) tellOnly(t *testing.T, name, consumer string) {
	t.Helper()
	tells, mistakes := policy.New([]policy.Rule{{FQDNs: []string{service(name, 1).FQDN.String()}, To: []string{consumer}}})
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	f.registry.SetPolicy(tells)
}

// A consumer that says nothing never counts as done, and one that is never told does not count.
func TestSilentConsumers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, remembering(t))
		f.tellOnly(t, "a", consumerID)
		set(t, f.registry, []*federation.Service{service("a", 1)})
		c := f.holding(t, consumerID, receipt.Receipt{}, 2)
		s := f.holding(t, strangerID, receipt.Receipt{}, 1)
		i := f.server.Inquire(about("a"))
		asked(i)
		f.registry.Delete("a")
		c.next()
		const silent = "it does not say how long it answers what it holds (unknown)"
		wantAsked(t, i, "0 of 1; "+silent)
		wantAsked(t, f.server.Inquire(about("a", consumerID)), "gone, 0 of 0")
		must.Do(t, c.stream.CloseSend())
		must.Do(t, s.stream.CloseSend())
		time.Sleep(24 * time.Hour)
		wantAsked(t, i, "0 of 1; it is lost; "+silent)
	})
}

// Inquiries about changes are about the services as they were, whatever becomes of them later,
// and have those together that the same consumers are told of.
func TestInquireChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, remembering(t))
		f.tellOnly(t, "a", consumerID)
		set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1), service("held", 1)})
		c := f.holding(t, consumerID, receipt.Receipt{Holder: "x", TTL: 3 * time.Second, Hold: time.Hour}, 2)
		time.Sleep(time.Minute)
		upsert(t, f.registry, service("a", 2))
		asked := map[string]*wire.Encoded{
			"a": f.registry.Lookup("a"), "b": f.registry.Lookup("b"), "held": nil, "coming": f.registry.Lookup("a"),
		}
		begun := f.server.InquireChanges("", asked)
		not := slices.Collect(maps.Keys(asked))
		for _, b := range begun {
			not = slices.DeleteFunc(not, func(name string) bool { return slices.Contains(b.Services, name) })
		}
		slices.Sort(not)
		if got := strings.Join(not, " "); got != "coming held" {
			t.Errorf("not published so: %s", got)
		}
		of := make(map[string]*Inquiry)
		for _, b := range begun {
			of[strings.Join(b.Services, " ")] = b.Inquiry
		}
		if len(of) != 2 || of["a"] == nil || of["b"] == nil {
			t.Fatalf("inquiries: %v", of)
		}
		wantAsked(t, of["b"], "gone, 0 of 0") // nobody is told of it
		wantAsked(t, of["a"], "0 of 1; it has yet to acknowledge the change")
		c.next()
		wantAsked(t, of["a"], "0 of 1; its answers are kept for their TTL 3s")
		f.registry.Delete("a") // which the consumer does not acknowledge
		time.Sleep(3 * time.Second)
		wantAsked(t, of["a"], "gone, 1 of 1")
	})
}
