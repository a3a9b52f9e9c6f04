package table

import (
	"cmp"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// ExpireDue expires what has a deadline at now or before.
func (t *Table) ExpireDue(now time.Time) {
	for {
		item := t.due.Pop(now.Sub(t.start))
		if item == nil {
			return
		}
		e := item.Value
		if t.sentAway && e.old {
			t.setDue(e, now.Add(max(t.config.Convergence, time.Second)))
			continue
		}
		if e.isLingering() {
			t.markKept(e)
			t.requestChange(e, &wantedChange{})
			continue
		}
		n, cause := e.wantedNode(), Broken
		switch {
		case e.old:
			cause = Convergence
		case e.holder != nil:
			cause = Silent
		}
		t.noteExpired(n, cause)
		if h := e.holder; h != nil {
			h.stream.tell(&registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Expired{Expired: &registrationv1.Expired{
				Service: h.text.Service, Node: h.text.Node,
			}}})
			t.dropHolder(e)
		}
		t.markKept(e)
		if t.config.Linger > 0 && t.mayWithdraw(e, false, nil) && t.isLast(e) {
			t.startLingering(e, now)
			continue
		}
		t.requestChange(e, &wantedChange{})
	}
}

// noteExpired counts and reports that a node has expired.
func (t *Table) noteExpired(n *node.Node, cause string) {
	t.numbers.Expired[cause]++
	t.config.Expired(n, cause)
}

// isLast reports whether the store holds the entry, and no other node of its service that is to
// stay.
func (t *Table) isLast(e *nodeEntry) bool {
	return e.stored != nil && !slices.ContainsFunc(e.service.entries, func(other *nodeEntry) bool {
		return other != e && other.stored != nil && other.wantedNode() != nil && !other.isLingering()
	})
}

// startLingering keeps an expired entry for a while, as the store holds it.
func (t *Table) startLingering(e *nodeEntry, now time.Time) {
	if l := e.service.lingering; l != nil {
		t.markKept(l)
		t.requestChange(l, &wantedChange{})
	}
	e.service.lingering = e
	if c := e.waitingChange(); c != nil {
		t.updateEntry(e, e.stored, e.sent, nil)
		if c.stream != nil {
			t.countDone(c.stream)
		}
	}
	t.setDue(e, now.Add(t.config.Linger))
}

// NoteSuspension records that the program has not run for a while. Messages of providers may not
// have been read meanwhile, so their nodes do not expire before another convergence period is over.
func (t *Table) NoteSuspension(now time.Time) {
	t.converge = now.Add(t.config.Convergence)
	for _, e := range t.entries {
		if !e.ours || e.isLingering() || e.wantedNode() == nil {
			continue
		}
		t.markOld(e)
		if at, ok := e.due.Deadline(); !ok || t.start.Add(at).Before(t.converge) {
			t.setDue(e, t.converge)
		}
	}
}

// SetRules replaces the rules, and judges the present nodes by them. It calls report for each node
// that may not stay, with why.
func (t *Table) SetRules(r *rules.Rules, report func(n *node.Node, refusal *rules.Refusal)) {
	t.config.Rules = r
	var held []*nodeEntry
	for _, e := range t.entries {
		switch {
		case e.wantedNode() == nil: // the node is being deleted
			if e.stored != nil && t.isForbidden(e) {
				t.setHidden(e, true)
			}
		case !e.ours:
			t.hideForbidden(e)
		case e.holder != nil:
			held = append(held, e)
		default:
			n := e.wantedNode()
			if refusal := t.recheckStored(e); refusal != nil {
				report(n, refusal)
			}
		}
	}
	// Of too many nodes for a quota, the oldest stay.
	slices.SortFunc(held, func(a, b *nodeEntry) int {
		m, n := a.wantedNode(), b.wantedNode()
		if c := m.Since.Compare(n.Since); c != 0 {
			return c
		}
		return m.URI.Compare(n.URI)
	})
	used := make(map[quotaAccount]int)
	for _, e := range held {
		n, s := e.wantedNode(), e.holder.stream
		grant, refusal := r.Judge(s.ruleRequest(e.key, e.holder.askedTTL))
		of := quotaAccount{grant.Provider, grant.Rule}
		if refusal == nil {
			if used[of]++; used[of] > grant.Quota {
				refusal = quotaRefusal(grant.Rule, grant.Quota)
			}
		}
		if refusal != nil {
			report(n, refusal)
			t.tellRefused(s, e.holder.text, refusal)
			t.deleteForbidden(e)
			continue
		}
		if grant.TTL != n.TTL || of != (quotaAccount{n.Provider, n.Rule}) {
			other := *n
			other.TTL, other.Provider, other.Rule, other.Stream, other.Owner = grant.TTL, grant.Provider, grant.Rule, s.number, t.config.Owner
			t.requestChange(e, &wantedChange{node: &other, hold: e.holder, stream: s})
		}
	}
}

// recheckStored requests the deletion of a stored node that may no longer be registered and whose
// provider is not connected. It returns why, or nil.
func (t *Table) recheckStored(e *nodeEntry) *rules.Refusal {
	refusal := cmp.Or(t.config.Rules.CheckStored(e.wantedNode()), t.checkNode(e.wantedNode()))
	if refusal != nil {
		t.numbers.Refused[refusal.Rule]++
		t.deleteForbidden(e)
	}
	return refusal
}

// isForbidden reports whether this owner may not publish what another owner has stored: a shared
// store holds what anybody has written there. The ttl does not matter, because owners read changed
// rules one after the other.
func (t *Table) isForbidden(e *nodeEntry) bool {
	asked := *e.stored
	asked.TTL = 0
	return t.config.Rules.CheckStored(&asked) != nil || t.checkNode(e.stored) != nil
}
