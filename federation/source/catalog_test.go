package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// Rule 1: nothing is published before every source has said once what it has.
func TestCompleteOrSilent(t *testing.T) {
	play(t, func(s *stage) {
		s.expectUnavailable("without a list", "it has no sources yet")
		s.list("1", "2", "3")
		s.expectUnavailable("at first", "waiting for the first state of source 1, source 2, source 3")
		s.parts["2"].Replace(services("a x 2"))
		s.expectUnavailable("with one part", "waiting for the first state of source 1, source 3")
		s.parts["1"].Away(errors.New("not there"))
		s.parts["3"].Update(services("c z 3"), nil) // is not what the origin holds as a whole
		s.expectUnavailable("when an origin is away", "waiting for the first state of source 1, source 3")
		s.parts["3"].Replace(nil)
		select {
		case <-s.Published():
			s.Error("the catalog is published before it is complete")
		default:
		}
		s.parts["1"].Replace(services("a x 1"))
		s.expect("when all is known", "a x 1")
		<-s.Published()
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
			s.parts["1"].Away(errors.New("connection refused"))
			time.Sleep(time.Hour)
		}
		s.parts["1"].Away(errors.New("no route to host"))
		s.expect("while an origin is away", "a x 1", "b y 2")
		want := SourceStatus{
			Name: "source 1", Published: true, Staying: true, Complete: true,
			Away: "no route to host", Since: gone, Services: 1, Refused: nil,
		}
		if diff := cmp.Diff(want, s.Status().Sources[0]); diff != "" {
			s.Errorf("unexpected status (-want +got):\n%s", diff)
		}
		s.parts["1"].Replace(services("a x 3", "c z 3"))
		s.parts["1"].Away(nil)
		s.parts["1"].Away(nil)
		s.expect("when it is back", "a x 3", "b y 2", "c z 3")
		if got := s.Status().Sources[0]; got.Away != "" || !got.Since.IsZero() {
			s.Errorf("status is %+v, expected that the origin is not away", got)
		}
		s.parts["2"].Away(ReportedError{Reason: errors.New("said already")})
		s.parts["2"].Away(nil)
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
		s.puppets["1"], s.puppets["2"], s.puppets["3"] = newPuppet(), newPuppet(), newPuppet()
		entries := []Entry{
			{Key: "1", Name: "source 1", Source: s.puppets["1"], Lifetime: time.Hour},
			{Key: "2", Name: "source 2", Source: s.puppets["2"], Lifetime: 90 * time.Minute},
			{Key: "3", Name: "source 3", Source: s.puppets["3"], Lifetime: 100 * time.Hour},
		}
		s.set(entries)
		for _, name := range []string{"1", "2", "3"} {
			s.parts[name].Replace(services(name + " x" + name + " 1"))
		}
		away := errors.New("away")
		all := []string{"1 x1 1", "2 x2 1", "3 x3 1"}

		s.parts["3"].Away(away)
		s.parts["2"].Away(away)
		time.Sleep(30 * time.Minute)
		s.parts["1"].Away(away)
		time.Sleep(time.Hour - time.Nanosecond)
		s.parts["1"].Away(errors.New("away for another reason"))
		s.expect("just before the end", all...)
		time.Sleep(time.Nanosecond)
		s.expectUnavailable("at the end", "source 1 has been away for more than 1h0m0s, source 2 has been away for more than 1h30m0s")
		s.parts["1"].Update(services("1 x1 2"), nil)
		s.parts["1"].Away(nil)
		s.expect("when one is back", "1 x1 2", "3 x3 1")
		found := s.Find(func(e *wire.Encoded) bool { return e.Name() == "2" })
		if len(found) != 1 || found[0].Hidden != "its source has been away for more than 1h30m0s" {
			t.Errorf("of a source whose lifetime is over there is %+v", found)
		}
		s.parts["1"].Away(away)
		s.parts["1"].Update(services("1 x1 1"), nil)
		s.expect("when that is away again", "1 x1 1", "3 x3 1")
		s.parts["2"].Update(services("2 x1 2"), nil)
		s.parts["1"].Update(services("1 x1 2"), nil)
		s.parts["1"].Away(nil)
		s.parts["2"].Update(services("2 x2 1"), nil)
		s.parts["2"].Away(nil)
		all[0] = "1 x1 2"
		s.expect("when all are back", all...)

		s.parts["1"].Away(away)
		s.parts["2"].Away(away)
		time.Sleep(time.Hour)
		s.expectUnavailable("when the first lifetime ends", "source 1 has been away for more than 1h0m0s")
		s.parts["1"].Away(nil)
		s.parts["2"].Away(nil)
		s.expect("when both are back again", all...)

		s.parts["1"].Away(away)
		time.Sleep(59 * time.Minute)
		s.parts["1"].Away(nil)
		s.parts["1"].Away(away)
		time.Sleep(59 * time.Minute)
		s.expect("a second absence", all...)

		// A change of the list changes the lifetime.
		entries[0].Lifetime = time.Minute
		s.set(entries)
		s.expect("with a shorter lifetime", all[1:]...)
		if got := s.Status().Sources; !got[0].Lapsed || got[1].Lapsed {
			s.Errorf("the status of the sources is %+v", got)
		}
		entries[0].Lifetime = 2 * time.Hour
		s.set(entries)
		s.expect("with a longer lifetime", all...)
		time.Sleep(61 * time.Minute)
		s.expect("at the end of that", all[1:]...)
		s.set(entries[1:])
		s.expect("without that source", all[1:]...)
		if n := strings.Count(s.logged.String(), `msg="catalog is not available to consumers"`); n != 2 {
			s.Errorf("%d lines say that the catalog is not available, expected 2:\n%s", n, s.logged)
		}
		if n := strings.Count(s.logged.String(), `msg="catalog is available to consumers again"`); n != 2 {
			s.Errorf("%d lines say that the catalog is available again, expected 2:\n%s", n, s.logged)
		}
		if n := strings.Count(s.logged.String(), `msg="source was away for its lifetime, its services are withdrawn"`); n != 3 {
			s.Errorf("%d lines say that services of a source are withdrawn, expected 3:\n%s", n, s.logged)
		}
	})
}

// Consumers are told since when the origin is lost because of which there is no catalog: its
// lifetime counts from then as well, and what is learnt later of an earlier loss counts.
func TestLossIsTold(t *testing.T) {
	play(t, func(s *stage) {
		s.puppets["1"], s.puppets["2"] = newPuppet(), newPuppet()
		s.set([]Entry{
			{Key: "1", Name: "source 1", Source: s.puppets["1"], Lifetime: time.Hour},
			{Key: "2", Name: "source 2", Source: s.puppets["2"], Lifetime: 3 * time.Hour},
		})
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
		s.parts["2"].Away(errors.New("away"))
		s.parts["1"].Away(ReportedError{errors.New("away"), start.Add(-20 * time.Minute)})
		time.Sleep(40*time.Minute - time.Nanosecond)
		s.expect("before the lifetime is over")
		time.Sleep(time.Nanosecond)
		s.expectUnavailable("when it is over", "source 1 has been away for more than 1h0m0s")
		expect("an open stream", open, 20*time.Minute)

		for _, before := range []time.Duration{25 * time.Minute, 15 * time.Minute} {
			s.parts["1"].Away(ReportedError{errors.New("away"), start.Add(-before)})
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
// told, and takes over.
func TestFirstSourceWins(t *testing.T) {
	play(t, func(s *stage) {
		s.list("1", "2", "3")
		s.parts["3"].Replace(services("a w 3", "c y 3", "d x 3"))
		s.parts["2"].Replace(services("a y 2", "b x 2", "c z 2"))
		s.parts["1"].Replace(services("a x 1", "e x 1")) // within one source that is allowed
		hidden := func(when string, source string, want map[string]string) {
			s.Helper()
			synctest.Wait()
			if diff := cmp.Diff(want, s.puppets[source].told()); diff != "" {
				s.Errorf("%s: source %s knows of other hidden services (-want +got):\n%s", when, source, diff)
			}
		}
		// A service that is hidden hides nothing: y is free, but the name c is not.
		s.expect("at first", "a x 1", "c z 2", "e x 1")
		hidden("at first", "1", map[string]string{})
		hidden("at first", "2", map[string]string{"a": `service "a" of source 1`, "b": `service "a" of source 1`})
		hidden("at first", "3", map[string]string{
			"a": `service "a" of source 1`, "c": `service "c" of source 2`, "d": `service "a" of source 1`,
		})
		s.parts["1"].Update(nil, []string{"a"})
		s.expect("without a", "a y 2", "c z 2", "e x 1")
		hidden("without a", "2", map[string]string{"b": `service "e" of source 1`})
		hidden("without a", "3", map[string]string{
			"a": `service "a" of source 2`, "c": `service "c" of source 2`, "d": `service "e" of source 1`,
		})
		s.parts["1"].Update(services("e v 2"), nil)
		s.expect("when e has another fqdn", "a y 2", "b x 2", "c z 2", "e v 2")
		hidden("when e has another fqdn", "2", map[string]string{})
		s.parts["2"].Replace(nil)
		s.expect("without the second part", "a w 3", "c y 3", "d x 3", "e v 2")
		hidden("without the second part", "3", map[string]string{})
		s.parts["1"].Replace(services("d v 3"))
		s.expect("with another first part", "a w 3", "c y 3", "d v 3")
		s.parts["3"].Update(nil, []string{"d"})
		s.expect("without what was hidden", "a w 3", "c y 3", "d v 3")
		hidden("without what was hidden", "3", map[string]string{})

		s.list("3", "1")
		s.parts["3"].Update(services("f v 3"), nil)
		s.expect("in another order", "a w 3", "c y 3", "f v 3")
		hidden("in another order", "1", map[string]string{"d": `service "f" of source 3`})
		if !strings.Contains(s.logged.String(), `msg="service is hidden: another source stands first" catalog=test source="source 1" service=d by="service \"f\" of source 3"`) {
			s.Errorf("the log does not tell what is hidden:\n%s", s.logged)
		}
	})
}

// What a consumer refuses is told to the source that publishes it.
func TestRefusedByConsumer(t *testing.T) {
	play(t, func(s *stage) {
		refuse := func(service string) { s.refused(registry.Refusal{Service: service, Rule: "no"}) }
		s.list("1")
		s.parts["1"].Replace(services("a x 1"))
		refuse("a")
		s.list("1", "2")
		s.parts["2"].Replace(services("a x 2", "b y 2", "c x 2"))
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

// Rule 6: what a source refuses is counted by rule, of which there are not many.
func TestRefusedByRule(t *testing.T) {
	play(t, func(s *stage) {
		s.list("1")
		many := make(map[string]int)
		for i := range 100 {
			many[fmt.Sprintf("rule %03d", i)] = 2
		}
		for _, tt := range []struct{ entries, want map[string]int }{
			{map[string]int{"zone": 2, "port": 1, "name": 0}, map[string]int{"zone": 2, "port": 1}},
			{map[string]int{"zone": 1}, map[string]int{"zone": 1}},
			{nil, map[string]int{}},
		} {
			s.parts["1"].Refused(tt.entries)
			if diff := cmp.Diff(tt.want, s.Status().Sources[0].Refused); diff != "" {
				t.Errorf("%v: unexpected counts (-want +got):\n%s", tt.entries, diff)
			}
		}
		s.parts["1"].Refused(many)
		got := s.Status().Sources[0].Refused
		if len(got) != maxRules || got["rule 000"] != 2 || got[otherRules] != 2*(100-maxRules+1) {
			t.Errorf("%d rules are counted as %v, expected %d with the rest as %s", len(got), got, maxRules, otherRules)
		}
	})
}

// A new list takes effect as a whole. What stays runs on, and what goes ends then.
func TestSetTakesEffectAsAWhole(t *testing.T) {
	play(t, func(s *stage) {
		s.list("1", "2")
		s.parts["1"].Replace(services("a w 1"))
		s.parts["2"].Replace(services("b x 2", "c y 2"))
		subscription := s.registry.Subscribe()
		defer subscription.Close()
		hear := func(want ...string) {
			t.Helper()
			for _, want := range want {
				event := must.Get(subscription.Next(t.Context()))(t)
				if got := event.Operation.String() + " " + event.Name; got != want {
					t.Errorf("a subscriber heard %q, expected %q", got, want)
				}
			}
		}
		hear("upsert a", "upsert b", "upsert c", "end ")
		s.list("3", "2", "4")
		s.parts["3"].Replace(services("c y 3"))
		s.parts["1"].Update(services("a w 2"), nil)
		hear("upsert a")
		s.parts["4"].Update(services("d z 4"), nil)
		s.expect("while a source is waited for", "a w 2", "b x 2", "c y 2")
		var lists []string
		for _, source := range s.Status().Sources {
			lists = append(lists, fmt.Sprint(source.Name, " ", source.Published, " ", source.Staying, " ", source.Complete))
		}
		if diff := cmp.Diff([]string{
			"source 1 true false true", "source 2 true true true", "source 3 false true true", "source 4 false true false",
		}, lists); diff != "" {
			t.Errorf("unexpected status (-want +got):\n%s", diff)
		}
		if s.puppets["1"].hasEnded() {
			t.Error("a source has ended before the list without it takes effect")
		}
		s.parts["4"].Replace(services("d z 5"))
		s.expect("when it is complete", "b x 2", "c y 3", "d z 5")
		if !s.puppets["1"].hasEnded() || s.puppets["2"].hasEnded() {
			t.Error("expected that source 1 has ended and source 2 has not")
		}
		s.parts["1"].Replace(services("z z 1")) // too late
		s.parts["1"].Update(services("y z 1"), nil)
		s.parts["1"].Away(errors.New("too late"))
		s.expect("after a late call", "b x 2", "c y 3", "d z 5")
		if strings.Contains(s.logged.String(), "too late") {
			t.Errorf("a source that has ended is logged to be away:\n%s", s.logged)
		}
		hear("upsert d", "upsert c", "delete a")

		// A list that never was complete is replaced by the next one.
		s.list("2", "5")
		s.list("2", "6")
		synctest.Wait()
		if !s.puppets["5"].hasEnded() {
			t.Error("a source that is in no list any more has not ended")
		}
		s.list("2")
		s.expect("with one source", "b x 2", "c y 2")
		s.list()
		s.expect("without sources")
	})
}

// The path is that of what is published, and not of what is to come. When it changes with
// the list, streams that were told the other one end.
func TestPathIsOfWhatIsPublished(t *testing.T) {
	play(t, func(s *stage) {
		own := s.registry.Path()[0]
		through := func(name string, path wire.Path) {
			t.Helper()
			must.Do(t, s.parts[name].Through(path))
		}
		expect := func(when string, want ...string) {
			t.Helper()
			if got := s.registry.Path(); !slices.Equal(got, append(want, own)) {
				t.Errorf("%s: the path is %v, expected %v before %s", when, got, want, own)
			}
		}
		s.list("1")
		through("1", wire.Path{"one"})
		s.parts["1"].Replace(services("a w 1"))
		expect("at first", "one")

		s.list("2")
		through("2", wire.Path{"two"})
		expect("while another source is to come", "one")
		if err := s.parts["2"].Through(wire.Path{own}); !errors.Is(err, registry.ErrLoop) {
			t.Errorf("services that have come through the catalog: error is %v, expected %v", err, registry.ErrLoop)
		}
		subscription := s.registry.Subscribe()
		defer subscription.Close()
		for range 2 { // a and the end marker
			must.Get(subscription.Next(t.Context()))(t)
		}
		s.parts["2"].Replace(services("b w 2"))
		expect("when it has come", "two")
		if event, err := subscription.Next(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("a subscriber that was told the path before gets %v, %v, expected that its stream ends", event, err)
		}
		s.expect("when it has come", "b w 2")

		s.list("3")
		s.parts["3"].Replace(services("c w 3"))
		expect("with a source that is an origin")
		s.expect("with a source that is an origin", "c w 3")
	})
}

// A key that is back stands for a new source, which begins when the old one has ended.
// A list has a key once.
func TestKeys(t *testing.T) {
	play(t, func(s *stage) {
		s.list("1", "2", "1")
		s.parts["1"].Replace(services("a x 1"))
		s.parts["2"].Replace(nil)
		s.expect("at first", "a x 1")
		if n := len(s.Status().Sources); n != 2 {
			t.Errorf("there are %d sources, expected 2", n)
		}
		s.list("2")
		old := s.puppets["1"]
		s.puppets["1"] = newPuppet()
		s.list("2", "1")
		if !old.hasEnded() {
			t.Error("two sources of one key run at once")
		}
		s.expect("while the new one is not complete")
		s.parts["1"].Replace(services("a x 2"))
		s.expect("with the new one", "a x 2")
	})
}

// A source that returns by itself counts as away.
func TestSourceThatReturns(t *testing.T) {
	play(t, func(s *stage) {
		s.set([]Entry{{Key: "1", Name: "source 1", Source: briefly{}}})
		s.expect("a source that has returned", "a x 1")
		if got := s.Status().Sources[0].Away; got != "the source has ended by itself" {
			t.Errorf("the source is away for the reason %q, expected that it has ended", got)
		}
	})
}

// briefly is a source that publishes once.
type briefly struct{}

func (briefly) Run(_ context.Context, part Part) { part.Replace(services("a x 1")) }

func TestCompare(t *testing.T) {
	for _, tt := range []struct{ before, after, added, changed, gone string }{
		{"", "", "", "", ""},
		{"", "a1 b1", "a b", "", ""},
		{"a1 b1", "", "", "", "a b"},
		{"a1 b1 c1", "a1 b2 c1", "", "b", ""},
		{"a1 b1 c1", "a2 c2 d1 e1", "d e", "a c", "b"},
		{"a1 b1 c1", "b1 c1", "", "", "a"},
	} {
		list := func(text string) map[string]*wire.Encoded {
			services := make(map[string]*wire.Encoded)
			for s := range strings.FieldsSeq(text) {
				services[s[:1]] = encoded(s[:1], "x", int(s[1]-'0'))
			}
			return services
		}
		names := func(list []*wire.Encoded) string {
			var names []string
			for _, s := range list {
				names = append(names, s.Name())
			}
			slices.Sort(names)
			return strings.Join(names, " ")
		}
		d := Compare(list(tt.before), list(tt.after))
		slices.Sort(d.Gone)
		if names(d.Added) != tt.added || names(d.Changed) != tt.changed || strings.Join(d.Gone, " ") != tt.gone {
			t.Errorf("%s -> %s: added %s, changed %s, gone %s, expected %s, %s, %s", tt.before, tt.after,
				names(d.Added), names(d.Changed), d.Gone, tt.added, tt.changed, tt.gone)
		}
	}
}
