package zone

import (
	"maps"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/history"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/reach"
)

// What an incremental transfer needs to know of earlier versions. A serial stands
// for the version in which it moved, at that time. Changes within the same second
// are published at once and transferred with the next serial.

// maxFollowers is up to how many services of a zone may have endpoints that are hosts
// of that zone. Each of them has to be looked at for every difference.
const maxFollowers = 1000

// followers counts the services of a zone that have a host of the same zone as an
// endpoint, by fqdn: their addresses change with that host.
type followers struct {
	counts   map[string]int
	unlisted bool // counts has changed since the serial moved
}

// count adds an offer of the i-th zone, n times.
func (f *followers) count(all origins, i int, o *precedence.Offer, n int) {
	has := false
	for _, t := range o.Each {
		has = has || o.HasHost && slices.ContainsFunc(t.All(), func(at uint16) bool {
			host, ok := t.Endpoint(at).Address.Host()
			return ok && all.ofQuery(host.String()) == &all[i]
		})
	}
	if !has {
		return
	}
	fqdn := o.FQDN()
	if f.counts[fqdn] += n; f.counts[fqdn] == 0 {
		delete(f.counts, fqdn)
	}
	f.unlisted = true
}

// list brings a list of the fqdns up to date. It reports false if they are too many.
func (f *followers) list(fqdns *[]string) bool {
	if len(f.counts) > maxFollowers {
		return false
	}
	if f.unlisted {
		*fqdns, f.unlisted = slices.Sorted(maps.Keys(f.counts)), false
	}
	return true
}

// count adds an offer, which may be nil, to what is counted of a zone, n times.
func (b *Builder) count(zone int, o *precedence.Offer, n int) {
	if o != nil {
		b.serials[zone].recent.Count(n)
		b.serials[zone].followers.count(b.origins, zone, o, n)
	}
}

// Compete takes note of a version of another builder that publishes zones of the
// same names, as before and after a reload: while there is one, a secondary may
// have any of its serials, so they are no part of the history.
func (b *Builder) Compete(other *Zone) {
	for i := range b.origins {
		if o := other.apex(b.origins[i].name); o != nil {
			b.serials[i].recent.Contest(o.serial)
		}
	}
}

// remember adds a new version to the history of every origin whose serial it has
// moved. The version has no origins yet.
func (b *Builder) remember(z *Zone, moved []int, now time.Time) {
	var kept *Zone
	for _, i := range moved {
		o, c := &b.origins[i], &b.serials[i]
		c.recent.Begin(o.serial)
		listed := c.followers.list(&o.followers)
		if !listed || !z.steady(o, now) {
			c.recent.Cut() // what the serial stands for may still change
			o.past = history.Log[*Zone]{}
			continue
		}
		if kept == nil {
			kept = z.alone(b.origins)
		}
		o.past = o.past.Continue(&c.recent, &history.Version[*Zone]{Serial: o.serial, At: now, Zone: kept}, (*Zone).octets)
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

// octets estimates the memory of the services that want a name.
func (z *Zone) octets(fqdn string) int { return z.tree.Node(fqdn).Weight() }

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
	var reached reach.Names
	for _, version := range []*history.Version[*Zone]{v, last} {
		z := version.Zone
		o := z.apex(origin)
		has := func(name string) bool { return z.origins.of(name) == o }
		reached.Add(&reach.Version{Tree: &z.tree, Origin: origin, Has: has, Now: version.At}, changed)
	}
	return v.Zone, v.At, reached.List()
}
