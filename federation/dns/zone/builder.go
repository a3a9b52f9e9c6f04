package zone

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// Builder holds the offers of all owners of one server block and publishes
// versions of the zone. It belongs to one goroutine.
type Builder struct {
	config  Config
	origins origins
	serials []change // by origin
	owners  []contributor
	tree    *precedence.Writer // with what is not yet published
	groups  groups             // what owners share, which the tree has joined
	current *Zone
	changed bool      // since current: the status of an owner, or the tree
	awaited time.Time // when queries stop to wait for an owner, or one of several; zero: they wait for none

	refuseName subtree.RefuseFunc // read-only after NewBuilder
}

// contributor is one owner's part beside its offers.
type contributor struct {
	view
	refused map[string]Fault // services that this server block does not admit
}

// Fault is a kind of name or record that a catalog asks for and that cannot be
// published, or not by this owner. It is the value of a metric label. The kinds
// stand in packages subtree and precedence; a service that Config.Admit refuses
// counts under the reason of its error.
type Fault = subtree.Fault

// FaultFQDN counts services whose fqdn another service has.
const FaultFQDN = precedence.FaultFQDN

// NewBuilder returns a builder without services. The serials continue after
// those in the map, which is by origin.
func NewBuilder(config Config, serials map[string]uint32) *Builder {
	b := &Builder{config: config, changed: true, groups: newGroups(len(config.Owners))}
	for i := range config.Owners {
		o := &config.Owners[i]
		b.owners = append(b.owners, contributor{
			view: view{
				id: o.ID, fullTTL: o.TTL, ttl: liveTTL(o.TTL, o.Retention), admits: o.Admits,
			},
			refused: make(map[string]Fault),
		})
		for _, name := range o.Origins {
			b.addOrigin(name.String(), i, serials[name.String()])
		}
	}
	slices.SortFunc(b.origins, func(x, y origin) int {
		return cmp.Or(cmp.Compare(len(y.name), len(x.name)), strings.Compare(x.name, y.name))
	})
	b.refuseName = b.origins.refuse
	for range b.origins {
		b.serials = append(b.serials, change{pending: true, followers: followers{counts: make(map[string]int)}})
	}
	b.tree = precedence.NewWriter(len(b.owners), func(name string) string { return b.origins.of(name).name })
	for i := range b.origins {
		// A zone within another is no part of it, but what is between the two is
		// (RFC 8020).
		name := b.origins[i].name
		if outer := b.origins.of(domain.Parent(name)); name != "." && outer != nil {
			b.tree.LinkParents(name, outer.name)
		}
	}
	return b
}

// addOrigin lets an owner publish in a zone. The first owner of a zone decides its
// negative TTL.
func (b *Builder) addOrigin(name string, owner int, serial uint32) {
	i := slices.IndexFunc(b.origins, func(o origin) bool { return o.name == name })
	if i < 0 {
		i = len(b.origins)
		b.origins = append(b.origins, newOrigin(name, b.config.NameServer, b.config.Owners[owner].NegativeTTL, serial))
	}
	b.origins[i].owners = append(b.origins[i].owners, owner)
}

// Put offers what Prepare has returned, once: from then on it is part of the zone. It replaces
// the version that was put last, which is zero for a new service, also where the service is not
// published here. If the fqdn has changed, the next version has the old one no longer. Updated
// is when this version came, in seconds since 1970, for Explain; 0: it is not known.
func (b *Builder) Put(p Prepared, was packed.Service, generation uint64, updated uint32) {
	old, _ := b.offer(p.owner, was)
	if old == nil || p.offer == nil || old.FQDN() != p.offer.FQDN() {
		b.Remove(p.owner, was)
		old = nil
	}
	switch {
	case p.refused != "":
		b.refuse(p.owner, strings.Clone(p.service.Name()), p.refused)
	case p.offer != nil:
		p.offer.Generation, p.offer.Updated = uint32(generation), updated //nolint:gosec // see the field
		b.put(p.shared, p.offer.FQDN(), old, p.offer)
	}
}

// Confirm offers a service in another generation, where it is published: the owner has sent it
// again, on a new stream, as it was put last.
func (b *Builder) Confirm(owner int, s packed.Service, generation uint64) {
	if old, shared := b.offer(owner, s); old != nil && uint64(old.Generation) != generation {
		b.put(shared, old.FQDN(), old, old.WithGeneration(generation))
	}
}

// Remove takes back a service that was put last as it is here.
func (b *Builder) Remove(owner int, s packed.Service) {
	if s.IsZero() {
		return
	}
	b.admit(owner, s.Name())
	if old, shared := b.offer(owner, s); old != nil {
		b.put(shared, old.FQDN(), old, nil)
	}
}

// offer returns what an owner offers by a service that was put last as it is here, and whether
// that is for a name that the owner shares. It is nil where the service is zero or not published.
func (b *Builder) offer(owner int, s packed.Service) (o *precedence.Offer, shared bool) {
	if s.IsZero() {
		return nil, false
	}
	fqdn := s.FQDN()
	if len(b.config.Owners[owner].Renames) > 0 {
		if original, err := federation.ParseFQDN(fqdn); err == nil {
			name, _ := b.config.Admit(owner, original)
			fqdn = name.String()
		}
	}
	if o = b.groups.offer(owner, fqdn, s.Name()); o != nil {
		return o, true
	}
	return b.tree.FindOffer(owner, fqdn, s.Name()), false
}

// put puts an offer in the place of another one of the same service, both of them at the
// fqdn, into the tree or among what is shared.
func (b *Builder) put(shared bool, fqdn string, old, offer *precedence.Offer) {
	if shared {
		b.share(fqdn, old, offer)
		return
	}
	b.exchange(fqdn, old, offer)
}

// exchange puts an offer in the place of another one of the same service, both of
// them at the fqdn. Either may be nil.
func (b *Builder) exchange(fqdn string, old, offer *precedence.Offer) {
	b.changed = true
	i := b.origins.index(fqdn)
	c := &b.serials[i]
	c.followers.count(b.origins, i, old, -1)
	c.followers.count(b.origins, i, offer, +1)
	if !b.tree.ExchangeOffer(fqdn, old, offer) {
		return
	}
	c.pending = true
	confirmed := old != nil && offer != nil && old.Service == offer.Service && offer.Subtree.SharedName() == nil
	if !confirmed || b.owners[offer.Owner].ages() {
		c.octets += perName
		if old != nil {
			c.octets += old.EstimatedSize()
		}
	}
}

// SetStatus sets what answers need to know of an owner.
func (b *Builder) SetStatus(owner int, s Status) {
	v := &b.owners[owner].view
	if v.Status == s {
		return
	}
	if v.Live != s.Live {
		b.touch(owner)
	}
	for _, origin := range b.tree.SetLife(owner, precedence.OfferLife{Live: s.Live, Expires: s.Expires}) {
		c := &b.serials[b.origins.index(origin)]
		c.pending = true // a TTL changes, and with it the RRsets
		if v.ages() {
			c.cut = true
		}
	}
	v.Status = s
	b.changed = true
}

// Publish returns the version with all changes so far. Without changes, it is the
// version that the last call returned.
//
// The serial of every origin whose RRsets changed becomes the time in seconds.
// A second change within one second is published with the serial of the first, and
// gets its own when that second is over. If the serial grew by one with each
// change, a burst would take it ahead of the clock. A restart would then begin
// with a smaller serial, which no secondary follows (RFC 1982). When the clock is
// set back, the serial grows by one, once a second at most, so that it gets no
// further ahead. Due returns when a serial that has to wait can move.
//
// The version in which a serial moves is what that serial stands for in transfers:
// Update of package reply.
func (b *Builder) Publish(now time.Time) *Zone {
	b.join(now)
	b.changed = b.changed || !b.awaited.IsZero() && !now.Before(b.awaited) // a zone may be whole now, for secondaries
	b.awaited = time.Time{}
	for i := range b.owners {
		if v := &b.owners[i].view; !v.Known && now.Before(v.Grace) {
			b.awaited = soonest(b.awaited, v.Grace)
		}
	}
	var moved []int // origins
	for i := range b.origins {
		if c := &b.serials[i]; c.pending && c.move(&b.origins[i], now) {
			b.changed = true
			moved = append(moved, i)
		}
	}
	if !b.changed {
		return b.current
	}
	z := &Zone{tree: b.tree.Publish(), shared: b.groups.names.Publish(), owners: make([]view, len(b.owners))}
	for i := range b.owners {
		z.owners[i] = b.owners[i].view
		z.timed = z.timed || !z.owners[i].Known || !z.owners[i].Expires.IsZero()
	}
	b.remember(z, moved, now)
	z.origins = slices.Clone(b.origins)
	b.current, b.changed = z, false
	return z
}

// Due returns when Publish can move a serial that it could not move yet, takes what has expired
// from shared names, or waits no longer for an owner. It reports false when nothing waits.
func (b *Builder) Due() (time.Time, bool) {
	due := b.awaited
	for i, shared := range b.groups.offers {
		if end := b.owners[i].Expires; shared > 0 && !end.IsZero() && !b.groups.expired[i] {
			due = soonest(due, end.Add(1-time.Second)) // see precedence.Life
		}
	}
	for i := range b.serials {
		if c := &b.serials[i]; c.pending {
			due = soonest(due, c.due)
		}
	}
	return due, !due.IsZero()
}

// soonest returns the earlier of two times, of which zero is never.
func soonest(x, y time.Time) time.Time {
	if x.IsZero() || !y.IsZero() && y.Before(x) {
		return y
	}
	return x
}

// Faults returns how many names and records of the owner are not published, by
// kind. The caller must not change it.
func (b *Builder) Faults(owner int) map[Fault]int { return b.tree.OwnerFaults(owner) }

// Recounted returns the owners whose Faults may have changed since the last call.
func (b *Builder) Recounted() (owners []int) { return b.tree.RecountedOwners() }

// refuse counts a service that this server block does not admit.
func (b *Builder) refuse(owner int, service string, f Fault) {
	b.owners[owner].refused[service] = f
	b.tree.CountFault(owner, f, 1)
}

// admit is the reverse of refuse, if the service was refused.
func (b *Builder) admit(owner int, service string) {
	refused := b.owners[owner].refused
	if f, ok := refused[service]; ok {
		delete(refused, service)
		b.tree.CountFault(owner, f, -1)
	}
}
