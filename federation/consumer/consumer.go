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
	"net"
	"slices"
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
)

// Config says what to subscribe to, and who learns of it.
type Config struct {
	Addresses []string // host:port of the owner's replicas, at least one; tried in turn

	// Credentials returns those for a connection to one of the addresses.
	Credentials func(address string) credentials.TransportCredentials

	// Rearm returns a channel that is closed when it makes sense again to try an
	// owner that refused us, or that we refused: when the certificate files have
	// changed. Without it a parked consumer stays parked.
	Rearm func() <-chan struct{}

	Version    wire.Version // of the API; default v1alpha2
	Policy     wire.Policy
	Keepalive  time.Duration // interval of HTTP/2 pings, at least 10 s; default 60 s
	MaxMessage int           // bytes of one message; default 16 MiB

	Sink     Sink
	Observer Observer     // default: nobody
	Logger   *slog.Logger // default: nothing is logged

	// Dial opens a connection to an address; default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Sink receives what the owner says. Its methods are called one at a time and
// from one goroutine; the owner waits for each of them.
type Sink interface {
	// Opened says that a new stream is open. The owner may yet refuse it. An
	// error ends the stream.
	Opened(ctx context.Context) error

	// Marked says, before the first update, that the owner announced to mark the
	// end of its catalog, so that silence is none. An error ends the stream.
	Marked(ctx context.Context) error

	// Apply takes what came since the last call, in the order in which the owner
	// sent it: one update, or as many as were waiting. It sets the Refusal of those
	// that it does not take. An update that has one already was refused before it
	// came here; it tells only which service the owner still has. All are answered
	// when Apply returns nil; an error ends the stream. The updates are the Sink's
	// until it returns.
	Apply(ctx context.Context, updates []Update) error

	// Lost says that the stream has ended, or the attempt to open it. The text
	// of err is safe to show. Parked means that no other attempt is made until
	// Rearm. It is not called when the context of Run has ended.
	Lost(ctx context.Context, err error, parked bool)
}

// Update is one response of the owner.
type Update struct {
	federation.Event // where the response was refused no more than the name, as far as it is known

	Received time.Time
	Refusal  *federation.InvalidError // why it is refused; nil: it is acknowledged

	nonce  string
	marked bool // on a stream whose header announced the end of the catalog
	room   int  // in the inbox
}

// Observer counts. Its methods must return at once.
type Observer interface {
	Attempted()                     // a connection is tried
	Responded(federation.Operation) // an event was applied
	Refused(federation.Reason)      // a response was refused
	Ended(codes.Code)               // a session ended with this code; OK: the owner closed it
}

// Consumer is the subscription to one owner.
type Consumer struct {
	// read-only after New
	config Config

	// owned by Run
	keepalive time.Duration
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
	if config.Credentials == nil {
		return nil, errors.New("no credentials: there is no unsecured mode")
	}
	if config.Sink == nil {
		return nil, errors.New("no sink for the events")
	}
	if config.Rearm == nil {
		config.Rearm = func() <-chan struct{} { return nil }
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
	if config.Observer == nil {
		config.Observer = nobody{}
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Dial == nil {
		config.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	config.Addresses = slices.Clone(config.Addresses)
	return &Consumer{config: config, keepalive: config.Keepalive, journal: newJournal(config.Logger)}, nil
}

// Run keeps the subscription until ctx ends, and returns nil then. It must be
// called only once.
func (c *Consumer) Run(ctx context.Context) error {
	var wait backoff
	rearm, armed := c.config.Rearm(), c.config.Addresses
	for {
		var delay time.Duration
		armed, delay = c.round(ctx, armed, &wait)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is the end of the work
		}
		// A change ends the parking and shortens no delay: many consumers may see
		// the same one.
		var again <-chan time.Time
		changed := rearm
		if len(armed) > 0 {
			again, changed = time.NewTimer(delay).C, nil
		}
		select {
		case <-again:
		case <-changed:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-rearm: // it was taken before the attempts, so a change during one of them counts
			rearm, armed = c.config.Rearm(), c.config.Addresses
		default:
		}
	}
}

// round holds a session with each of the armed addresses in turn, until one of
// them was of use. It returns those still armed, the useful one first, and the
// delay before the next round.
func (c *Consumer) round(ctx context.Context, armed []string, wait *backoff) ([]string, time.Duration) {
	armed = slices.Clone(armed)
	for i := 0; i < len(armed); {
		address := armed[i]
		c.config.Observer.Attempted()
		heard, err := c.session(ctx, address)
		if ctx.Err() != nil {
			return armed, 0
		}
		end := classify(err)
		c.config.Observer.Ended(end.code)
		if end.verdict == calm && c.keepalive < maxKeepalive {
			// No fault of the owner, so no reason to let it wait for us.
			c.keepalive = min(2*c.keepalive, maxKeepalive)
			c.journal.calmed(address, c.keepalive)
			c.config.Sink.Lost(ctx, end, false)
			return rotate(armed, i), minDelay
		}
		c.journal.ended(address, end)
		if end.verdict == park {
			armed = slices.Delete(armed, i, i+1)
		}
		c.config.Sink.Lost(ctx, end, len(armed) == 0)
		switch {
		// Not after a message that is too large: the next stream comes to it
		// again, and to the whole catalog before it.
		case heard && end.code != codes.ResourceExhausted:
			wait.reset()
			return rotate(armed, i), wait.next()
		case end.verdict != park:
			i++
		}
	}
	return armed, wait.next()
}

// rotate returns s with its element i first.
func rotate(s []string, i int) []string { return slices.Concat(s[i:], s[:i]) }

type nobody struct{}

func (nobody) Attempted()                     {}
func (nobody) Responded(federation.Operation) {}
func (nobody) Refused(federation.Reason)      {}
func (nobody) Ended(codes.Code)               {}
