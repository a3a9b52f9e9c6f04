package zone

import (
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/subtree"
)

// FaultDiffers counts services of a shared name that have other protocols, SANs or SNIs than
// that of an owner that comes first. All of them are answered.
const FaultDiffers = Fault("differs")

// Difference is in what a service of a shared name counts as FaultDiffers.
type Difference struct {
	Owner, First  int // its owner, and the first that has the name, by index in Config.Owners
	FQDN, Service string

	first, other string // characters
}

// Differences returns those that have come up since the last call.
func (b *Builder) Differences() []Difference {
	found := b.groups.differ
	b.groups.differ = nil
	return found
}

// differences returns those of the members of a name from the first.
func differences(fqdn string, members []subtree.Member) (all []Difference) {
	for i := range members {
		if first, other := members[0].Tree.Character(), members[i].Tree.Character(); first != other {
			all = append(all, Difference{int(members[i].Owner), int(members[0].Owner), fqdn, members[i].Service.Name(), first, other})
		}
	}
	return all
}

// countDifferences counts those of a name instead of those that were there before.
func (b *Builder) countDifferences(before, all []Difference) {
	for _, d := range before {
		b.tree.Fault(d.Owner, FaultDiffers, -1)
	}
	for _, d := range all {
		if b.tree.Fault(d.Owner, FaultDiffers, 1); !slices.Contains(before, d) {
			b.groups.differ = append(b.groups.differ, d)
		}
	}
}

// endOfTrait stands between the parts of a character. It is in no string that is valid UTF-8.
const endOfTrait = "\xff"

// character returns what clients need to be the same behind one name: parts, sorted.
func character(s *federation.Service) string {
	var all []string
	for _, san := range s.SANs {
		all = append(all, "SAN "+san)
	}
	for _, in := range s.Instances {
		all = append(all, "protocol "+in.Protocol.String())
		for _, m := range in.Metadata {
			if strings.EqualFold(m.Key, "sni") {
				all = append(all, "SNI "+m.Value)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), endOfTrait)
}

// What says what the service has and lacks, in a clause that is printable and of bounded length.
func (d *Difference) What() string {
	var parts []string
	add := func(verb, of, without string) {
		has := make(map[string]bool)
		for trait := range strings.SplitSeq(without, endOfTrait) {
			has[trait] = true
		}
		only := slices.DeleteFunc(strings.Split(of, endOfTrait), func(trait string) bool { return has[trait] || trait == "" })
		if len(only) > 0 {
			parts = append(parts, verb+" "+strings.Join(only, ", "))
		}
	}
	add("has", d.other, d.first)
	add("lacks", d.first, d.other)
	return federation.Printable(strings.Join(parts, "; "))
}
