package agent

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/imports"
	"github.com/hamlet-federation/coredns-federation/federation/mirror"
	"github.com/hamlet-federation/coredns-federation/federation/packed"
	"github.com/hamlet-federation/coredns-federation/federation/zone"
)

// member is a block that publishes an owner, which is its index-th.
type member struct {
	block *Block
	index int

	// complete is the first generation whose complete catalog has all names of the
	// block: names that it publishes may have been left out or refused before it came, so
	// one that is not in the catalog may exist all the same. 0: every generation has.
	// It is the writer's.
	complete uint64
}

// lacks reports whether names of the block may be missing from the catalog.
func (m *member) lacks(s *catalog.Status) bool {
	if s.State == catalog.Synced && s.Generation >= m.complete {
		m.complete = 0
	}
	return m.complete != 0
}

// tell passes the state of the owner on to the block.
func (m *member) tell(o *owner) {
	s := &o.status
	lost := s.State != catalog.Synced && !s.Lost.IsZero()
	m.block.builder.SetStatus(m.index, zone.Status{
		Live: s.Live, Expires: s.Expires, Soonest: s.Soonest, Known: s.Known && !m.lacks(s), Lost: lost, Grace: o.grace,
	})
}

// publish carries the changes of a catalog into the zones. It returns when queries
// see them. The mirror calls it on the goroutine that received the changes, so
// services that are expensive to compile cost their owner's time.
func (o *owner) publish(changes mirror.Changes) {
	ready := o.prepare(changes)
	o.agent.do(func() {
		o.status = changes.Status.Status
		for _, m := range *o.members.Load() {
			compiled := restored(changes.Prepared)
			for _, change := range changes.Services {
				if change.Service.IsZero() {
					m.block.builder.Remove(m.index, change.Name)
				} else if p := compiled.take(m, change.Service); p != nil {
					m.block.builder.PutPrepared(p, change.Generation, change.Updated)
				} else {
					ready.put(m, change.Service, catalog.Announced{Generation: change.Generation, Updated: change.Updated})
				}
			}
			m.tell(o)
		}
	})
	o.log.Published(changes.Services, o.agent.now())
}

// join makes a block publish the owner: it gets the whole catalog, and all changes
// from there on.
func (o *owner) join(b *Block, index int) {
	m := &member{block: b, index: index}
	others := slices.DeleteFunc(slices.Clone(o.claims), func(c *claim) bool { return c.block == b })
	o.mirror.View(func(services iter.Seq2[packed.Service, catalog.Announced], s catalog.Status) {
		if lacksServices(&s) && widens(rulesOf(b, index), rulesOfAll(others)) {
			m.complete = s.Generation + 1
		}
		ready := make(prepared)
		for service := range services {
			ready.add(m, service)
		}
		o.agent.do(func() {
			o.status = s
			for service, announced := range services {
				ready.put(m, service, announced)
			}
			o.setMembers(append(slices.Clone(*o.members.Load()), m))
			m.tell(o)
		})
	})
}

// withdraw makes a block no longer publish the owner.
func (o *owner) withdraw(b *Block) {
	o.agent.do(func() {
		o.setMembers(slices.DeleteFunc(slices.Clone(*o.members.Load()), func(m *member) bool { return m.block == b }))
	})
}

// showConflicts shows in the status what the zones cannot publish of the owner: by
// kind, the most in any block.
func (o *owner) showConflicts() {
	var most map[zone.Fault]int
	for _, m := range *o.members.Load() {
		for kind, n := range m.block.builder.Faults(m.index) {
			if n > most[kind] {
				if most == nil {
					most = make(map[zone.Fault]int)
				}
				most[kind] = n
			}
		}
	}
	if !maps.Equal(most, *o.conflicts.Load()) {
		o.conflicts.Store(&most)
	}
}

func (o *owner) setMembers(members []*member) { o.members.Store(&members) }

// renewal is why the mirror was asked to subscribe anew.
type renewal struct {
	rules      rules  // in force when that was last considered
	generation uint64 // that lacks what is imported and admitted now; 0: none
}

// rules are what decides which services are imported and admitted, in parts: a part
// that was not there before may admit more.
type rules struct {
	published []rule
	addresses []string
}

// rule is what a block may publish in one of an owner's zones.
type rule struct {
	names  string // equal where the same names are admitted
	filter imports.Filter
}

// rulesOf returns the rules that decide what of the owner at an index a block
// publishes: one for each of the owner's zones.
func rulesOf(b *Block, index int) []rule {
	z := &b.config.Zone
	own := &z.Owners[index]
	rules := make([]rule, len(own.Origins))
	for i, origin := range own.Origins {
		var names strings.Builder
		fmt.Fprint(&names, origin, own.Renames)
		for j := range z.Owners {
			for _, inner := range z.Owners[j].Origins {
				if inner.Within(origin) && !slices.Contains(own.Origins, inner) {
					names.WriteString(" but " + inner.String())
				}
			}
		}
		rules[i] = rule{names.String(), b.config.Owners[index].Import}
	}
	return rules
}

// rulesOfAll returns the rules that decide what any claim publishes.
func rulesOfAll(claims []*claim) (rules []rule) {
	for _, c := range claims {
		rules = append(rules, rulesOf(c.block, c.index)...)
	}
	return rules
}

// widens reports whether one of the rules may admit more than those before.
func widens(now, before []rule) bool {
	return slices.ContainsFunc(now, func(r rule) bool {
		var same []imports.Filter
		for _, b := range before {
			if b.names == r.names {
				same = append(same, b.filter)
			}
		}
		return !r.filter.Covered(same)
	})
}

// adds reports whether one of the rules is not among those before.
func adds(now, before []string) bool {
	return slices.ContainsFunc(now, func(rule string) bool { return !slices.Contains(before, rule) })
}

// lacksServices reports whether there are services that the catalog was told of and does not
// have, for another reason than their addresses.
func lacksServices(s *catalog.Status) bool { return s.Refused > s.Addresses || s.NotImported > 0 }

// reconsider is called after a reload, or when one more block has come. Where
// services were left out or refused that may be imported and admitted now, the owner has to
// send them again.
func (o *owner) reconsider() {
	now := rules{published: rulesOfAll(o.claims)}
	for _, prefix := range o.claims[0].config.AllowAddresses {
		now.addresses = append(now.addresses, prefix.String())
	}
	before := o.renewal.rules
	o.renewal.rules = now
	var renew, pending bool
	o.mirror.View(func(_ iter.Seq2[packed.Service, catalog.Announced], s catalog.Status) {
		renew = widens(now.published, before.published) && lacksServices(&s) || adds(now.addresses, before.addresses) && s.Addresses > 0
		if renew {
			o.renewal.generation = s.Generation
		}
		pending = o.renewal.generation != 0 && s.Generation <= o.renewal.generation
	})
	if renew {
		o.mirror.Renew()
	}
	if !pending {
		o.agent.do(func() {
			for _, m := range *o.members.Load() {
				m.complete = 0
				m.tell(o)
			}
		})
	}
}
