package table

import (
	"fmt"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/rules"
)

// Expire ends what has a deadline at now or before.
func (t *Table) Expire(now time.Time) {
	t.judgeLeft(now)
	for {
		item := t.due.Pop(now.Sub(t.start))
		if item == nil {
			return
		}
		e := item.Value
		if t.cut && e.old {
			t.setDue(e, now.Add(max(t.config.Convergence, time.Second)))
			continue
		}
		if e.lingers() {
			t.relax(e)
			t.request(e, &change{})
			continue
		}
		n, cause := e.wanted(), Broken
		switch {
		case e.old:
			cause = Convergence
		case e.holder != nil:
			cause = Silent
		}
		t.expired(n, cause)
		if h := e.holder; h != nil {
			h.stream.tell(Answer{Kind: Expired, Text: h.text})
			t.unhold(e)
		}
		t.relax(e)
		if t.config.Linger > 0 && t.mayWithdraw(e, false, nil) && t.isLast(e) {
			t.linger(e, now)
			continue
		}
		t.request(e, &change{})
	}
}

// expired counts and tells that a node has expired.
func (t *Table) expired(n *node.Node, cause string) {
	t.numbers.Expired[cause]++
	t.config.Expired(n, cause)
}

// isLast reports whether the store holds the entry, and nothing else of its service that
// is to stay.
func (t *Table) isLast(e *entry) bool {
	return e.stored != nil && !slices.ContainsFunc(e.service.entries, func(other *entry) bool {
		return other != e && other.stored != nil && other.wanted() != nil && !other.lingers()
	})
}

// linger lets an entry that has expired stay for a while, as the store holds it.
func (t *Table) linger(e *entry, now time.Time) {
	if l := e.service.lingering; l != nil {
		t.relax(l)
		t.request(l, &change{})
	}
	e.service.lingering = e
	if c := e.waits(); c != nil {
		t.set(e, e.stored, e.sent, nil)
		if c.stream != nil {
			t.done(c.stream)
		}
	}
	t.setDue(e, now.Add(t.config.Linger))
}

// Pause says that the program has not run for a while: what providers have said meanwhile
// may not have been read, and nothing of theirs expires before they had the
// convergence period.
func (t *Table) Pause(now time.Time) {
	t.converge = now.Add(t.config.Convergence)
	t.waitForLeft(now)
	for _, e := range t.entries {
		if !e.ours || e.lingers() || e.wanted() == nil {
			continue
		}
		t.age(e)
		if at, ok := e.due.Deadline(); !ok || t.start.Add(at).Before(t.converge) {
			t.setDue(e, t.converge)
		}
	}
}

// SetRules has nodes judged by other rules from now on, also those that there are. It
// tells report of each that may not stay, and why.
func (t *Table) SetRules(r *rules.Rules, report func(n *node.Node, refusal rules.Refusal)) {
	t.config.Rules = r
	var held []*entry
	for _, e := range t.entries {
		switch {
		case e.wanted() == nil: // it is being deleted
			if e.stored != nil && t.bars(e) {
				t.hide(e, true)
			}
		case !e.ours:
			t.review(e)
		case e.holder != nil:
			held = append(held, e)
		default:
			n := e.wanted()
			if refusal := t.stand(e); refusal != nil {
				report(n, *refusal)
			}
		}
	}
	// Of too many for a quota those stay that were there first.
	slices.SortFunc(held, func(a, b *entry) int {
		m, n := a.wanted(), b.wanted()
		if c := m.Since.Compare(n.Since); c != 0 {
			return c
		}
		return m.URI.Compare(n.URI)
	})
	used := make(map[account]int)
	for _, e := range held {
		n, s := e.wanted(), e.holder.stream
		grant, err := r.Judge(s.request(e.key, e.holder.asked))
		of := account{grant.Provider, grant.Rule}
		if err == nil {
			if used[of]++; used[of] > grant.Quota {
				err = rules.Refusal{Rule: rules.Quota, Reason: fmt.Sprintf("the quota of rule %s is %d", grant.Rule, grant.Quota)}
			}
		}
		if refusal, ok := err.(rules.Refusal); ok { //nolint:errorlint // the rules return nothing else
			report(n, refusal)
			t.refuse(s, e.holder.text, refusal)
			t.deny(e)
			continue
		}
		if grant.TTL != n.TTL || of != (account{n.Provider, n.Rule}) {
			other := *n
			other.TTL, other.Provider, other.Rule, other.Stream, other.Owner = grant.TTL, grant.Provider, grant.Rule, s.number, t.config.Owner
			t.request(e, &change{node: &other, hold: e.holder, stream: s})
		}
	}
}

// stand has a node deleted that is stored and may not be registered any more, whose
// provider is not there. It returns why.
func (t *Table) stand(e *entry) *rules.Refusal {
	err := t.config.Rules.Stands(e.wanted())
	if err == nil {
		err = inspect(e.wanted(), t.config.Policy)
	}
	refusal, ok := err.(rules.Refusal) //nolint:errorlint // the rules and this package return nothing else
	if !ok {
		return nil
	}
	t.numbers.Refused[refusal.Rule]++
	t.deny(e)
	return &refusal
}

// bars reports whether what another owner has stored may not be published by this one: a store
// that is shared holds what anybody has written there. The ttl does not matter: owners
// read their rules anew one after the other.
func (t *Table) bars(e *entry) bool {
	asked := *e.stored
	asked.TTL = 0
	return t.isLeft(e) || t.config.Rules.Stands(&asked) != nil || inspect(e.stored, t.config.Policy) != nil
}
