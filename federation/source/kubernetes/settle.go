package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

const (
	settleInterval = time.Second      // between the beginnings of two rounds
	longestLook    = time.Minute      // between two looks at a round
	maxRounds      = 8                // at a time
	stuck          = 10 * time.Minute // how old a round is that gives its place to a new one
	maxNamed       = 3                // consumers in a condition

	// comeback is for how long an owner that starts waits for its consumers before it says that
	// a Service is not settled: most have not changed meanwhile.
	comeback = time.Minute
)

// changes are services that have changed, as they are to be: nil for those that are gone.
type changes struct {
	wake chan struct{} // holds a value when there may be some

	mu   sync.Mutex
	want map[string]*wire.Encoded // guarded by mu; by the name in the catalog
}

// add notes changes that the part has been told.
func (c *changes) add(want map[string]*wire.Encoded) {
	if len(want) == 0 {
		return
	}
	c.mu.Lock()
	if c.want == nil {
		c.want = make(map[string]*wire.Encoded)
	}
	maps.Copy(c.want, want)
	c.mu.Unlock()
	rouse(c.wake)
}

func (c *changes) take() map[string]*wire.Encoded {
	c.mu.Lock()
	defer c.mu.Unlock()
	want := c.want
	c.want = nil
	return want
}

// round has services whose newest change is in one of the inquiries, and is not settled.
type round struct {
	inquiries []owner.Changes
	said      []*metav1.Condition // of each; nil for nothing yet
	want      map[string]*wire.Encoded
	began     time.Time
	next      time.Time // when it is looked at
	quiet     time.Time // before which it says only what is settled
}

// settle finds out which services are settled, and has that written, until ctx ends. While there
// is nothing to wait for, it does nothing. Otherwise, there are a few rounds for any number of services.
func (s *Source) settle(ctx context.Context) {
	var rounds []*round
	fresh := make(map[string]*wire.Encoded) // those in no round
	began, first := time.Now(), true
	ticker := time.NewTicker(settleInterval)
	defer ticker.Stop()
	for {
		if len(rounds)+len(fresh) == 0 {
			ticker.Stop()
			select {
			case <-s.changes.wake:
			case <-ctx.Done():
				return
			}
			ticker.Reset(settleInterval)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		changed := s.changes.take()
		maps.Copy(fresh, changed)
		for _, r := range rounds {
			for name := range changed { // a newer change counts
				delete(r.want, name)
			}
		}
		if len(rounds) == maxRounds && now.Sub(rounds[0].began) > stuck {
			maps.Copy(fresh, rounds[0].want)
			rounds = rounds[1:]
		}
		full := len(rounds) == maxRounds
		if len(fresh) > 0 && !full {
			if r := s.begin(fresh, now); len(r.want) > 0 {
				if first {
					r.quiet, first = began.Add(comeback), false
				}
				rounds = append(rounds, r)
			}
		}
		for name := range changed {
			switch want, waits := fresh[name]; {
			case waits && full:
				s.say(name, notYet("earlier changes are not settled yet"))
			case waits && want == nil: // otherwise nothing that is new is published
				s.say(name, notYet("its withdrawal is held back"))
			}
		}
		left := rounds[:0]
		for _, r := range rounds {
			if !now.Before(r.next) {
				s.look(r, now)
			}
			if len(r.want) > 0 {
				left = append(left, r)
			}
		}
		clear(rounds[len(left):])
		rounds = left
	}
}

// begin begins a round, for which it takes what is published from fresh.
func (s *Source) begin(fresh map[string]*wire.Encoded, now time.Time) *round {
	inquiries := s.config.Inquire(fresh)
	r := &round{inquiries: inquiries, said: make([]*metav1.Condition, len(inquiries)), want: make(map[string]*wire.Encoded), began: now}
	for _, of := range inquiries {
		for _, name := range of.Services {
			r.want[name] = fresh[name]
			delete(fresh, name)
		}
	}
	return r
}

// look says what has become of the services of a round. Those leave it that are settled, and
// those of which it cannot be known: where an owner has lost its memory, it never will be.
func (s *Source) look(r *round, now time.Time) {
	r.next = now.Add(min(now.Sub(r.began)/8, longestLook))
	for i, of := range r.inquiries {
		if over(r.said[i]) {
			continue
		}
		is := condition(of.Look())
		if is.Status != metav1.ConditionTrue && now.Before(r.quiet) || r.said[i] != nil && *is == *r.said[i] {
			continue
		}
		r.said[i] = is
		for _, name := range of.Services {
			if _, waits := r.want[name]; !waits {
				continue
			}
			s.say(name, is)
			if over(is) {
				delete(r.want, name)
			}
		}
	}
}

// over reports whether a condition is the last word about a change.
func over(c *metav1.Condition) bool { return c != nil && c.Status != metav1.ConditionFalse }

func (s *Source) say(service string, is *metav1.Condition) {
	if of, ok := s.nameIn(service); ok {
		s.writer.Settled(of, is)
	}
}

func notYet(message string) *metav1.Condition {
	return export.NewSettled(metav1.ConditionFalse, "Settling", message)
}

// condition returns what a Service is told. Where it cannot be known of a consumer, the others
// do not matter: it will not be True, and writes for each change would be in vain.
func condition(s status.Settlement) *metav1.Condition {
	if s.Settled {
		return export.NewSettled(metav1.ConditionTrue, "Settled", "nobody resolves what was published before the newest change")
	}
	if s.Unknown > 0 {
		return export.NewSettled(metav1.ConditionUnknown, "NotKnown", "it cannot be known"+missing(s.Missing, true, s.Unknown))
	}
	return notYet(fmt.Sprintf("%s of %s are not settled", status.Number(s.Waiting), status.Count(s.Consumers, "consumer")) + missing(s.Missing, false, s.Waiting))
}

// missing names those consumers of which it cannot be known, or the others.
func missing(all []status.Outstanding, unknown bool, n int) string {
	var text strings.Builder
	named := 0
	for _, m := range all {
		if m.Unknown != unknown || named == maxNamed {
			continue
		}
		named++
		text.WriteString("; ")
		if m.Consumer != "" {
			text.WriteString(federation.Printable(m.Consumer) + ": ")
		}
		text.WriteString(federation.Printable(m.Reason))
		if !m.Until.IsZero() {
			text.WriteString(", until " + m.Until.Format(time.RFC3339))
		}
	}
	if n > named {
		fmt.Fprintf(&text, "; and %s more", status.Number(n-named))
	}
	return text.String()
}
