package table

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
)

// SetState applies everything that the store has. Nodes that this owner keeps for its providers and
// that are missing are put again, and stay published. Missing nodes of other owners stay for the
// convergence period, in which their owners put them again.
func (t *Table) SetState(nodes []store.VersionedNode, complete bool, now time.Time) {
	first := !t.known
	t.known, t.complete = true, t.complete || complete
	if !complete {
		t.tombstones = deletionVersions{} // the store may have begun to count anew
	}
	lost := maps.Clone(t.entries)
	for _, v := range nodes {
		delete(lost, v.Node.Key)
		t.takeStateNode(v, first, now)
	}
	for _, e := range lost {
		e.version = 0 // every version that the store has from now on is later
		if e.sent != nil {
			e.missing = true
			continue
		}
		t.setTried(e, false)
		if !complete || t.isUnheard(e, now) {
			t.keepMissing(e, now)
		}
		t.noteLost(e)
		t.retryConflict(e)
	}
}

// lapse is how long after an absence of the store leases may still end in it that could not be
// renewed meanwhile, because ending many takes some time.
const lapse = 15 * time.Second

// SetAway records whether the store is away.
func (t *Table) SetAway(away bool, now time.Time) {
	if t.absent && !away {
		t.returned = now
		if t.sentAway {
			t.NoteSuspension(now)
		}
		t.sentAway = false
	}
	t.absent = away
}

// SendAway records that the providers are sent to other owners. Their nodes do not expire before
// the store is back, because nobody here knows until then what has become of them. Then they have
// the convergence period.
func (t *Table) SendAway() { t.sentAway = true }

// HasSentAway reports whether the providers were sent away.
func (t *Table) HasSentAway() bool { return t.sentAway }

// isUnheard reports whether the store may have lost a node although its provider lives. That is so
// where this owner has begun anew and the provider is not back, or where the store was away for
// longer than leases last. In the latter case other owners are about to put the node again.
func (t *Table) isUnheard(e *nodeEntry, now time.Time) bool {
	return e.old || t.absent || !t.returned.IsZero() && now.Before(t.returned.Add(min(lapse, t.config.Convergence)))
}

// keepMissing keeps a node that another owner has stored, or this one before its start, and that
// the store has lost. It stays for the convergence period, in which it can be put again.
func (t *Table) keepMissing(e *nodeEntry, now time.Time) {
	if e.stored == nil || e.wantedNode() == nil || !t.isForeign(e.stored) {
		return
	}
	e.missing = true
	if _, ok := e.due.Deadline(); ok {
		return
	}
	e.ours = true
	if !e.old {
		t.markOld(e)
		t.converge = now.Add(t.config.Convergence)
	}
	t.setDue(e, t.converge)
}

// takeStateNode applies a node of a state.
func (t *Table) takeStateNode(v store.VersionedNode, first bool, now time.Time) {
	e := t.entries[v.Node.Key]
	if e != nil && v.Version < e.version {
		// The state is that of a moment ago, or the store has begun to count anew.
		if e.sent != nil {
			e.version = v.Version
			return
		}
		e.version = v.Version - 1
		if e.holder != nil && e.stored != nil {
			e.version, e.missing = v.Version, false
			if e.want == nil && !storesSame(v.Node, e.stored) {
				t.requestChange(e, &wantedChange{node: e.stored, again: true})
			}
			t.retryConflict(e)
			return
		}
	}
	t.learnVersion(v, now)
	if e = t.entries[v.Node.Key]; e != nil && first && e.holder == nil && v.Node.Owner == t.config.Owner {
		t.markOld(e)
	}
}

// ApplyChanges applies what has changed in the store since its state.
func (t *Table) ApplyChanges(nodes []store.VersionedNode, gone []store.DeletedKey, now time.Time) {
	for _, v := range nodes {
		t.learnVersion(v, now)
	}
	for _, g := range gone {
		e := t.entries[g.Key]
		if e == nil || g.Version <= e.version {
			continue
		}
		e.version = g.Version
		t.setTried(e, false)
		if t.isUnheard(e, now) {
			t.keepMissing(e, now)
		}
		t.noteLost(e)
		t.retryConflict(e)
	}
}

// learnVersion applies a version of a node from the store.
func (t *Table) learnVersion(v store.VersionedNode, now time.Time) {
	n := v.Node
	e := t.entries[n.Key]
	switch {
	case e == nil && v.Version <= t.tombstones.versionOf(n.Key):
		return
	case e == nil:
		e = t.entryFor(n.Key)
	case v.Version < e.version:
		return
	case v.Version == e.version && e.stored != nil && storesSame(e.stored, n): // else the store has begun to count anew
		e.missing = false
		t.retryConflict(e)
		return
	}
	defer t.setTried(e, false)
	e.version, e.missing = v.Version, false
	foreign := t.isForeign(n)
	if foreign {
		t.cedeToStream(e, now)
	} else {
		e.former = 0
	}
	c := e.waitingChange()
	switch {
	case c == nil || c.again:
		t.updateEntry(e, n, e.sent, e.want)
	case foreign && e.holder == nil: // the other owner goes on with the node
		t.updateEntry(e, n, e.sent, nil)
		t.finishChange(c, nil)
	case c.node != nil && storesSame(c.node, n): // Commit could not tell
		t.updateEntry(e, n, e.sent, nil)
		t.finishChange(c, n)
	default:
		t.updateEntry(e, n, e.sent, c)
	}
	t.armDeadline(e, now)
	t.endLingering(e)
	t.retryConflict(e)
}

// armDeadline gives a deadline to a node that is stored for a stream of this owner, if it has none,
// because that stream may have ended before anybody knew.
func (t *Table) armDeadline(e *nodeEntry, now time.Time) {
	n := e.stored
	if n == nil || e.wantedNode() == nil || !t.isOwn(n) {
		return
	}
	if _, ok := e.due.Deadline(); !ok {
		e.ours = true
		t.setDue(e, now.Add(n.TTL))
	}
}

// cedeToStream leaves an entry to a stream of another owner, unless a stream of this owner is about
// to have it. The latter must have spoken lately: it may be dead, while its provider goes on with
// the other stream.
func (t *Table) cedeToStream(e *nodeEntry, now time.Time) {
	if h := e.holder; h != nil && (e.want == nil || e.want.node == nil || !t.isFresh(e, e.want.node, now)) {
		e.former = h.stream.number
		t.dropHolder(e)
	}
	if e.holder == nil {
		t.due.Remove(&e.due)
		e.ours = false
	}
	t.markKept(e)
}

// isForeign reports whether a node belongs to a stream of another owner.
func (t *Table) isForeign(n *node.Node) bool { return !t.isOwn(n) }

// isOwn reports whether a node was stored for a stream of this owner since its start.
func (t *Table) isOwn(n *node.Node) bool {
	return n.Owner == t.config.Owner && n.Stream>>32 == uint64(t.config.Epoch)
}

// isFresh reports whether the next Active of the node is not due yet.
func (t *Table) isFresh(e *nodeEntry, n *node.Node, now time.Time) bool {
	at, ok := e.due.Deadline()
	return ok && at-now.Sub(t.start) >= n.TTL
}

// mayWithdraw reports whether a published node may be withdrawn. Everything that withdraws a node
// asks it. With lost, the store has the node no more. Otherwise this owner wants to withdraw it: by
// is the stream whose provider has cleared the node, or nil when the node is silent or not allowed.
func (t *Table) mayWithdraw(e *nodeEntry, lost bool, by *Stream) bool {
	n, wanted := e.stored, e.wantedNode()
	foreign := n != nil && t.isForeign(n)
	switch {
	case n == nil:
		return true
	case !lost && by == nil: // what another owner has stored is that owner's to end
		return !foreign || e.missing
	case !lost:
		return !foreign || e.missing || slices.Contains(by.ids, n.Provider)
	case wanted == nil || !e.ours:
		return true
	case !foreign || e.missing: // the node has a deadline here
		return false
	}
	// Its provider may have come here, and wait for the store: then the lease of the
	// former owner has ended.
	c := e.want
	return c == nil || wanted.Provider != n.Provider && (c.stream == nil || !slices.Contains(c.stream.ids, n.Provider))
}

// noteLost records that the store does not have the entry any more. A node that this owner keeps
// for a provider is put again.
func (t *Table) noteLost(e *nodeEntry) {
	c := e.waitingChange()
	switch {
	case e.stored == nil:
		return
	case !t.mayWithdraw(e, true, nil):
		e.missing = true
		if !e.isPending() && !t.isForeign(e.stored) {
			t.requestChange(e, &wantedChange{node: e.stored})
		}
		t.enqueueEntry(e)
	case c != nil && c.node == nil:
		t.updateEntry(e, nil, e.sent, nil)
		t.finishChange(c, nil)
	default:
		t.updateEntry(e, nil, e.sent, e.want)
	}
}

// endLingering deletes the lingering node of the service, if that is another one, because it is no
// longer the last node.
func (t *Table) endLingering(e *nodeEntry) {
	if l := e.service.lingering; l != nil && l != e && e.stored != nil {
		t.markKept(l)
		t.requestChange(l, &wantedChange{})
	}
}

// retryConflict makes a change ready to be tried again that was in conflict with what the store has
// reported now.
func (t *Table) retryConflict(e *nodeEntry) {
	if e.waiting {
		e.waiting = false
		t.enqueueEntry(e)
	}
}

// TakeChanges returns changes to commit, as many as most at most. ApplyOutcomes or RetryTaken must
// follow before the next call.
func (t *Table) TakeChanges(most int, now time.Time) []store.Change {
	var changes []store.Change
	t.batch = t.batch[:0]
	for t.queue.Len() > 0 && len(changes) < most {
		e := t.queue.Remove(t.queue.Front()).(*nodeEntry) //nolint:forcetypeassert // nothing else is in it
		e.queueElement = nil
		c := e.want
		if !t.stillDue(e, c, now) {
			continue
		}
		c.seenVersion = e.version
		t.updateEntry(e, e.stored, &sentChange{t.nextOf(e, c), c}, c)
		t.batch = append(t.batch, e)
		changes = append(changes, store.Change{Key: e.key, Node: e.sent.node, Before: e.expectedVersion()})
	}
	return changes
}

// HasChanges reports whether there may be changes to take.
func (t *Table) HasChanges() bool { return t.queue.Len() > 0 }

// StoreLocally stores all changes where there is no store. The table has the nodes then, and
// nothing is in conflict, because nobody else changes them.
func (t *Table) StoreLocally(now time.Time) {
	for t.HasChanges() {
		outcomes := make([]store.CommitOutcome, len(t.TakeChanges(math.MaxInt, now)))
		for i := range outcomes {
			t.kept++
			outcomes[i].Version = t.kept
		}
		t.ApplyOutcomes(outcomes, now)
	}
}

// nextOf returns the node that is to be stored next for a change. Before a provider's deletion of a
// node that another owner has stored, this owner takes the node over. Otherwise the other owner
// would not know that the node is cleared, and put it again.
func (t *Table) nextOf(e *nodeEntry, c *wantedChange) *node.Node {
	if c.node != nil || c.stream == nil || e.stored == nil || e.missing || !t.isForeign(e.stored) {
		return c.node
	}
	n := *e.stored
	n.Owner, n.Stream = t.config.Owner, c.stream.number
	return &n
}

// stillDue reports whether a change is still to be made. If not, it ends the change.
func (t *Table) stillDue(e *nodeEntry, c *wantedChange, now time.Time) bool {
	switch {
	case c.node == nil && e.expectedVersion() == 0 && !e.tried:
		t.updateEntry(e, nil, nil, nil)
		t.finishChange(c, nil)
		return false
	case c.node == nil && !t.mayWithdraw(e, false, c.stream):
		// The other owner goes on with the node.
		t.updateEntry(e, e.stored, nil, nil)
		t.hideForbidden(e)
		t.finishChange(c, nil)
		return false
	case c.node == nil || e.stored == nil || e.missing:
		return true
	case c.seenVersion != e.version && !e.isLingering() && c.stream != nil && !slices.Contains(c.stream.ids, e.stored.Provider):
		// Somebody else was first, at another owner.
		t.updateEntry(e, e.stored, nil, nil)
		t.cedeToProvider(e)
		if c.hold != nil {
			t.tellRefused(c.stream, c.hold.text, takenBy(another))
		}
		t.countDone(c.stream)
		return false
	case t.isForeign(e.stored) && !t.isFresh(e, c.node, now):
		t.updateEntry(e, e.stored, nil, nil)
		t.cedeToStream(e, now)
		t.finishChange(c, nil)
		return false
	case !c.again && storesSame(c.node, e.stored):
		t.updateEntry(e, e.stored, nil, nil)
		t.finishChange(c, e.stored)
		return false
	}
	return true
}

// cedeToProvider leaves an entry to another provider.
func (t *Table) cedeToProvider(e *nodeEntry) {
	t.dropHolder(e)
	if t.isForeign(e.stored) {
		t.due.Remove(&e.due)
		t.markKept(e)
		e.ours = false
	}
}

// storesSame reports whether the store would hold the same for either node.
func storesSame(a, b *node.Node) bool {
	return a == b || sameNode(a, b) && a.TTL == b.TTL && a.Provider == b.Provider && a.Rule == b.Rule && a.Owner == b.Owner &&
		a.Stream == b.Stream && a.Since.Equal(b.Since)
}

// ApplyOutcomes applies the outcomes of the changes that TakeChanges has returned.
func (t *Table) ApplyOutcomes(outcomes []store.CommitOutcome, now time.Time) {
	for i, e := range t.batch {
		t.applyOutcome(e, outcomes[i], now)
		t.armDeadline(e, now)
	}
	clear(t.batch)
	t.batch = t.batch[:0]
}

func (t *Table) applyOutcome(e *nodeEntry, outcome store.CommitOutcome, now time.Time) {
	n, c, want := e.sent.node, e.sent.change, e.want
	done := want == c && n == c.node // not where another change is wanted since, or this one begins with a put
	if done {
		want = nil
	}
	switch {
	case outcome.Conflict && n == nil && c.seenVersion != e.version && (e.stored == nil || !e.missing && t.isForeign(e.stored)):
		// Another owner has the node now, or nobody has it.
		t.updateEntry(e, e.stored, nil, want)
	case outcome.Conflict:
		done = false
		t.updateEntry(e, e.stored, nil, e.want)
		e.waiting = e.want != nil && e.version == c.seenVersion // the store has yet to tell of it
	case outcome.Version < e.version: // the store has told of something later already
		t.setTried(e, false)
		t.updateEntry(e, e.stored, nil, want)
		if n := e.stored; n != nil && t.isForeign(n) {
			t.cedeToStream(e, now)
		}
	default:
		e.version, e.missing = outcome.Version, false
		t.setTried(e, false)
		t.updateEntry(e, n, nil, want)
		if n != nil {
			t.endLingering(e)
		}
	}
	if done {
		t.finishChange(c, n)
	}
	t.enqueueEntry(e)
}

// RetryTaken makes the changes that TakeChanges has returned ready to be taken again, because
// nobody knows whether they are stored.
func (t *Table) RetryTaken() {
	for _, e := range t.batch {
		if e.sent.node != nil {
			t.setTried(e, true)
		}
		t.updateEntry(e, e.stored, nil, e.want)
		t.enqueueEntry(e)
	}
	clear(t.batch)
	t.batch = t.batch[:0]
}

// deletionVersions keeps the versions of deletions that this owner has made, because the store may
// report an earlier version after that. There are two generations of mostTombstones at most: when
// the younger one is full, the older one is dropped.
type deletionVersions struct{ younger, older map[node.Key]int64 }

const mostTombstones = 1 << 13 // of a generation

func (g *deletionVersions) addDeletion(key node.Key, version int64) {
	if g.younger == nil || len(g.younger) >= mostTombstones {
		g.younger, g.older = make(map[node.Key]int64), g.younger
	}
	g.younger[key] = version
}

// versionOf returns the version of the deletion of the key, or 0.
func (g *deletionVersions) versionOf(key node.Key) int64 { return max(g.younger[key], g.older[key]) }
