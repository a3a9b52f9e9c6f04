package zone

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/moment"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// Builder keeps the offers of all owners of one server block and publishes versions of the zone. It
// belongs to one goroutine, except for Prepare. Its size follows the catalogs, which their owners'
// limits bound; of earlier versions it keeps what incremental transfers need, within the bounds of
// pastVersion. A Builder does not publish by itself: the caller collects changes, calls Publish,
// and asks Due when to call it again.
type Builder struct {
	config  Config
	origins zoneOrigins
	serials []serialState // by origin
	owners  []ownerState
	tree    *precedence.Writer // with what is not yet published
	groups  sharedNames        // the names that owners share, which the tree has joined
	current *Zone
	changed bool      // since current: the status of an owner, or the tree
	awaited time.Time // when queries stop waiting for the first of the owners; zero: they wait for none

	refuseName subtree.RefuseFunc // read-only after NewBuilder
}

// ownerState is what the Builder keeps of one owner beside its offers.
type ownerState struct {
	ownerView
	refused map[string]Fault // services that this server block does not admit
}

// Fault is a kind of name or record that a catalog asks for and that cannot be published, or not by
// this owner. It is the value of a metric label. Packages subtree and precedence declare the kinds;
// a service that Config.PublishedName refuses counts under the reason of its error.
type Fault = subtree.Fault

// FaultFQDN counts services whose fqdn belongs to another service.
const FaultFQDN = precedence.FaultFQDN

// NewBuilder returns a builder without services. Its serials continue after those in the map, which
// is by origin.
func NewBuilder(config Config, serials map[string]uint32) *Builder {
	b := &Builder{config: config, changed: true, groups: newGroups(len(config.Owners))}
	for i := range config.Owners {
		o := &config.Owners[i]
		b.owners = append(b.owners, ownerState{
			ownerView: ownerView{
				id: o.ID, fullTTL: o.TTL, ttl: liveTTL(o.TTL, o.Retention), admits: o.Admits,
			},
			refused: make(map[string]Fault),
		})
		for _, name := range o.Origins {
			b.addOrigin(name.String(), i, serials[name.String()])
		}
	}
	slices.SortFunc(b.origins, func(x, y zoneOrigin) int {
		return cmp.Or(cmp.Compare(len(y.name), len(x.name)), strings.Compare(x.name, y.name))
	})
	b.refuseName = b.origins.refuseInstance
	for range b.origins {
		b.serials = append(b.serials, serialState{pending: true, followers: followerCounts{counts: make(map[string]int)}})
	}
	b.tree = precedence.NewWriter(len(b.owners), func(name string) string { return b.origins.originOf(name).name })
	for i := range b.origins {
		// A zone within another is no part of that, but the names between the two are
		// (RFC 8020).
		name := b.origins[i].name
		if outer := b.origins.originOf(domain.Parent(name)); name != "." && outer != nil {
			b.tree.LinkParents(name, outer.name)
		}
	}
	return b
}

// addOrigin lets an owner publish in a zone. The first owner of a zone decides its
// negative TTL.
func (b *Builder) addOrigin(name string, owner int, serial uint32) {
	i := slices.IndexFunc(b.origins, func(o zoneOrigin) bool { return o.name == name })
	if i < 0 {
		i = len(b.origins)
		b.origins = append(b.origins, newOrigin(name, b.config.NameServer, b.config.Owners[owner].NegativeTTL, serial))
	}
	b.origins[i].owners = append(b.origins[i].owners, owner)
}

// Put makes an offer that Prepare has returned a part of the zone, once. The offer replaces was,
// the version of the service that was put last, which is zero for a new service. Was is given even
// if the service is not published here. If the fqdn has changed, the next version has no longer the
// old fqdn. Updated is when the new version came, in seconds since 1970, for Explain; 0 says that
// this is not known.
func (b *Builder) Put(p PreparedOffer, was packed.Service, generation uint64, updated uint32) {
	old, _ := b.findOffer(p.owner, was)
	if old == nil || p.offer == nil || old.FQDN() != p.offer.FQDN() {
		b.Remove(p.owner, was)
		old = nil
	}
	switch {
	case p.refused != "":
		b.countRefused(p.owner, strings.Clone(p.service.Name()), p.refused)
	case p.offer != nil:
		p.offer.Generation, p.offer.Updated = uint32(generation), updated //nolint:gosec // see the field
		b.putOffer(p.shared, p.offer.FQDN(), old, p.offer)
	}
}

// Confirm puts a published service into another generation: the owner has sent it again on a new
// stream, as it was put last.
func (b *Builder) Confirm(owner int, s packed.Service, generation uint64) {
	if old, shared := b.findOffer(owner, s); old != nil && uint64(old.Generation) != generation {
		b.putOffer(shared, old.FQDN(), old, old.WithGeneration(generation))
	}
}

// Remove removes a service, which was put last as s.
func (b *Builder) Remove(owner int, s packed.Service) {
	if s.IsZero() {
		return
	}
	b.uncountRefused(owner, s.Name())
	if old, shared := b.findOffer(owner, s); old != nil {
		b.putOffer(shared, old.FQDN(), old, nil)
	}
}

// findOffer returns the offer of a service that was put last as s, and whether its name is one that
// the owner shares. It returns nil where the service is zero or not published.
func (b *Builder) findOffer(owner int, s packed.Service) (o *precedence.Offer, shared bool) {
	if s.IsZero() {
		return nil, false
	}
	fqdn := s.FQDN()
	if len(b.config.Owners[owner].Renames) > 0 {
		if original, err := federation.ParseFQDN(fqdn); err == nil {
			name, _ := b.config.PublishedName(owner, original)
			fqdn = name.String()
		}
	}
	if o = b.groups.findOffer(owner, fqdn, s.Name()); o != nil {
		return o, true
	}
	return b.tree.FindOffer(owner, fqdn, s.Name()), false
}

// putOffer replaces an offer by another one of the same service at the same fqdn, in the tree or in
// the shared names.
func (b *Builder) putOffer(shared bool, fqdn string, old, offer *precedence.Offer) {
	if shared {
		b.shareOffer(fqdn, old, offer)
		return
	}
	b.exchangeOffer(fqdn, old, offer)
}

// exchangeOffer replaces an offer in the tree by another one of the same service at the same fqdn.
// Either may be nil.
func (b *Builder) exchangeOffer(fqdn string, old, offer *precedence.Offer) {
	b.changed = true
	i := b.origins.indexOf(fqdn)
	c := &b.serials[i]
	c.followers.countOffer(b.origins, i, old, -1)
	c.followers.countOffer(b.origins, i, offer, +1)
	if !b.tree.ExchangeOffer(fqdn, old, offer) {
		return
	}
	c.pending = true
	confirmed := old != nil && offer != nil && old.Service == offer.Service && offer.Subtree.SharedName() == nil
	if !confirmed || b.owners[offer.Owner].changesTTL() {
		c.octets += perName
		if old != nil {
			c.octets += old.EstimatedSize()
		}
	}
}

// SetStatus sets the state of an owner that answers depend on.
func (b *Builder) SetStatus(owner int, s Status) {
	v := &b.owners[owner].ownerView
	if v.Status == s {
		return
	}
	if v.Live != s.Live {
		b.markShared(owner)
	}
	for _, origin := range b.tree.SetLife(owner, precedence.OfferLife{Live: s.Live, Expires: s.Expires}) {
		c := &b.serials[b.origins.indexOf(origin)]
		c.pending = true // a TTL changes, and with it the RRsets
		if v.changesTTL() {
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
// IncrementalTransfer of package reply.
func (b *Builder) Publish(now time.Time) *Zone {
	b.joinChanged(now)
	b.changed = b.changed || !b.awaited.IsZero() && !now.Before(b.awaited) // a zone may be whole now, for secondaries
	b.awaited = time.Time{}
	for i := range b.owners {
		if v := &b.owners[i].ownerView; !v.Known && now.Before(v.Grace) {
			b.awaited = moment.Earlier(b.awaited, v.Grace)
		}
	}
	var moved []int // origins
	for i := range b.origins {
		if c := &b.serials[i]; c.pending && c.moveSerial(&b.origins[i], now) {
			b.changed = true
			moved = append(moved, i)
		}
	}
	if !b.changed {
		return b.current
	}
	z := &Zone{tree: b.tree.Publish(), shared: b.groups.names.Publish(), owners: make([]ownerView, len(b.owners))}
	for i := range b.owners {
		z.owners[i] = b.owners[i].ownerView
		z.timed = z.timed || !z.owners[i].Known || !z.owners[i].Expires.IsZero()
	}
	b.rememberVersion(z, moved, now)
	z.origins = slices.Clone(b.origins)
	b.current, b.changed = z, false
	return z
}

// Due returns when Publish can move a serial that it could not move yet, remove what has expired
// from shared names, or stop waiting for an owner. It reports false when nothing waits.
func (b *Builder) Due() (time.Time, bool) {
	due := b.awaited
	for i, shared := range b.groups.offers {
		if end := b.owners[i].Expires; shared > 0 && !end.IsZero() && !b.groups.expired[i] {
			due = moment.Earlier(due, end.Add(1-time.Second)) // see precedence.OfferLife
		}
	}
	for i := range b.serials {
		if c := &b.serials[i]; c.pending {
			due = moment.Earlier(due, c.due)
		}
	}
	return due, !due.IsZero()
}

// countRefused counts a service that this server block does not admit.
func (b *Builder) countRefused(owner int, service string, f Fault) {
	b.owners[owner].refused[service], b.changed = f, true
	b.tree.CountFault(owner, f, 1)
}

// uncountRefused takes back countRefused, if the service was refused.
func (b *Builder) uncountRefused(owner int, service string) {
	refused := b.owners[owner].refused
	if f, ok := refused[service]; ok {
		delete(refused, service)
		b.changed = true
		b.tree.CountFault(owner, f, -1)
	}
}
