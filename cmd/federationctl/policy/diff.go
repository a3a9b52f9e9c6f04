package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config/ownerfiles"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Group is what changes for consumers that are told the same by both of two
// configurations.
type Group struct {
	Consumers  []string `json:"consumers"`
	ServerName string   `json:"serverName,omitempty"` // of the catalog
	Access     string   `json:"access,omitempty"`     // whether they may subscribe, where that changes: gained or lost
	Changes    []Change `json:"changes"`              // by the name of the service
}

// Change is what changes of a service.
type Change struct {
	Change string  `json:"change"` // + where it is new, - where it is gone, ~ where it is another
	Name   string  `json:"name"`
	FQDN   string  `json:"fqdn"`             // as it is told, or was
	Rule   *Rule   `json:"rule,omitempty"`   // of the new configuration, that decides
	Reason string  `json:"reason,omitempty"` // why it is gone
	Fields []Field `json:"fields,omitempty"` // that are others
}

// Names returns the fqdns of the services that change.
func (g *Group) Names() (names []string) {
	for i := range g.Changes {
		names = append(names, g.Changes[i].FQDN)
	}
	return names
}

// String returns the group as lines.
func (g *Group) String() string {
	var b strings.Builder
	b.WriteString(status.Count(len(g.Consumers), "consumer"))
	if g.ServerName != "" {
		b.WriteString(" of " + g.ServerName)
	}
	if g.Access != "" {
		b.WriteString(", access " + g.Access)
	}
	fmt.Fprintf(&b, ": %s\n", printable.Few(g.Consumers, most, ", ", plain))
	for _, c := range g.Changes {
		fmt.Fprintf(&b, "  %s %s (%s)", c.Change, plain(c.Name), plain(c.FQDN))
		switch {
		case c.Change == "-":
			b.WriteString(": " + c.Reason)
		case c.Change == "~":
			b.WriteString(": " + printable.Few(c.Fields, most, ", ", Field.String))
		case c.Rule != nil:
			b.WriteString(": " + c.Rule.String())
		}
		b.WriteString("\n")
	}
	return b.String()
}

// Diff compares what consumers are told by two configurations: those that allow of
// either names, and those of also, each an identity of its own. It compares the catalogs
// with that server name, or all where all is set. Show is called with each group for
// which anything changes.
func Diff(before, after *ownerfiles.Owner, serverName string, all bool, also []federation.ID, show func(*Group) error) (differ bool, err error) {
	names := []string{serverName}
	if all {
		names = unique(before.ServerNames(), after.ServerNames())
	}
	consumers := unique(before.Allowed(), after.Allowed(), also)
	for _, name := range names {
		c, err := compareCatalogs(before, after, name)
		if err != nil {
			return differ, err
		}
		pairs, members := c.groups(consumers)
		for _, p := range pairs {
			changes := c.changes(p)
			if len(changes) == 0 {
				continue
			}
			differ = true
			if err := show(&Group{Consumers: members[p], ServerName: ownerfiles.Canonical(name), Access: p.access(), Changes: changes}); err != nil {
				return differ, err
			}
		}
	}
	return differ, nil
}

// unique returns what is in the lists, each once, in the order in which it comes first.
func unique[T comparable](lists ...[]T) (all []T) {
	seen := make(map[T]bool)
	for _, entry := range slices.Concat(lists...) {
		if !seen[entry] {
			seen[entry] = true
			all = append(all, entry)
		}
	}
	return all
}

// side is one of two configurations, with one of its catalogs.
type side struct {
	*catalog

	byName   map[string]*ownerfiles.Service // those that are published before others
	verdicts map[*ownerfiles.Service]policy.Verdict
}

// comparison is that of a catalog before and after.
type comparison struct {
	before, after *side
	names         []string // of the services of either, in order
}

// compareCatalogs reads the catalog with that server name of both. Where one has none,
// it is empty there.
func compareCatalogs(before, after *ownerfiles.Owner, serverName string) (*comparison, error) {
	one := []*ownerfiles.Owner{before, after}
	sides := make([]*side, len(one))
	var errs ownerfiles.MistakesError
	for i, o := range one {
		c := &catalog{Catalog: &ownerfiles.Catalog{ServerName: serverName}, owner: o}
		if o.Has(serverName) || !one[1-i].Has(serverName) {
			var err error
			if c, err = open(o, serverName); !errs.Take(err) {
				return nil, err
			}
		}
		sides[i] = &side{c, make(map[string]*ownerfiles.Service), make(map[*ownerfiles.Service]policy.Verdict)}
	}
	if err := errs.Err(); err != nil {
		return nil, err
	}
	sides[0].forget(sides[1].catalog)
	sides[1].forget(sides[0].catalog)
	names := make(map[string]bool)
	for _, s := range sides {
		for _, its := range s.Services {
			names[its.Name()] = true
			if s.byName[its.Name()] == nil || its.By == "" {
				s.byName[its.Name()] = its
			}
			if its.By == "" {
				s.verdicts[its] = s.Policy.Judge(its.Encoded)
			}
		}
	}
	return &comparison{sides[0], sides[1], slices.Sorted(maps.Keys(names))}, nil
}

// forget removes the extra services that a file of the other catalog has: they were
// told by that file when it had them.
func (s *side) forget(other *catalog) {
	known := make(map[string]bool)
	for _, its := range other.Services {
		known[its.Name()] = known[its.Name()] || !its.Extra
	}
	s.Services = slices.DeleteFunc(s.Services, func(its *ownerfiles.Service) bool { return its.Extra && known[its.Name()] })
}

// told returns the service of that name as the consumer is told of it, or nil.
func (s *side) told(to consumer, name string) *wire.Encoded {
	if its := s.byName[name]; to.allowed && its != nil {
		return s.verdicts[its].For(to.class)
	}
	return nil
}

// decided returns what becomes of the service of that name.
func (s *side) decided(to consumer, name string) outcome {
	its := s.byName[name]
	if its == nil {
		return outcome{reason: "it is not in the catalog any more"}
	}
	outcome, _ := s.decide(to, its)
	return outcome
}

// pair is a consumer before and after.
type pair struct{ before, after consumer }

// access returns how it changes whether the consumer may subscribe, empty for not.
func (p pair) access() string {
	switch {
	case p.before.allowed && !p.after.allowed:
		return "lost"
	case p.after.allowed && !p.before.allowed:
		return "gained"
	}
	return ""
}

// groups returns the consumers by what they are.
func (c *comparison) groups(ids []federation.ID) (pairs []pair, consumers map[pair][]string) {
	consumers = make(map[pair][]string)
	for _, id := range ids {
		p := pair{c.before.consumer(id), c.after.consumer(id)}
		if consumers[p] == nil {
			pairs = append(pairs, p)
		}
		consumers[p] = append(consumers[p], id.String())
	}
	return pairs, consumers
}

// changes returns what changes for a consumer.
func (c *comparison) changes(p pair) []Change {
	var changes []Change
	for _, name := range c.names {
		was, is := c.before.told(p.before, name), c.after.told(p.after, name)
		if was == nil && is == nil || was != nil && is != nil && was.Equal(is) {
			continue
		}
		o := c.after.decided(p.after, name)
		change := Change{Change: "~", Name: name, FQDN: cmp.Or(is, was).FQDN(), Rule: o.rule, Reason: o.reason}
		switch {
		case is == nil:
			change.Change = "-"
		case was == nil:
			change.Change = "+"
		default:
			change.Fields = Compare(was.Service(), is.Service())
		}
		changes = append(changes, change)
	}
	return changes
}
