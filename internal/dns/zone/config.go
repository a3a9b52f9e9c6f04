package zone

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Config is what one server block publishes. It is read-only after NewBuilder.
type Config struct {
	// Owners in the order of the Corefile, which is their precedence: of two
	// owners that want one name, the first gets the name.
	Owners []Owner

	// NameServer holds the addresses of ns.dns.<origin>, the name server of
	// every origin.
	NameServer []netip.Addr
}

// Owner is one federation block.
type Owner struct {
	ID          string            // as metrics, logs and metadata show the owner
	Origins     []federation.FQDN // the zones in which this owner may publish
	Renames     []Rename          // applied in order, the first that matches, before the zones are checked
	TTL         uint32            // seconds
	NegativeTTL uint32            // seconds; TTL and MINIMUM of the SOA; the first owner of an origin decides
	Retention   time.Duration     // negative: without limit

	// Import chooses which services are published, if their names are in one of the origins. Two
	// server blocks may choose differently for one owner.
	Import pattern.NameFilter

	Sharing Sharing // of names with other owners

	// Admits reports whether the owner may publish an address, which is unmapped.
	// The owner's own endpoints were judged when they arrived. This is for the
	// addresses of hosts in our zones that its endpoints name. Nil admits every
	// address.
	Admits func(netip.Addr) bool
}

// Rename publishes the names under From as the same names under To.
type Rename struct{ From, To federation.FQDN }

// JudgeFQDN returns what happens to a service of that fqdn of the owner at index i: the name under
// which it is published, whether it is imported, and why it is not admitted if it is imported.
func (c *Config) JudgeFQDN(i int, fqdn federation.FQDN) (name federation.FQDN, imported bool, invalid *federation.InvalidError) {
	if !c.Owners[i].Import.Matches(fqdn) {
		return federation.FQDN{}, false, nil
	}
	name, invalid = c.PublishedName(i, fqdn)
	return name, true, invalid
}

// PublishedName returns the name under which the owner at index i publishes fqdn, or why it may not
// publish it. The result depends on the configuration and the fqdn alone, so the owner can get the
// refusal at once.
func (c *Config) PublishedName(i int, fqdn federation.FQDN) (federation.FQDN, *federation.InvalidError) {
	owner := &c.Owners[i]
	name := fqdn
	if r := owner.renameFor(fqdn); r != nil {
		var err error
		if name, err = fqdn.Rename(r.From, r.To); err != nil {
			return name, refuseFQDN(federation.ReasonName, "%s renamed under %s: %v", safetext.Quote(fqdn.String()), r.To, err)
		}
	}
	origin, ok := c.longestOrigin(name)
	if !ok || !slices.Contains(owner.Origins, origin) {
		return name, refuseFQDN(federation.ReasonOutOfZone, "%s is outside the zones given to this owner (%s)",
			safetext.Quote(name.String()), joinOrigins(owner.Origins))
	}
	if rule := domain.ReservedReason(name.String(), origin.String()); rule != "" {
		return name, refuseFQDN(federation.ReasonReservedName, "%s is reserved: %s", safetext.Quote(name.String()), rule)
	}
	return name, nil
}

// renameFor returns the first rename that applies to an fqdn of the owner, or nil.
func (o *Owner) renameFor(fqdn federation.FQDN) *Rename {
	for i := range o.Renames {
		if fqdn.Within(o.Renames[i].From) {
			return &o.Renames[i]
		}
	}
	return nil
}

// OriginalNames returns the fqdns that the owner at index i publishes under a name: mostly the name
// itself.
func (c *Config) OriginalNames(i int, name federation.FQDN) (originals []federation.FQDN) {
	owner := &c.Owners[i]
	if owner.renameFor(name) == nil {
		originals = append(originals, name)
	}
	for j := range owner.Renames {
		r := &owner.Renames[j]
		if !name.Within(r.To) {
			continue
		}
		if of, err := name.Rename(r.To, r.From); err == nil && owner.renameFor(of) == r {
			originals = append(originals, of)
		}
	}
	return originals
}

// longestOrigin returns the longest origin of any owner that has the name. An owner of a zone
// cannot publish in a longer zone that was given to another owner.
func (c *Config) longestOrigin(name federation.FQDN) (federation.FQDN, bool) {
	var longest federation.FQDN
	for i := range c.Owners {
		for _, o := range c.Owners[i].Origins {
			if name.Within(o) && (longest.IsZero() || o.Within(longest)) {
				longest = o
			}
		}
	}
	return longest, !longest.IsZero()
}

func refuseFQDN(reason federation.Reason, format string, args ...any) *federation.InvalidError {
	return &federation.InvalidError{Field: "fqdn", Reason: reason, Rule: fmt.Sprintf(format, args...)}
}

func joinOrigins(origins []federation.FQDN) string {
	s := make([]string, len(origins))
	for i, o := range origins {
		s[i] = o.String()
	}
	return strings.Join(s, " ")
}
