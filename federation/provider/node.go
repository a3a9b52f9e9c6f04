package provider

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// maxMessage is how large a message of either side may be, in bytes.
const maxMessage = 64 << 10

// Node is a place at which the program provides a service. All that it says has at most 64 KiB.
type Node struct {
	Service string // the fqdn of the service

	// URI is scheme://host:port. The scheme is the protocol: http, https, grpc, http2,
	// mongo, tcp, tls or mtls. Without a host, as in https://:8443, the host is the
	// address that the program connects to the owner from.
	URI string

	TTL         time.Duration     // how long it stays registered when nothing is heard of it, never negative; default: what the owner's rule has
	Metadata    map[string]string // told to clients of the service
	Instance    string            // nodes that name the same are one instance of the service; default: one of its own
	Description string            // for people
}

func (n *Node) equal(m *Node) bool {
	return n.TTL == m.TTL && n.Instance == m.Instance && n.Description == m.Description && maps.Equal(n.Metadata, m.Metadata)
}

// activeMessage returns the message that registers the node. Its errors say what can never be
// registered; the owner judges everything else.
func (n *Node) activeMessage() (*registrationv1.RegisterRequest, error) {
	if _, err := federation.ParseFQDN(n.Service); err != nil {
		return nil, fmt.Errorf("service %s: %w", safetext.Quote(n.Service), err)
	}
	if n.URI == "" {
		return nil, errors.New("node: no URI")
	}
	if n.TTL < 0 {
		return nil, fmt.Errorf("ttl %v is negative", n.TTL)
	}
	texts := []string{n.URI, n.Instance, n.Description}
	for name, value := range n.Metadata {
		texts = append(texts, name, value)
	}
	for _, text := range texts {
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("%s is not UTF-8", safetext.Quote(text))
		}
	}
	active := &registrationv1.Active{
		Service: n.Service, Node: n.URI, Metadata: maps.Clone(n.Metadata), Instance: n.Instance, Description: n.Description,
	}
	if n.TTL > 0 {
		active.Ttl = durationpb.New(n.TTL)
	}
	message := &registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Active{Active: active}}
	if size := proto.Size(message); size > maxMessage {
		return nil, fmt.Errorf("node %s takes %d bytes, more than %d", safetext.Quote(n.URI), size, maxMessage)
	}
	return message, nil
}

// State says what has become of a node.
type State uint8

// The states of a node.
const (
	Pending    State = iota // it is not registered yet, or not any more: Status.Err says why, once there is a reason
	Registered              // an owner has stored it, and publishes it unless Status.Waits
	Lost                    // it was registered, and the stream to the owner is gone: it stays until Status.Until, and is registered again before if an owner can be reached
	Refused                 // it breaks a rule of the owner; the provider asks again within minutes
)

// String returns the name of the state.
func (s State) String() string {
	return [...]string{"pending", "registered", "lost", "refused"}[s]
}

// Status says what has become of a node, and why. Texts of the owner are as it sent them:
// show them quoted.
type Status struct {
	Node  Node
	State State

	Owner string // the address of the owner that has answered last

	// While it is registered or lost.
	URI   string        // the node as the owner understands it, with host and port
	TTL   time.Duration // the one that counts
	Until time.Time     // it is registered at least until then, if the owner hears nothing more
	Waits bool          // nobody is told of it yet, as the owner's catalog is not available; known anew after half of the TTL

	// While it is refused.
	Rule   string // the rule that it breaks: a word, which stays the same
	Reason string // for people

	// Err is why there is no stream to an owner, while it is pending or lost. It is nil
	// before the first attempt has failed, and while an owner is about to answer. Its
	// text is safe to show.
	Err error
}

// nodeKey identifies a node.
type nodeKey struct{ service, uri string }

// nodeEntry is a node that is to be registered, with what the current stream has sent and got for
// it. Provider.mu guards it. The program changes the node, and the stream changes the rest; there
// is one entry for each node that the program has set.
type nodeEntry struct {
	node    Node
	active  *registrationv1.RegisterRequest // not changed once it is here
	status  Status
	told    *registrationv1.RegisterRequest // of the status that was reported last
	changed bool                            // the entry is in Provider.changed
	retry   time.Duration                   // after the next refusal

	// fresh says that an Active is to be sent at once. Otherwise, when the entry is due, the answer
	// to the last Active is overdue, or it is time for another Active.
	fresh bool
	due   time.Time
	slack time.Duration // by which the entry may be sent earlier, together with others

	last    time.Time // when an Active was sent, on any stream
	sent    bool      // an Active was sent on this stream
	awaits  bool      // the answer to the last Active is outstanding
	granted bool      // the node as it is was granted on this stream, so that the outstanding Active is no more than a heartbeat

	// late says that the node has changed while the answer to a heartbeat is on its way. Answers
	// do not say to which Active they belong, so the next Active is sent after that answer.
	late bool
}

// clearedNode is a node that was cleared while an owner may still have it.
type clearedNode struct {
	until  time.Time           // when the node has expired anyway
	stream *registrationStream // the stream that has sent the Clear
}

// The bounds of times that depend on the ttl.
const (
	usualTTL    = 30 * time.Second // while no ttl is known
	minInterval = time.Second      // between two Actives of a node that has not changed, and for an answer

	// The delays before a refused node is tried again, without its jitter: from the
	// first to the longest they double.
	minRetry = 30 * time.Second
	maxRetry = 5 * time.Minute
)

// maxCleared bounds the cleared nodes that are remembered although their owner has got the Clear.
const maxCleared = 1000

// knownTTL returns the ttl of the node: the granted one, the wanted one, or usualTTL.
func (e *nodeEntry) knownTTL() time.Duration { return cmp.Or(e.status.TTL, e.node.TTL, usualTTL) }

// heartbeatInterval returns half of the ttl.
func (e *nodeEntry) heartbeatInterval() time.Duration { return max(e.knownTTL()/2, minInterval) }

// Set registers a node, or changes the registered node with its service and URI. It returns at
// once. Its errors say what can never be registered; the answer of an owner comes to
// Config.OnChange. After the end of Run it returns ErrEnded.
func (p *Provider) Set(n Node) error {
	active, err := n.activeMessage()
	if err != nil {
		return err
	}
	n.Metadata = active.GetActive().GetMetadata()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left {
		return ErrEnded
	}
	k := nodeKey{n.Service, n.URI}
	e := p.nodes[k]
	switch {
	case e == nil:
		e = &nodeEntry{}
		p.nodes[k] = e
		delete(p.cleared, k)
	case e.node.equal(&n):
		return nil
	case e.status.State == Refused:
		e.status = Status{Owner: e.status.Owner}
	}
	e.late = e.late || e.awaits && e.granted
	e.node, e.active, e.status.Node = n, active, n
	e.fresh, e.granted, e.retry = true, false, 0
	wake.Up(p.wake)
	return nil
}

// Clear withdraws a node. It returns at once, and does nothing without such a node.
func (p *Provider) Clear(service, uri string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearNode(nodeKey{service, uri}, time.Now())
	wake.Up(p.wake)
}

// clearNode withdraws a node. The caller holds p.mu.
func (p *Provider) clearNode(k nodeKey, now time.Time) {
	e := p.nodes[k]
	if e == nil {
		return
	}
	delete(p.nodes, k)
	if e.changed {
		p.changed = slices.DeleteFunc(p.changed, func(other *nodeEntry) bool { return other == e })
	}
	if e.last.IsZero() {
		return
	}
	// A ttl is counted from half of one after the last Active, if not from the end of
	// the stream.
	if until := e.last.Add(e.knownTTL() + e.knownTTL()/2); until.After(now) {
		p.cleared[k] = &clearedNode{until: until}
	}
}

// beginLeaving clears all nodes, and prevents new ones.
func (p *Provider) beginLeaving() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left {
		return
	}
	p.left = true
	p.changed = nil
	now := time.Now()
	for k, e := range p.nodes {
		e.changed = false
		p.clearNode(k, now)
	}
	close(p.leaving)
}

// pruneCleared removes cleared nodes that have expired, and reports whether there are others. The
// caller holds p.mu.
func (p *Provider) pruneCleared(now time.Time) bool {
	maps.DeleteFunc(p.cleared, func(_ nodeKey, o *clearedNode) bool { return !o.until.After(now) })
	return len(p.cleared) > 0
}

// shortestTTL returns the shortest known ttl of all nodes.
func (p *Provider) shortestTTL() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	shortest := time.Duration(0)
	for _, e := range p.nodes {
		if ttl := e.knownTTL(); shortest == 0 || ttl < shortest {
			shortest = ttl
		}
	}
	return cmp.Or(shortest, usualTTL)
}

// noteChange marks the status of an entry as changed. The caller holds p.mu.
func (p *Provider) noteChange(e *nodeEntry) {
	if !e.changed {
		e.changed = true
		p.changed = append(p.changed, e)
	}
	wake.Up(p.notify)
}
