package table

import (
	"slices"
	"time"
)

// ownerLeftovers is what another owner has left behind each time that it has begun anew. That owner
// keeps it for its providers, each time for as long as it converges. This one has listened all
// the while, so here they have one convergence period, however often that owner begins. It counts
// by the clock of this machine alone.
type ownerLeftovers struct {
	over  int64 // what is stored with versions before this one is not published any more
	waits []ownerRestart
}

// ownerRestart is what is stored with versions before one that was told of at a time.
type ownerRestart struct {
	version int64
	told    time.Time
}

// OwnerRestarted notes that an owner has begun anew: what it has stored with versions before this one was
// left behind. For this owner the deadlines of its own nodes count.
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

// waitForLeft begins the convergence period of what others have left behind anew: their
// providers may not have been heard.
func (t *Table) waitForLeft(now time.Time) {
	for _, l := range t.leftovers {
		for i := range l.waits {
			l.waits[i].told = now
		}
	}
}

// forgetLeft forgets what others have left behind, as versions mean nothing any more.
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

// judgeLeft ends what other owners have left behind when its providers had the time to come
// back: once in a second, as it looks at all entries.
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

// isLeft reports whether another owner has left the node behind, and its provider had the time
// to come back, to whichever owner.
func (t *Table) isLeft(e *nodeEntry) bool {
	if e.stored == nil || e.ours || e.missing {
		return false
	}
	l := t.leftovers[e.stored.Owner]
	return l != nil && e.version < l.over
}
