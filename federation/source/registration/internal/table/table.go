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
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/internal/deadline"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
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
	cut        bool      // whether providers were sent away because of that
	entries    map[node.Key]*entry
	services   map[federation.FQDN]*service
	quotas     map[account]int // nodes that are wanted
	due        deadline.Queue[*entry]
	queue      list.List // of *entry, with changes to take
	batch      []*entry  // with changes that were taken
	stuck      []*entry  // with changes in conflict
	dirty      []*service
	answers    []delivery
	tombstones tombstones
	left       map[string]*leavings // by owner
	judged     time.Time            // when leavings were judged last
	opened     uint32               // how many streams
	kept       int64                // the last version of Keep
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

// entry is what is known of one key. It exists while the store holds a node, or a
// change waits.
type entry struct {
	key     node.Key
	stored  *node.Node // what is published; nil: nothing
	version int64      // of what the store is known to hold, or of its deletion
	want    *change    // that is not stored yet, or nil
	sent    *sent      // that the store is asked for, or nil
	holder  *hold      // of the stream of this owner that holds the node
	former  uint64     // number of the last stream of this owner that lost it to another owner's
	service *service
	place   int           // in the entries of service
	turn    *list.Element // in queue, or nil
	due     deadline.Item[*entry]

	tried   bool // whether the store may hold a node: Commit could not tell
	missing bool // whether the store does not have stored any more: it is put again
	ours    bool // whether this owner sees to the deadline
	old     bool // whether the node is known from before, and its provider is not back
	hidden  bool // whether it is not published: the rules have it deleted, or do not allow what another owner has stored
	waiting bool // for the store to tell what a change was in conflict with
}

// change is what is to be stored.
type change struct {
	node   *node.Node // nil: delete
	hold   *hold      // of the Active to answer, or nil
	stream *Stream    // that waits for the change, or nil
	seen   int64      // version of the entry when it was judged, and then when it was taken
	again  bool       // whether the store has something else than the entry says
}

// sent is what the store was asked for, and why: to delete what another owner has stored
// begins with a put.
type sent struct {
	node   *node.Node
	change *change
}

// service is the nodes of one service.
type service struct {
	name      federation.FQDN
	entries   []*entry
	lingering *entry // or nil
	dirty     bool   // whether it is in Table.dirty
}

// account is what a quota is for.
type account struct {
	provider federation.ID
	rule     string
}

// New returns an empty table. The convergence period begins now.
func New(config Config, now time.Time) *Table {
	config.Nodes = cmp.Or(config.Nodes, math.MaxInt)
	return &Table{
		config: config, start: now, converge: now.Add(config.Convergence),
		entries: make(map[node.Key]*entry), services: make(map[federation.FQDN]*service),
		quotas: make(map[account]int), left: make(map[string]*leavings),
		numbers: Numbers{Expired: make(map[string]uint64), Refused: make(map[string]uint64)},
	}
}

// wanted returns the node that the store is to have in the end, or nil.
func (e *entry) wanted() *node.Node {
	if e.want != nil {
		return e.want.node
	}
	return e.stored
}

// waits returns the change that is wanted, and not on its way to the store, or nil.
func (e *entry) waits() *change {
	if e.sent != nil && e.sent.change == e.want {
		return nil
	}
	return e.want
}

// lingers reports whether the node has expired, and stays as the last one of its service.
func (e *entry) lingers() bool { return e.service.lingering == e }

// settled reports whether the store has what is wanted.
func (e *entry) settled() bool { return !e.pending() && !e.missing }

// pending reports whether a change is not stored yet.
func (e *entry) pending() bool { return e.want != nil || e.sent != nil }

// before returns the version that the store must have for a change.
func (e *entry) before() int64 {
	if e.stored == nil || e.missing {
		return 0
	}
	return e.version
}

// entry returns the entry of the key, which it makes where there is none.
func (t *Table) entry(key node.Key) *entry {
	if e := t.entries[key]; e != nil {
		return e
	}
	s := t.services[key.Service]
	if s == nil {
		s = &service{name: key.Service}
		t.services[s.name] = s
	}
	e := &entry{key: node.Key{Service: s.name, URI: key.URI}, service: s, place: len(s.entries)}
	e.due.Value = e
	s.entries = append(s.entries, e)
	t.entries[e.key] = e
	return e
}

// set changes what is stored and what is to be, and all that counts it. An entry that
// has neither is gone afterwards.
func (t *Table) set(e *entry, stored *node.Node, sent *sent, want *change) {
	wanted, pending, before := e.wanted(), e.pending(), e.stored
	e.stored, e.sent, e.want = stored, sent, want
	if stored != before {
		t.numbers.Nodes += one(stored != nil) - one(before != nil)
		if stored == nil || before == nil || !sameNode(stored, before) {
			t.markDirty(e.service)
		}
	}
	now := e.wanted()
	if stored != before && !e.hidden || e.hidden && now != nil {
		t.review(e)
	}
	t.numbers.Pending += one(e.pending()) - one(pending)
	if want == nil && e.turn != nil {
		t.queue.Remove(e.turn)
		e.turn = nil
	}
	if now != wanted {
		t.count(wanted, -1)
		t.count(now, 1)
		if now == nil {
			t.unhold(e)
			t.due.Remove(&e.due)
			t.relax(e)
			e.ours = false
		}
	}
	t.removeEmpty(e)
}

// review hides what another owner has stored and this one may not publish.
func (t *Table) review(e *entry) {
	t.hide(e, e.stored != nil && t.isForeign(e.stored) && t.bars(e))
}

// hide has an entry published, or not.
func (t *Table) hide(e *entry, hidden bool) {
	if e.hidden != hidden {
		e.hidden = hidden
		t.markDirty(e.service)
	}
}

// setTried notes whether the store may hold what nobody knows of.
func (t *Table) setTried(e *entry, tried bool) {
	if e.tried != tried {
		e.tried = tried
		t.removeEmpty(e)
	}
}

// one returns 1 for what is so.
func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// accountOf returns what the node counts for.
func accountOf(n *node.Node) account { return account{n.Provider, n.Rule} }

// count counts a node that is wanted, or not any more, in the quota of its provider. It may
// be nil.
func (t *Table) count(n *node.Node, by int) {
	if n == nil {
		return
	}
	of := accountOf(n)
	if t.quotas[of] += by; t.quotas[of] == 0 {
		delete(t.quotas, of)
	}
}

// markDirty notes that the service is to be rendered.
func (t *Table) markDirty(s *service) {
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

// relax ends what makes a node one that its provider does not keep up.
func (t *Table) relax(e *entry) {
	if e.old {
		e.old = false
		t.numbers.Old--
	}
	if e.lingers() {
		e.service.lingering = nil
	}
}

// age marks a node as old.
func (t *Table) age(e *entry) {
	if !e.old {
		e.old = true
		t.numbers.Old++
	}
}

// removeEmpty forgets an entry of which nothing is stored, and nothing to be.
func (t *Table) removeEmpty(e *entry) {
	if e.stored != nil || e.pending() || e.tried {
		return
	}
	if e.version > 0 {
		t.tombstones.add(e.key, e.version)
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

// put lets the entry be in the queue of those with changes to take.
func (t *Table) put(e *entry) {
	if e.turn == nil && !e.waiting && e.sent == nil && e.want != nil {
		e.turn = t.queue.PushBack(e)
	}
}

// request has the entry changed. A change that is not stored yet makes room for it.
func (t *Table) request(e *entry, c *change) {
	former := e.want
	c.seen = e.version
	if c.stream != nil {
		c.stream.pending++
	}
	if c.node == nil && e.stored == nil && e.sent == nil && !e.tried {
		t.set(e, nil, nil, nil) // it was never stored
		t.finish(c, nil)
	} else {
		t.set(e, e.stored, e.sent, c)
		t.put(e)
	}
	t.supersede(former, c)
}

// deny has the entry deleted, which is not published any more from now on: the store may
// be away for long.
func (t *Table) deny(e *entry) {
	t.request(e, &change{})
	if e.stored != nil && t.mayWithdraw(e, false, nil) {
		t.hide(e, true)
	}
}

// supersede ends a change that another one has taken the place of.
func (t *Table) supersede(former, by *change) {
	if former == nil || former.stream == nil {
		return
	}
	if former.hold != nil && by.stream != former.stream && by.node != nil {
		t.refuse(former.stream, former.hold.text, takenBy(newer))
	}
	t.done(former.stream)
}

// setDue sets the deadline of an entry, counted from the start.
func (t *Table) setDue(e *entry, at time.Time) { t.due.SetDeadline(&e.due, at.Sub(t.start)) }

// silence is for how long nothing may be heard of a node whose stream is open: an Active
// is due after half of the ttl, and the ttl counts from then.
func silence(ttl time.Duration) time.Duration { return ttl + ttl/2 }

// Known reports whether the store has told its state, and whether all of it may be
// published: where the store may have missed some, when the convergence is over.
func (t *Table) Known(now time.Time) (state, publish bool) {
	return t.known, t.known && (t.complete || !now.Before(t.start.Add(t.config.Convergence)))
}

// Converges returns for how long nodes may be old from now on.
func (t *Table) Converges(now time.Time) time.Duration { return max(0, t.converge.Sub(now)) }

// Numbers returns the numbers. Its maps are those of the table.
func (t *Table) Numbers() Numbers { return t.numbers }

// Next returns when Expire has something to do, and whether it will.
func (t *Table) Next() (time.Time, bool) {
	at, ok := t.due.NextDeadline()
	return t.start.Add(at), ok
}

// Service is a service to be published.
type Service struct {
	Name  federation.FQDN
	Nodes []*node.Node // none: it is gone
}

// Dirty returns the services that have changed since it was called last.
func (t *Table) Dirty() []Service {
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

// request returns what the rules are asked for a node of the stream.
func (s *Stream) request(key node.Key, ttl time.Duration) rules.Request {
	return rules.Request{IDs: s.ids, Peer: s.peer, Service: key.Service, URI: key.URI, TTL: ttl}
}

// Stream is the stream of one provider.
type Stream struct {
	number  uint64 // the epoch of this owner, and in which order its streams were opened
	ids     []federation.ID
	peer    netip.Addr
	tell    func(Answer)
	holds   map[Text]*hold
	pending int  // changes that it waits for
	leaving bool // whether it wants to know when pending is 0
	left    bool
}
