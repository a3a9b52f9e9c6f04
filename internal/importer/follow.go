package importer

import (
	"context"
	"math"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
	"github.com/hamlet-federation/coredns-federation/internal/status/history"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// followedOwner is an owner with its mirror. The mirror publishes into the names of the importer, and
// so holds them up to date under Importer.mu, which guards what is not read-only. It keeps as many
// unwritten names as the last updates have changed.
type followedOwner struct {
	*Owner
	consumer.NoObserver

	importer *Importer
	policy   wire.AddressPolicy // of what the owner may publish
	mirror   *consumer.Mirror
	events   history.ServiceLog // has a lock of its own

	offers map[string]*offer // by the names of services
	status consumer.Status   // that the mirror has published last

	unwritten sets.Set[types.NamespacedName] // names that its updates have changed, and that the server has not answered for
	drained   chan struct{}                  // closed when unwritten is empty
}

// follow returns an owner that is not followed yet.
func (m *Importer) follow(ctx context.Context, o *Owner, h hooks) (*followedOwner, error) {
	f := &followedOwner{
		Owner: o, importer: m, policy: wire.AddressPolicy{AllowAddresses: o.AllowAddresses},
		offers: make(map[string]*offer), unwritten: sets.New[types.NamespacedName](), drained: make(chan struct{}),
	}
	close(f.drained)
	file := ""
	if m.config.Persist != "" {
		file = filepath.Join(m.config.Persist, url.PathEscape(o.Name)+".catalog")
		if _, err := consumer.CheckFile(ctx, consumer.Files(), file); err != nil {
			return nil, Error{"persist", err}
		}
	}
	subscription := o.Subscription(m.identity, file)
	if subscription.Dial = h.dial; h.identity != nil {
		subscription.Identity = h.identity
	}
	var err error
	f.mirror, err = consumer.New(consumer.Config{
		Subscription: subscription, Name: o.Name, Publish: f.publishChanges, Await: f.awaitWritten, Observer: f, Logger: m.log,
		Rules: catalog.Rules{Retention: o.Retention, Settle: o.Settle, MaxCatalog: o.MaxCatalog, Admit: f.admit},
	})
	if err != nil {
		return nil, Error{"owners", err}
	}
	return f, nil
}

// admit returns why a service is not imported, or nil.
func (f *followedOwner) admit(s *federation.Service) *federation.InvalidError {
	if !f.Import.Matches(s.FQDN) {
		return catalog.ErrNotImported
	}
	if invalid := wire.CheckZones(f.Zones, s); invalid != nil {
		return invalid
	}
	if _, _, invalid := f.nameFor(s); invalid != nil {
		return invalid
	}
	return f.policy.Check(s)
}

// nameFor returns the name of the objects of a service, with ServiceImports also what a cluster exports, or why the
// service is not imported.
func (f *followedOwner) nameFor(s *federation.Service) (name types.NamespacedName, e mcs.Export, invalid *federation.InvalidError) {
	target := &f.importer.config.Target
	if target.MCS {
		e, invalid = target.admitPart(s)
		return types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, e, invalid
	}
	name.Namespace = target.Namespace
	name.Name, invalid = target.objectNameFor(s.FQDN, f.Zones)
	return name, e, invalid
}

// offer is a service that an owner offers. It stays the same value as long as the owner offers the service;
// whoever needs its fields during a request copies them.
type offer struct {
	owner      *followedOwner
	service    packed.Service
	updated    uint32 // as catalog.Change, as the next one
	generation uint64
	name       types.NamespacedName // of the objects
	export     mcs.Export           // with ServiceImports: what a cluster exports
}

// publishChanges applies changes of the owner's catalog to the names that they concern, and has
// these written.
func (f *followedOwner) publishChanges(changes consumer.Changes) {
	m := f.importer
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := f.keptFor() > 0
	f.status = changes.Status
	for i := range changes.Services {
		c := &changes.Services[i]
		o := f.offers[c.Name]
		switch {
		case c.Packed.IsZero():
			if delete(f.offers, c.Name); o != nil {
				o.leaveName()
			}
			continue
		case o == nil:
			o = &offer{owner: f}
			f.offers[c.Name] = o
		}
		changed := o.service != c.Packed
		o.service, o.updated, o.generation = c.Packed, c.Updated, c.Generation
		if changed { // and not only confirmed
			o.enterName()
		}
	}
	f.events.NotePublished(changes.Services, time.Now())
	if kept && f.keptFor() == 0 {
		m.enqueueAll()
	}
}

// keptFor returns how much longer objects stay of services that the owner does not offer, and 0 where they
// go. It may still offer them while its catalog was not complete since the start, but no longer than its
// retention. The caller holds mu.
func (f *followedOwner) keptFor() time.Duration {
	since := f.importer.began
	switch s := &f.status; {
	case s.Known && s.Restored.IsZero():
		return 0
	case f.Retention == catalog.Forever:
		return math.MaxInt64
	case !s.Restored.IsZero():
		since = s.Restored
	}
	return max(0, time.Until(since.Add(f.Retention)))
}

// enterName offers the service under the name that it leads to now. The caller holds mu.
func (o *offer) enterName() {
	now, e, _ := o.owner.nameFor(o.service.Unpack()) // which has been admitted
	if o.export = e; now != o.name {
		o.leaveName()
		n := o.owner.importer.entry(now)
		o.name, n.offers = now, append(n.offers, o)
	}
	o.owner.noteUnwritten(now)
}

// leaveName ends the offer under its name, if there is one. The caller holds mu.
func (o *offer) leaveName() {
	if o.name.Name != "" {
		n := o.owner.importer.names[o.name]
		n.offers = slices.DeleteFunc(n.offers, func(other *offer) bool { return other == o })
		o.owner.noteUnwritten(o.name)
	}
}

// noteUnwritten has a name written whose offers have changed, or forgets it in a replica that does not
// lead, where no worker will. The caller holds mu.
func (f *followedOwner) noteUnwritten(name types.NamespacedName) {
	m := f.importer
	switch {
	case m.queue != nil:
		if len(f.unwritten) == 0 {
			f.drained = make(chan struct{})
		}
		f.unwritten.Insert(name)
		m.enqueue(name)
	case len(m.names[name].offers) == 0:
		delete(m.names, name)
	}
}

// noteWritten records that the server has answered for a name. The caller holds mu.
func (f *followedOwner) noteWritten(name types.NamespacedName) {
	if f.unwritten.Has(name) {
		if f.unwritten.Delete(name); len(f.unwritten) == 0 {
			close(f.drained)
		}
	}
}

// awaitWritten returns when the server has answered for all that the owner has changed, or when
// another replica writes.
func (f *followedOwner) awaitWritten(ctx context.Context, ended <-chan struct{}) {
	f.importer.mu.Lock()
	drained := f.drained
	f.importer.mu.Unlock()
	select {
	case <-drained:
	case <-ended:
	case <-ctx.Done():
	}
}

// Responded implements consumer.Observer.
func (f *followedOwner) Responded(op wire.Operation, name string) {
	f.events.NoteResponse(op, name, time.Now())
}

// Refused implements consumer.Observer.
func (f *followedOwner) Refused(reason *federation.InvalidError) {
	f.events.NoteRefusal(reason, time.Now())
}
