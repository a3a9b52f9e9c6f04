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

	"golang.org/x/sync/semaphore"
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

// OwnerConfig is what one federation block says of its owner, in the types of the packages that act
// on it. The agent fills in the fields that these comments do not name.
type OwnerConfig struct {
	// Name identifies the owner: federation blocks with the same name are one owner. It is never
	// empty. It is the name that the block gives, or the default; see [mtls.Consumer.OwnerName].
	Name string

	Identity     mtls.Origin           // of this consumer
	Consumer     mtls.Consumer         // who the owner must be; has no Source
	Subscription consumer.Subscription // Addresses, Version and File
	Rules        catalog.Rules         // Retention, Settle and MaxCatalog
	Policy       wire.AddressPolicy    // AllowAddresses
}

// equal reports whether two blocks configure their owner in the same way.
func (c *OwnerConfig) equal(d *OwnerConfig) bool {
	return reflect.DeepEqual(c, d) //nolint:govet // there is no error in it
}

// subscriptionFor returns the subscription to the owner, with the certificates of the source.
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
	file   string // the file to which the path of persist leads; empty without persist
}

// readOwnerFiles returns the files of an owner, or why they cannot be opened. It follows
// certificate files that cannot be used like good ones, and does not wait for a SPIFFE agent.
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
			return ownerFiles{}, fmt.Errorf("persist: %q is a file of tls and would be overwritten", path)
		}
	}
	return ownerFiles{source, file}, nil
}

// ownerClaim says that one block wants to have an owner, and how.
type ownerClaim struct {
	ownerFiles

	block        *Block
	index        int // of the owner in the block
	owner        *mirroredOwner
	config       OwnerConfig
	subscription consumer.Subscription // which a mirror accepts
}

// checkClaim returns the claim of a block to its i-th owner, or why the block cannot have that
// owner. Claims are the claims of the block so far. It changes no owner.
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
		subscription.FileLock = cmp.Or(a.fileLocks[f.file], semaphore.NewWeighted(1))
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

// sharesCertificates reports whether an owner of the configuration d can use the certificates of
// the claim. A SPIFFE agent is followed once for all owners, and over a reload. Certificate files
// are followed for each owner, which its log lines name: so they are shared with the same owner
// only, where the files cannot be used now, as found says. Then the owner goes on with the
// certificates that it has.
func (c *ownerClaim) sharesCertificates(d *OwnerConfig, found *mtls.Source) bool {
	return reflect.DeepEqual(c.config.Identity, d.Identity) &&
		(d.Identity.SPIFFE.Socket != "" || c.owner.id == d.Name && found.Missing() != nil)
}

// mirroredOwner is one owner of the process: its mirror, and the blocks that publish it. The agent
// makes it for the first claim and ends it with the last one. It keeps the last status and no
// services: those are in the mirror and in the zones.
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

	conflicting bool // whether a conflict of names was logged last; owned by Agent.watchConflicts

	// Owned by the caller of publishChanges, of which there is one at a time.
	unpacker packed.Unpacker

	log history.ServiceLog // has a lock of its own
}

// mirrorSettings are the claim and the admission with which a mirror runs.
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

// startMirror starts the goroutine of the mirror.
func (o *mirroredOwner) startMirror() {
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	go func() { // awaited by those who detach the last block that names the owner
		defer close(o.done)
		_ = o.mirror.Run(ctx) // it returns nil when ctx ends, and not before
	}()
}

// configureMirror makes the mirror follow the owner as its claims say together: the first claim
// decides on everything except the services, which are those that any of the claims publishes. Once
// a reload is over, a change ends the stream, and the next stream brings what is missing. The
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
		_ = o.mirror.Resubscribe(c.subscription, rules) // checkClaim has checked the subscription
		o.running.Store(now)
	default:
		o.mirror.Configure(rules)
	}
}

// isReloading reports whether the claims are of several configurations. The newer one may still
// fail.
func isReloading(claims []*ownerClaim) bool {
	return slices.ContainsFunc(claims, func(c *ownerClaim) bool {
		return c.block.config.Configuration != claims[0].block.config.Configuration
	})
}

// admitService returns why none of the claims publishes the service, or nil. The service is refused
// only where all claims import it: otherwise it is not imported.
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

// mirrorObserver passes the reports of a mirror on to the Observer of the agent, with the ID of the
// owner.
type mirrorObserver struct{ *mirroredOwner }

// Responded implements consumer.Observer.
func (o mirrorObserver) Responded(op wire.Operation, name string) {
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
