package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/history"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/stream"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// OwnerConfig is what one federation block says of the connection to its owner.
type OwnerConfig struct {
	Name           string          // of the owner, as ID returns it; empty for the default
	Addresses      []string        // host:port; replicas of one owner
	Identity       mtls.Origin     // of this consumer
	ServerName     string          // empty: the host of each address
	IDs            []federation.ID // empty: the server name
	Version        wire.Version
	Retention      time.Duration
	Settle         time.Duration
	Persist        string // path; empty is none
	MaxCatalog     int64  // octets, as catalog.Size counts them
	AllowAddresses []netip.Prefix
}

// ID is the name of the owner, which makes two federation blocks one owner: the one that it
// is given, or the default; see [mtls.Consumer.OwnerName].
func (c *OwnerConfig) ID() string { return cmp.Or(c.Name, c.consumer(nil).OwnerName(c.Addresses)) }

// consumer returns the identity towards the owner with the certificates of the source.
func (c *OwnerConfig) consumer(source *mtls.Source) mtls.Consumer {
	return mtls.Consumer{Source: source, ServerName: c.ServerName, IDs: c.IDs}
}

// sameSubscription reports whether the subscription of one of them does for the
// other: they differ in nothing but the rules of the catalog.
func (c *OwnerConfig) sameSubscription(d *OwnerConfig) bool {
	x, y := *c, *d
	x.Retention, x.Settle, x.MaxCatalog, x.AllowAddresses = y.Retention, y.Settle, y.MaxCatalog, y.AllowAddresses
	return x.agrees(&y)
}

// agrees reports whether two blocks that name one owner can have one of them each.
func (c *OwnerConfig) agrees(d *OwnerConfig) bool {
	x, y := *c, *d
	x.Name = y.Name // it may be the default in one of them
	return reflect.DeepEqual(x, y)
}

// subscription returns how the owner is subscribed to with the certificates of the
// source.
func (a *Agent) subscription(c *OwnerConfig, source *mtls.Source) consumer.Subscription {
	var identity stream.Identity = c.consumer(source)
	if a.config.Follow != nil {
		identity = followed{identity, func(ctx context.Context) error { return a.config.Follow(ctx, source) }}
	}
	return consumer.Subscription{
		Addresses: c.Addresses,
		Identity:  identity,
		Version:   c.Version,
		Dial:      a.config.Dial,
		File:      c.Persist,
	}
}

// followed is an identity that Config.Follow keeps current.
type followed struct {
	stream.Identity
	follow func(ctx context.Context) error
}

func (f followed) Run(ctx context.Context) error { return f.follow(ctx) }

// found is what the disk has for an owner.
type found struct {
	source *mtls.Source
	file   string // that Persist leads to, whatever its path; empty is none
}

// find reads the files of an owner. Those that cannot be used are followed like good ones, and
// a SPIFFE agent is not waited for.
func (a *Agent) find(c *OwnerConfig) (found, error) {
	logger := a.config.Logger
	if c.Identity.SPIFFE.Socket == "" {
		logger = logger.With("owner", c.ID())
	}
	source, err := mtls.Open(c.Identity, logger)
	if err != nil {
		return found{}, err
	}
	if c.Persist == "" {
		return found{source: source}, nil
	}
	file, err := consumer.CheckFile(context.Background(), a.config.Store, c.Persist)
	if err != nil {
		return found{}, fmt.Errorf("persist: %w", err)
	}
	for _, other := range []string{c.Identity.Files.Cert, c.Identity.Files.Key, c.Identity.Files.CA} {
		if resolved, err := filepath.EvalSymlinks(other); err == nil && resolved == file || err != nil && filepath.Clean(other) == filepath.Clean(c.Persist) {
			return found{}, fmt.Errorf("persist: %q is a file of tls and would be written over", c.Persist)
		}
	}
	return found{source, file}, nil
}

// claim is the wish of one block to have an owner.
type claim struct {
	found

	block        *Block
	index        int // of the owner in the block
	owner        *owner
	config       OwnerConfig
	subscription consumer.Subscription // that a mirror takes
}

// claim checks what a block wants of its i-th owner. Claims are those of the block
// so far. It changes no owner.
func (a *Agent) claim(b *Block, i int, f found, claims []*claim) (*claim, error) {
	c := &b.config.Owners[i]
	o := a.owners[c.ID()]
	for _, other := range a.owners {
		claims = slices.Concat(claims, other.claims)
	}
	for _, other := range claims {
		if other.shares(c, f.source) {
			f.source = other.source
		}
		if other.block.config.Configuration != b.config.Configuration {
			continue
		}
		if other.owner.id != c.ID() {
			if f.file != "" && f.file == other.file {
				return nil, fmt.Errorf("persist: %q is the file of owner %s", c.Persist, other.owner.id)
			}
			continue
		}
		if !other.config.agrees(c) {
			return nil, errors.New("is named by two blocks with different properties; only zones, ttl, " +
				"negative_ttl, rename, import_names, fallthrough and how names are shared may differ, as it is one stream; " +
				"if they mean two owners, give one of them another name")
		}
		o = other.owner
	}
	subscription := a.subscription(c, f.source)
	if f.file != "" {
		subscription.FileLock = cmp.Or(a.fileLocks[f.file], new(consumer.FileLock))
		a.fileLocks[f.file] = subscription.FileLock
	}
	if err := subscription.Validate(); err != nil {
		return nil, err
	}
	if o == nil {
		var err error
		if o, err = a.newOwner(c, subscription); err != nil {
			return nil, err
		}
	}
	return &claim{found: f, block: b, index: i, owner: o, config: *c, subscription: subscription}, nil
}

// shares reports whether an owner can have the certificates of the claim. Those from a
// SPIFFE agent are one for all, so that the agent is followed once, and a reload goes on
// with what is held. Certificate files are followed for each owner, and logged so: only where
// they cannot be used now, as found says, the owner goes on with what it holds of them.
func (c *claim) shares(d *OwnerConfig, found *mtls.Source) bool {
	return reflect.DeepEqual(c.config.Identity, d.Identity) &&
		(d.Identity.SPIFFE.Socket != "" || c.owner.id == d.ID() && found.Missing() != nil)
}

// owner is one owner of the process: its mirror, and the blocks that publish it.
type owner struct {
	// Read-only after newOwner.
	agent  *Agent
	id     string
	mirror *consumer.Mirror
	grace  time.Time

	// Guarded by Agent.lifecycle.
	claims  []*claim      // in the order of attachment
	inForce *claim        // the first of them, when it was looked at last
	cancel  func()        // ends the mirror; nil before it runs
	done    chan struct{} // closed when the mirror has ended

	// Guarded by Agent.writing.
	status   catalog.Summary // the last one that came from the mirror
	restored bool            // from its file, and no catalog has been complete since

	// Atomic.
	members   atomic.Pointer[[]*member] // stored by the writer; the list is never written
	conflicts atomic.Pointer[map[zone.Fault]int]
	running   atomic.Pointer[claim] // whose subscription the mirror has; nil before it runs
	retention atomic.Int64          // of the catalog, a time.Duration

	conflicting bool // whether the log has it that others have names of the owner; owned by Agent.warn

	// Owned by who calls publish, one at a time.
	unpacker packed.Unpacker

	log history.Log // has a lock of its own
}

// newOwner returns an owner that nobody claims yet.
func (a *Agent) newOwner(c *OwnerConfig, s consumer.Subscription) (*owner, error) {
	o := &owner{agent: a, id: c.ID(), grace: time.Now().Add(grace), done: make(chan struct{})}
	o.members.Store(new([]*member))
	o.conflicts.Store(new(map[zone.Fault]int))
	var err error
	o.mirror, err = consumer.New(consumer.Config{
		Subscription: s,
		Name:         o.id,
		FormerNames:  c.consumer(nil).FormerNames(c.Addresses),
		Publish:      o.publish,
		Prepare:      o.compile,
		Pause:        a.config.Pause(),
		Observer:     observer{o},
		Logger:       a.config.Logger,
		Clock:        a.config.Clock,
		Store:        a.config.Store,
	})
	return o, err
}

// start runs the mirror.
func (o *owner) start() {
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	go func() { // awaited by those who detach the last block that names the owner
		defer close(o.done)
		_ = o.mirror.Run(ctx) // it returns nil when ctx ends, and not before
	}()
}

// subscribe makes the mirror run with the subscription of the first claim. It is
// subscribed anew when that differs from the one before, or when the owner is
// parked: a reload is a reason to try it again. The catalog stays.
func (o *owner) subscribe() {
	c := o.claims[0]
	before := o.inForce
	changed := before != c
	o.inForce = c
	switch running := o.running.Load(); {
	case running == nil:
		o.start()
		o.running.Store(c)
	case changed && (!running.config.sameSubscription(&c.config) || o.mirror.Status().Parked):
		_ = o.mirror.Resubscribe(c.subscription) // it was validated
		o.running.Store(c)
	case changed && o.mirror.Status().Addresses > 0 && slices.ContainsFunc(c.config.AllowAddresses, func(p netip.Prefix) bool {
		return !slices.Contains(before.config.AllowAddresses, p)
	}):
		o.mirror.Renew() // what had another address is not kept
	}
	for _, other := range o.claims {
		if other.block.config.Configuration != c.block.config.Configuration {
			return // a reload is under way
		}
	}
	o.renew()
}

// configure applies what the claims say together: the first one decides how long
// services live, how many there may be and at which addresses, and a service that any
// of them publishes is imported and admitted.
func (o *owner) configure() {
	c := &o.claims[0].config
	claims := slices.Clone(o.claims)
	policy := wire.Policy{AllowAddresses: c.AllowAddresses}
	var admits []string
	for _, other := range claims {
		admits = append(admits, other.block.config.admits(other.index))
	}
	slices.Sort(admits)
	o.retention.Store(int64(c.Retention))
	o.mirror.Configure(catalog.Rules{
		Retention: cmp.Or(c.Retention, catalog.Forever), Settle: c.Settle, MaxCatalog: c.MaxCatalog,
		Admit:  func(s *federation.Service) *federation.InvalidError { return admit(claims, policy, s) },
		Admits: strings.Join(slices.Compact(admits), " "),
	})
}

// admit returns why none of the claims publishes the service, or nil. It is refused
// only where all of them import it.
func admit(claims []*claim, policy wire.Policy, s *federation.Service) *federation.InvalidError {
	var first *federation.InvalidError
	unwanted := false
	for _, c := range claims {
		switch _, imported, invalid := c.block.config.Zone.Judge(c.index, s.FQDN); {
		case !imported:
			unwanted = true
		case invalid == nil:
			return policy.Check(s)
		case first == nil:
			first = invalid
		}
	}
	if unwanted {
		return catalog.ErrNotImported
	}
	return first
}

// observer passes on what the mirror of an owner reports.
type observer struct{ *owner }

// Responded implements consumer.Observer.
func (o observer) Responded(op federation.Operation, name string) {
	o.log.Responded(op, name, o.agent.now())
	o.agent.config.Observer.Responded(o.id, op)
}

// Refused implements consumer.Observer.
func (o observer) Refused(reason *federation.InvalidError) {
	o.log.Refused(reason, o.agent.now())
	o.agent.config.Observer.Refused(o.id, reason.Reason)
}

// Ended implements consumer.Observer.
func (o observer) Ended(code codes.Code) { o.agent.config.Observer.Ended(o.id, code.String()) }

// Published implements consumer.Observer.
func (o observer) Published(d time.Duration) { o.agent.config.Observer.Visible(d) }

// FileFailed implements consumer.Observer.
func (o observer) FileFailed() { o.agent.config.Observer.PersistFailed(o.id) }
