// Package stream keeps one owner's subscription alive. A [Consumer] connects to the owner and
// receives; it passes each [Update] to a [Sink], and answers the update when the Sink has applied it.
//
// Four parts are the whole package. Run is the retry loop. runSession is the life of one stream: it
// dials, opens the stream with the digests of what the Sink holds, receives, and ends the stream.
// renewalSchedule says when this side replaces the stream by another one, and classifyEnd alone decides
// what follows the end of a session. What the updates mean is for the Sink to know.
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
	"github.com/hamlet-federation/coredns-federation/internal/wake"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
)

const (
	firstKeepalive = 30 * time.Second // between two pings
	maxKeepalive   = 2 * time.Hour    // where doubling ends

	// readFactor times wire.MaxMessageBytes is the size up to which a message is read
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

// Config says what to subscribe to, and which Sink gets the updates.
type Config struct {
	Addresses []string // host:port of the owner's replicas, at least one; tried in turn. With Dial, whatever that takes

	// Identity is who the consumer is, and which owners it trusts.
	Identity Identity

	Version wire.APIVersion // of the API; default v1alpha2

	Sink Sink

	// Await returns when updates may be answered that the Sink has applied, or when the stream has
	// ended or ctx is over. It may be nil: they are answered at once.
	Await func(ctx context.Context, ended <-chan struct{})

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

	// HeldDigests returns the digests of what the Sink holds of the catalog, so that the owner need
	// not send that again, or nil to ask for everything. It is called before each attempt to open a
	// stream.
	HeldDigests(ctx context.Context) resume.Digests

	// StreamOpened says that a new stream is open. The owner may yet refuse it.
	StreamOpened()

	// AcceptHeader gets what the owner has announced in the header of the stream. It is called
	// before the first update. An error ends the stream. After an UnwantedError no stream is opened
	// for a while, and after any other error a stream is opened as after a loss.
	AcceptHeader(ctx context.Context, a Announcement) error

	// ApplyUpdates applies what came since the last call, in the order in which the owner sent it:
	// one update, or as many as were waiting. It must not keep the slice. It sets Invalid of each
	// update that it refuses. Of an update that is Invalid already it learns only that the owner
	// still has the service. All updates are answered when ApplyUpdates returns.
	ApplyUpdates(updates []Update)

	// UpdatesAnswered says that all updates of the last ApplyUpdates have been answered, so that
	// the work of the Sink no longer delays an acknowledgement.
	UpdatesAnswered(updates []Update)

	// StreamLost says that the stream has ended, or that it could not be opened. It is not called
	// when the context of Run has ended.
	StreamLost(Loss)

	// AttemptScheduled says when the next attempt is; zero: when something has changed.
	AttemptScheduled(until time.Time)

	// IsComplete reports whether the catalog of the open stream is complete. Before that, only a
	// certificate that expires has another stream replace the open one.
	IsComplete() bool
}

// Loss says how a stream, or an attempt to open one, has ended.
type Loss struct {
	Err     error         // its text is safe to show
	Code    codes.Code    // OK: one of the two sides has closed the stream
	Parked  bool          // every replica has refused the consumer: no other attempt is made until the credentials change, or the time comes that they have said
	Already time.Duration // for how long the origin of the services has been lost, as the owner says
}

// Announcement is what an owner announces in the header of a stream.
type Announcement struct {
	// Marked says that it will mark the end of its catalog: silence is not the end.
	Marked bool

	// Resumed says that the owner sends only a part of its catalog: the buckets in Whole, and the
	// end marker. Of these buckets it sends every service, so that a service of them that does not
	// come is gone. Services of the other buckets are as HeldDigests has told them. Resumed is
	// false without Marked.
	Resumed bool
	Whole   resume.BucketSelection

	// Path names the owners through which the services come. It is empty where the owner does not
	// say, and where the header cannot be read: PathErr is why.
	Path    wire.OwnerPath
	PathErr error
}

// Update is one response of the owner.
type Update struct {
	wire.Event // of an invalid response only the name, if that is known

	Received time.Time                // when the response was whole, before it was decoded
	Invalid  *federation.InvalidError // why the response is refused; or nil

	nonce string
	room  int64 // in the inbox
}

// Consumer is the subscription to one owner. It keeps the replicas with their backoff, and the
// inbox of the open stream; everything else of a stream lives in a conversation and ends with it.
// Only the goroutine of Run changes these fields. RetryNow and RenewStream leave one value in a
// channel, so that many calls are one request and no caller waits.
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
	expiry        time.Time            // when the first certificate of the last stream expires; zero: none does
}

// New returns a Consumer with the defaults of the configuration filled in, or an error that names a
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
	if config.Await == nil {
		config.Await = func(context.Context, <-chan struct{}) {}
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

// Run keeps the subscription until ctx ends, and then returns nil, a second later at most. Run
// closes an open stream first, so that the owner sees an orderly end. Run must be called only once.
func (c *Consumer) Run(ctx context.Context) error {
	var identity sync.WaitGroup
	defer identity.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	identity.Go(func() {
		if err := c.config.Identity.Run(ctx); err != nil {
			c.connectionLog.logger.Error("credentials are no longer updated", "error", err)
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
		case <-changed: // the channel is from before the attempts, so a change during one of them counts
			changed = c.config.Identity.Changed()
			for _, r := range c.replicas {
				r.retryFixable()
			}
		default:
		}
	}
}

// RenewStream ends the open stream once the catalog is complete, and opens another one at once,
// which brings services that are accepted now and were not before. Without a stream RenewStream
// does nothing.
func (c *Consumer) RenewStream() { wake.Up(c.renew) }

// RetryNow makes attempts due now, whatever they wait for, or a second after the last attempts have
// ended. While there is a stream RetryNow does nothing.
func (c *Consumer) RetryNow() { wake.Up(c.hurry) }

// HasPending reports whether there are responses for which Sink.ApplyUpdates has not returned yet.
func (c *Consumer) HasPending() bool {
	in := c.inbox.Load()
	return in != nil && in.pending.Load() > 0
}

// tryReplicas runs sessions with each replica that is due, in turn, until one of them was of use.
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

// runSessions runs sessions with the owner at the address, one after the other while this side
// renews its stream, and returns how the last one ended.
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

// nextAttempt returns when the next attempt is due, and false when none is before something
// changes.
func (c *Consumer) nextAttempt() (at time.Time, ok bool) {
	for _, r := range c.replicas {
		if !r.final && (!ok || r.nextAttempt().Before(at)) {
			at, ok = r.nextAttempt(), true
		}
	}
	return at, ok
}

// preferReplica makes r the first of the replicas, so that it is tried before the others. No
// replica is due before the delay is over.
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
