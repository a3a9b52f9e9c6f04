package source

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// Rule 1: what a source has is published at once. The end of the catalog waits for all of them,
// and a service for those before it that may have its name or its fqdn.
func TestEndWaits(t *testing.T) {
	play(t, func(s *stage) {
		one, two, three := s.entry("1"), s.entry("2"), s.entry("3")
		s.puppets["1"].claims = func(name string, fqdn federation.FQDN) bool { return name == "a" || fqdn.String() == "x.example.org." }
		one.Lifetime, two.Lifetime, three.Lifetime = time.Minute, 2*time.Hour, 2*time.Hour
		s.set(one, two, three)
		s.expectUnavailable("at first", "waiting for the first state of source 1, source 2, source 3")
		s.parts["1"].SetAway(errors.New("not there"))
		s.expectUnavailable("when an origin is away", "waiting for the first state of source 1, source 2, source 3")
		s.parts["3"].Replace(services("d z 3"))
		s.expectOpen("while the second may have everything")
		<-s.Published()
		s.parts["2"].Replace(services("a y 2", "b x 2", "c w 2"))
		s.expectOpen("while the first may have a or x", "c w 2", "d z 3")
		s.parts["3"].Replace(services("d y 3", "e x 3", "c v 3"))
		s.expectOpen("while what waits is in the way of others", "c w 2")
		for _, name := range []string{"2", "3"} {
			s.parts[name].SetAway(errors.New("gone"))
		}
		time.Sleep(time.Hour)
		s.expectOpen("when the first has been away for much longer than it may, and the others not", "c w 2")
		if got := s.Status().Sources[0]; got.Lapsed || got.Complete {
			t.Errorf("the status of the first source is %+v", got)
		}
		s.parts["1"].Replace(services("a u 1"))
		s.expect("when all is known", "a u 1", "b x 2", "c w 2", "d y 3")
		s.parts["1"].SetAway(nil)
		s.expect("when its origin can be asked", "a u 1", "b x 2", "c w 2", "d y 3")
	})
}

// Rule 2: an origin that is away withdraws nothing, and says so once.
func TestAwayWithdrawsNothing(t *testing.T) {
	play(t, func(s *stage) {
		s.list("1", "2")
		s.parts["1"].Replace(services("a x 1"))
		s.parts["2"].Replace(services("b y 2"))
		gone := time.Now()
		for range 3 {
			s.parts["1"].SetAway(errors.New("connection refused"))
			time.Sleep(time.Hour)
		}
		s.parts["1"].SetAway(errors.New("no route to host"))
		s.expect("while an origin is away", "a x 1", "b y 2")
		want := SourceStatus{
			Name: "source 1", Complete: true,
			Away: "no route to host", Since: gone, Services: 1, Refused: nil,
		}
		if diff := cmp.Diff(want, s.Status().Sources[0]); diff != "" {
			s.Errorf("unexpected status (-want +got):\n%s", diff)
		}
		s.parts["1"].Replace(services("a x 3", "c z 3"))
		s.parts["1"].SetAway(nil)
		s.parts["1"].SetAway(nil)
		s.expect("when it is back", "a x 3", "b y 2", "c z 3")
		if got := s.Status().Sources[0]; got.Away != "" || !got.Since.IsZero() {
			s.Errorf("status is %+v, expected that the origin is not away", got)
		}
		s.parts["2"].SetAway(ReportedError{Reason: errors.New("said already")})
		s.parts["2"].SetAway(nil)
		s.expectLines(
			`level=WARN msg="source is away; its published services stay" catalog=test source="source 1" error="connection refused"`,
			`level=INFO msg="source is back" catalog=test source="source 1" after=3h0m0s`,
		)
	})
}

// expectLines fails unless these are all the lines that were logged, without their
// times.
func (s *stage) expectLines(want ...string) {
	s.Helper()
	synctest.Wait()
	var got []string
	for line := range strings.Lines(s.logged.String()) {
		_, line, _ = strings.Cut(strings.TrimSpace(line), " ")
		got = append(got, line)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("unexpected lines (-want +got):\n%s", diff)
	}
}

// Rule 3: what an origin publishes that has been away for too long is withdrawn while another
// one can be asked, and else the catalog is not available, until it is back.
func TestBoundedLife(t *testing.T) {
	play(t, func(s *stage) {
		entries := []Entry{s.entry("1"), s.entry("2"), s.entry("3")}
		entries[0].Lifetime, entries[1].Lifetime, entries[2].Lifetime = time.Hour, 90*time.Minute, 100*time.Hour
		s.set(entries...)
		for _, name := range []string{"1", "2", "3"} {
			s.parts[name].Replace(services(name + " x" + name + " 1"))
		}
		away := errors.New("away")
		all := []string{"1 x1 1", "2 x2 1", "3 x3 1"}

		s.parts["3"].SetAway(away)
		s.parts["2"].SetAway(away)
		time.Sleep(30 * time.Minute)
		s.parts["1"].SetAway(away)
		time.Sleep(time.Hour - time.Nanosecond)
		s.parts["1"].SetAway(errors.New("away for another reason"))
		s.expect("just before the end", all...)
		time.Sleep(time.Nanosecond)
		s.expectUnavailable("at the end", "source 1 has been away for more than 1h0m0s, source 2 has been away for more than 1h30m0s")
		s.parts["1"].Update(services("1 x1 2"), nil)
		s.parts["1"].SetAway(nil)
		s.expect("when one is back", "1 x1 2", "3 x3 1")
		found := s.Find(func(e *wire.EncodedService) bool { return e.Name() == "2" })
		if len(found) != 1 || found[0].Hidden != "its source has been away for more than 1h30m0s" {
			t.Errorf("of a source whose lifetime is over there is %+v", found)
		}
		s.parts["1"].SetAway(away)
		s.parts["1"].Update(services("1 x1 1"), nil)
		s.expect("when that is away again", "1 x1 1", "3 x3 1")
		s.parts["2"].Update(services("2 x1 2"), nil)
		s.parts["1"].Update(services("1 x1 2"), nil)
		s.parts["1"].SetAway(nil)
		s.parts["2"].Update(services("2 x2 1"), nil)
		s.parts["2"].SetAway(nil)
		all[0] = "1 x1 2"
		s.expect("when all are back", all...)

		s.parts["1"].SetAway(away)
		s.parts["2"].SetAway(away)
		time.Sleep(time.Hour)
		s.expectUnavailable("when the first lifetime ends", "source 1 has been away for more than 1h0m0s")
		s.parts["1"].SetAway(nil)
		s.parts["2"].SetAway(nil)
		s.expect("when both are back again", all...)

		s.parts["1"].SetAway(away)
		time.Sleep(59 * time.Minute)
		s.parts["1"].SetAway(nil)
		s.parts["1"].SetAway(away)
		time.Sleep(59 * time.Minute)
		s.expect("a second absence", all...)

		if n := strings.Count(s.logged.String(), `msg="catalog is not available to consumers"`); n != 2 {
			s.Errorf("%d lines say that the catalog is not available, expected 2:\n%s", n, s.logged)
		}
		if n := strings.Count(s.logged.String(), `msg="catalog is available to consumers again"`); n != 2 {
			s.Errorf("%d lines say that the catalog is available again, expected 2:\n%s", n, s.logged)
		}
		if n := strings.Count(s.logged.String(), `msg="source was away for longer than its lifetime, so its services are withdrawn"`); n != 1 {
			s.Errorf("%d lines say that services of a source are withdrawn, expected 1:\n%s", n, s.logged)
		}
	})
}

// Consumers are told since when the origin is lost because of which there is no catalog: its
// lifetime counts from then as well, and what is learnt later of an earlier loss counts.
func TestLossIsTold(t *testing.T) {
	play(t, func(s *stage) {
		one, two := s.entry("1"), s.entry("2")
		one.Lifetime, two.Lifetime = time.Hour, 3*time.Hour
		s.set(one, two)
		start := time.Now()
		subscribe := func() (lost *time.Time, end func()) {
			lost = new(time.Time)
			return lost, s.registry.SubscribeAs(registry.Consumer{Stop: func(at time.Time) { *lost = at }}).Close
		}
		expect := func(when string, lost *time.Time, before time.Duration) {
			t.Helper()
			if synctest.Wait(); !lost.Equal(start.Add(-before)) {
				t.Errorf("%s: the loss is told %v before the start, expected %v", when, start.Sub(*lost), before)
			}
		}
		first, end := subscribe()
		defer end()
		if !first.IsZero() {
			t.Errorf("before the first catalog a loss at %v is told", first)
		}
		for _, p := range s.parts {
			p.Replace(nil)
		}
		open, end := subscribe()
		defer end()
		s.parts["2"].SetAway(errors.New("away"))
		s.parts["1"].SetAway(ReportedError{errors.New("away"), start.Add(-20 * time.Minute)})
		time.Sleep(40*time.Minute - time.Nanosecond)
		s.expect("before the lifetime is over")
		time.Sleep(time.Nanosecond)
		s.expectUnavailable("when it is over", "source 1 has been away for more than 1h0m0s")
		expect("an open stream", open, 20*time.Minute)

		for _, before := range []time.Duration{25 * time.Minute, 15 * time.Minute} {
			s.parts["1"].SetAway(ReportedError{errors.New("away"), start.Add(-before)})
			fresh, end := subscribe()
			expect("of two losses the earlier one", fresh, 25*time.Minute)
			end()
		}
		time.Sleep(3 * time.Hour)
		fresh, end := subscribe()
		defer end()
		expect("of two sources that are lost", fresh, 25*time.Minute)
		if n := strings.Count(s.logged.String(), `msg="catalog is not available to consumers"`); n != 2 {
			t.Errorf("%d lines say that the catalog is not available:\n%s", n, s.logged)
		}
	})
}

// Rule 5: of two sources with one name or one fqdn, the first publishes it. The other is
// told, and takes over. The oracle says who has what.
func TestFirstSourceWins(t *testing.T) {
	play(t, func(s *stage) {
		s.list("1", "2")
		s.parts["1"].Replace(services("a x 1"))
		s.parts["2"].Replace(services("a y 2", "b x 2", "c z 2"))
		s.expect("at first", "a x 1", "c z 2")
		hidden := map[string]string{"a": `service "a" of source 1`, "b": `service "a" of source 1`}
		if diff := cmp.Diff(hidden, s.puppets["2"].told()); diff != "" {
			s.Errorf("what the second source was told to be hidden (-want +got):\n%s", diff)
		}
		s.parts["1"].Update(nil, []string{"a"})
		s.expect("without the first", "a y 2", "b x 2", "c z 2")
		if told := s.puppets["2"].told(); len(told) > 0 {
			s.Errorf("the second source was told that %v are hidden", told)
		}
		line := `msg="service is hidden: a source that comes first has its name or its fqdn" catalog=test source="source 2" service=b by="service \"a\" of source 1"`
		if !strings.Contains(s.logged.String(), line) {
			s.Errorf("the log does not tell what is hidden:\n%s", s.logged)
		}
	})
}

// What a consumer refuses is told to the source that publishes it.
func TestRefusedByConsumer(t *testing.T) {
	play(t, func(s *stage) {
		refuse := func(service string) { s.forwardRefusal(registry.Refusal{Service: service, Rule: "no"}) }
		s.list("1", "2")
		s.parts["2"].Replace(services("a x 2", "b y 2", "c x 2"))
		refuse("a") // waits
		s.parts["1"].Replace(services("a x 1"))
		refuse("a")
		for _, name := range []string{"a", "b", "c", "d"} { // c is hidden, d is unknown
			refuse(name)
		}
		s.parts["1"].Replace(nil)
		refuse("c")
		names := func(source string) (names []string) {
			for _, r := range s.puppets[source].refused {
				names = append(names, r.Service)
			}
			return names
		}
		if got := names("1"); !slices.Equal(got, []string{"a", "a"}) {
			t.Errorf("source 1 was told that %q are refused, expected a twice", got)
		}
		if got := names("2"); !slices.Equal(got, []string{"b", "c"}) {
			t.Errorf("source 2 was told that %q are refused, expected b and c", got)
		}
	})
}

// Rule 6: what a source refuses is counted by rule.
func TestRefusedByRule(t *testing.T) {
	play(t, func(s *stage) {
		s.list("1")
		for _, entries := range []map[string]int{{"zone": 2, "port": 1}, {"zone": 1}, nil} {
			s.parts["1"].SetRefused(entries)
			if diff := cmp.Diff(entries, s.Status().Sources[0].Refused); diff != "" {
				t.Errorf("%v: unexpected counts (-want +got):\n%s", entries, diff)
			}
		}
		s.parts["1"].SetRefused(map[string]int{"limit": 0})
		if left := s.Status().Sources[0].Refused; len(left) > 0 {
			t.Errorf("a rule that nothing breaks any more is counted: %v", left)
		}
	})
}

// The path is that of the first source that names one. When it changes, streams that were told
// another one end.
func TestPath(t *testing.T) {
	play(t, func(s *stage) {
		own := s.registry.Path()[0]
		s.list("1", "2", "3")
		s.parts["1"].Replace(services("a w 1"))
		if err := s.parts["2"].SetPath(wire.OwnerPath{own}); !errors.Is(err, registry.ErrLoop) {
			t.Errorf("services that have come through the catalog: error is %v, expected %v", err, registry.ErrLoop)
		}
		for _, tt := range []struct {
			source string
			path   wire.OwnerPath
			want   wire.OwnerPath
		}{
			{"3", wire.OwnerPath{"three"}, wire.OwnerPath{"three", own}},
			{"2", wire.OwnerPath{"two"}, wire.OwnerPath{"two", own}},
			{"2", nil, wire.OwnerPath{"three", own}},
		} {
			subscription := registrytest.Listen(s.registry)
			defer subscription.Close()
			must.Get(subscription.NextEvent(t.Context()))(t)
			must.Do(t, s.parts[tt.source].SetPath(tt.path))
			if event, err := subscription.NextEvent(t.Context()); status.Code(err) != codes.Unavailable {
				t.Errorf("a subscriber that was told the path before gets %v, %v, expected that its stream ends", event, err)
			}
			if got := s.registry.Path(); !slices.Equal(got, tt.want) {
				t.Errorf("the path is %v, expected %v", got, tt.want)
			}
			s.expectOpen("with another path", "a w 1")
		}
	})
}

// A source that returns by itself counts as away.
func TestSourceThatReturns(t *testing.T) {
	play(t, func(s *stage) {
		s.set(Entry{Name: "source 1", Source: briefly{}})
		s.expect("a source that has returned", "a x 1")
		if got := s.Status().Sources[0].Away; got != "the source has ended by itself" {
			t.Errorf("the source is away for the reason %q, expected that it has ended", got)
		}
	})
}

// briefly is a source that publishes once.
type briefly struct{}

func (briefly) Run(_ context.Context, part Part) { part.Replace(services("a x 1")) }
