package zone

import (
	"maps"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/zone/history"
	"github.com/hamlet-federation/coredns-federation/federation/zone/precedence"
)

// What an incremental transfer needs to know of earlier versions. A serial stands
// for the version in which it moved, at that time. Changes within the same second
// are published at once and transferred with the next serial.

const (
	// minNames is how many names may have changed in the history of any zone; a
	// larger one may have half as many as it has services. Of more, the whole zone is
	// mostly shorter.
	minNames = 1000

	// maxFollowers is up to how many services of a zone may have endpoints that are
	// hosts of that zone. Each of them has to be looked at for every difference.
	maxFollowers = 1000
)

// recent is what has changed in a zone since its serial moved.
type recent struct {
	services  int            // offered now
	followers map[string]int // how many of them have a host of this zone as an endpoint, by fqdn
	unlisted  bool           // followers has changed
	broken    bool           // the next version cannot be compared with those before
	rival     uint32         // the last serial that another builder may have published
	rivalled  bool           // there is such a serial
	begun     bool           // the serial has moved before
	names     []string       // fqdns of services that have changed, some more than once
}

// newRecent returns what has changed in a zone that has nothing yet.
func newRecent() recent { return recent{followers: make(map[string]int), broken: true} }

// maxNames is how many names may have changed in the history.
func (r *recent) maxNames() int { return max(minNames, r.services/2) }

// contest notes that another builder may have published a serial, and those before.
func (r *recent) contest(serial uint32) {
	r.cut()
	r.rival, r.rivalled = serial, true
}

// cut makes the history begin anew with the next version.
func (r *recent) cut() { r.broken, r.names = true, nil }

// note notes that RRsets have changed which follow from the service at an fqdn.
func (r *recent) note(fqdn string) {
	if r.broken {
		return
	}
	if r.names = append(r.names, fqdn); len(r.names) > 2*r.maxNames() {
		if r.once(); len(r.names) > r.maxNames() {
			r.cut()
		}
	}
}

// once leaves every name once.
func (r *recent) once() {
	slices.Sort(r.names)
	r.names = slices.Clip(slices.Compact(r.names))
}

// count adds an offer of the i-th zone to what is counted, n times.
func (r *recent) count(all origins, i int, o *precedence.Offer, n int) {
	if o == nil {
		return
	}
	r.services += n
	if !o.HasHost || !slices.ContainsFunc(o.Subtree.All(), func(at uint16) bool {
		host, ok := o.Subtree.Endpoint(at).Address.Host()
		return ok && all.ofQuery(host.String()) == &all[i]
	}) {
		return
	}
	fqdn := o.FQDN()
	if r.followers[fqdn] += n; r.followers[fqdn] == 0 {
		delete(r.followers, fqdn)
	}
	r.unlisted = true
}

// Compete takes note of a version of another builder that publishes zones of the
// same names, as before and after a reload: while there is one, a secondary may
// have any of its serials, so they are no part of the history.
func (b *Builder) Compete(other *Zone) {
	for i := range b.origins {
		if o := other.apex(b.origins[i].name); o != nil {
			b.serials[i].recent.contest(o.serial)
		}
	}
}

// remember adds a new version to the history of every origin whose serial it has
// moved. The version has no origins yet.
func (b *Builder) remember(z *Zone, moved []int, now time.Time) {
	var kept *Zone
	for _, i := range moved {
		o, r := &b.origins[i], &b.serials[i].recent
		if r.unlisted {
			o.followers, r.unlisted = slices.Sorted(maps.Keys(r.followers)), false
		}
		if !r.begun {
			r.begun = true
			r.contest(o.serial) // by the process before this one, in the same second
		}
		rival := r.rivalled && int32(o.serial-r.rival) <= 0 //nolint:gosec // RFC 1982 section 3.2
		before := o.past.Last()
		if r.broken || rival || before == nil {
			o.past, before = history.Log[*Zone]{}, nil
		}
		if rival || len(o.followers) > maxFollowers || !z.steady(o, now) {
			// What the serial stands for may still change.
			o.past = history.Log[*Zone]{}
			r.cut()
			continue
		}
		if kept == nil {
			kept = z.alone(b.origins)
		}
		r.once()
		v := &history.Version[*Zone]{Serial: o.serial, At: now, Zone: kept, Changed: r.names}
		if before != nil {
			for _, fqdn := range r.names {
				v.Octets += before.Zone.octets(fqdn)
			}
		}
		o.past = o.past.Add(v, r.maxNames())
		r.names, r.broken, r.rivalled = nil, false, false
	}
}

// alone returns the version without a history, so that it keeps no other alive.
func (z *Zone) alone(all origins) *Zone {
	kept := *z
	kept.origins = slices.Clone(all)
	for i := range kept.origins {
		kept.origins[i].past = history.Log[*Zone]{}
	}
	return &kept
}

// steady reports whether the records of the origin do not depend on the time, for
// now: its names are known, and no TTL is short because the end of a service is
// near.
func (z *Zone) steady(o *origin, now time.Time) bool {
	return z.extent(o, now) == complete && !slices.ContainsFunc(o.owners, func(i int) bool {
		end := z.owners[i].end()
		return !end.IsZero() && end.Sub(now) < maxStaleTTL*time.Second
	})
}

// perName is what an earlier version holds for each name that has changed since,
// beside the strings of its service: the compiled service, and parts of the index.
const perName = 2048

// octets estimates the memory of the services that want a name.
func (z *Zone) octets(fqdn string) int {
	var buf [4]*precedence.Offer
	n := perName
	for _, o := range z.tree.Node(fqdn).Offers(buf[:0]) {
		n += weight(o.Service)
	}
	return n
}

// weight estimates the memory of a service with all that is made of it, in octets.
// It is more for services whose lists share their memory.
func weight(s *federation.Service) int {
	const (
		perString = 16
		perPart   = 256 // an endpoint or an instance
	)
	texts := func(list []string) (n int) {
		for _, text := range list {
			n += len(text) + perString
		}
		return n
	}
	pairs := func(list []federation.Pair) (n int) {
		for _, p := range list {
			n += 2*len(p.Key) + 2*len(p.Value) + 2*perString // once more in TXT records
		}
		return n
	}
	n := 2*len(s.Description) + 2*texts(s.Tags) + 2*texts(s.SANs) + pairs(s.Labels)
	for i := range s.Endpoints {
		n += perPart + len(s.Endpoints[i].Description) + texts(s.Endpoints[i].Labels)
	}
	for i := range s.Instances {
		in := &s.Instances[i]
		n += perPart + 2*len(in.Description) + pairs(in.Metadata) + texts(in.EndpointSelector)
		n += 2 * len(s.Endpoints) // those that it selects
	}
	return n
}

// Promised returns the version that the serial of an origin stands for, and the
// time for which it is transferred. It is this version now when what the serial
// stands for may still change: while names of the zone are not known, or services
// are about to expire.
func (z *Zone) Promised(origin string, now time.Time) (*Zone, time.Time) {
	if o := z.apex(origin); o != nil {
		if last := o.past.Last(); last != nil {
			return last.Zone, last.At
		}
	}
	return z, now
}

// Since returns the version that an earlier serial of an origin stood for, the time
// for which it was transferred, and every name of either version whose records may
// differ from those of Promised, once. It returns nil when the version is not kept.
func (z *Zone) Since(origin string, serial uint32) (before *Zone, at time.Time, names []string) {
	o := z.apex(origin)
	if o == nil {
		return nil, time.Time{}, nil
	}
	v, changed := o.past.Since(serial)
	if v == nil {
		return nil, time.Time{}, nil
	}
	last := o.past.Last()
	changed = append(changed, last.Zone.apex(origin).followers...)
	all := reached{names: make(map[string]struct{})}
	for _, version := range []*history.Version[*Zone]{v, last} {
		all.in(version.Zone, origin, version.At)
		for _, fqdn := range changed {
			all.service(fqdn)
		}
	}
	return v.Zone, v.At, all.list
}

// reached collects the names of an origin that changed services reach.
//
// What a name has depends on the services at it and above it, because a query goes
// from the name up (Zone.match), and on hosts, which are looked at apart. So a
// changed service can only change names at and below its fqdn. Of these the records
// come from that service, from one above it that has names there as well, or from
// one at a name that it claims, which may not be published because of it and may
// claim further names itself. All of that in both versions: what is gained and what
// is lost.
type reached struct {
	names map[string]struct{}
	list  []string // the names, once each

	// Of one version.
	z        *Zone
	origin   *origin
	now      time.Time
	services map[string]struct{} // fqdns that service was called with
	derived  map[string]struct{} // fqdns that derive was called with
}

// in goes on in a version.
func (r *reached) in(z *Zone, origin string, now time.Time) {
	r.z, r.origin, r.now = z, z.apex(origin), now
	r.services, r.derived = make(map[string]struct{}), make(map[string]struct{})
}

// service adds the names that may change with the service at an fqdn.
func (r *reached) service(fqdn string) {
	if !first(r.services, fqdn) {
		return
	}
	r.name(fqdn)
	for at := fqdn; at != r.origin.name; {
		at = domain.Parent(at)
		if p := r.offer(at); p != nil && p.Subtree.Has(domain.Relative(fqdn, at)) {
			r.derive(p)
		}
	}
	p := r.offer(fqdn)
	if p == nil {
		return
	}
	r.derive(p)
	if !r.z.tree.Node(fqdn).Above() {
		return
	}
	for labels := range p.Subtree.Claims() {
		if below := domain.Below(labels, fqdn); r.z.origins.of(below) == r.origin && r.offer(below) != nil {
			r.service(below)
		}
	}
}

// derive adds all names of a service below its fqdn.
func (r *reached) derive(p *precedence.Offer) {
	fqdn := p.FQDN()
	if !first(r.derived, fqdn) {
		return
	}
	for labels := range p.Subtree.Names() {
		r.name(domain.Below(labels, fqdn))
	}
}

// name adds a name, if it is one and in the origin.
func (r *reached) name(name string) {
	if len(name) <= domain.MaxName && r.z.origins.of(name) == r.origin && first(r.names, name) {
		r.list = append(r.list, name)
	}
}

// offer returns the service that comes first at an fqdn, published or not.
func (r *reached) offer(fqdn string) *precedence.Offer {
	return r.z.tree.First(r.z.tree.Node(fqdn), r.now)
}

// first adds a name to a set, and reports whether it was not there.
func first(set map[string]struct{}, name string) bool {
	if _, ok := set[name]; ok {
		return false
	}
	set[name] = struct{}{}
	return true
}
