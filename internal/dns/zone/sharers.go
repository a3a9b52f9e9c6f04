package zone

import (
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
)

// HasNames returns a function that reports whether a zone can have names that match a pattern.
func HasNames(p pattern.Name) func(zone federation.FQDN) bool {
	name, _ := p.Zone()
	of, err := federation.ParseFQDN(name)
	return func(zone federation.FQDN) bool {
		return p.IsEvery() || err == nil && (of.Within(zone) || zone.Within(of))
	}
}

// SharesWith returns the first pattern of names that two owners share in a zone of both, and
// whether there is one.
func (o *Owner) SharesWith(other *Owner) (what pattern.Name, both bool) {
	for _, p := range o.Sharing.Names {
		if what, both = o.sharedPattern(p, other); both {
			return what, true
		}
	}
	return pattern.Name{}, false
}

// sharedPattern returns the pattern of those names of p that both owners share in a zone of both,
// and whether there is one.
func (o *Owner) sharedPattern(p pattern.Name, other *Owner) (what pattern.Name, both bool) {
	for _, q := range other.Sharing.Names {
		if what = p; p.Covers(q) {
			what = q // the names of both patterns are those of the narrower one
		}
		has := HasNames(what)
		if (p.Covers(q) || q.Covers(p)) && slices.ContainsFunc(o.Origins, func(z federation.FQDN) bool { return slices.Contains(other.Origins, z) && has(z) }) {
			return what, true
		}
	}
	return pattern.Name{}, false
}

// UnsharedPatterns returns the patterns of names that only the owner at an index shares.
func (c *Config) UnsharedPatterns(i int) (names []pattern.Name) {
	for _, p := range c.Owners[i].Sharing.Names {
		shared := false
		for j := range c.Owners {
			if j != i {
				_, both := c.Owners[i].sharedPattern(p, &c.Owners[j])
				shared = shared || both
			}
		}
		if !shared {
			names = append(names, p)
		}
	}
	return names
}

// SharingOwners returns the owners, by index, that share a name and may publish it: owners of the
// longest zone that has the name.
func (c *Config) SharingOwners(fqdn string) (owners []int) {
	name, err := federation.ParseOrigin(fqdn) // a service may have the name of a zone
	if err != nil {
		return nil
	}
	origin, _ := c.longestOrigin(name)
	for i := range c.Owners {
		if o := &c.Owners[i]; slices.Contains(o.Origins, origin) && o.Sharing.matchesName(name) {
			owners = append(owners, i)
		}
	}
	return owners
}
