// Package consumer keeps one owner's subscription alive: it connects, receives,
// hands every update on, and answers it.
//
// Three functions hold the whole of it. Run is the retry loop, session the life
// of one stream, and classify the only place where the end of a session becomes
// a decision. What the updates mean is for the Sink to know.
package consumer

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
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

const (
	defaultKeepalive  = 60 * time.Second
	minKeepalive      = 10 * time.Second // gRPC's own floor for the pings of a client
	maxKeepalive      = 2 * time.Hour    // where doubling ends
	defaultMaxMessage = 16 << 20

	// readFactor times Config.MaxMessage is the size up to which a message is read,
	// although it is refused. gRPC cannot skip a message that is larger than it may
	// receive, and ends the stream: without this, one service that outgrew the limit
	// would keep all others from being imported. A peer can make a consumer hold four
	// times that size: a message as it arrives and as gRPC decodes it, one that waits
	// in the inbox, and one that is applied. Of a message that is refused only its
	// nonce and the reason are kept.
	readFactor = 4
)

// MaxPatience bounds Config.Patience.
const MaxPatience = 10 * time.Second

// Config says what to subscribe to, and who learns of it.
type Config struct {
	Addresses []string // host:port of the owner's replicas, at least one; tried in turn

	// Identity is who the consumer is, and which owners it trusts.
	Identity Identity

	Version    wire.Version // of the API; default v1alpha2
	Policy     wire.Policy
	Keepalive  time.Duration // interval of HTTP/2 pings, at least 10 s; default 60 s
	MaxMessage int           // bytes of one message, of which four times as many are read; default 16 MiB

	// Patience is how long a replica may send nothing while there is another one to
	// try; default, and at most, 10 s. It doubles, up to a minute, with every round
	// of attempts in which no replica sent anything: owners that are merely slow must
	// not be given up again and again.
	Patience time.Duration

	Sink     Sink
	Observer Observer     // default: nobody
	Logger   *slog.Logger // default: nothing is logged

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
	// Opened says that a new stream is open. The owner may yet refuse it. An
	// error ends the stream.
	Opened(ctx context.Context) error

	// Marked says that the owner has announced an end marker: silence is not the end
	// of its catalog. It is called before the first update. An error ends the stream.
	Marked(ctx context.Context) error

	// Apply takes what came since the last call, in the order in which the owner
	// sent it: one update, or as many as were waiting. It must not change or keep
	// the slice. It returns why it refuses updates, index by index, or nil when it
	// refuses none; of updates that are Invalid already it only learns which
	// service the owner still has. All of them are answered when Apply returns
	// without an error; an error ends the stream.
	Apply(ctx context.Context, updates []Update) (refusals []*federation.InvalidError, err error)

	// Answered says that all updates of the last Apply have been answered: what the
	// Sink does now no longer delays an acknowledgement.
	Answered(ctx context.Context)

	// Lost says that the stream has ended, or that it could not be opened. The text
	// of err is safe to show. Parked means that no other attempt is made until the
	// credentials change. Lost is called neither when the context of Run has ended
	// nor for a stream that ends because of Renew.
	Lost(ctx context.Context, err error, parked bool)
}

// Update is one response of the owner.
type Update struct {
	federation.Event // of an invalid response only the name, if that is known

	Received time.Time
	Invalid  *federation.InvalidError // why the response is refused, whatever the Sink says; or nil

	nonce string
	room  int // in the inbox
}

// Observer counts. Its methods must return at once.
type Observer interface {
	Attempted()                       // a connection is tried
	Responded(federation.Operation)   // an event was applied
	Refused(*federation.InvalidError) // a response was refused
	Ended(codes.Code)                 // a session ended with this code; OK: the owner closed it
}

// Consumer is the subscription to one owner.
type Consumer struct {
	// read-only after New
	config Config
	direct bool // connections are dialed by TCP, without anybody between

	// atomic
	pending atomic.Int64                            // responses that came and are not applied yet
	current atomic.Pointer[context.CancelCauseFunc] // ends the session; nil before the first

	// owned by Run
	keepalive time.Duration
	patience  time.Duration
	journal   journal
}

// New checks the configuration and fills in its defaults. Its errors name the
// field.
func New(config Config) (*Consumer, error) {
	if len(config.Addresses) == 0 {
		return nil, errors.New("no address of the owner")
	}
	for _, address := range config.Addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("address %q of the owner is not host:port: %w", address, err)
		}
	}
	if config.Identity == nil {
		return nil, errors.New("no identity: there is no unsecured mode")
	}
	if config.Sink == nil {
		return nil, errors.New("no sink for the events")
	}
	if config.Keepalive == 0 {
		config.Keepalive = defaultKeepalive
	}
	if config.Keepalive < minKeepalive {
		return nil, fmt.Errorf("keepalive %v is shorter than %v", config.Keepalive, minKeepalive)
	}
	if config.MaxMessage == 0 {
		config.MaxMessage = defaultMaxMessage
	}
	if config.MaxMessage < 0 {
		return nil, fmt.Errorf("max_message %d is negative", config.MaxMessage)
	}
	config.Policy.MaxMessage = config.MaxMessage
	if config.Patience == 0 {
		config.Patience = MaxPatience
	}
	if config.Patience < 0 || config.Patience > MaxPatience {
		return nil, fmt.Errorf("patience %v is not a duration up to %v", config.Patience, MaxPatience)
	}
	if config.Observer == nil {
		config.Observer = nobody{}
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	direct := config.Dial == nil
	if direct {
		config.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	config.Addresses = slices.Clone(config.Addresses)
	return &Consumer{
		config: config, direct: direct, keepalive: config.Keepalive, patience: config.Patience, journal: newJournal(config.Logger),
	}, nil
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
			c.config.Logger.Error("credentials are not kept current", "error", err)
		}
	})

	var wait backoff
	changed, armed := c.config.Identity.Changed(), c.config.Addresses
	for {
		var delay time.Duration
		var fixable bool
		armed, delay, fixable = c.round(ctx, armed, &wait)
		if ctx.Err() != nil {
			return nil
		}
		// New credentials end the parking, or a long delay after which they may
		// help. They shorten no other: many consumers may see the same change.
		var again <-chan time.Time
		fixed := changed
		if len(armed) > 0 {
			again = time.NewTimer(delay).C
		}
		if !fixable {
			fixed = nil
		}
		select {
		case <-again:
		case <-fixed:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-changed: // it was taken before the attempts, so a change during one of them counts
			changed, armed = c.config.Identity.Changed(), c.config.Addresses
		default:
		}
	}
}

// Renew ends the stream and opens a new one at once, which brings the whole
// catalog. It is no loss of the owner, and the Sink learns of it only by Opened.
// Without a stream it does nothing.
func (c *Consumer) Renew() {
	if end := c.current.Load(); end != nil {
		(*end)(errRenewed)
	}
}

// Pending reports whether responses have come that Sink.Apply has not returned for.
func (c *Consumer) Pending() bool { return c.pending.Load() > 0 }

// round holds a session with each of the armed addresses in turn, until one of
// them was of use. It returns those still armed, the useful one first, the delay
// before the next round, and whether nothing but new credentials may help.
func (c *Consumer) round(ctx context.Context, armed []string, wait *backoff) (next []string, delay time.Duration, fixable bool) {
	armed = slices.Clone(armed)
	limit, silent := maxSlowDelay, false
	for i := 0; i < len(armed); {
		address := armed[i]
		patience := forever
		if len(armed) > 1 {
			patience = c.patience
		}
		c.config.Observer.Attempted()
		sessionCtx, end := context.WithCancelCause(ctx)
		c.current.Store(&end)
		heard, err := c.session(sessionCtx, address, patience)
		renewed := errors.Is(context.Cause(sessionCtx), errRenewed)
		end(nil)
		if ctx.Err() != nil {
			return armed, 0, false
		}
		if renewed {
			return rotate(armed, i), 0, false
		}
		ending := classify(err)
		c.config.Observer.Ended(ending.code)
		if ending.verdict == calm && c.keepalive < maxKeepalive {
			// No fault of the owner, so no reason to let it wait for us.
			c.keepalive = min(2*c.keepalive, maxKeepalive)
			c.journal.calmed(address, c.keepalive)
			c.config.Sink.Lost(ctx, ending, false)
			return rotate(armed, i), minDelay, false
		}
		if ending.verdict == park {
			armed = slices.Delete(armed, i, i+1)
		} else {
			i++
		}
		parked := len(armed) == 0
		c.journal.ended(address, ending, parked)
		c.config.Sink.Lost(ctx, ending, parked)
		switch {
		case heard && ending.verdict != slow:
			c.patience = c.config.Patience
			wait.reset()
			first := max(slices.Index(armed, address), 0)
			return rotate(armed, first), wait.next(maxDelay), parked
		case ending.verdict == retry, ending.verdict == calm:
			limit = maxDelay // for the sake of this one
		}
		silent = silent || errors.Is(ending, errSilent)
	}
	if silent {
		c.patience = min(2*c.patience, maxDelay)
	}
	return armed, wait.next(limit), limit == maxSlowDelay
}

// errRenewed ends a session for the sake of a new one.
var errRenewed = errors.New("the subscription is renewed")

// forever is the patience with an owner when there is no other one to try.
const forever = time.Duration(math.MaxInt64)

// rotate returns s with its element i first.
func rotate(s []string, i int) []string { return slices.Concat(s[i:], s[:i]) }

type nobody struct{}

func (nobody) Attempted()                       {}
func (nobody) Responded(federation.Operation)   {}
func (nobody) Refused(*federation.InvalidError) {}
func (nobody) Ended(codes.Code)                 {}
