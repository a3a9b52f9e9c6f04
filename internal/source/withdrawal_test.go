package source

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// numbered returns the texts of services, as services takes them, from first to last.
func numbered(first, last int) (texts []string) {
	for i := first; i <= last; i++ {
		texts = append(texts, fmt.Sprintf("s%03d h%d 1", i, i))
	}
	return texts
}

// namesOf returns the names of services that numbered returns.
func namesOf(first, last int) (names []string) {
	for _, text := range numbered(first, last) {
		name, _, _ := strings.Cut(text, " ")
		names = append(names, name)
	}
	return names
}

// limited sets a list of one source with a limit.
func (s *stage) limited(percent int, after time.Duration) {
	s.Helper()
	e := s.entry("1")
	e.Lifetime, e.MaxWithdraw, e.WithdrawAfter = time.Hour, percent, after
	s.set(e)
}

// expectPaused fails unless so many services are paused.
func (s *stage) expectPaused(when string, want int) {
	s.Helper()
	synctest.Wait()
	found := slices.DeleteFunc(s.Find(func(*wire.EncodedService) bool { return true }), func(f FoundService) bool { return !f.Paused })
	if got := s.Status().Sources[0].Paused; got != want || len(found) != want {
		s.Errorf("%s: %d services are paused, and %d are found, expected %d", when, got, len(found), want)
	}
}

// More than the limit stays, in whichever way the source says it, and what is new or
// changes is published. It is the difference that counts, and ten services at least.
func TestMaxWithdraw(t *testing.T) {
	for _, tt := range []struct {
		all, gone, percent int
		paused             bool
	}{
		{all: 20, gone: 10, percent: 50},
		{all: 20, gone: 11, percent: 50, paused: true},
		{all: 20, gone: 20, percent: 50, paused: true},
		{all: 9, gone: 9, percent: 50},
		{all: 10, gone: 10, percent: 50, paused: true},
		{all: 100, gone: 10, percent: 10},
		{all: 100, gone: 11, percent: 10, paused: true},
		{all: 100, gone: 9, percent: 1},
		{all: 20, gone: 20, percent: 0},
		{all: 200, gone: 198, percent: 99},
		{all: 200, gone: 199, percent: 99, paused: true},
	} {
		for _, as := range []string{"Replace", "Update"} {
			t.Run(fmt.Sprintf("%d of %d at %d with %s", tt.gone, tt.all, tt.percent, as), func(t *testing.T) {
				play(t, func(s *stage) {
					s.limited(tt.percent, time.Hour)
					all := numbered(1, tt.all)
					s.parts["1"].Replace(services(all...))
					fresh := services(append(slices.Clone(all[tt.gone:]), "t new 1")...)
					if as == "Replace" {
						s.parts["1"].Replace(fresh)
					} else {
						s.parts["1"].Update(fresh, append(namesOf(1, tt.gone), "unknown", "s001", "t"))
					}
					want, paused := append(slices.Clone(all), "t new 1"), tt.gone
					if !tt.paused {
						want, paused = want[tt.gone:], 0
					}
					s.expect("afterwards", want...)
					s.expectPaused("afterwards", paused)
					if logged := strings.Count(s.logged.String(), `level=ERROR msg="withdrawal paused: the source lost too many services at once; repair it, or confirm the withdrawal"`); logged != min(paused, 1) {
						t.Errorf("%d lines say that something is paused:\n%s", logged, s.logged)
					}
				})
			})
		}
	}
}

// What is paused may be hidden, and is published again when it is not.
func TestHeldMayBeHidden(t *testing.T) {
	play(t, func(s *stage) {
		e := s.entry("1")
		e.MaxWithdraw = 50
		s.set(s.entry("2"), e)
		s.parts["1"].Replace(services(numbered(1, 20)...))
		s.parts["1"].Replace(nil)
		s.parts["2"].Replace(services("a h1 1"))
		s.expect("with another source", append([]string{"a h1 1"}, numbered(2, 20)...)...)
		if got := s.Status(); got.Unavailable != "" || !got.Sources[1].Complete || got.Sources[1].Paused != 20 || got.Sources[1].Hidden != 1 {
			t.Errorf("the status is %+v", got)
		}
		s.parts["2"].Replace(nil)
		s.expect("without what hid a service that is paused", numbered(1, 20)...)
		if n := s.ConfirmWithdrawal("source 1"); n != 20 {
			t.Errorf("%d services were confirmed, expected 20", n)
		}
		s.expect("when they are confirmed")
	})
}

// Small updates count together for a minute. What went with the first of them is back.
func TestWithdrawnInBatches(t *testing.T) {
	play(t, func(s *stage) {
		s.limited(50, 0)
		all := numbered(1, 100)
		s.parts["1"].Replace(services(all...))
		for i := range 50 {
			s.parts["1"].Update(nil, namesOf(i+1, i+1))
			time.Sleep(time.Second)
		}
		s.expect("while half of it is there", all[50:]...)
		s.parts["1"].Update(services("s050 h50 2"), nil) // is another one
		s.parts["1"].Update(nil, namesOf(51, 51))
		s.expect("when 50 are gone, and one is back", slices.Concat([]string{"s050 h50 2"}, all[51:])...)
		s.parts["1"].Update(nil, namesOf(52, 52))
		want := slices.Clone(all)
		want[49] = "s050 h50 2"
		s.expect("when 51 are gone", want...)
		s.expectPaused("when 51 are gone", 51)
		s.parts["1"].Update(nil, namesOf(53, 60))
		s.expect("when 59 are gone", want...)
		s.expectPaused("when 59 are gone", 59)
		time.Sleep(1000 * time.Hour)
		s.expect("much later, as it has no time", want...)
		if got := s.Status().Sources[0].WithdrawAt; !got.IsZero() {
			t.Errorf("the status says that what is paused goes at %v", got)
		}
	})
}

// What goes slowly goes, however much it is.
func TestWithdrawnSlowly(t *testing.T) {
	play(t, func(s *stage) {
		s.limited(20, time.Hour)
		all := numbered(1, 100)
		s.parts["1"].Replace(services(all...))
		for i := range 10 {
			s.parts["1"].Update(nil, namesOf(9*i+1, 9*i+9))
			time.Sleep(withdrawWindow + time.Nanosecond)
		}
		s.expect("at the end", all[90:]...)
		s.parts["1"].Replace(nil)
		s.expect("when the last ten go at once", all[90:]...)
	})
}

// Names that come back are paused no more, and once all are back nothing is.
func TestHeldComesBack(t *testing.T) {
	play(t, func(s *stage) {
		s.limited(50, time.Hour)
		all := numbered(1, 20)
		s.parts["1"].Replace(services(all...))
		s.parts["1"].Update(nil, namesOf(1, 20))
		s.parts["1"].Update(services("s001 h1 2"), nil)
		s.parts["1"].Replace(services("s001 h1 2", "s002 h2 1"))
		s.expectPaused("when two are back", 18)
		s.expect("when two are back", append([]string{"s001 h1 2"}, all[1:]...)...)
		s.parts["1"].Replace(services(all...))
		s.expectPaused("when all are back", 0)
		s.expect("when all are back", all...)
		if !strings.Contains(s.logged.String(), `level=INFO msg="the source has all services again whose withdrawal was paused"`) {
			t.Errorf("the log does not tell of the end:\n%s", s.logged)
		}
		time.Sleep(2 * time.Hour)
		s.expect("later", all...)
		s.parts["1"].Update(nil, namesOf(1, 10))
		s.expect("without as much as the limit allows", all[10:]...)
	})
}

// What is paused goes when somebody confirms it, and what goes after that counts anew.
func TestConfirm(t *testing.T) {
	play(t, func(s *stage) {
		s.limited(50, time.Hour)
		all := numbered(1, 40)
		s.parts["1"].Replace(services(all...))
		s.parts["1"].Replace(services(all[30:]...))
		if n := s.ConfirmWithdrawal("source 2"); n != 0 {
			t.Errorf("%d services of a source that is not there were confirmed", n)
		}
		if n := s.ConfirmWithdrawal("source 1"); n != 30 {
			t.Errorf("%d services were confirmed, expected 30", n)
		}
		s.expect("when it is confirmed", all[30:]...)
		s.parts["1"].Update(nil, namesOf(31, 35))
		s.expect("when five more go", all[35:]...)
		s.expectPaused("at the end", 0)
		if n := s.ConfirmWithdrawal("source 1"); n != 0 {
			t.Errorf("%d services were confirmed where none is paused", n)
		}
	})
}

// What is paused goes when the source has not had it for a time. A source that is away says
// nothing.
func TestHeldUntil(t *testing.T) {
	play(t, func(s *stage) {
		s.limited(50, time.Hour)
		all := numbered(1, 40)
		s.parts["1"].Replace(services(all...))
		s.parts["1"].Replace(services(all[30:]...))
		if got, want := s.Status().Sources[0].WithdrawAt, time.Now().Add(time.Hour); !got.Equal(want) {
			t.Errorf("the status says that what is paused goes at %v, expected %v", got, want)
		}
		time.Sleep(30 * time.Minute)
		s.parts["1"].Update(nil, namesOf(31, 32)) // goes with the others, and has a time of its own
		s.parts["1"].Update(nil, namesOf(1, 5))   // is nothing new
		time.Sleep(30*time.Minute - time.Nanosecond)
		s.expect("just before the time is over", all...)
		time.Sleep(time.Nanosecond)
		s.expect("when it is over", all[30:]...)
		s.expectPaused("when it is over", 2)
		s.parts["1"].SetAway(errors.New("away"))
		time.Sleep(40 * time.Minute)
		s.expect("while the source is away", all[30:]...)
		s.parts["1"].SetAway(nil)
		s.expect("when it is back", all[32:]...)
		s.expectPaused("when it is back", 0)
	})
}

// The lifetime of a source that is away withdraws its services, whatever the limit. What
// they were is not paused either: nobody has it any more.
func TestLifetimeIsNoWithdrawal(t *testing.T) {
	play(t, func(s *stage) {
		e := s.entry("1")
		e.Lifetime, e.MaxWithdraw, e.WithdrawAfter = time.Minute, 50, time.Hour
		s.set(e, s.entry("2"))
		s.parts["1"].Replace(services(numbered(1, 20)...))
		s.parts["2"].Replace([]*wire.EncodedService{})
		s.parts["1"].SetAway(errors.New("away"))
		time.Sleep(time.Minute)
		s.expect("when its time is over")
		s.parts["1"].Replace(nil)
		s.parts["1"].SetAway(nil)
		s.expect("when it is back")
		s.expectPaused("when it is back", 0)
	})
}
