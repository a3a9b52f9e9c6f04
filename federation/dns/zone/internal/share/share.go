// Package share is the rule by which the endpoints of a name are answered that several
// owners share: in which order they stand, how many of them addresses are answered of, and
// how soon that follows what owners say.
//
// Endpoints have ranks, and addresses are answered up to the rank at which there are enough.
// What was needed lately counts as well: so what gets worse is followed at once, and what gets
// better when it has been so for a while. A place that flaps does not pull the traffic to and
// fro.
package share

import (
	"slices"
	"time"
)

// Rank is where an endpoint stands, the best first. It is the priority of its SRV record.
type Rank uint8

// All is the level at which every rank is answered.
const All Rank = 255

const (
	// MaxTier is the last tier.
	MaxTier = 9

	behindTiers    Rank = 10 // of an owner that is demoted
	behindDemotion Rank = 20 // of an owner without weight
)

// RankOf returns the rank of an endpoint in a tier, of an owner that has been lost for so long
// that it is demoted, or has weight 0.
func RankOf(tier int, demoted, weightless bool) Rank {
	r := Rank(tier) //nolint:gosec // at most MaxTier
	if demoted {
		r += behindTiers
	}
	if weightless {
		r += behindDemotion
	}
	return r
}

// Tier returns the tier of the endpoint.
func (r Rank) Tier() int { return int(r % behindTiers) }

// Demoted reports whether the endpoint is of an owner that is demoted.
func (r Rank) Demoted() bool { return r%behindDemotion >= behindTiers }

// Last reports whether the endpoint is of an owner without weight.
func (r Rank) Last() bool { return r >= behindDemotion }

// Candidate is an endpoint of a name. It is live if one of the owners that say it is there.
type Candidate struct {
	Rank Rank
	Live bool
}

// Wanted returns the level at which a name has enough endpoints: whole ranks, the best first,
// until there are so many live ones. Stale ones of those ranks are answered beside them. It is
// All if there are not so many.
func Wanted(candidates []Candidate, enough int) Rank {
	var live [All]int
	for _, c := range candidates {
		if c.Live {
			live[c.Rank]++
		}
	}
	n := 0
	for rank, more := range live {
		if n += more; more > 0 && n >= enough {
			return Rank(rank)
		}
	}
	return All
}

// Level is how much was wanted of a name lately. What is answered is the most of it. The zero
// value is that of a name of which nothing was.
type Level struct {
	wanted Rank   // now
	past   []past // what more was wanted before, each less and later than the one before it; never written
}

// past is what was wanted until a time.
type past struct {
	rank Rank
	end  time.Time
}

// Rank returns up to which rank endpoints are answered.
func (l Level) Rank() Rank {
	if len(l.past) > 0 {
		return l.past[0].rank
	}
	return l.wanted
}

// Wanted returns up to which rank there are enough endpoints now.
func (l Level) Wanted() Rank { return l.wanted }

// Next returns the level when so much is wanted. What was wanted before counts for the duration
// of hold, with none it is forgotten.
func (l Level) Next(wanted Rank, now time.Time, hold time.Duration) Level {
	next := Level{wanted: wanted}
	for _, p := range append(slices.Clip(l.past), past{l.wanted, now}) {
		if p.rank > wanted && now.Before(p.end.Add(hold)) {
			next.past = append(next.past, p)
		}
	}
	return next
}

// Due returns when the level gets another rank if nothing happens. It is zero if it does not.
func (l Level) Due(hold time.Duration) time.Time {
	if len(l.past) == 0 {
		return time.Time{}
	}
	return l.past[0].end.Add(hold)
}

// Demotion is whether an owner stands behind those that are there. The zero value is one that
// does not.
type Demotion struct {
	Demoted bool

	back time.Time // since when an owner that is demoted is there again
}

// Next returns the demotion of an owner that was lost at a time, zero while it is there, and
// when it changes if nothing happens, zero if it does not. After is how long an owner may be
// lost, negative for ever; one that comes back is held for the duration of hold.
func (d Demotion) Next(lost, now time.Time, after, hold time.Duration) (next Demotion, due time.Time) {
	switch {
	case lost.IsZero() && !d.Demoted:
		return Demotion{}, time.Time{}
	case lost.IsZero():
		if d.back.IsZero() {
			d.back = now
		}
		if due = d.back.Add(hold); now.Before(due) {
			return d, due
		}
		return Demotion{}, time.Time{}
	case d.Demoted || after >= 0 && now.Sub(lost) >= after:
		return Demotion{Demoted: true}, time.Time{}
	case after < 0:
		return Demotion{}, time.Time{}
	}
	return Demotion{}, lost.Add(after)
}

// Weight returns the weight of the SRV record of each of so many endpoints of one rank, among
// which an owner divides its own.
func Weight(owner, endpoints int) uint16 {
	return uint16(max(owner/max(endpoints, 1), 1)) //nolint:gosec // the weight of an owner is at most 100
}
