// Package stream keeps one owner's subscription alive: it connects, receives,
// hands every update on, and answers it.
//
// Four functions hold the whole of it. Run is the retry loop, runSession the life of one stream:
// dial, open with what is held, receive, end. renewalSchedule says when this side ends it so that
// another one takes its place, and classifyEnd is the only place where the end of a session becomes a
// decision. What the updates mean is for the Sink to know.
package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
)

const (
	firstKeepalive = 30 * time.Second // between two pings
	maxKeepalive   = 2 * time.Hour    // where doubling ends

	// readFactor times wire.MaxMessageBytes is the size up to which a message is read,
	// although it is refused. gRPC cannot skip a message that is larger than it may
	// receive, and ends the stream: without this, one service that outgrew the limit
	// would keep all others from being imported. A peer can make a consumer hold four
	// times that size: a message as it arrives and as gRPC decodes it, one that waits
	// in the inbox, and one that is applied. Of a message that is refused only its
	// nonce and the reason are kept.
	readFactor = 4
	maxRead    = readFactor * wire.MaxMessageBytes

	// firstPatience is how long a replica may send nothing while there is another one to
	// try. It doubles, up to a minute, with every round of attempts in which no replica
	// sent anything: owners that are merely slow must not be given up again and again.
	firstPatience = 5 * time.Second
)

// Config says what to subscribe to, and who learns of it.
type Config struct {
	Addresses []string // host:port of the owner's replicas, at least one; tried in turn. With Dial, whatever that takes

	// Identity is who the consumer is, and which owners it trusts.
	Identity Identity

	Version wire.APIVersion // of the API; default v1alpha2

	Sink Sink

	Logger *slog.Logger // default: nothing is logged

	// Dial opens a connection to an address; default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Identity is who a consumer is, and which owners it trusts. It is one value so that
// no part of it can be forgotten. mtls.Consumer implements it.
type Identity interface {
	// Credentials returns those for a connection to one of the addresses of Config.
	Credentials(address string) credentials.TransportCredentials

	// Changed returns a channel that is closed when the credentials have changed,
	// which is when it makes sense to try an owner again that refused us, or that
	// we refused. It never blocks. A nil channel says that they never change.
	Changed() <-chan struct{}

	// Run keeps the credentials current until ctx ends, and returns nil then. The
	// consumer calls it when it runs itself, and waits for it.
	Run(ctx context.Context) error
}

// Sink receives what the owner says. Its methods are called one at a time and
// from one goroutine; the owner waits for each of them.
type Sink interface {
	// AttemptStarted says that a connection is tried.
	AttemptStarted()

	// HeldDigests returns the digests of what the Sink holds of the catalog, so that the owner
	// need not send that again; nil where it shall send everything. It is called before
	// each attempt to open a stream.
	HeldDigests(ctx context.Context) resume.Digests

	// StreamOpened says that a new stream is open. The owner may yet refuse it.
	StreamOpened()

	// AcceptHeader gets what the owner has announced in the header of the stream. It is
	// called before the first update. An error ends the stream: an UnwantedError for a while, and
	// after any other one it is opened anew like one that was lost.
	AcceptHeader(ctx context.Context, a Announcement) error

	// ApplyUpdates takes what came since the last call, in the order in which the owner
	// sent it: one update, or as many as were waiting. It must not keep the slice. Why
	// it refuses an update it says in there; of those that are Invalid already it only
	// learns which service the owner still has. All of them are answered when ApplyUpdates returns.
	ApplyUpdates(updates []Update)

	// UpdatesAnswered says that all updates of the last ApplyUpdates have been answered: what the
	// Sink does now no longer delays an acknowledgement.
	UpdatesAnswered(updates []Update)

	// StreamLost says that the stream has ended, or that it could not be opened. It is not called
	// when the context of Run has ended.
	StreamLost(Loss)

	// AttemptScheduled says when the next attempt is; zero: when something has changed.
	AttemptScheduled(until time.Time)

	// IsComplete reports whether the catalog of the open stream is complete: before that no
	// stream takes its place but for certificates that expire.
	IsComplete() bool
}

// Loss is how a stream, or an attempt to open one, has ended.
type Loss struct {
	Err     error         // its text is safe to show
	Code    codes.Code    // OK: one of the two sides has closed the stream
	Parked  bool          // every replica has refused the consumer: no other attempt is made until the credentials change, or the time comes that they have said
	Already time.Duration // for how long the origin of the services has been lost, as the owner says
}

// Announcement is what an owner says of a stream at its beginning.
type Announcement struct {
	// Marked says that it will mark the end of its catalog: silence is not the end.
	Marked bool

	// Resumed says that the owner does not send all of its catalog: of what HeldDigests has
	// told, it sends only the buckets in Whole, and the end marker. Of them it sends
	// everything: what is not sent is gone. It is false without Marked.
	Resumed bool
	Whole   resume.BucketSelection

	// Path is through which owners the services come; empty where that is not known, and
	// where what the owner says of it cannot be read: PathErr is why.
	Path    wire.OwnerPath
	PathErr error
}

// Update is one response of the owner.
type Update struct {
	federation.Event // of an invalid response only the name, if that is known

	Received time.Time                // when the response was whole, before it was decoded
	Invalid  *federation.InvalidError // why the response is refused; or nil

	nonce string
	room  int // in the inbox
}

// Consumer is the subscription to one owner.
type Consumer struct {
	// read-only after New
	config Config
	hurry  chan struct{} // has room for one value: somebody wants an attempt now
	renew  chan struct{} // has room for one value: somebody wants another stream

	inbox atomic.Pointer[inbox] // of the open stream; nil without one

	// owned by Run
	keepalive     time.Duration
	replicas      []*replica // the one that was of use last is the first
	connectionLog connectionLog
	whole         map[string]time.Time // until when an address is asked for the whole catalog
	expiry        time.Time            // when the first certificate of the last stream expires; zero where none does
}

// New checks the configuration and fills in its defaults. Its errors name the
// field.
func New(config Config) (*Consumer, error) {
	if len(config.Addresses) == 0 {
		return nil, errors.New("no address of the owner")
	}
	for _, address := range config.Addresses {
		if _, _, err := net.SplitHostPort(address); err != nil && config.Dial == nil {
			return nil, fmt.Errorf("address %q of the owner is not host:port: %w", address, err)
		}
	}
	if config.Identity == nil {
		return nil, errors.New("no identity: there is no unsecured mode")
	}
	if config.Sink == nil {
		return nil, errors.New("no sink for the events")
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Dial == nil {
		config.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	c := &Consumer{
		config: config, hurry: make(chan struct{}, 1), renew: make(chan struct{}, 1), keepalive: firstKeepalive,
		connectionLog: newConnectionLog(config.Logger), whole: make(map[string]time.Time),
	}
	for _, address := range config.Addresses {
		c.replicas = append(c.replicas, &replica{address: address, patience: firstPatience})
	}
	return c, nil
}

// Run keeps the subscription until ctx ends, and returns nil then, a second later
// at most. An open stream is closed first, so that the owner sees its end, and not
// that it was cut off. It must be called only once.
func (c *Consumer) Run(ctx context.Context) error {
	var identity sync.WaitGroup
	defer identity.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	identity.Go(func() {
		if err := c.config.Identity.Run(ctx); err != nil {
			c.config.Logger.Error("credentials are no longer updated", "error", err)
		}
	})

	changed := c.config.Identity.Changed()
	for {
		c.tryReplicas(ctx)
		if ctx.Err() != nil {
			return nil
		}
		select {
		case <-c.hurry: // the attempts that have just been made are those that were wanted
		default:
		}
		// New credentials end the parking, or a long delay after which they may
		// help. They shorten no other: many consumers may see the same change.
		var again <-chan time.Time
		fixed := changed
		next, ok := c.nextAttempt()
		if ok {
			again = time.NewTimer(time.Until(next)).C
		}
		c.config.Sink.AttemptScheduled(next)
		if !slices.ContainsFunc(c.replicas, func(r *replica) bool { return r.fixable }) {
			fixed = nil
		}
		select {
		case <-again:
		case <-fixed:
		case <-c.hurry:
			for _, r := range c.replicas {
				r.hurryAttempt()
			}
		case <-ctx.Done():
			return nil
		}
		select {
		case <-changed: // it was taken before the attempts, so a change during one of them counts
			changed = c.config.Identity.Changed()
			for _, r := range c.replicas {
				r.retryFixable()
			}
		default:
		}
	}
}

// RenewStream ends the open stream once the catalog is complete, and opens another one at once: it
// brings what is accepted now and was not before. Without a stream RenewStream does nothing.
func (c *Consumer) RenewStream() {
	select {
	case c.renew <- struct{}{}:
	default: // somebody has said so already
	}
}

// RetryNow makes attempts due now, whatever they wait for, or a second after the last ones
// have ended. While there is a stream it does nothing.
func (c *Consumer) RetryNow() {
	select {
	case c.hurry <- struct{}{}:
	default: // somebody has said so already
	}
}

// HasPending reports whether responses have come that Sink.ApplyUpdates has not returned for.
func (c *Consumer) HasPending() bool {
	in := c.inbox.Load()
	return in != nil && in.pending.Load() > 0
}

// tryReplicas holds a session with each replica that is due, in turn, until one of them was of
// use.
func (c *Consumer) tryReplicas(ctx context.Context) {
	for _, r := range slices.Clone(c.replicas) {
		if r.final || time.Until(r.nextAttempt()) > 0 {
			continue
		}
		r.parked = false
		patience := forever
		if c.countUnparked() > 1 {
			patience = r.patience
		}
		out := c.runSessions(ctx, r.address, patience)
		if ctx.Err() != nil {
			return
		}
		ending := classifyEnd(out.err)
		loss := Loss{Err: ending, Code: ending.code, Already: out.lost}
		if ending.verdict == calm && c.keepalive < maxKeepalive {
			// No fault of the owner, so no reason to let it wait for us.
			c.keepalive = min(2*c.keepalive, maxKeepalive)
			c.connectionLog.logCalmed(r.address, c.keepalive)
			c.config.Sink.StreamLost(loss)
			c.preferReplica(r, minDelay)
			return
		}
		useful := out.heard && ending.verdict != slow
		if useful {
			for _, other := range c.replicas {
				other.resetBackoff()
			}
		}
		delay := r.noteEnd(ending)
		loss.Parked = !slices.ContainsFunc(c.replicas, func(r *replica) bool { return !r.parked })
		c.connectionLog.logEnd(r.address, ending, loss.Parked)
		c.config.Sink.StreamLost(loss)
		if useful {
			c.preferReplica(r, delay)
			return
		}
	}
}

// runSessions holds sessions with the owner at the address until one ends that this side does not
// want to be followed by another one at once.
func (c *Consumer) runSessions(ctx context.Context, address string, patience time.Duration) sessionOutcome {
	heard := false
	for {
		c.config.Sink.AttemptStarted()
		out := c.runSession(ctx, address, patience)
		if heard = heard || out.heard; ctx.Err() != nil || !errors.Is(out.err, errRenewed) {
			out.heard = heard
			return out
		}
		c.connectionLog.logger.Debug("stream is ended, another one takes its place", "address", address)
		c.config.Sink.StreamLost(Loss{Err: errRenewed})
	}
}

// countUnparked returns how many replicas are not parked, or may be tried now all the same.
func (c *Consumer) countUnparked() (n int) {
	for _, r := range c.replicas {
		if !r.parked || !r.final && time.Until(r.nextAttempt()) <= 0 {
			n++
		}
	}
	return n
}

// nextAttempt returns when the next attempt is due; false: when something has changed.
func (c *Consumer) nextAttempt() (at time.Time, ok bool) {
	for _, r := range c.replicas {
		if !r.final && (!ok || r.nextAttempt().Before(at)) {
			at, ok = r.nextAttempt(), true
		}
	}
	return at, ok
}

// preferReplica makes a replica the first of those that are due, and none is due before the
// delay is over.
func (c *Consumer) preferReplica(r *replica, delay time.Duration) {
	first := slices.Index(c.replicas, r)
	c.replicas = slices.Concat(c.replicas[first:], c.replicas[:first])
	soonest := time.Now().Add(delay)
	for _, other := range c.replicas {
		if other.due.Before(soonest) {
			other.due = soonest
		}
	}
}

// forever is the patience with an owner when there is no other one to try.
const forever = time.Duration(math.MaxInt64)
