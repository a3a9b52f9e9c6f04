package table

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// NodeText names a node in the words of a provider.
type NodeText struct{ Service, Node string }

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
	answer *registrationv1.RegisterResponse
}

// grantedResponse returns the answer that the node is registered with a ttl.
func (h *heldNode) grantedResponse(ttl time.Duration) *registrationv1.RegisterResponse {
	return &registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Granted{Granted: &registrationv1.Granted{
		Service: h.text.Service, Node: h.text.Node, Ttl: durationpb.New(ttl), Uri: h.uri,
	}}}
}

// OpenStream adds the stream of a provider, and returns it. The methods of the table call tell for
// each answer, and with nil when all that the provider has sent before FinishStream is done; it must not
// block.
func (t *Table) OpenStream(ids []federation.ID, peer netip.Addr, tell func(*registrationv1.RegisterResponse)) *Stream {
	t.opened++
	s := &Stream{number: uint64(t.config.Epoch)<<32 | uint64(t.opened), ids: ids, peer: peer, tell: tell, holds: make(map[NodeText]*heldNode)}
	t.numbers.Streams++
	return s
}

// FinishStream makes the table tell the stream nil when nothing of it is pending. The stream sends
// nothing more.
func (t *Table) FinishStream(s *Stream) {
	s.finishing = true
	if s.pending == 0 {
		s.tell(nil)
	}
}

// CloseStream removes a stream that has ended. Its nodes expire after their ttl.
func (t *Table) CloseStream(s *Stream, now time.Time) {
	if s.closed {
		return
	}
	s.closed = true
	s.tell = func(*registrationv1.RegisterResponse) {}
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
func (t *Table) setHolder(s *Stream, e *nodeEntry, a *registrationv1.Active) *heldNode {
	h, text := e.holder, NodeText{a.GetService(), a.GetNode()}
	if h == nil || h.stream != s {
		t.dropHolder(e)
		h = &heldNode{stream: s, entry: e, uri: e.key.URI.String()}
		e.holder = h
	} else if h.text != text {
		delete(s.holds, h.text)
	}
	if h.text != text {
		h.text = text
		// Most texts equal names that are in memory already, and need not be kept twice.
		if name := strings.TrimSuffix(e.key.Service.String(), "."); h.text.Service == name {
			h.text.Service = name
		}
		if h.text.Node == h.uri {
			h.text.Node = h.uri
		}
		s.holds[h.text] = h
	}
	h.askedTTL = a.GetTtl().AsDuration()
	return h
}

// RefreshNode renews the deadline of a registered node, if the Active is equal to the last one, and
// reports whether it is. If not, the Active is for Register.
func (t *Table) RefreshNode(s *Stream, a *registrationv1.Active, now time.Time) bool {
	h := s.holds[NodeText{a.GetService(), a.GetNode()}]
	if h == nil {
		return false
	}
	e := h.entry
	n := e.stored
	if n == nil || !e.isStored() || e.old || e.isLingering() || n.Stream != s.number || h.askedTTL != a.GetTtl().AsDuration() ||
		n.Instance != a.GetInstance() || n.Description != a.GetDescription() || !isMap(n.Metadata, a.GetMetadata()) {
		return false
	}
	t.setDue(e, now.Add(longestSilence(n.TTL)))
	s.tell(h.grantedResponse(n.TTL))
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

// judgeActive returns the node of an Active and the quota of its provider, or the refusal of the
// rules. The node is nil if the Active names none, and without a Since.
func (t *Table) judgeActive(s *Stream, a *registrationv1.Active) (n *node.Node, quota int, refusal *rules.Refusal) {
	service, err := federation.ParseFQDN(a.GetService())
	if err != nil {
		return nil, 0, malformedRefusal("service " + safetext.Quote(a.GetService()) + ": " + err.Error())
	}
	uri, err := node.ParseURI(a.GetNode(), s.peer)
	if err != nil {
		return nil, 0, malformedRefusal(err.Error())
	}
	n = &node.Node{
		Key: node.Key{Service: service, URI: uri}, Instance: a.GetInstance(), Metadata: federation.Pairs(a.GetMetadata()),
		Description: a.GetDescription(), Owner: t.config.Owner, Stream: s.number, Since: time.Unix(0, 0).UTC(),
	}
	grant, refusal := t.config.Rules.Judge(s.ruleRequest(n.Key, a.GetTtl().AsDuration()))
	if refusal != nil {
		return n, 0, refusal
	}
	n.TTL, n.Provider, n.Rule = grant.TTL, grant.Provider, grant.Rule
	return n, grant.Quota, t.checkNode(n)
}

func malformedRefusal(reason string) *rules.Refusal {
	return &rules.Refusal{Rule: rules.Malformed, Reason: reason}
}

// checkNode returns the refusal of a node that is refused whatever the rules say, or nil.
func (t *Table) checkNode(n *node.Node) *rules.Refusal {
	if err := n.Validate(); err != nil {
		return malformedRefusal(err.Error())
	}
	endpoint := [1]federation.Endpoint{{Address: n.URI.Address, Port: n.URI.Port}}
	if invalid := t.config.Policy.Check(&federation.Service{Endpoints: endpoint[:]}); invalid != nil {
		return &rules.Refusal{Rule: rules.Address, Reason: invalid.Rule}
	}
	return nil
}

// sameNode reports whether a service is the same with either node.
func sameNode(a, b *node.Node) bool {
	return a.Instance == b.Instance && a.Description == b.Description && a.Provider == b.Provider && slices.Equal(a.Metadata, b.Metadata)
}

// takenBy returns why a stream does not get a node that somebody else has.
func takenBy(who string) *rules.Refusal {
	return &rules.Refusal{Rule: rules.Taken, Reason: who + " has registered the node"}
}

// Who else can have a node.
const (
	newer   = "a newer stream of the same provider"
	another = "another provider"
)

// Register registers or changes the node of an Active. It returns the refusal of the Active, which
// the stream gets as an answer, or nil.
func (t *Table) Register(s *Stream, a *registrationv1.Active, now time.Time) *rules.Refusal {
	if s.closed || s.finishing {
		return nil
	}
	var e *nodeEntry
	n, quota, refusal := t.judgeActive(s, a)
	if n != nil {
		e = t.entries[n.Key]
	}
	if refusal == nil {
		refusal = t.checkTaken(s, e, n, quota)
	}
	if refusal != nil {
		held := e != nil && e.holder != nil && e.holder.stream == s
		t.tellRefused(s, NodeText{a.GetService(), a.GetNode()}, refusal)
		if held { // Refused says that the node is not registered any more
			t.requestChange(e, &wantedChange{})
		}
		return refusal
	}
	if e == nil {
		e = t.entryFor(n.Key)
	}
	n.Key = e.key // shares the memory of its names
	wanted, lingered := e.wantedNode(), e.isLingering()
	t.markKept(e)
	e.ours = true
	n.Since = now.UTC().Truncate(time.Second)
	if wanted != nil && wanted.Provider == n.Provider && !lingered {
		n.Since = wanted.Since
	}
	if wanted != nil && storesSame(n, wanted) && !lingered {
		h := t.setHolder(s, e, a)
		t.setDue(e, now.Add(longestSilence(wanted.TTL)))
		t.confirmActive(s, h)
		return nil
	}
	t.requestChange(e, &wantedChange{node: n, stream: s}) // first, because a holder needs a wanted node
	e.want.hold = t.setHolder(s, e, a)
	t.setDue(e, now.Add(longestSilence(n.TTL)))
	return nil
}

// confirmActive answers an Active that changes nothing: now, or when its node is stored.
func (t *Table) confirmActive(s *Stream, h *heldNode) {
	e := h.entry
	if e.isStored() {
		s.tell(h.grantedResponse(e.stored.TTL))
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

// checkTaken returns the refusal of a node that the rules allow, because of others, or nil. The
// entry is that of the node, or nil.
func (t *Table) checkTaken(s *Stream, e *nodeEntry, n *node.Node, quota int) *rules.Refusal {
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
	of := accountOf(n)
	if counts := wanted != nil && accountOf(wanted) == of; !counts && t.quotas[of] >= quota {
		return quotaRefusal(n.Rule, quota)
	}
	if e == nil && len(t.entries) >= t.config.Nodes {
		return &rules.Refusal{Rule: rules.Full, Reason: fmt.Sprintf("this owner has as many nodes as max_nodes allows: %d", t.config.Nodes)}
	}
	return nil
}

// quotaRefusal returns why a provider gets no more nodes by a rule.
func quotaRefusal(rule string, quota int) *rules.Refusal {
	return &rules.Refusal{Rule: rules.Quota, Reason: fmt.Sprintf("the quota of rule %s is %d", rule, quota)}
}

// tellRefused answers that an Active is refused, and counts that.
func (t *Table) tellRefused(s *Stream, text NodeText, refusal *rules.Refusal) {
	t.numbers.Refused[refusal.Rule]++
	s.tell(&registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Refused{Refused: &registrationv1.Refused{
		Service: text.Service, Node: text.Node, Rule: refusal.Rule, Reason: refusal.Reason,
	}}})
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
		d.hold, d.answer = h, h.grantedResponse(stored.TTL)
	}
	t.answers = append(t.answers, d)
}

// countDone counts a change of the stream as done.
func (t *Table) countDone(s *Stream) {
	if s.pending--; s.pending == 0 && s.finishing {
		s.tell(nil)
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
