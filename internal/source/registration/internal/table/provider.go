package table

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// NodeText names a node in the words of a provider.
type NodeText struct{ Service, Node string }

// Active is a message of a provider that registers, changes or refreshes a node.
type Active struct {
	NodeText

	TTL         time.Duration // 0: the provider does not ask for one
	Metadata    map[string]string
	Instance    string
	Description string
}

// AnswerKind is what an Answer says.
type AnswerKind uint8

// The kinds of answers.
const (
	Granted AnswerKind = iota + 1
	Refused
	Expired
	Done // everything that the provider has sent is done; sent after its Close
)

// Answer is an answer to a provider.
type Answer struct {
	Kind AnswerKind
	NodeText

	TTL     time.Duration // of Granted
	URI     string        // of Granted
	Refusal rules.Refusal // of Refused
}

// heldNode is a node that a stream holds.
type heldNode struct {
	stream   *Stream
	entry    *nodeEntry
	text     NodeText      // as in the last Active
	askedTTL time.Duration // the ttl that the Active has asked for
	uri      string        // as this owner spells it
}

// pendingAnswer is the answer to a change that is stored. It may be given once the table was
// published.
type pendingAnswer struct {
	*Stream

	hold   *heldNode // the node that the answer is about; nil: there is no answer
	answer Answer
}

// OpenStream adds the stream of a provider, and returns it. The methods of the table call tell for
// each answer; it must not block.
func (t *Table) OpenStream(ids []federation.ID, peer netip.Addr, tell func(Answer)) *Stream {
	t.opened++
	s := &Stream{number: uint64(t.config.Epoch)<<32 | uint64(t.opened), ids: ids, peer: peer, tell: tell, holds: make(map[NodeText]*heldNode)}
	t.numbers.Streams++
	return s
}

// FinishStream makes the table answer Done when nothing of the stream is pending. The stream sends
// nothing more.
func (t *Table) FinishStream(s *Stream) {
	s.finishing = true
	if s.pending == 0 {
		s.tell(Answer{Kind: Done})
	}
}

// CloseStream removes a stream that has ended. Its nodes expire after their ttl.
func (t *Table) CloseStream(s *Stream, now time.Time) {
	if s.closed {
		return
	}
	s.closed = true
	s.tell = func(Answer) {}
	t.numbers.Streams--
	for _, h := range s.holds {
		e := h.entry
		e.holder = nil
		if t.sentAway {
			t.markOld(e)
		}
		at, ok := e.due.Deadline()
		if end := now.Add(e.wantedNode().TTL).Sub(t.start); !ok || end < at {
			t.due.SetDeadline(&e.due, end)
		}
	}
	s.holds = nil
}

func (t *Table) dropHolder(e *nodeEntry) {
	if h := e.holder; h != nil {
		delete(h.stream.holds, h.text)
		e.holder = nil
	}
}

// setHolder makes the stream the holder of the entry, and returns what it holds.
func (t *Table) setHolder(s *Stream, e *nodeEntry, offer *JudgedActive) *heldNode {
	h := e.holder
	if h == nil || h.stream != s {
		t.dropHolder(e)
		h = &heldNode{stream: s, entry: e, uri: e.key.URI.String()}
		e.holder = h
	} else if h.text != offer.NodeText {
		delete(s.holds, h.text)
	}
	if h.text != offer.NodeText {
		h.text = offer.NodeText
		// Most texts equal names that are in memory already, and need not be kept twice.
		if name := strings.TrimSuffix(e.key.Service.String(), "."); h.text.Service == name {
			h.text.Service = name
		}
		if h.text.Node == h.uri {
			h.text.Node = h.uri
		}
		s.holds[h.text] = h
	}
	h.askedTTL = offer.TTL
	return h
}

// RefreshNode renews the deadline of a registered node, if the Active is equal to the last one, and
// reports whether it is. If not, the Active is for Register.
func (t *Table) RefreshNode(s *Stream, a *Active, now time.Time) bool {
	h := s.holds[a.NodeText]
	if h == nil {
		return false
	}
	e := h.entry
	n := e.stored
	if n == nil || !e.isStored() || e.old || e.isLingering() || n.Stream != s.number || h.askedTTL != a.TTL ||
		n.Instance != a.Instance || n.Description != a.Description || !isMap(n.Metadata, a.Metadata) {
		return false
	}
	t.setDue(e, now.Add(longestSilence(n.TTL)))
	s.tell(Answer{Kind: Granted, NodeText: h.text, TTL: n.TTL, URI: h.uri})
	return true
}

// isMap reports whether the pairs are the entries of m.
func isMap(pairs []federation.Pair, m map[string]string) bool {
	if len(pairs) != len(m) {
		return false
	}
	for _, pair := range pairs {
		if value, ok := m[pair.Key]; !ok || value != pair.Value {
			return false
		}
	}
	return true
}

// JudgedActive is an Active with the node and the verdict that follow from it.
type JudgedActive struct {
	Active

	node  *node.Node // without Stream and Since; nil when it was refused before there was one
	rules *rules.Rules
	quota int
	err   error // a rules.Refusal
}

// JudgeActive returns an Active with its node and the verdict of the rules. It may be called at any
// time, by any goroutine: Register judges again when the rules have changed since.
func (t *Table) JudgeActive(r *rules.Rules, s *Stream, a *Active) *JudgedActive {
	o := &JudgedActive{Active: *a}
	service, err := federation.ParseFQDN(a.Service)
	if err != nil {
		o.err = malformedRefusal("service " + safetext.Quote(a.Service) + ": " + err.Error())
		return o
	}
	uri, err := node.ParseURI(a.Node, s.peer)
	if err != nil {
		o.err = malformedRefusal(err.Error())
		return o
	}
	o.node = &node.Node{
		Key: node.Key{Service: service, URI: uri}, Instance: a.Instance, Metadata: federation.Pairs(a.Metadata),
		Description: a.Description, Owner: t.config.Owner, Stream: s.number, Since: time.Unix(0, 0).UTC(),
	}
	o.askRules(r, s, t.config.Policy)
	return o
}

func malformedRefusal(reason string) error {
	return rules.Refusal{Rule: rules.Malformed, Reason: reason}
}

// askRules sets the verdict: by the rules, and then by what they do not cover.
func (o *JudgedActive) askRules(r *rules.Rules, s *Stream, policy wire.AddressPolicy) {
	var grant rules.Grant
	o.rules = r
	if grant, o.err = r.Judge(s.ruleRequest(o.node.Key, o.TTL)); o.err != nil {
		return
	}
	o.node.TTL, o.node.Provider, o.node.Rule, o.quota = grant.TTL, grant.Provider, grant.Rule, grant.Quota
	o.err = checkNode(o.node, policy)
}

// checkNode returns the rules.Refusal of a node that is refused whatever the rules say, or nil.
func checkNode(n *node.Node, policy wire.AddressPolicy) error {
	if err := n.Validate(); err != nil {
		return malformedRefusal(err.Error())
	}
	endpoint := [1]federation.Endpoint{{Address: n.URI.Address, Port: n.URI.Port}}
	if invalid := policy.Check(&federation.Service{Endpoints: endpoint[:]}); invalid != nil {
		return rules.Refusal{Rule: rules.Address, Reason: invalid.Rule}
	}
	return nil
}

// isNode reports whether the offer and the node are equal, on the same stream.
func (o *JudgedActive) isNode(n *node.Node) bool {
	return sameNode(n, o.node) && n.TTL == o.node.TTL && n.Provider == o.node.Provider && n.Rule == o.node.Rule && n.Stream == o.node.Stream
}

// sameNode reports whether a service is the same with either node.
func sameNode(a, b *node.Node) bool {
	return a.Instance == b.Instance && a.Description == b.Description && a.Provider == b.Provider && slices.Equal(a.Metadata, b.Metadata)
}

// takenBy returns why a stream does not get a node that somebody else has.
func takenBy(who string) rules.Refusal {
	return rules.Refusal{Rule: rules.Taken, Reason: who + " has registered the node"}
}

// Who else can have a node.
const (
	newer   = "a newer stream of the same provider"
	another = "another provider"
)

// Register registers or changes the node of an Active. It returns the rules.Refusal by which the
// Active is refused, which the stream gets as an answer, or nil.
func (t *Table) Register(s *Stream, o *JudgedActive, now time.Time) error {
	if s.closed || s.finishing {
		return nil
	}
	var e *nodeEntry
	if o.node != nil {
		e = t.entries[o.node.Key]
		if o.rules != t.config.Rules {
			o.askRules(t.config.Rules, s, t.config.Policy)
		}
	}
	if err := t.refusalOf(s, e, o); err != nil {
		refusal, _ := err.(rules.Refusal) //nolint:errorlint // the rules and this package return nothing else
		held := e != nil && e.holder != nil && e.holder.stream == s
		t.tellRefused(s, o.NodeText, refusal)
		if held { // Refused says that the node is not registered any more
			t.requestChange(e, &wantedChange{})
		}
		return refusal
	}
	if e == nil {
		e = t.entryFor(o.node.Key)
	}
	o.node.Key = e.key // shares the memory of its names
	wanted, lingered := e.wantedNode(), e.isLingering()
	t.markKept(e)
	e.ours = true
	if wanted != nil && o.isNode(wanted) && !lingered {
		h := t.setHolder(s, e, o)
		t.setDue(e, now.Add(longestSilence(wanted.TTL)))
		t.confirmActive(s, h)
		return nil
	}
	n := o.node
	n.Since = now.UTC().Truncate(time.Second)
	if wanted != nil && wanted.Provider == n.Provider && !lingered {
		n.Since = wanted.Since
	}
	t.requestChange(e, &wantedChange{node: n, stream: s}) // first, because a holder needs a wanted node
	e.want.hold = t.setHolder(s, e, o)
	t.setDue(e, now.Add(longestSilence(n.TTL)))
	return nil
}

// confirmActive answers an Active that changes nothing: now, or when its node is stored.
func (t *Table) confirmActive(s *Stream, h *heldNode) {
	e := h.entry
	if e.isStored() {
		s.tell(Answer{Kind: Granted, NodeText: h.text, TTL: e.stored.TTL, URI: h.uri})
		return
	}
	c := e.want
	if c == nil { // the store is about to be asked to have it again
		return
	}
	if c.stream == nil {
		c.stream = s
		s.pending++
	}
	c.hold = h
}

// refusalOf returns the rules.Refusal of an offer, or nil.
func (t *Table) refusalOf(s *Stream, e *nodeEntry, o *JudgedActive) error {
	if o.err != nil {
		return o.err
	}
	var wanted *node.Node
	if e != nil {
		wanted = e.wantedNode()
	}
	switch {
	case wanted == nil || e.isLingering():
	case !slices.Contains(s.ids, wanted.Provider):
		return takenBy(another)
	case e.holder != nil && e.holder.stream.number > s.number:
		return takenBy(newer)
	}
	of := accountOf(o.node)
	if counts := wanted != nil && accountOf(wanted) == of; !counts && t.quotas[of] >= o.quota {
		return rules.Refusal{Rule: rules.Quota, Reason: fmt.Sprintf("the quota of rule %s is %d", o.node.Rule, o.quota)}
	}
	if wanted != nil {
		return nil
	}
	if e == nil && len(t.entries) >= t.config.Nodes {
		return rules.Refusal{Rule: rules.Full, Reason: fmt.Sprintf("this owner has as many nodes as max_nodes allows: %d", t.config.Nodes)}
	}
	return nil
}

// tellRefused answers that an Active is refused, and counts that.
func (t *Table) tellRefused(s *Stream, text NodeText, refusal rules.Refusal) {
	t.numbers.Refused[refusal.Rule]++
	s.tell(Answer{Kind: Refused, NodeText: text, Refusal: refusal})
}

// ClearNode removes the node of a Clear. A node that the provider does not have is left alone.
func (t *Table) ClearNode(s *Stream, text NodeText) {
	var e *nodeEntry
	if h := s.holds[text]; h != nil {
		e = h.entry
	} else {
		service, err := federation.ParseFQDN(text.Service)
		uri, invalid := node.ParseURI(text.Node, s.peer)
		if err != nil || invalid != nil {
			return
		}
		e = t.entries[node.Key{Service: service, URI: uri}]
	}
	if e == nil || s.closed || s.finishing {
		return
	}
	wanted := e.wantedNode()
	switch {
	case wanted == nil || !slices.Contains(s.ids, wanted.Provider):
		return
	case e.holder != nil && e.holder.stream.number > s.number, e.holder == nil && s.number <= e.former:
		return // the provider goes on with it on a newer stream
	}
	t.numbers.Cleared++
	by := s
	if c := e.want; c != nil && c.node != nil && c.seenVersion != e.version && e.stored != nil && t.isForeign(e.stored) {
		by = nil // somebody else has stored the node since: the Clear is for the one that was to come
	}
	t.requestChange(e, &wantedChange{stream: by})
}

// finishChange ends a change that is stored. The stream that waits for the change is answered when
// it is published.
func (t *Table) finishChange(c *wantedChange, stored *node.Node) {
	if c.stream == nil {
		return
	}
	d := pendingAnswer{Stream: c.stream}
	if h := c.hold; h != nil && stored != nil && h.entry.holder == h {
		t.numbers.Granted++
		d.hold, d.answer = h, Answer{Kind: Granted, NodeText: h.text, TTL: stored.TTL, URI: h.uri}
	}
	t.answers = append(t.answers, d)
}

// countDone counts a change of the stream as done.
func (t *Table) countDone(s *Stream) {
	if s.pending--; s.pending == 0 && s.finishing {
		s.tell(Answer{Kind: Done})
	}
}

// PendingAnswers are answers that may be given once the result of TakeDirty is published.
type PendingAnswers []pendingAnswer

// TakeAnswers returns the answers of changes that were stored since the last call. The caller
// passes them to DeliverAnswers when the current table is published.
func (t *Table) TakeAnswers() PendingAnswers {
	list := t.answers
	t.answers = nil
	return list
}

// DeliverAnswers gives the answers, except Granted for a node that the stream does not hold any
// more: the stream got Refused for that node since, which must be the last answer.
func (t *Table) DeliverAnswers(list PendingAnswers) {
	for _, d := range list {
		if d.hold != nil && d.hold.entry.holder == d.hold {
			d.tell(d.answer)
		}
		t.countDone(d.Stream)
	}
}
