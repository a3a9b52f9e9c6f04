package zone

import (
	"maps"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
)

// This file keeps earlier versions of a zone for incremental transfers (RFC 1995). A serial stands
// for the version in which it moved, at that time. Changes within the same second
// are published at once and transferred with the next serial. Two versions differ in those parts of
// their trees that they do not share, so that no journal of changes is kept. A secondary that is further
// behind than the bounds below gets the whole zone.

// The bounds of the versions that are kept.
const (
	maxVersions = 600
	maxAge      = time.Hour
	// maxOctets is how much memory the earlier versions may hold beyond the newest, which
	// is an estimate.
	maxOctets = 64 << 20
	// perName is what an earlier version holds for each name that has changed since,
	// beside its services: parts of the index.
	perName = 2048
)

// pastVersion is one version of a zone.
type pastVersion struct {
	serial uint32
	at     time.Time // when it was published, for answers that depend on the time
	zone   *Zone     // without a history, so that it keeps no other alive
	octets int       // memory that the version before holds and this one does not, as an estimate
}

// appendVersion returns the versions with v appended, without the oldest ones that are beyond the
// bounds. V itself always stays.
func appendVersion(past []*pastVersion, v *pastVersion) []*pastVersion {
	first, octets := len(past), v.octets
	for first > max(0, len(past)+1-maxVersions) && octets <= maxOctets && v.at.Sub(past[first-1].at) <= maxAge {
		first--
		octets += past[first].octets
	}
	// A copy, because what goes must not be held by an array that is shared.
	return append(slices.Clone(past[first:]), v)
}

// maxFollowers bounds the services of a zone that have hosts of that zone as endpoints. For every
// difference of two versions each of them is looked at.
const maxFollowers = 1000

// followerCounts counts, by fqdn, the services of a zone that have a host of the same zone as an
// endpoint, because their addresses change with that host. The tree of the Builder changes it with
// each offer.
type followerCounts struct {
	counts   map[string]int
	unlisted bool // counts has changed since the serial moved
}

// countOffer adds n to the count of an offer of the i-th zone. The offer may be nil.
func (f *followerCounts) countOffer(all zoneOrigins, i int, o *precedence.Offer, n int) {
	if o == nil {
		return
	}
	has := false
	for _, t := range o.OwnerTrees() {
		has = has || o.HasHost && slices.ContainsFunc(t.SelectAll(), func(at uint16) bool {
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

// updateList brings a list of the fqdns up to date. It reports false if they are more than
// maxFollowers.
func (f *followerCounts) updateList(fqdns *[]string) bool {
	if len(f.counts) > maxFollowers {
		return false
	}
	if f.unlisted {
		*fqdns, f.unlisted = slices.Sorted(maps.Keys(f.counts)), false
	}
	return true
}

// NoteRival records a version of another builder that publishes zones of the same names, as around
// a reload. While there is one, a secondary may have any of its serials, so such serials are no
// part of the history.
func (b *Builder) NoteRival(other *Zone) {
	for i := range b.origins {
		if o := other.findOrigin(b.origins[i].name); o != nil {
			b.serials[i].rival, b.serials[i].cut = o.serial, true
		}
	}
}

// rememberVersion adds a new version to the history of every origin whose serial moved in it. The
// version has no origins yet.
func (b *Builder) rememberVersion(z *Zone, moved []int, now time.Time) {
	var kept *Zone
	for _, i := range moved {
		o, c := &b.origins[i], &b.serials[i]
		if !c.begun { // the process before may have ended in the same second, with another version under that serial
			c.begun, c.rival = true, o.serial
		}
		if c.cut {
			o.past = nil
		}
		listed := c.followers.updateList(&o.followers)
		if !listed || !z.isSteady(o, now) || int32(o.serial-c.rival) <= 0 { //nolint:gosec // RFC 1982 section 3.2
			o.past = nil // what the serial stands for may still change
			continue
		}
		if kept == nil {
			kept = z.withoutHistory(b.origins)
		}
		o.past = appendVersion(o.past, &pastVersion{o.serial, now, kept, c.octets})
		c.cut, c.octets = false, 0
	}
}

// withoutHistory returns the version without a history.
func (z *Zone) withoutHistory(all zoneOrigins) *Zone {
	kept := *z
	kept.origins = slices.Clone(all)
	for i := range kept.origins {
		kept.origins[i].past = nil
	}
	return &kept
}

// isSteady reports whether the records of the origin do not depend on the time for now: its names
// are known, and no TTL is short because a service is about to end.
func (z *Zone) isSteady(o *zoneOrigin, now time.Time) bool {
	return z.originExtent(o, now) == complete && !slices.ContainsFunc(o.owners, func(i int) bool {
		end := z.owners[i].staleEnd()
		return !end.IsZero() && end.Sub(now) < maxStaleTTL*time.Second
	})
}

// pastVersions returns the kept versions of an origin, the oldest first.
func (z *Zone) pastVersions(origin string) []*pastVersion {
	if o := z.findOrigin(origin); o != nil {
		return o.past
	}
	return nil
}

// PromisedVersion returns the version that the serial of an origin stands for, and the time for
// which it is transferred. While names of the zone are not known, or services are about to expire,
// it returns this version and now, because the serial does not stand for one version then.
func (z *Zone) PromisedVersion(origin string, now time.Time) (*Zone, time.Time) {
	if past := z.pastVersions(origin); len(past) > 0 {
		last := past[len(past)-1]
		return last.zone, last.at
	}
	return z, now
}

// ChangesSince returns the version that an earlier serial of an origin stood for, the time for
// which it was transferred, and every name whose records may differ from those of PromisedVersion,
// once. It returns nil when that version is not kept.
func (z *Zone) ChangesSince(origin string, serial uint32) (before *Zone, at time.Time, names []string) {
	past := z.pastVersions(origin)
	i := slices.IndexFunc(past, func(v *pastVersion) bool { return v.serial == serial })
	if i < 0 {
		return nil, time.Time{}, nil
	}
	v, last := past[i], past[len(past)-1]
	o := last.zone.findOrigin(origin)
	changed := slices.Clone(o.followers)
	for name := range v.zone.tree.ChangedNames(&last.zone.tree, func(owner uint32) bool { return z.owners[owner].changesTTL() }) {
		if last.zone.origins.originOf(name) == o {
			changed = append(changed, name)
		}
	}
	found := make(map[string]struct{})
	for _, version := range []*pastVersion{v, last} {
		r := reachFinder{pastVersion: version, origin: version.zone.findOrigin(origin), names: found}
		r.findNames(changed)
	}
	return v.zone, v.at, slices.Sorted(maps.Keys(found))
}
