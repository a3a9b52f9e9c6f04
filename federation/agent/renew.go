package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
)

// renewInterval is the least time between two subscriptions for the sake of room
// that was freed: an owner that is at its limit and changes all the time must not
// be made to send its whole catalog all the time.
const renewInterval = time.Minute

// renewal is when and why an owner is subscribed to anew while its stream is well.
// What was refused is not kept, and an owner sends it only once on a stream.
type renewal struct {
	rules   rules     // in force when the owner was last reconsidered
	widened bool      // since the stream was opened, they have come to admit more
	last    time.Time // the last one
	began   bool      // and nobody was told
}

// rules are what decides which services are admitted, by parts: a rule that was
// not there before may admit more.
type rules struct{ names, addresses []string }

// unfetched is whether a block publishes names that were refused before it came,
// so that one which is not in the catalog may exist all the same.
type unfetched uint8

const (
	fetched  unfetched = iota
	missing            // the stream that is open, or was, does not bring them
	awaiting           // ... but does, once its catalog is complete
)

// is reports whether the names are not in the catalog yet.
func (u *unfetched) is(state catalog.State) bool {
	if *u == awaiting && state == catalog.Synced {
		*u = fetched
	}
	return *u != fetched
}

// names returns the rules that decide which names are admitted for a block: one
// for each of the owner's zones.
func (m *member) names() []string {
	z := &m.block.config.Zone
	own := &z.Owners[m.index]
	rules := make([]string, len(own.Origins))
	for i, origin := range own.Origins {
		rules[i] = fmt.Sprint(origin, own.Renames)
		for j := range z.Owners {
			for _, inner := range z.Owners[j].Origins {
				if inner.Within(origin) && !slices.Contains(own.Origins, inner) {
					rules[i] += " but " + inner.String()
				}
			}
		}
	}
	return rules
}

// names returns the rules that decide which names are admitted for any block.
func (o *owner) names() (rules []string) {
	for i := range o.members {
		rules = append(rules, o.members[i].names()...)
	}
	return rules
}

// adds reports whether one of the rules is not among those before.
func adds(now, before []string) bool {
	return slices.ContainsFunc(now, func(rule string) bool { return !slices.Contains(before, rule) })
}

// join adds a block that publishes the owner.
func (o *owner) join(b *Block, index int) {
	m := member{block: b, index: index}
	if s := o.catalog.Status(); s.Refused > s.Addresses && adds(m.names(), o.names()) {
		m.unfetched = missing
	}
	o.setMembers(append(slices.Clone(o.members), m))
}

// fetching is called when a new stream is open, which brings all that there is.
func (o *owner) fetching() {
	o.renewal.widened = false
	for i := range o.members {
		if m := &o.members[i]; m.unfetched == missing {
			m.unfetched = awaiting
		}
	}
}

// reconsider is called after a reload, or when one more block has come: where
// services were refused that may be admitted now, the owner has to send them again.
func (o *owner) reconsider() {
	now := rules{names: o.names()}
	for _, prefix := range o.members[0].config().AllowAddresses {
		now.addresses = append(now.addresses, prefix.String())
	}
	before := o.renewal.rules
	o.renewal.rules = now
	o.renewal.last = time.Time{} // limits may have changed as well
	s := o.catalog.Status()
	if adds(now.names, before.names) && s.Refused > s.Addresses || adds(now.addresses, before.addresses) && s.Addresses > 0 {
		o.renewal.widened = true
	}
	for i := range o.members {
		if m := &o.members[i]; m.unfetched == missing && !o.renewal.widened {
			m.unfetched = fetched
		}
	}
}

// renew subscribes to the owner anew when that would bring what was refused, and
// returns when it will, if it has to wait; both in the owner's time. It does so
// only while the catalog is complete: before that, the stream is not at its end.
func (o *owner) renew(now time.Time) (at time.Time, waits bool) {
	if !o.renewal.widened {
		if !o.catalog.Wanting() {
			return time.Time{}, false
		}
		if at := o.renewal.last.Add(renewInterval); now.Before(at) {
			return at, true
		}
	}
	end := o.session.Load()
	if end == nil || !o.catalog.Renew(now) {
		return time.Time{}, false
	}
	o.renewal.widened, o.renewal.last, o.renewal.began = false, now, true
	(*end)()
	return time.Time{}, false
}

// subscribe keeps the subscription until ctx ends. A session that is ended for a
// new one is no loss of the owner.
func (o *owner) subscribe(ctx context.Context, config consumer.Config) {
	for ctx.Err() == nil {
		c, err := consumer.New(config)
		if err != nil {
			return // never, as claim has checked it
		}
		session, end := context.WithCancel(ctx)
		o.session.Store(&end)
		_ = c.Run(session)
		end()
	}
}
