package table

import (
	"slices"
	"time"
)

// ownerLeftovers says which nodes another owner has left behind each time that it has begun anew.
// That owner keeps these nodes for their providers, each time for as long as it converges. But this
// owner has listened all the while, so here the nodes have one convergence period, however often
// that owner begins. Only the clock of this machine counts.
type ownerLeftovers struct {
	over  int64 // nodes stored with versions before this one are not published any more
	waits []ownerRestart
}

// ownerRestart says that nodes with versions before one were left behind, and when this owner
// learned that.
type ownerRestart struct {
	version int64
	told    time.Time
}

// OwnerRestarted records that an owner has begun anew: nodes that it has stored with versions
// before this one were left behind. Where this owner itself has begun anew, the deadlines of its
// own nodes count.
func (t *Table) OwnerRestarted(owner string, version int64, now time.Time) {
	if owner == t.config.Owner {
		return
	}
	l := t.leftovers[owner]
	if l == nil {
		l = &ownerLeftovers{}
		t.leftovers[owner] = l
	}
	if version > l.over && !slices.ContainsFunc(l.waits, func(of ownerRestart) bool { return of.version == version }) {
		l.waits = append(l.waits, ownerRestart{version, now})
	}
}

// waitForLeft begins anew the convergence period of what others have left behind, because their
// providers may not have been heard.
func (t *Table) waitForLeft(now time.Time) {
	for _, l := range t.leftovers {
		for i := range l.waits {
			l.waits[i].told = now
		}
	}
}

// forgetLeft forgets what others have left behind, because versions mean nothing any more.
func (t *Table) forgetLeft() {
	if len(t.leftovers) == 0 {
		return
	}
	clear(t.leftovers)
	for _, e := range t.entries {
		if !e.ours {
			t.hideForbidden(e)
		}
	}
}

// judgeLeft hides what other owners have left behind once its providers had the time to come back.
// It runs once in a second at most, because it looks at all entries.
func (t *Table) judgeLeft(now time.Time) {
	if t.absent || now.Sub(t.judged) < time.Second {
		return
	}
	over := false
	for _, l := range t.leftovers {
		l.waits = slices.DeleteFunc(l.waits, func(of ownerRestart) bool {
			if now.Sub(of.told) < t.config.Convergence {
				return false
			}
			l.over, over = max(l.over, of.version), true
			return true
		})
	}
	if !over {
		return
	}
	t.judged = now
	for _, e := range t.entries {
		if !e.hidden && t.isLeft(e) {
			t.noteExpired(e.stored, Convergence)
			t.setHidden(e, true)
		}
	}
}

// isLeft reports whether another owner has left the node behind and its provider had the time to
// come back to any owner.
func (t *Table) isLeft(e *nodeEntry) bool {
	if e.stored == nil || e.ours || e.missing {
		return false
	}
	l := t.leftovers[e.stored.Owner]
	return l != nil && e.version < l.over
}
