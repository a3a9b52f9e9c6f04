package owner

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/internal/receipts"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Question is what an Inquiry asks.
type Question struct {
	Matches func(*wire.Encoded) bool // which services it is about
	There   bool                     // whether they are to be there, and not gone
	Catalog *string                  // the server name of the only catalog that counts; nil: all
	Ignore  []string                 // consumers that do not count
}

// Inquiry finds out whether every consumer, and everybody whom a consumer has answered, knows
// of a change: until then somebody may use a service that was withdrawn, or not find one that
// was added. One goroutine uses it.
type Inquiry struct {
	server   *Server
	question Question
	fixed    bool // whether it is about the services as they were at the first look, there or gone
	sought   map[*registry.Registry]*registry.Sought
	answered map[*session]reached
}

// reached says since when a consumer has a version, or a later one.
type reached struct {
	version uint64
	at      time.Time
}

// Inquire begins an inquiry. Of a service that was withdrawn before, it knows only lately which
// consumers were told of it, and else takes all of them; see [registry.Sought].
func (s *Server) Inquire(q Question) *Inquiry {
	return &Inquiry{server: s, question: q, sought: make(map[*registry.Registry]*registry.Sought), answered: make(map[*session]reached)}
}

// inquiryInterval is the time between two looks.
const inquiryInterval = 100 * time.Millisecond

// Wait waits until there is nothing to wait for, or ctx ends, and returns what was so last: what
// is unknown stays so. It calls look, where it is set, with what is so meanwhile.
func (i *Inquiry) Wait(ctx context.Context, look func(status.Settlement)) status.Settlement {
	ticker := time.NewTicker(inquiryInterval)
	defer ticker.Stop()
	for {
		s := i.Look()
		if !s.Pending() || ctx.Err() != nil {
			return s
		}
		if look != nil {
			look(s)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// Look returns what is so now.
func (i *Inquiry) Look() status.Settlement {
	now := time.Now()
	s := status.Settlement{There: i.question.There, Now: now.UTC(), Away: []string{}}
	registries := i.server.registries()
	served := make(map[*registry.Registry]*registry.Sought, len(registries))
	for name, r := range registries {
		if !i.counts(name, "") {
			continue
		}
		sought := i.sought[r]
		if sought == nil {
			sought = r.Seek(i.question.Matches)
			i.sought[r] = sought
			sought.Look()
		} else if !i.fixed {
			sought.Look()
		}
		served[r] = sought
		n, _ := sought.Found()
		s.Published += n
		if !i.fixed && sought.Unavailable() != "" {
			s.Away = append(s.Away, name)
		}
	}
	slices.Sort(s.Away)
	s.There = s.There || i.fixed && s.Published > 0
	if i.fixed || i.question.There == (s.Published > 0) && len(s.Away) == 0 {
		i.count(&s, registries, served)
	}
	s.Conclude()
	return s
}

// count adds the consumers that count. It comes after the look at the catalogs: who subscribes
// later is not told what is gone.
func (i *Inquiry) count(s *status.Settlement, registries map[string]*registry.Registry, served map[*registry.Registry]*registry.Sought) {
	i.server.mu.Lock()
	sessions := slices.Collect(maps.Keys(i.server.sessions))
	remembered := i.server.copies.Remembered(s.Now) // with the sessions: a consumer is in one of them
	i.server.mu.Unlock()
	for _, session := range sessions {
		if !i.counts(session.catalog.name, session.consumer) {
			continue
		}
		if at, told := i.judge(session, served[session.registry]); told || at.Until.IsZero() || at.Until.After(s.Now) {
			s.Add(at)
		}
	}
	for _, c := range remembered.Lost {
		if !i.counts(c.Catalog, c.Consumer) {
			continue
		}
		if at, told := i.lost(c, served[registries[c.Catalog]]); told || at.Until.IsZero() || at.Until.After(s.Now) {
			s.Add(at)
		}
	}
	if remembered.More.After(s.Now) {
		s.Add(status.Outstanding{Reason: "others were lost than are remembered", Until: remembered.More})
	}
	if remembered.Beyond != "" {
		s.Add(status.Outstanding{Reason: remembered.Beyond, Unknown: true})
	}
}

// counts reports whether a consumer of a catalog does.
func (i *Inquiry) counts(catalog, consumer string) bool {
	return (i.question.Catalog == nil || *i.question.Catalog == catalog) && !slices.Contains(i.question.Ignore, consumer)
}

// judge returns where the consumer of a session is, and whether it may have been told what is
// sought since it subscribed. If not, it may only have that from before.
func (i *Inquiry) judge(s *session, sought *registry.Sought) (at status.Outstanding, told bool) {
	at = status.Outstanding{Catalog: s.catalog.name, Consumer: s.consumer, Address: s.address.String()}
	if sought == nil {
		at.Reason = "its catalog is not served any more"
		return at, true
	}
	told, since := need(sought, s.ids)
	r, has := s.receipt, s.reached()
	switch {
	case r != nil:
		s.window.mu.Lock()
		defer s.window.mu.Unlock()
		at.Holder = r.said.Holder
	case told:
		at.Reason, at.Unknown = receipts.Silent, true
		return at, true
	default: // with an answer that it was given before it has no TTL that is known
		r = &declared{}
	}
	had := i.answered[s]
	if had.version != since {
		had = reached{}
		if has.version >= since {
			had = reached{since, has.at}
			i.answered[s] = had
		}
	}
	refuses, refused := r.refusal()
	switch {
	case told && r.unknown() != "":
		at.Reason, at.Unknown = r.unknown(), r.unknown() != notYetReported
	case refused:
		at.Reason = "it refuses what this owner says of the service " + federation.Quote(refuses)
	case had.at.IsZero() && r.said.Relay:
		at.Reason = "not all of its own consumers are settled"
	case had.at.IsZero() && r.said.File:
		at.Reason = "it has yet to acknowledge the change, or to save it in its file"
	case had.at.IsZero():
		at.Reason = "it has yet to acknowledge the change"
	default:
		at.Reason, at.Until = "its answers are kept for their TTL", r.since(had.at).Add(r.said.TTL)
	}
	return at, told
}

// need returns the number of the version that a consumer with these identities has to have, and
// whether it may have been told what is sought.
func need(sought *registry.Sought, ids []federation.ID) (told bool, since uint64) {
	told, since = sought.Tells(ids)
	if told {
		_, since = sought.Found()
	}
	return told, since
}

// lost is judge for a consumer that has no stream.
func (i *Inquiry) lost(c *receipts.Copy, sought *registry.Sought) (at status.Outstanding, told bool) {
	at = status.Outstanding{Catalog: c.Catalog, Consumer: c.Consumer, Holder: c.Receipt.Holder}
	until, why, ok := c.Until()
	told, knew := true, false
	if of, _ := c.Of.(*registry.Registry); sought != nil && i.sought[of] == sought {
		var since uint64
		told, since = need(sought, c.IDs)
		knew = c.Version >= since
	}
	switch {
	case knew && (c.Receipt.Holder != "" || !told):
		at.Until, at.Reason = c.At.Add(c.Receipt.TTL), "its answers are kept for their TTL"
	case ok:
		at.Until, at.Reason = until, "it is lost, and answers what it holds until then at most"
	case why != "":
		at.Reason, at.Unknown = "it is lost; "+why, true
	default:
		at.Reason = "it is lost, and answers what it holds without an end"
	}
	return at, told
}

// usualHold is for how long CoreDNS uses what it holds if nobody says otherwise, with an hour for
// the TTL and for noticing the loss.
const usualHold = 25 * time.Hour

// Holding returns for how long at most the consumers of a catalog, and those whom they answer, use
// what they hold when this owner is lost: negative for ever. Where nobody can know, it says why.
// A relay that is cut off cannot tell its owner who comes meanwhile. So consumers count that have
// gone, for those that come may hold as long, and before the first one the usual time.
func (s *Server) Holding(catalog string) (hold time.Duration, unknown string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for session := range s.sessions {
		if c := session.copied(); c.Catalog == catalog {
			unknown = cmp.Or(c.Unclear(), unknown)
		}
	}
	remembered := s.copies.Remembered(time.Now())
	unknown = cmp.Or(remembered.Beyond, unknown)
	for _, c := range remembered.Lost {
		if c.Catalog == catalog {
			unknown = cmp.Or(c.Unclear(), unknown)
		}
	}
	return cmp.Or(s.copies.Longest(catalog), usualHold), unknown
}
