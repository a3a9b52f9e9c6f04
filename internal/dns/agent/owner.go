package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/status/history"
	"github.com/hamlet-federation/coredns-federation/internal/stream"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// OwnerConfig is what one federation block says of its owner, in the words of those that act on it.
// What it leaves out of them is the agent's to fill in.
type OwnerConfig struct {
	// Name makes two federation blocks one owner. There always is one: the one that the owner is
	// given, or the default; see [mtls.Consumer.OwnerName].
	Name string

	Identity     mtls.Origin           // of this consumer
	Consumer     mtls.Consumer         // who the owner must be; has no Source
	Subscription consumer.Subscription // Addresses, Version and File
	Rules        catalog.Rules         // Retention, Settle and MaxCatalog
	Policy       wire.AddressPolicy    // AllowAddresses
}

// equal reports whether two blocks say the same of their owner.
func (c *OwnerConfig) equal(d *OwnerConfig) bool {
	return reflect.DeepEqual(c, d) //nolint:govet // there is no error in it
}

// subscriptionFor returns how the owner is subscribed to with the certificates of the
// source.
func (a *Agent) subscriptionFor(c *OwnerConfig, source *mtls.Source) consumer.Subscription {
	s, identity := c.Subscription, c.Consumer
	identity.Source = source
	s.Dial, s.Identity = a.config.Dial, identity
	if a.config.Follow != nil {
		s.Identity = followedIdentity{identity, func(ctx context.Context) error { return a.config.Follow(ctx, source) }}
	}
	return s
}

// followedIdentity is an identity that Config.Follow keeps current.
type followedIdentity struct {
	stream.Identity
	follow func(ctx context.Context) error
}

func (f followedIdentity) Run(ctx context.Context) error { return f.follow(ctx) }

// ownerFiles is what the disk has for an owner.
type ownerFiles struct {
	source *mtls.Source
	file   string // that the one of persist leads to, whatever its path; empty is none
}

// readOwnerFiles reads the files of an owner. Those that cannot be used are followed like good ones, and
// a SPIFFE agent is not waited for.
func (a *Agent) readOwnerFiles(c *OwnerConfig) (ownerFiles, error) {
	logger := a.config.Logger
	if c.Identity.SPIFFE.Socket == "" {
		logger = logger.With("owner", c.Name)
	}
	source, err := mtls.Open(c.Identity, logger)
	if err != nil {
		return ownerFiles{}, err
	}
	path := c.Subscription.File
	if path == "" {
		return ownerFiles{source: source}, nil
	}
	file, err := consumer.CheckFile(context.Background(), a.config.Store, path)
	if err != nil {
		return ownerFiles{}, fmt.Errorf("persist: %w", err)
	}
	for _, other := range []string{c.Identity.Files.Cert, c.Identity.Files.Key, c.Identity.Files.CA} {
		if resolved, err := filepath.EvalSymlinks(other); err == nil && resolved == file || err != nil && filepath.Clean(other) == filepath.Clean(path) {
			return ownerFiles{}, fmt.Errorf("persist: %q is a file of tls and would be written over", path)
		}
	}
	return ownerFiles{source, file}, nil
}

// ownerClaim is the wish of one block to have an owner.
type ownerClaim struct {
	ownerFiles

	block        *Block
	index        int // of the owner in the block
	owner        *mirroredOwner
	config       OwnerConfig
	subscription consumer.Subscription // that a mirror takes
}

// checkClaim checks what a block wants of its i-th owner. Claims are those of the block
// so far. It changes no owner.
func (a *Agent) checkClaim(b *Block, i int, f ownerFiles, claims []*ownerClaim) (*ownerClaim, error) {
	c := &b.config.Owners[i]
	o := a.owners[c.Name]
	for _, other := range a.owners {
		claims = slices.Concat(claims, other.claims)
	}
	for _, other := range claims {
		if other.sharesCertificates(c, f.source) {
			f.source = other.source
		}
		if other.block.config.Configuration != b.config.Configuration {
			continue
		}
		if other.owner.id != c.Name {
			if f.file != "" && f.file == other.file {
				return nil, fmt.Errorf("persist: %q is the file of owner %s", c.Subscription.File, other.owner.id)
			}
			continue
		}
		if !c.equal(&other.config) {
			return nil, errors.New("is named by two blocks with different properties; only zones, ttl, " +
				"negative_ttl, rename, import_names, fallthrough and how names are shared may differ, as it is one stream; " +
				"if they mean two owners, give one of them another name")
		}
		o = other.owner
	}
	subscription := a.subscriptionFor(c, f.source)
	if f.file != "" {
		subscription.FileLock = cmp.Or(a.fileLocks[f.file], new(consumer.FileLock))
		a.fileLocks[f.file] = subscription.FileLock
	}
	if o == nil {
		var err error
		if o, err = a.newOwner(c, subscription); err != nil {
			return nil, err
		}
	}
	return &ownerClaim{ownerFiles: f, block: b, index: i, owner: o, config: *c, subscription: subscription}, nil
}

// sharesCertificates reports whether an owner can have the certificates of the claim. Those from a
// SPIFFE agent are one for all, so that the agent is followed once, and a reload goes on
// with what is held. Certificate files are followed for each owner, and logged so: only where
// they cannot be used now, as found says, the owner goes on with what it holds of them.
func (c *ownerClaim) sharesCertificates(d *OwnerConfig, found *mtls.Source) bool {
	return reflect.DeepEqual(c.config.Identity, d.Identity) &&
		(d.Identity.SPIFFE.Socket != "" || c.owner.id == d.Name && found.Missing() != nil)
}

// mirroredOwner is one owner of the process: its mirror, and the blocks that publish it.
type mirroredOwner struct {
	// Read-only after newOwner.
	agent  *Agent
	id     string
	mirror *consumer.Mirror
	grace  time.Time

	// Guarded by Agent.lifecycle.
	claims []*ownerClaim // in the order of attachment
	cancel func()        // ends the mirror; nil before it runs
	done   chan struct{} // closed when the mirror has ended

	// Guarded by Agent.writing.
	status catalog.Summary // the last one that came from the mirror

	// Atomic.
	members   atomic.Pointer[[]*publishingBlock] // stored by the writer; the list is never written
	conflicts atomic.Pointer[map[zone.Fault]int]
	running   atomic.Pointer[mirrorSettings] // what the mirror runs with; nil before it runs

	conflicting bool // whether the log has it that others have names of the owner; owned by Agent.watchConflicts

	// Owned by who calls publishChanges, one at a time.
	unpacker packed.Unpacker

	log history.ServiceLog // has a lock of its own
}

// mirrorSettings is what a mirror runs with.
type mirrorSettings struct {
	*ownerClaim

	admissionKey string // as catalog.Rules.Admits
}

// newOwner returns an owner that nobody claims yet.
func (a *Agent) newOwner(c *OwnerConfig, s consumer.Subscription) (*mirroredOwner, error) {
	o := &mirroredOwner{agent: a, id: c.Name, grace: time.Now().Add(grace), done: make(chan struct{})}
	o.members.Store(new([]*publishingBlock))
	o.conflicts.Store(new(map[zone.Fault]int))
	var err error
	o.mirror, err = consumer.New(consumer.Config{
		Subscription: s,
		Name:         o.id,
		Publish:      o.publishChanges,
		Pause:        a.config.Pause(),
		Observer:     mirrorObserver{o},
		Logger:       a.config.Logger,
		Clock:        a.config.Clock,
		Store:        a.config.Store,
	})
	return o, err
}

// startMirror runs the mirror.
func (o *mirroredOwner) startMirror() {
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	go func() { // awaited by those who detach the last block that names the owner
		defer close(o.done)
		_ = o.mirror.Run(ctx) // it returns nil when ctx ends, and not before
	}()
}

// configureMirror has the mirror follow the owner as its claims say together: the first one decides on
// everything but which services are imported and admitted, which are those that any of them publishes.
// Once a reload is over, whatever it has changed ends the stream: the next one brings what is missing. The
// catalog stays. A parked owner is tried again.
func (o *mirroredOwner) configureMirror() {
	claims := slices.Clone(o.claims)
	c := claims[0]
	var admits []string
	for _, of := range claims {
		admits = append(admits, of.block.config.admissionKey(of.index))
	}
	slices.Sort(admits)
	rules := c.config.Rules
	rules.Admit = func(s *federation.Service) *federation.InvalidError { return admitService(claims, c.config.Policy, s) }
	rules.Shares = func(fqdn federation.FQDN) bool {
		return slices.ContainsFunc(claims, func(of *ownerClaim) bool { return of.block.config.Zone.SharesName(of.index, fqdn) })
	}
	rules.Admits = strings.Join(slices.Compact(admits), " ")

	before := o.running.Load()
	switch now := (&mirrorSettings{c, rules.Admits}); {
	case before == nil:
		o.mirror.Configure(rules)
		o.running.Store(now)
		o.startMirror()
	case !isReloading(claims) && (before.admissionKey != now.admissionKey || !c.config.equal(&before.config) || before.ownerClaim != c && o.mirror.Status().Parked):
		_ = o.mirror.Resubscribe(c.subscription, rules) // as the one before it, it has all that it takes
		o.running.Store(now)
	default:
		o.mirror.Configure(rules)
	}
}

// isReloading reports whether the claims are of several configurations, of which one may still fail.
func isReloading(claims []*ownerClaim) bool {
	return slices.ContainsFunc(claims, func(c *ownerClaim) bool {
		return c.block.config.Configuration != claims[0].block.config.Configuration
	})
}

// admitService returns why none of the claims publishes the service, or nil. It is refused
// only where all of them import it.
func admitService(claims []*ownerClaim, policy wire.AddressPolicy, s *federation.Service) *federation.InvalidError {
	var first *federation.InvalidError
	unwanted := false
	for _, c := range claims {
		switch _, imported, invalid := c.block.config.Zone.JudgeFQDN(c.index, s.FQDN); {
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

// mirrorObserver passes on what the mirror of an owner reports.
type mirrorObserver struct{ *mirroredOwner }

// Responded implements consumer.Observer.
func (o mirrorObserver) Responded(op federation.Operation, name string) {
	o.log.NoteResponse(op, name, o.agent.now())
	o.agent.config.Observer.Responded(o.id, op)
}

// Refused implements consumer.Observer.
func (o mirrorObserver) Refused(reason *federation.InvalidError) {
	o.log.NoteRefusal(reason, o.agent.now())
	o.agent.config.Observer.Refused(o.id, reason.Reason)
}

// Ended implements consumer.Observer.
func (o mirrorObserver) Ended(code codes.Code) { o.agent.config.Observer.Ended(o.id, code.String()) }

// Published implements consumer.Observer.
func (o mirrorObserver) Published(d time.Duration) { o.agent.config.Observer.Visible(d) }

// FileFailed implements consumer.Observer.
func (o mirrorObserver) FileFailed() { o.agent.config.Observer.PersistFailed(o.id) }
