// Package table keeps the state of a source of registrations in a [Table]: the nodes that its store
// has, what is to be changed there, which provider's [Stream] holds which node, and until when.
//
// A table is one state machine without goroutines, locks and clocks. Messages of providers and reports of
// the store go in; changes for the store, answers for the providers and the services to publish come out.
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
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// Config is what a Table needs.
type Config struct {
	Owner       string        // name of this owner
	Epoch       uint32        // random: identifies the streams of this owner, together with its name
	Convergence time.Duration // for how long a node that was known before waits for its provider
	Linger      time.Duration // for how long the last node of a service stays when it has expired; 0: not at all
	Nodes       int           // how many nodes the table may have
	Rules       *rules.Rules
	Policy      wire.AddressPolicy // which addresses nodes may have

	// Expired is called with each node that has expired, and why.
	Expired func(n *node.Node, cause string)
}

// Table is the state of a source. For each node it has what the store holds, what this owner wants
// it to hold and what is on the way there, and who holds the node until when. The source calls its
// methods under one mutex; it is not safe for concurrent use.
//
// Config.Nodes bounds the entries, and each provider has its quotas. Changes of one entry are not
// queued: a new one supersedes one that is not stored yet, so that the entries bound the work for
// the store as well. A table does nothing by itself: the source passes time and messages in, and
// takes changes, answers and services out.
type Table struct {
	config     Config
	start      time.Time // from which deadlines count
	known      bool      // whether the store has told its state
	complete   bool      // whether the state was complete
	converge   time.Time // until when nodes are old
	absent     bool      // whether the store is away
	returned   time.Time // when the store was back
	sentAway   bool      // whether providers were sent away because of that
	entries    map[node.Key]*nodeEntry
	services   map[federation.FQDN]*serviceNodes
	quotas     map[quotaAccount]int // nodes that are wanted
	due        deadline.Queue[*nodeEntry]
	queue      list.List    // of *nodeEntry, with changes to take
	batch      []*nodeEntry // with changes that were taken
	dirty      []*serviceNodes
	answers    []pendingAnswer
	tombstones deletionVersions
	opened     uint32 // how many streams were opened
	kept       int64  // the last version of StoreLocally
	numbers    Numbers
}

// Numbers count what is in a table, and what has happened to it.
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
	Silent      = "silent"      // its provider's stream has sent nothing about the node
	Broken      = "broken"      // its provider's stream had ended
	Convergence = "convergence" // its provider did not come back after the owner's start
)

// nodeEntry is the state of one key. An entry exists while the store holds a node, or while a
// change waits. It goes from want to sent when TakeChanges takes the change, and from sent to
// stored when its outcome is known.
type nodeEntry struct {
	key          node.Key
	stored       *node.Node    // the node that is published, or nil
	version      int64         // of the node that the store is known to hold, or of its deletion
	want         *wantedChange // the change that is not stored yet, or nil
	sent         *sentChange   // the change that is being committed, or nil
	holder       *heldNode     // of the stream of this owner that holds the node
	former       uint64        // number of the last stream of this owner that lost the node to another owner's
	service      *serviceNodes
	place        int           // in the entries of service
	queueElement *list.Element // in queue, or nil
	due          deadline.Item[*nodeEntry]

	tried   bool // whether the store may hold a node: Commit could not tell
	missing bool // whether the store has lost the node in stored, which is put again
	ours    bool // whether this owner sees to the deadline
	old     bool // whether the node is known from before, and its provider is not back
	hidden  bool // whether stored is not published, because the rules do not allow it
	waiting bool // whether the store has yet to report what a change was in conflict with
}

// wantedChange is a change that is to be stored.
type wantedChange struct {
	node        *node.Node // nil: delete
	hold        *heldNode  // of the Active to answer, or nil
	stream      *Stream    // the stream that waits for the change, or nil
	seenVersion int64      // version of the entry when it was judged, and then when it was taken
	again       bool       // whether the store differs from the entry
}

// sentChange is the node that is being committed, and the change for which that is. They differ
// where the deletion of another owner's node begins with a put.
type sentChange struct {
	node   *node.Node
	change *wantedChange
}

// serviceNodes is the nodes of one service.
type serviceNodes struct {
	name      federation.FQDN
	entries   []*nodeEntry
	lingering *nodeEntry // or nil
	dirty     bool       // whether the service is in Table.dirty
}

// quotaAccount is what a quota applies to: one provider under one rule.
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
		quotas:  make(map[quotaAccount]int),
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

// waitingChange returns the wanted change that is not being committed, or nil.
func (e *nodeEntry) waitingChange() *wantedChange {
	if e.sent != nil && e.sent.change == e.want {
		return nil
	}
	return e.want
}

// isLingering reports whether the node has expired and stays as the last one of its service.
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

// entryFor returns the entry of the key, and makes one where there is none.
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

// updateEntry sets what is stored, sent and wanted, and updates everything that counts it. An entry
// without all three is removed.
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

// hideForbidden hides a node that another owner has stored if this owner may not publish it, and
// shows it otherwise.
func (t *Table) hideForbidden(e *nodeEntry) {
	t.setHidden(e, e.stored != nil && t.isForeign(e.stored) && t.isForbidden(e))
}

// setHidden sets whether an entry is hidden.
func (t *Table) setHidden(e *nodeEntry, hidden bool) {
	if e.hidden != hidden {
		e.hidden = hidden
		t.markDirty(e.service)
	}
}

// setTried sets whether the store may hold a node that Commit could not report.
func (t *Table) setTried(e *nodeEntry, tried bool) {
	if e.tried != tried {
		e.tried = tried
		t.removeEmpty(e)
	}
}

// oneIf returns 1 for true and 0 for false.
func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}

// accountOf returns the account for which the node counts.
func accountOf(n *node.Node) quotaAccount { return quotaAccount{n.Provider, n.Rule} }

// countQuota adds by to the count of a wanted node in the quota of its provider. The node may be
// nil.
func (t *Table) countQuota(n *node.Node, by int) {
	if n == nil {
		return
	}
	of := accountOf(n)
	if t.quotas[of] += by; t.quotas[of] == 0 {
		delete(t.quotas, of)
	}
}

// markDirty marks the service to be rendered.
func (t *Table) markDirty(s *serviceNodes) {
	if !s.dirty {
		s.dirty = true
		t.dirty = append(t.dirty, s)
	}
}

// MarkAll marks all services to be rendered.
func (t *Table) MarkAll() {
	for _, s := range t.services {
		t.markDirty(s)
	}
}

// markKept records that a node is neither old nor lingering.
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

// removeEmpty removes an entry without a stored node and without a change.
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

// enqueueEntry puts the entry into the queue, if it has a change to take.
func (t *Table) enqueueEntry(e *nodeEntry) {
	if e.queueElement == nil && !e.waiting && e.sent == nil && e.want != nil {
		e.queueElement = t.queue.PushBack(e)
	}
}

// requestChange makes c the wanted change of the entry. It supersedes a change that is not stored
// yet.
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

// deleteForbidden requests the deletion of the entry, and hides it at once, because the store may
// be away for long.
func (t *Table) deleteForbidden(e *nodeEntry) {
	t.requestChange(e, &wantedChange{})
	if e.stored != nil && t.mayWithdraw(e, false, nil) {
		t.setHidden(e, true)
	}
}

// supersedeChange ends a change that another one has replaced.
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

// longestSilence returns for how long a provider with an open stream may send nothing about a node.
// An Active is due after half of the ttl, and the ttl counts from then.
func longestSilence(ttl time.Duration) time.Duration { return ttl + ttl/2 }

// KnownState reports whether the store has reported its state, and whether all of that may be
// published. Where the state may be incomplete, that is when the convergence period is over.
func (t *Table) KnownState(now time.Time) (state, publish bool) {
	return t.known, t.known && (t.complete || !now.Before(t.start.Add(t.config.Convergence)))
}

// ConvergenceLeft returns for how long nodes may still be old.
func (t *Table) ConvergenceLeft(now time.Time) time.Duration { return max(0, t.converge.Sub(now)) }

// Numbers returns the numbers, with the maps of the table.
func (t *Table) Numbers() Numbers { return t.numbers }

// NextExpiry returns when ExpireDue has something to do, and whether there is such a time.
func (t *Table) NextExpiry() (time.Time, bool) {
	at, ok := t.due.NextDeadline()
	return t.start.Add(at), ok
}

// Service is a service to be published.
type Service struct {
	Name  federation.FQDN
	Nodes []*node.Node // none: the service is gone
}

// TakeDirty returns the services that have changed since the last call.
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

// ruleRequest returns the request to the rules for a node of the stream.
func (s *Stream) ruleRequest(key node.Key, ttl time.Duration) rules.Request {
	return rules.Request{IDs: s.ids, Peer: s.peer, Service: key.Service, URI: key.URI, TTL: ttl}
}

// Stream is the stream of one provider in the table: which nodes it holds, and how many of its
// changes are pending.
type Stream struct {
	number    uint64 // the epoch of this owner, followed by the count of its streams
	ids       []federation.ID
	peer      netip.Addr
	tell      func(*registrationv1.RegisterResponse)
	holds     map[NodeText]*heldNode
	pending   int  // changes that are not stored yet
	finishing bool // whether to tell nil when pending is 0
	closed    bool
}
