package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/zone"
)

// OwnerConfig is what one federation block says of the connection to its owner.
type OwnerConfig struct {
	Addresses      []string // host:port; replicas of one owner
	Files          mtls.Files
	ServerName     string    // empty: the host of each address
	IDs            []mtls.ID // empty: the server name
	Version        wire.Version
	Retention      time.Duration
	Settle         time.Duration
	Keepalive      time.Duration
	Persist        string // path; empty is none
	MaxServices    int
	MaxCatalog     int64 // octets, as catalog.Size counts them
	MaxMessage     int   // octets
	AllowAddresses []netip.Prefix
}

// ID is how the owner is shown: its addresses, and the server name if there is
// one. Behind one address, different server names are different owners.
func (c *OwnerConfig) ID() string {
	id := strings.Join(c.Addresses, ",")
	if c.ServerName != "" {
		id += "/" + c.ServerName
	}
	return id
}

// key is what makes two federation blocks one owner.
func (c *OwnerConfig) key() string {
	return fmt.Sprintf("%q %q %q", c.Addresses, c.ServerName, c.IDs)
}

// sameStream tells whether a consumer of one of them does for the other: they
// differ in nothing but how long the catalog lives, how large it may be and which
// addresses are in it.
func (c *OwnerConfig) sameStream(d *OwnerConfig) bool {
	x, y := *c, *d
	x.Settle, x.MaxServices, x.MaxCatalog, x.AllowAddresses = y.Settle, y.MaxServices, y.MaxCatalog, y.AllowAddresses
	if x.Persist == "" { // how often the file is written depends on the retention
		x.Retention = y.Retention
	}
	return reflect.DeepEqual(x, y)
}

// found is what the disk has for an owner.
type found struct {
	source *mtls.Source
	file   string // that Persist leads to, whatever its path; empty is none
}

// find reads and checks the files of an owner.
func (a *Agent) find(c *OwnerConfig) (found, error) {
	source, err := mtls.Load(c.Files, a.config.Logger.With("owner", c.ID()))
	if err != nil || c.Persist == "" {
		return found{source: source}, err
	}
	checked, ok := within(context.Background(), checkPatience, nil, func() checked {
		file, err := a.config.Store.Check(c.Persist)
		return checked{file, err}
	})
	switch {
	case !ok:
		return found{}, fmt.Errorf("persist: no answer from the disk of %q within %v", c.Persist, checkPatience)
	case checked.err != nil:
		return found{}, fmt.Errorf("persist: %w", checked.err)
	}
	for _, file := range []string{c.Files.Cert, c.Files.Key, c.Files.CA} {
		if resolved, err := filepath.EvalSymlinks(file); err == nil && resolved == checked.file {
			return found{}, fmt.Errorf("persist: %q is a file of tls and would be written over", c.Persist)
		}
	}
	return found{source, checked.file}, nil
}

// claim is the wish of one block to have an owner.
type claim struct {
	found

	block        *Block
	owner        *owner
	config       OwnerConfig
	subscription consumer.Config // which consumer.New takes
}

// claim checks what a block wants of an owner. Claims are those of the block
// so far. It changes nothing.
func (a *Agent) claim(b *Block, c *OwnerConfig, f found, claims []*claim) (*claim, error) {
	o := a.owners[c.key()]
	for _, other := range a.owners {
		claims = slices.Concat(claims, other.claims)
	}
	for _, other := range claims {
		if other.block.config.Configuration != b.config.Configuration {
			continue
		}
		if other.owner.id != c.ID() {
			if f.file != "" && f.file == other.file {
				return nil, fmt.Errorf("persist: %q is the file of owner %s", c.Persist, other.owner.id)
			}
			continue
		}
		if !reflect.DeepEqual(other.config, *c) {
			return nil, errors.New("is named by two blocks with different properties; only zones, ttl, " +
				"negative_ttl, rename and fallthrough may differ, as it is one stream")
		}
		o = other.owner
	}
	if o == nil {
		o = newOwner(a, c)
	}
	subscription := consumer.Config{
		Addresses: c.Addresses,
		Credentials: func(address string) credentials.TransportCredentials {
			host, _, _ := net.SplitHostPort(address) // consumer.New checks it
			return f.source.Client(cmp.Or(c.ServerName, host), c.IDs)
		},
		Rearm:      f.source.Changed,
		Patience:   min(max(c.Settle, time.Second), consumer.MaxPatience),
		Version:    c.Version,
		Policy:     wire.AnyAddress(), // admit judges the addresses
		Keepalive:  c.Keepalive,
		MaxMessage: c.MaxMessage,
		Sink:       o,
		Observer:   counts{o},
		Logger:     a.config.Logger.With("owner", o.id),
		Dial:       a.config.Dial,
	}
	if _, err := consumer.New(subscription); err != nil {
		return nil, err
	}
	return &claim{found: f, block: b, owner: o, config: *c, subscription: subscription}, nil
}

// owner is one owner of the process: its consumer, its catalog, and the blocks
// that publish it.
type owner struct {
	// Read-only after newOwner.
	agent *Agent
	key   string
	id    string
	grace time.Time

	// Guarded by Agent.lifecycle.
	claims  []*claim // in the order of attachment
	inForce *claim   // the first of them
	running *claim   // what the consumer runs with; nil when it does not
	leave   func()   // makes the consumer end
	stop    func()   // ends the consumer and waits for it
	kept    *keeper  // the last one that has ended, or nil

	// Owned by the writer.
	catalog *catalog.Catalog
	ahead   time.Duration // of the owner's time before the wall-clock, see now
	members []member
	failure string        // why there is no stream; "" while there is one
	told    catalog.State // the last one that was logged
	renewal renewal
	ready   prepared // for what the catalog was given since the last flush

	// Atomic.
	session atomic.Pointer[context.CancelFunc] // ends the subscription for a new one
	parked  atomic.Bool
	targets atomic.Pointer[[]member] // members, for prepare
	status  atomic.Pointer[OwnerStatus]
	shown   atomic.Pointer[claim]  // running, for those who wait for nobody
	keeper  atomic.Pointer[keeper] // nil without a file to keep the catalog in
	attempt atomic.Int64           // time of the last attempt, in nanoseconds; 0 before the first
}

// member is a block that publishes an owner, which is its index-th.
type member struct {
	block *Block
	index int
	unfetched
}

func (m *member) config() OwnerConfig { return m.block.config.Owners[m.index] }

// OwnerStatus is an owner at a glance.
type OwnerStatus struct {
	ID string
	catalog.Status
	Parked      bool
	Failure     string // why the last stream ended, or could not be opened; "" while one is open
	Conflicts   map[zone.Fault]int
	LastAttempt time.Time // zero: none yet
	Files       mtls.Files
	CertExpiry  time.Time
	CAExpiry    time.Time
}

// Remaining is how long stale records are kept from now on; 0 when they are
// gone or kept without limit.
func (s *OwnerStatus) Remaining(now time.Time) time.Duration {
	if s.Expires.IsZero() {
		return 0
	}
	return max(s.Expires.Add(-time.Second).Sub(now), 0)
}

// StateName is the state in one word.
func (s *OwnerStatus) StateName() string {
	if s.Parked {
		return "parked"
	}
	return s.State.String()
}

func newOwner(a *Agent, c *OwnerConfig) *owner {
	o := &owner{agent: a, key: c.key(), id: c.ID(), grace: time.Now().Add(grace)}
	o.catalog = catalog.New(catalog.Config{})
	o.setMembers(nil)
	o.status.Store(&OwnerStatus{ID: o.id})
	return o
}

// settle makes the consumer run with the first claim, and restarts it when that
// differs from what it runs with, or when the owner is parked: a reload is a
// reason to try it again. The catalog stays.
func (o *owner) settle() {
	c := o.claims[0]
	changed := o.inForce != c
	o.inForce = c
	if changed && (o.running == nil || !o.running.config.sameStream(&c.config) || o.parked.Load()) {
		o.halt()
		o.start(c)
	}
	for _, other := range o.claims {
		if other.block.config.Configuration != c.block.config.Configuration {
			return // a reload is under way
		}
	}
	_ = o.agent.do(func(time.Time) error { o.reconsider(); return nil })
}

// start runs the consumer, and the keeper of the catalog. The catalog is
// restored before the owner can say anything of it, unless the disk hangs.
func (o *owner) start(c *claim) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = o.agent.config.Follow(ctx, c.source) })
	if c.config.Persist == "" {
		wg.Go(func() { o.subscribe(ctx, c.subscription) })
	} else {
		k := newKeeper(o, c.config, o.kept)
		o.keeper.Store(k)
		wg.Go(func() {
			k.load(ctx)
			go k.run(ctx) // awaited by those who call last
			o.subscribe(ctx, c.subscription)
		})
	}
	o.running, o.leave = c, cancel
	o.shown.Store(c)
	o.stop = func() {
		cancel()
		wg.Wait()
	}
}

// halt ends the consumer. What it brought is stale from now on, and about to be
// saved.
func (o *owner) halt() {
	if o.running == nil {
		return
	}
	o.stop()
	o.running, o.leave, o.stop = nil, nil, nil
	o.shown.Store(nil)
	_ = o.agent.do(func(now time.Time) error {
		o.parked.Store(false)
		o.failure = ""
		o.catalog.Lost(o.time(now))
		return nil
	})
	if k := o.keeper.Swap(nil); k != nil {
		k.end()
		o.kept = k
		o.agent.saving = append(o.agent.saving, k)
	}
}

// configure applies what the blocks say together: the first that names the
// owner decides how long records live, how many there may be and at which
// addresses, and a name that any of them publishes is admitted.
func (o *owner) configure(now time.Time) {
	c := o.members[0].config()
	o.catalog.SetConfig(catalog.Config{
		Retention: c.Retention, Settle: c.Settle, MaxServices: c.MaxServices, MaxCatalog: c.MaxCatalog, Admit: o.admit,
	}, o.time(now))
}

func (o *owner) admit(s *federation.Service) *federation.InvalidError {
	var invalid *federation.InvalidError
	for _, m := range o.members {
		_, err := m.block.config.Zone.Admit(m.index, s.FQDN)
		if err == nil {
			return o.policy().Check(s)
		}
		if invalid == nil {
			invalid = err
		}
	}
	return invalid
}

// policy says which addresses the owner may publish.
func (o *owner) policy() wire.Policy {
	return wire.Policy{AllowAddresses: o.members[0].config().AllowAddresses}
}

// fill puts the whole catalog into the builder of a block.
func (o *owner) fill(m member, ready prepared) {
	for s, generation := range o.catalog.All() {
		ready.put(m, s, generation)
	}
}

// catalogStatus is the status of the catalog by the wall-clock.
func (o *owner) catalogStatus() catalog.Status {
	s := o.catalog.Status()
	s.Expires, s.Soonest, s.Lost, s.LastSync = o.wall(s.Expires), o.wall(s.Soonest), o.wall(s.Lost), o.wall(s.LastSync)
	return s
}

func (o *owner) zoneStatus() zone.Status {
	s := o.catalogStatus()
	lost := s.State != catalog.Synced && !s.Lost.IsZero()
	return zone.Status{Live: s.Live, Expires: s.Expires, Soonest: s.Soonest, Known: s.Known, Lost: lost, Grace: o.grace}
}

// tell tells the blocks where the owner stands.
func (o *owner) tell() {
	status := o.zoneStatus()
	for i := range o.members {
		m, own := &o.members[i], status
		own.Known = own.Known && !m.is(o.catalog.Status().State)
		m.block.builder.SetStatus(m.index, own)
	}
}

// flush carries the changes of the catalog into the zones.
func (o *owner) flush() {
	changes := o.catalog.Changes()
	if k := o.keeper.Load(); k != nil && len(changes) > 0 {
		k.changed()
	}
	for _, change := range changes {
		for _, m := range o.members {
			if change.Service == nil {
				m.block.builder.Remove(m.index, change.Name)
			} else {
				o.ready.put(m, change.Service, change.Generation)
			}
		}
	}
	o.ready = nil
	o.tell()
}

// Opened implements consumer.Sink.
func (o *owner) Opened(context.Context) error {
	return o.agent.do(func(now time.Time) error {
		o.parked.Store(false)
		o.failure = ""
		o.fetching()
		o.catalog.Opened(o.time(now))
		return nil
	})
}

// Apply implements consumer.Sink.
func (o *owner) Apply(_ context.Context, updates []consumer.Update) error {
	ready := o.prepare(accepted(updates))
	return o.agent.do(func(now time.Time) error {
		o.ready = ready
		for i := range updates {
			u := &updates[i]
			if u.Refusal != nil {
				o.catalog.Refused(u.Name, u.ID, o.time(now))
				continue
			}
			err := o.catalog.Apply(u.Event, o.time(now))
			if err != nil && !errors.As(err, &u.Refusal) {
				return err
			}
			if u.Refusal == nil {
				o.agent.received = append(o.agent.received, u.Received)
			}
		}
		return nil
	})
}

// Marked implements consumer.Sink.
func (o *owner) Marked(context.Context) error {
	return o.agent.do(func(time.Time) error {
		o.catalog.Marked()
		return nil
	})
}

// Lost implements consumer.Sink.
func (o *owner) Lost(_ context.Context, err error, parked bool) {
	_ = o.agent.do(func(now time.Time) error {
		o.parked.Store(parked)
		o.failure = err.Error()
		o.catalog.Lost(o.time(now))
		return nil
	})
}

// counts passes on what the consumer of an owner reports.
type counts struct{ *owner }

// Attempted implements consumer.Observer.
func (c counts) Attempted() { c.attempt.Store(time.Now().UnixNano()) }

// Responded implements consumer.Observer.
func (c counts) Responded(op federation.Operation) { c.agent.config.Observer.Responded(c.id, op) }

// Refused implements consumer.Observer.
func (c counts) Refused(reason federation.Reason) { c.agent.config.Observer.Refused(c.id, reason) }

// Ended implements consumer.Observer.
func (c counts) Ended(code codes.Code) { c.agent.config.Observer.Ended(c.id, code.String()) }

// announce makes the state known, after the zones that show it, and logs
// those changes of it that the consumer, which logs its own, cannot know.
func (o *owner) announce() {
	s := &OwnerStatus{ID: o.id, Status: o.catalogStatus(), Parked: o.parked.Load(), Failure: o.failure}
	for _, m := range o.members {
		for kind, n := range m.block.builder.Faults(m.index) {
			if n > 0 {
				if s.Conflicts == nil {
					s.Conflicts = make(map[zone.Fault]int)
				}
				s.Conflicts[kind] = max(s.Conflicts[kind], n)
			}
		}
	}
	o.status.Store(s)
	if o.renewal.began {
		o.renewal.began = false
		o.agent.config.Logger.Info("owner is subscribed to anew: services that were refused may be admitted now", "owner", o.id, "services", s.Services)
	}
	state := s.State
	if s.Expired {
		state = catalog.Expired // also behind a stream on which nothing comes
	}
	if state == o.told || state == catalog.Syncing {
		return // a retry can open a stream and lose it at once, for ever
	}
	o.told = state
	if k := o.keeper.Load(); k != nil {
		k.changed() // the file says until when the owner was up
	}
	logger := o.agent.config.Logger.With("owner", o.id, "services", s.Services)
	switch { // that it is stale follows from the line that says why it is lost
	case state == catalog.Synced && s.Held > 0:
		logger.Warn("owner is synced, but came back without most of its services; they are stale until the retention ends", "held", s.Held)
	case state == catalog.Synced:
		logger.Info("owner is synced", "refused", s.Refused)
	case state == catalog.Expired:
		logger.Error("owner is expired: the retention is over and its records are gone")
	}
}

// report returns the status with what is not the writer's.
func (o *owner) report() OwnerStatus {
	s := *o.status.Load()
	if at := o.attempt.Load(); at != 0 {
		s.LastAttempt = time.Unix(0, at)
	}
	if c := o.shown.Load(); c != nil {
		s.Files = c.config.Files
		s.CertExpiry, s.CAExpiry = c.source.Expiry()
	}
	return s
}
