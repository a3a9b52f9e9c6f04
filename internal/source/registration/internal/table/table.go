// Package table is what a source of registrations knows: the nodes that its store
// holds, what is to be changed there, which provider's stream holds which node, and
// until when.
//
// It is one state machine without goroutines, locks and clocks: what providers and the store
// say goes in, and changes for the store, answers for the providers and the services that are
// to be published come out.
package table

import (
	"cmp"
	"container/list"
	"math"
	"net/netip"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/internal/deadline"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Config is what a Table needs.
type Config struct {
	Owner       string        // name of this owner
	Epoch       uint32        // random: the streams of this owner are known by it, and by the name
	Convergence time.Duration // for how long a node that was known before waits for its provider
	Linger      time.Duration // for how long the last node of a service stays when it has expired; 0: not at all
	Nodes       int           // that the table may have
	Rules       *rules.Rules
	Policy      wire.AddressPolicy // which addresses nodes may have

	// Expired is called with each node that has expired, and why.
	Expired func(n *node.Node, cause string)
}

// Table is the state of a source. It is not safe for concurrent use.
type Table struct {
	config     Config
	start      time.Time // from which deadlines count
	known      bool      // whether the store has told its state
	complete   bool      // whether it was complete
	converge   time.Time // until when nodes are old
	absent     bool      // whether the store is away
	returned   time.Time // when it was there again
	sentAway   bool      // whether providers were sent away because of that
	entries    map[node.Key]*nodeEntry
	services   map[federation.FQDN]*serviceNodes
	quotas     map[quotaAccount]int // nodes that are wanted
	due        deadline.Queue[*nodeEntry]
	queue      list.List    // of *entry, with changes to take
	batch      []*nodeEntry // with changes that were taken
	stuck      []*nodeEntry // with changes in conflict
	dirty      []*serviceNodes
	answers    []pendingAnswer
	tombstones deletionVersions
	leftovers  map[string]*ownerLeftovers // by owner
	judged     time.Time                  // when leftovers were judged last
	opened     uint32                     // how many streams
	kept       int64                      // the last version of StoreLocally
	numbers    Numbers
}

// Numbers count what is in a table, and what has become of it.
type Numbers struct {
	Nodes   int // that the store holds
	Streams int // providers that are connected
	Old     int // nodes known from before whose provider is not back
	Pending int // nodes with a change that is not stored yet

	Granted uint64            // nodes registered, or changed
	Cleared uint64            // nodes withdrawn by their provider
	Expired map[string]uint64 // by cause
	Refused map[string]uint64 // by rule
}

// Why a node has expired.
const (
	Silent      = "silent"      // nothing was heard of it on its provider's stream
	Broken      = "broken"      // the stream had ended
	Convergence = "convergence" // its provider did not come back after the owner's start
)

// nodeEntry is what is known of one key. It exists while the store holds a node, or a
// change waits.
type nodeEntry struct {
	key          node.Key
	stored       *node.Node    // what is published; nil: nothing
	version      int64         // of what the store is known to hold, or of its deletion
	want         *wantedChange // that is not stored yet, or nil
	sent         *sentChange   // that the store is asked for, or nil
	holder       *heldNode     // of the stream of this owner that holds the node
	former       uint64        // number of the last stream of this owner that lost it to another owner's
	service      *serviceNodes
	place        int           // in the entries of service
	queueElement *list.Element // in queue, or nil
	due          deadline.Item[*nodeEntry]

	tried   bool // whether the store may hold a node: Commit could not tell
	missing bool // whether the store does not have stored any more: it is put again
	ours    bool // whether this owner sees to the deadline
	old     bool // whether the node is known from before, and its provider is not back
	hidden  bool // whether it is not published: the rules have it deleted, or do not allow what another owner has stored
	waiting bool // for the store to tell what a change was in conflict with
}

// wantedChange is what is to be stored.
type wantedChange struct {
	node        *node.Node // nil: delete
	hold        *heldNode  // of the Active to answer, or nil
	stream      *Stream    // that waits for the change, or nil
	seenVersion int64      // version of the entry when it was judged, and then when it was taken
	again       bool       // whether the store has something else than the entry says
}

// sentChange is what the store was asked for, and why: to delete what another owner has stored
// begins with a put.
type sentChange struct {
	node   *node.Node
	change *wantedChange
}

// serviceNodes is the nodes of one service.
type serviceNodes struct {
	name      federation.FQDN
	entries   []*nodeEntry
	lingering *nodeEntry // or nil
	dirty     bool       // whether it is in Table.dirty
}

// quotaAccount is what a quota is for.
type quotaAccount struct {
	provider federation.ID
	rule     string
}

// New returns an empty table. The convergence period begins now.
func New(config Config, now time.Time) *Table {
	config.Nodes = cmp.Or(config.Nodes, math.MaxInt)
	return &Table{
		config: config, start: now, converge: now.Add(config.Convergence),
		entries: make(map[node.Key]*nodeEntry), services: make(map[federation.FQDN]*serviceNodes),
		quotas: make(map[quotaAccount]int), leftovers: make(map[string]*ownerLeftovers),
		numbers: Numbers{Expired: make(map[string]uint64), Refused: make(map[string]uint64)},
	}
}

// wantedNode returns the node that the store is to have in the end, or nil.
func (e *nodeEntry) wantedNode() *node.Node {
	if e.want != nil {
		return e.want.node
	}
	return e.stored
}

// waitingChange returns the change that is wanted, and not on its way to the store, or nil.
func (e *nodeEntry) waitingChange() *wantedChange {
	if e.sent != nil && e.sent.change == e.want {
		return nil
	}
	return e.want
}

// isLingering reports whether the node has expired, and stays as the last one of its service.
func (e *nodeEntry) isLingering() bool { return e.service.lingering == e }

// isStored reports whether the store has what is wanted.
func (e *nodeEntry) isStored() bool { return !e.isPending() && !e.missing }

// isPending reports whether a change is not stored yet.
func (e *nodeEntry) isPending() bool { return e.want != nil || e.sent != nil }

// expectedVersion returns the version that the store must have for a change.
func (e *nodeEntry) expectedVersion() int64 {
	if e.stored == nil || e.missing {
		return 0
	}
	return e.version
}

// entryFor returns the entry of the key, which it makes where there is none.
func (t *Table) entryFor(key node.Key) *nodeEntry {
	if e := t.entries[key]; e != nil {
		return e
	}
	s := t.services[key.Service]
	if s == nil {
		s = &serviceNodes{name: key.Service}
		t.services[s.name] = s
	}
	e := &nodeEntry{key: node.Key{Service: s.name, URI: key.URI}, service: s, place: len(s.entries)}
	e.due.Value = e
	s.entries = append(s.entries, e)
	t.entries[e.key] = e
	return e
}

// updateEntry changes what is stored and what is to be, and all that counts it. An entry that
// has neither is gone afterwards.
func (t *Table) updateEntry(e *nodeEntry, stored *node.Node, sent *sentChange, want *wantedChange) {
	wanted, pending, before := e.wantedNode(), e.isPending(), e.stored
	e.stored, e.sent, e.want = stored, sent, want
	if stored != before {
		t.numbers.Nodes += oneIf(stored != nil) - oneIf(before != nil)
		if stored == nil || before == nil || !sameNode(stored, before) {
			t.markDirty(e.service)
		}
	}
	now := e.wantedNode()
	if stored != before && !e.hidden || e.hidden && now != nil {
		t.hideForbidden(e)
	}
	t.numbers.Pending += oneIf(e.isPending()) - oneIf(pending)
	if want == nil && e.queueElement != nil {
		t.queue.Remove(e.queueElement)
		e.queueElement = nil
	}
	if now != wanted {
		t.countQuota(wanted, -1)
		t.countQuota(now, 1)
		if now == nil {
			t.dropHolder(e)
			t.due.Remove(&e.due)
			t.markKept(e)
			e.ours = false
		}
	}
	t.removeEmpty(e)
}

// hideForbidden hides what another owner has stored and this one may not publish.
func (t *Table) hideForbidden(e *nodeEntry) {
	t.setHidden(e, e.stored != nil && t.isForeign(e.stored) && t.isForbidden(e))
}

// setHidden has an entry published, or not.
func (t *Table) setHidden(e *nodeEntry, hidden bool) {
	if e.hidden != hidden {
		e.hidden = hidden
		t.markDirty(e.service)
	}
}

// setTried notes whether the store may hold what nobody knows of.
func (t *Table) setTried(e *nodeEntry, tried bool) {
	if e.tried != tried {
		e.tried = tried
		t.removeEmpty(e)
	}
}

// oneIf returns 1 for what is so.
func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}

// accountOf returns what the node counts for.
func accountOf(n *node.Node) quotaAccount { return quotaAccount{n.Provider, n.Rule} }

// countQuota counts a node that is wanted, or not any more, in the quota of its provider. It may
// be nil.
func (t *Table) countQuota(n *node.Node, by int) {
	if n == nil {
		return
	}
	of := accountOf(n)
	if t.quotas[of] += by; t.quotas[of] == 0 {
		delete(t.quotas, of)
	}
}

// markDirty notes that the service is to be rendered.
func (t *Table) markDirty(s *serviceNodes) {
	if !s.dirty {
		s.dirty = true
		t.dirty = append(t.dirty, s)
	}
}

// MarkAll has all services rendered.
func (t *Table) MarkAll() {
	for _, s := range t.services {
		t.markDirty(s)
	}
}

// markKept ends what makes a node one that its provider does not keep up.
func (t *Table) markKept(e *nodeEntry) {
	if e.old {
		e.old = false
		t.numbers.Old--
	}
	if e.isLingering() {
		e.service.lingering = nil
	}
}

// markOld marks a node as old.
func (t *Table) markOld(e *nodeEntry) {
	if !e.old {
		e.old = true
		t.numbers.Old++
	}
}

// removeEmpty forgets an entry of which nothing is stored, and nothing to be.
func (t *Table) removeEmpty(e *nodeEntry) {
	if e.stored != nil || e.isPending() || e.tried {
		return
	}
	if e.version > 0 {
		t.tombstones.addDeletion(e.key, e.version)
	}
	delete(t.entries, e.key)
	s := e.service
	last := len(s.entries) - 1
	s.entries[e.place] = s.entries[last]
	s.entries[e.place].place = e.place
	s.entries[last] = nil
	s.entries = s.entries[:last]
	if last == 0 {
		delete(t.services, s.name)
	}
}

// enqueueEntry lets the entry be in the queue of those with changes to take.
func (t *Table) enqueueEntry(e *nodeEntry) {
	if e.queueElement == nil && !e.waiting && e.sent == nil && e.want != nil {
		e.queueElement = t.queue.PushBack(e)
	}
}

// requestChange has the entry changed. A change that is not stored yet makes room for it.
func (t *Table) requestChange(e *nodeEntry, c *wantedChange) {
	former := e.want
	c.seenVersion = e.version
	if c.stream != nil {
		c.stream.pending++
	}
	if c.node == nil && e.stored == nil && e.sent == nil && !e.tried {
		t.updateEntry(e, nil, nil, nil) // it was never stored
		t.finishChange(c, nil)
	} else {
		t.updateEntry(e, e.stored, e.sent, c)
		t.enqueueEntry(e)
	}
	t.supersedeChange(former, c)
}

// deleteForbidden has the entry deleted, which is not published any more from now on: the store may
// be away for long.
func (t *Table) deleteForbidden(e *nodeEntry) {
	t.requestChange(e, &wantedChange{})
	if e.stored != nil && t.mayWithdraw(e, false, nil) {
		t.setHidden(e, true)
	}
}

// supersedeChange ends a change that another one has taken the place of.
func (t *Table) supersedeChange(former, by *wantedChange) {
	if former == nil || former.stream == nil {
		return
	}
	if former.hold != nil && by.stream != former.stream && by.node != nil {
		t.tellRefused(former.stream, former.hold.text, takenBy(newer))
	}
	t.countDone(former.stream)
}

// setDue sets the deadline of an entry, counted from the start.
func (t *Table) setDue(e *nodeEntry, at time.Time) { t.due.SetDeadline(&e.due, at.Sub(t.start)) }

// longestSilence is for how long nothing may be heard of a node whose stream is open: an Active
// is due after half of the ttl, and the ttl counts from then.
func longestSilence(ttl time.Duration) time.Duration { return ttl + ttl/2 }

// KnownState reports whether the store has told its state, and whether all of it may be
// published: where the store may have missed some, when the convergence is over.
func (t *Table) KnownState(now time.Time) (state, publish bool) {
	return t.known, t.known && (t.complete || !now.Before(t.start.Add(t.config.Convergence)))
}

// ConvergenceLeft returns for how long nodes may be old from now on.
func (t *Table) ConvergenceLeft(now time.Time) time.Duration { return max(0, t.converge.Sub(now)) }

// Numbers returns the numbers. Its maps are those of the table.
func (t *Table) Numbers() Numbers { return t.numbers }

// NextExpiry returns when ExpireDue has something to do, and whether it will.
func (t *Table) NextExpiry() (time.Time, bool) {
	at, ok := t.due.NextDeadline()
	return t.start.Add(at), ok
}

// Service is a service to be published.
type Service struct {
	Name  federation.FQDN
	Nodes []*node.Node // none: it is gone
}

// TakeDirty returns the services that have changed since it was called last.
func (t *Table) TakeDirty() []Service {
	list := make([]Service, 0, len(t.dirty))
	for _, s := range t.dirty {
		s.dirty = false
		nodes := make([]*node.Node, 0, len(s.entries))
		for _, e := range s.entries {
			if e.stored != nil && !e.hidden {
				nodes = append(nodes, e.stored)
			}
		}
		list = append(list, Service{s.name, nodes})
	}
	t.dirty = nil
	return list
}

// ruleRequest returns what the rules are asked for a node of the stream.
func (s *Stream) ruleRequest(key node.Key, ttl time.Duration) rules.Request {
	return rules.Request{IDs: s.ids, Peer: s.peer, Service: key.Service, URI: key.URI, TTL: ttl}
}

// Stream is the stream of one provider.
type Stream struct {
	number    uint64 // the epoch of this owner, and in which order its streams were opened
	ids       []federation.ID
	peer      netip.Addr
	tell      func(Answer)
	holds     map[NodeText]*heldNode
	pending   int  // changes that it waits for
	finishing bool // whether it wants to know when pending is 0
	closed    bool
}
