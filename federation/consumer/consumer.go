// Package consumer follows the catalog of one owner: [Follow] is a call, [Config] and [Follower] are
// for who wants more than that. An [Event] has each [Change] of a service, and the [Status] of the copy.
//
// What the owner sends is shown, and then acknowledged. So an owner that sends faster than a program can
// take waits, and never learns that something was taken which was not.
//
// When the stream is lost, the next one is opened with pauses that grow, and brings only what has changed
// meanwhile, if the owner can do that. What was shown stays for [Config.Retention], and is gone after that.
package consumer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Forever is a retention without limit.
const Forever = catalog.Forever

// Config says which owner to follow, and how. Addresses, Identity and Show are needed.
type Config struct {
	Addresses []string      // host:port of the owner's replicas, which are tried in turn
	Identity  mtls.Consumer // who this program is, and who the owner has to be

	// Show gets one event after the other, from several goroutines, but one at a time. What the
	// owner has sent is acknowledged when Show returns, so Show must not wait for the owner.
	Show func(Event)

	// Retention is how long services stay when the stream that announced them is lost, counted
	// from the loss. The default is 24 h, the least 1 s.
	Retention time.Duration

	// Name is what the owner is called in the log, and in File, of which the catalog is not used under
	// another name; default: the addresses.
	Name string

	// File is a path where the catalog is kept for the next start of the program, so that an owner
	// that is down then does not matter. Without one, nothing is kept.
	File string

	Logger   *slog.Logger // gets each change of state; default: nothing is logged
	Advanced Advanced
}

// Advanced is what few programs set.
type Advanced struct {
	Draft bool // the owner speaks only v1alpha1, the draft of 2019

	// Settle is the silence after which the catalog of an owner that does not mark its end counts as
	// complete; default: 5 s.
	Settle time.Duration

	// MaxCatalog is how many octets the services may have; default: 1 GiB. What is beyond that is refused.
	MaxCatalog int64

	// AllowAddresses opens ranges of endpoint addresses that are refused by default, because they lead
	// back into the machine or the link that asks: loopback, link-local, multicast and their like.
	AllowAddresses []netip.Prefix

	// Dial opens a connection to host:port; default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Event is what has happened since the one before.
type Event struct {
	Changes []Change // in order: of several for one name the last one holds
	Status  Status
}

// Change is what has happened to a service.
type Change struct {
	Name    string              // the owner's name of the service
	Service *federation.Service // what is offered now; nil: the service is gone
	Reason  string              // why it is gone: "withdrawn", "absent" from a complete catalog, "expired" with the retention
}

// State says what the copy of a catalog is worth.
type State string

// The states.
const (
	Connecting State = "connecting" // no stream has been open yet
	Syncing    State = "syncing"    // a stream is open, and has not brought the whole catalog
	Synced     State = "synced"     // the copy is what the owner has, or was until 5 s ago
	Stale      State = "stale"      // the stream is lost, and the retention runs
	Expired    State = "expired"    // the retention is over, and the services are gone
	Parked     State = "parked"     // the owner does not let this consumer in; the next attempt is within minutes
)

// Status is a copy of a catalog at a glance. Times are zero where there is none.
type Status struct {
	State    State
	Since    time.Time // when the State began
	Services int       // that were shown, and are not gone
	Stale    int       // those of them that no open stream vouches for
	Refused  int       // that the owner offers, and that are not valid or not allowed
	Complete bool      // a whole catalog was there once: a name that was not shown does not exist
	Lost     time.Time // when the stream was lost that was synced last
	Expires  time.Time // when the services of a lost stream are gone
	Failure  error     // why there is no stream; the text is safe to show
	Next     time.Time // when the next stream is tried
	FileErr  error     // why File could not be read or cannot be written; the text is safe to show
}

// Follower follows an owner. Its methods are safe for concurrent use.
type Follower struct{ mirror *consumer.Mirror }

// Follow shows what the owner at an address, host:port, offers, until ctx ends: first its whole catalog, then each
// change. It returns nil then, and an error at once if the address cannot be one.
func Follow(ctx context.Context, address string, identity mtls.Consumer, show func(Event)) error {
	f, err := New(Config{Addresses: []string{address}, Identity: identity, Show: show})
	if err != nil {
		return err
	}
	return f.Run(ctx)
}

// New returns a follower that has not begun yet. Its errors name the field that is wrong.
func New(c Config) (*Follower, error) {
	if c.Show == nil {
		return nil, errors.New("the configuration has no Show, which gets the events")
	}
	if c.Retention != 0 && c.Retention != Forever && c.Retention < time.Second {
		return nil, errors.New("the Retention " + c.Retention.String() + " is neither 1 s or more, nor Forever, nor 0 for 24 h")
	}
	version := wire.V1Alpha2
	if c.Advanced.Draft {
		version = wire.V1Alpha1
	}
	mirror, err := consumer.New(consumer.Config{
		Subscription: consumer.Subscription{Addresses: c.Addresses, Identity: c.Identity, Version: version, Dial: c.Advanced.Dial, File: c.File},
		Rules: catalog.Rules{
			Retention: c.Retention, Settle: c.Advanced.Settle, MaxCatalog: cmp.Or(c.Advanced.MaxCatalog, 1<<30),
			Admit: wire.AddressPolicy{AllowAddresses: c.Advanced.AllowAddresses}.Check,
		},
		Name: c.Name, Logger: c.Logger,
		Publish: func(changes consumer.Changes) { c.Show(newEvent(changes)) },
	})
	if err != nil {
		return nil, err
	}
	return &Follower{mirror}, nil
}

// Run follows the owner until ctx ends, and then returns nil: when the stream is closed and the file written, which
// takes a few seconds at most. Run is called once.
func (f *Follower) Run(ctx context.Context) error { return f.mirror.Run(ctx) }

// Status returns how the copy is now.
func (f *Follower) Status() Status { return newStatus(f.mirror.Status()) }

func newEvent(c consumer.Changes) Event {
	e := Event{Status: newStatus(c.Status)}
	for i := range c.Services {
		switch change := &c.Services[i]; change.Kind() {
		case catalog.Offered:
			e.Changes = append(e.Changes, Change{Name: change.Name, Service: change.Packed.Unpack()})
		case catalog.Gone:
			e.Changes = append(e.Changes, Change{Name: change.Name, Reason: change.Cause.String()})
		case catalog.Confirmed: // the service is as it was shown
		}
	}
	return e
}

func newStatus(s consumer.Status) Status {
	return Status{
		State: State(s.StateName()), Since: s.Since, Services: s.Services, Stale: s.Stale, Refused: s.Refused, Complete: s.Known,
		Lost: s.Lost, Expires: s.Expires, Failure: s.Failure, Next: s.NextAttempt, FileErr: cmp.Or(s.Unsaved, s.Damage),
	}
}
