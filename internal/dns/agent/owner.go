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

// newMember returns the i-th owner of a block as that block wants to have it, or why the block cannot
// have the owner. Members are those of the block so far. It changes no owner.
func (a *Agent) newMember(b *Block, i int, f ownerFiles, members []*publishingBlock) (*publishingBlock, error) {
	c := &b.config.Owners[i]
	m := &publishingBlock{block: b, index: i, owner: a.findOwner(c.Name), admissionKey: b.config.admissionKey(i)}
	for _, other := range *a.owners.Load() {
		members = slices.Concat(members, *other.members.Load())
	}
	for _, other := range members {
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
		if !c.equal(other.config()) {
			return nil, errors.New("is named by two blocks with different properties; only zones, ttl, " +
				"negative_ttl, rename, import_names, fallthrough and how names are shared may differ, as it is one stream; " +
				"if they mean two owners, give one of them another name")
		}
		m.owner = other.owner
	}
	m.ownerFiles, m.subscription = f, a.subscriptionFor(c, f.source)
	if f.file != "" {
		m.subscription.FileLock = cmp.Or(a.fileLocks[f.file], semaphore.NewWeighted(1))
		a.fileLocks[f.file] = m.subscription.FileLock
	}
	if m.owner == nil {
		var err error
		if m.owner, err = a.newOwner(c, m.subscription); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// sharesCertificates reports whether an owner of the configuration d can use the certificates of
// the member. A SPIFFE agent is followed once for all owners, and over a reload. Certificate files
// are followed for each owner, which its log lines name: so they are shared with the same owner
// only, where the files cannot be used now, as found says. Then the owner goes on with the
// certificates that it has.
func (m *publishingBlock) sharesCertificates(d *OwnerConfig, found *mtls.Source) bool {
	return reflect.DeepEqual(m.config().Identity, d.Identity) &&
		(d.Identity.SPIFFE.Socket != "" || m.owner.id == d.Name && found.Missing() != nil)
}

// mirroredOwner is one owner of the process: its mirror, and the blocks that publish it. The agent
// makes it for the first of these blocks and ends it with the last one. It keeps the last status and no
// services: those are in the mirror and in the zones.
type mirroredOwner struct {
	// Read-only after newOwner.
	agent  *Agent
	id     string
	mirror *consumer.Mirror
	grace  time.Time

	// Guarded by Agent.lifecycle.
	cancel func()        // ends the mirror; nil before it runs
	done   chan struct{} // closed when the mirror has ended

	// Guarded by Agent.writing.
	status catalog.Summary // the last one that came from the mirror

	// Atomic.
	members atomic.Pointer[[]*publishingBlock] // in the order of attachment; stored under Agent.lifecycle and writing, and the list is never written
	running atomic.Pointer[mirrorSettings]     // what the mirror runs with; nil before it runs

	// Guarded by Agent.logging.
	conflicts   int  // how many there were
	conflicting bool // whether a conflict of names was logged last

	// Owned by the caller of publishChanges, of which there is one at a time.
	unpacker packed.Unpacker

	log history.ServiceLog // has a lock of its own
}

// mirrorSettings are the member and the admission with which a mirror runs.
type mirrorSettings struct {
	*publishingBlock

	admits string // as catalog.Rules.Admits
}

// newOwner returns an owner that no block publishes yet.
func (a *Agent) newOwner(c *OwnerConfig, s consumer.Subscription) (*mirroredOwner, error) {
	o := &mirroredOwner{agent: a, id: c.Name, grace: time.Now().Add(grace), done: make(chan struct{})}
	o.members.Store(new([]*publishingBlock))
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

// configureMirror makes the mirror follow the owner as its blocks say together: the first of them
// decides on everything except the services, which are those that any of them publishes. Once
// a reload is over, a change ends the stream, and the next stream brings what is missing. The
// catalog stays. A parked owner is tried again.
func (o *mirroredOwner) configureMirror() {
	members := *o.members.Load()
	c := members[0].config()
	var admits []string
	for _, m := range members {
		admits = append(admits, m.admissionKey)
	}
	slices.Sort(admits)
	rules := c.Rules
	rules.Admit = func(s *federation.Service) *federation.InvalidError { return admitService(members, c.Policy, s) }
	rules.Shares = func(fqdn federation.FQDN) bool {
		return slices.ContainsFunc(members, func(m *publishingBlock) bool { return m.block.config.Zone.SharesName(m.index, fqdn) })
	}
	rules.Admits = strings.Join(slices.Compact(admits), " ")

	before := o.running.Load()
	switch now := (&mirrorSettings{members[0], rules.Admits}); {
	case before == nil:
		o.mirror.Configure(rules)
		o.running.Store(now)
		o.startMirror()
	case !isReloading(members) && (before.admits != now.admits || !c.equal(before.config()) || before.publishingBlock != members[0] && o.mirror.Status().Parked):
		_ = o.mirror.Resubscribe(now.subscription, rules) // newMember has checked the subscription
		o.running.Store(now)
	default:
		o.mirror.Configure(rules)
	}
}

// isReloading reports whether the members are of several configurations. The newer one may still
// fail.
func isReloading(members []*publishingBlock) bool {
	return slices.ContainsFunc(members, func(m *publishingBlock) bool {
		return m.block.config.Configuration != members[0].block.config.Configuration
	})
}

// admitService returns why none of the members publishes the service, or nil. The service is refused
// only where all of them import it: otherwise it is not imported.
func admitService(members []*publishingBlock, policy wire.AddressPolicy, s *federation.Service) *federation.InvalidError {
	var first *federation.InvalidError
	unwanted := false
	for _, m := range members {
		switch _, imported, invalid := m.block.config.Zone.JudgeFQDN(m.index, s.FQDN); {
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
