package matrix

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
)

// sharing is what the oracle knows of the names that the owner shares with its neighbour,
// which is never lost. It is written from docs/shared.md.
type sharing struct {
	names        []string // fqdns; none: nothing is shared
	tier, others int      // of the owner, and of its neighbour
	min          int
	hold, demote time.Duration // a negative demote is never

	theirs map[string]string // the address of the neighbour by fqdn, while it has one
	past   map[string][]want // by fqdn, the oldest first

	// Whether the owner may, or must, stand behind its neighbour: it has been lost for too long.
	may, must bool
	back      time.Time // since when it would be there again; zero while it is lost, or is not behind

	there    bool // the owner had a complete catalog in this process
	reloaded bool // that may be forgotten
}

// want says that tiers up to one between least and most were wanted, from then until the next
// want.
type want struct {
	from        time.Time
	least, most int
}

// The tiers that are wanted are up to allTiers, where no number of them has enough endpoints. The
// other one stands for what may be forgotten.
const (
	allTiers = 30
	noTier   = -1
)

// late is how much later than the agent the oracle may learn of something: at a tick, of what
// was slack.
const late = 2 * slack

// endpoint is one of a shared name, as it may be.
type endpoint struct {
	option

	tier int // + 10 if it is demoted
}

func (s *sharing) String() string {
	if len(s.names) == 0 {
		return "no names are shared"
	}
	return fmt.Sprintf("tier %d and %d, min %d, hold %v, demote %v", s.tier, s.others, s.min, s.hold, s.demote)
}

// shares reports whether owners share the name.
func (s *sharing) shares(fqdn string) bool { return slices.Contains(s.names, fqdn) }

// demotion takes in that it is now. An owner that is lost for longer than demote stands behind
// the others, until it has been there again for hold.
func (o *oracle) demotion(now time.Time) {
	s := &o.sharing
	if len(o.clock) > 0 {
		s.back = time.Time{}
		over := func(at time.Time) bool { return s.demote >= 0 && !now.Before(at.Add(s.demote)) }
		s.may = s.may || slices.ContainsFunc(o.clock, func(at time.Time) bool { return over(at.Add(-late)) })
		s.must = s.must || o.knows && !slices.ContainsFunc(o.records, isVague) &&
			!slices.ContainsFunc(o.clock, func(at time.Time) bool { return !over(at.Add(late)) })
		if from, _, ok := o.window(); ok && !now.Before(from.Add(-slack)) {
			s.must = false // it may be there again
			s.unsure(s.names...)
		}
		return
	}
	if !s.may {
		return
	}
	if s.back.IsZero() {
		s.back = now
	}
	// It was held for that, so no name is held once more.
	switch {
	case now.After(s.back.Add(s.hold + late)):
		s.forget(s.back.Add(s.hold))
		s.may, s.must, s.back = false, false, time.Time{}
	case !now.Before(s.back.Add(s.hold - late)):
		s.must = false
		s.unsure(s.names...)
	}
}

// complete takes in that the catalog of the owner is complete. What comes for the first time after
// a start is not held.
func (s *sharing) complete(started, now time.Time) {
	if s.there {
		return
	}
	s.there = true
	switch {
	case now.Before(started.Add(grace - late)):
		s.may, s.must = false, false
		s.forget(now)
	case now.Before(started.Add(grace + late)):
		s.must = false
		s.unsure(s.names...)
	}
}

// forget drops what was wanted until a time, or a moment earlier. The rest may be forgotten.
func (s *sharing) forget(until time.Time) {
	for fqdn, past := range s.past {
		s.past[fqdn] = since(past, until.Add(-late))
	}
	s.unsure(s.names...)
}

// since returns what was wanted later than a time.
func since(past []want, at time.Time) []want {
	for len(past) > 1 && past[1].from.Before(at) {
		past = past[1:]
	}
	return past
}

// note takes in what is wanted of all shared names now.
func (o *oracle) note(now time.Time) {
	o.advance(now)
	s := &o.sharing
	for _, fqdn := range s.names {
		w := want{from: now, least: allTiers, most: noTier}
		for _, endpoints := range o.outlooks(fqdn, now) {
			if len(endpoints) == 0 {
				w.least = noTier // nothing is held of a name that there is not
				s.unsure(fqdn)
				continue
			}
			n := s.wanted(endpoints)
			w.least, w.most = min(w.least, n), max(w.most, n)
		}
		past := s.past[fqdn]
		switch {
		case w.most == noTier:
			past = nil
		case len(past) == 0 || past[len(past)-1].least != w.least || past[len(past)-1].most != w.most:
			past = append(past, w)
		}
		s.past[fqdn] = since(past, now.Add(-s.hold-2*late))
	}
	// Nothing is held until all owners have been there, or have had their time.
	switch {
	case !s.there && now.Before(o.started.Add(grace-late)):
		s.forget(now)
	case (!s.there || s.reloaded) && now.Before(o.started.Add(grace+late)):
		s.unsure(s.names...)
	}
}

// unsure takes in that what was wanted of names may be forgotten.
func (s *sharing) unsure(names ...string) {
	for _, fqdn := range names {
		for i := range s.past[fqdn] {
			s.past[fqdn][i].least = noTier
		}
	}
}

// start takes in that a process has started.
func (s *sharing) start() {
	s.past, s.may, s.must, s.back = make(map[string][]want), false, false, time.Time{}
	s.there, s.reloaded = false, false
}

// reload takes in that a configuration takes the place of another one, which begins anew.
func (s *sharing) reload() {
	s.unsure(s.names...)
	s.must, s.reloaded = false, true
}

// held returns up to which tier endpoints are answered for what was wanted before, at least and
// at most.
func (s *sharing) held(fqdn string, now time.Time) (least, most int) {
	least, most = noTier, noTier
	past := s.past[fqdn]
	for i, w := range past {
		if i+1 < len(past) && past[i+1].from.After(now.Add(late-s.hold)) {
			least = max(least, w.least)
		}
		if i+1 == len(past) || past[i+1].from.After(now.Add(-late-s.hold)) {
			most = max(most, w.most)
		}
	}
	return least, most
}

// outlooks returns which endpoints of a shared name there may be.
func (o *oracle) outlooks(fqdn string, now time.Time) (all [][]endpoint) {
	s := &o.sharing
	var theirs []endpoint
	if address, ok := s.theirs[fqdn]; ok {
		live := option{kind: zone.Success, address: address, live: true, from: o.liveTTL(), to: o.liveTTL()}
		theirs = append(theirs, endpoint{live, s.others})
	}
	ours, sure := o.offers(fqdn, now)
	if !sure {
		all = append(all, theirs)
	}
	for _, option := range ours {
		if !s.must {
			all = append(all, append(slices.Clip(theirs), endpoint{option, s.tier}))
		}
		if s.may {
			all = append(all, append(slices.Clip(theirs), endpoint{option, s.tier + 10}))
		}
	}
	return all
}

// wanted returns up to which tier endpoints are enough.
func (s *sharing) wanted(endpoints []endpoint) int {
	for tier := range allTiers {
		live := 0
		for _, e := range endpoints {
			if e.live && e.tier <= tier {
				live++
			}
		}
		if live > 0 && live >= s.min {
			return tier
		}
	}
	return allTiers
}

// joined returns the allowed answers of a shared name from what owners have, and whether it
// certainly has one. The answer for SRV has all endpoints, each as "tier/address".
func (o *oracle) joined(fqdn string, srv bool, now time.Time) (options []option, sure bool) {
	s := &o.sharing
	sure = true
	least, most := s.held(fqdn, now)
	for _, endpoints := range o.outlooks(fqdn, now) {
		if len(endpoints) == 0 {
			sure = false
			continue
		}
		n := s.wanted(endpoints)
		from, to := max(n, least), max(n, most)
		if srv {
			from, to = allTiers, allTiers
		}
		for tier := from; tier <= to; tier++ {
			if answer := together(endpoints, tier, srv); !slices.Contains(options, answer) {
				options = append(options, answer)
			}
		}
	}
	return options, sure
}

// together returns the answer with the endpoints up to a tier.
func together(endpoints []endpoint, tier int, srv bool) option {
	o := option{kind: zone.Success}
	var addresses []string
	for _, e := range endpoints {
		if e.tier > tier {
			continue
		}
		if len(addresses) == 0 {
			o.from, o.to = e.from, e.to
		}
		o.from, o.to, o.live = min(o.from, e.from), min(o.to, e.to), o.live || e.live
		address := e.address
		if srv {
			address = fmt.Sprintf("%d/%s", e.tier, e.address)
		}
		addresses = append(addresses, address)
	}
	slices.Sort(addresses)
	o.address, o.stale = strings.Join(addresses, " "), !o.live
	return o
}
