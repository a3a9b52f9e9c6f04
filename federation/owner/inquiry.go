package owner

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/internal/receipts"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
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
	sought   map[*registry.Registry]*registry.Sought
	answered map[*session]reached
}

// reached says since when a consumer has a version, or a later one.
type reached struct {
	version uint64
	at      time.Time
}

// Inquire begins an inquiry. Of a service that was withdrawn before, it cannot know which
// consumers were told of it, and takes all of them.
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
	i.server.mu.Lock()
	sessions := slices.Collect(maps.Keys(i.server.sessions))
	catalogs := make(map[string]*registry.Registry)
	for name, c := range i.server.catalogs {
		if c.registry != nil && (i.question.Catalog == nil || *i.question.Catalog == name) {
			catalogs[name] = c.registry
		}
	}
	remembered := i.server.copies.Remembered(now) // with the sessions: a consumer is in one of them
	i.server.mu.Unlock()

	s := status.Settlement{There: i.question.There, Now: now.UTC(), Away: []string{}}
	for name, r := range catalogs {
		sought := i.sought[r]
		if sought == nil {
			sought = r.Seek(i.question.Matches)
			i.sought[r] = sought
		}
		sought.Look()
		n, _ := sought.Found()
		s.Published += n
		if sought.Unavailable() != "" {
			s.Away = append(s.Away, name)
		}
	}
	slices.Sort(s.Away)
	if i.question.There == (s.Published > 0) && len(s.Away) == 0 {
		for _, session := range sessions {
			if sought := i.of(session.registry, session.consumer, session.ids, catalogs[session.catalog.name]); sought != nil {
				s.Add(i.judge(session, sought))
			}
		}
		for _, c := range remembered.Lost {
			if i.of(catalogs[c.Catalog], c.Consumer, c.IDs, catalogs[c.Catalog]) != nil {
				s.Add(i.lost(c))
			}
		}
		if remembered.More.After(now) {
			s.Add(status.Outstanding{Reason: "others were lost than are remembered", Until: remembered.More})
		}
		if remembered.Beyond != "" {
			s.Add(status.Outstanding{Reason: remembered.Beyond, Unknown: true})
		}
	}
	s.Conclude()
	return s
}

// of returns what is sought in the catalog that a consumer has, or nil where it does not
// count: it may have had no such service.
func (i *Inquiry) of(has *registry.Registry, consumer string, ids []federation.ID, counts *registry.Registry) *registry.Sought {
	if has == nil || counts == nil || slices.Contains(i.question.Ignore, consumer) {
		return nil
	}
	sought := i.sought[counts]
	if !sought.Tells(ids) {
		return nil
	}
	return sought
}

// judge returns where the consumer of a session is.
func (i *Inquiry) judge(s *session, sought *registry.Sought) status.Outstanding {
	_, since := sought.Found()
	at := status.Outstanding{Catalog: s.catalog.name, Consumer: s.consumer, Address: s.address.String()}
	r := s.receipt
	if r == nil {
		at.Reason, at.Unknown = receipts.Silent, true
		return at
	}
	now := s.reached()
	r.mu.Lock()
	defer r.mu.Unlock()
	at.Holder = r.said.Holder
	if r.unknown != "" {
		at.Reason, at.Unknown = r.unknown, r.unknown != notYetReported
		return at
	}
	if service, refused := r.refusal(sought); refused {
		at.Reason = "it refuses what this owner says of the service " + federation.Quote(service)
		return at
	}
	had := i.answered[s]
	if had.version != since {
		had = reached{}
		if now.version >= since {
			had = reached{since, now.at}
			i.answered[s] = had
		}
	}
	switch {
	case had.at.IsZero() && r.said.Relay:
		at.Reason = "not all of its own consumers are settled"
	case had.at.IsZero():
		at.Reason = "it has yet to acknowledge the change"
	case r.said.TTL < 0:
		at.Reason = "its answers are kept for ever"
	default:
		at.Reason, at.Until = "its answers are kept for their TTL", had.at.Add(r.said.TTL)
	}
	return at
}

// refusal returns the service that the consumer refuses of those that are sought. Of what
// was gone before anybody asked, it may have refused only that it is gone. The caller holds mu.
func (r *declared) refusal(sought *registry.Sought) (string, bool) {
	for name, operation := range r.refused {
		if sought.Was(name) && (operation == federation.Delete || sought.Seen()) {
			return name, true
		}
	}
	return "and others", r.more
}

// lost returns where a consumer is that has no stream.
func (i *Inquiry) lost(c *receipts.Copy) status.Outstanding {
	at := status.Outstanding{Catalog: c.Catalog, Consumer: c.Consumer, Holder: c.Receipt.Holder}
	until, why, ok := c.Until()
	of, _ := c.Of.(*registry.Registry)
	knew := false
	if sought := i.sought[of]; sought != nil {
		_, since := sought.Found()
		knew = c.Version >= since
	}
	switch {
	case knew && c.Receipt.TTL >= 0:
		at.Until, at.Reason = c.At.Add(c.Receipt.TTL), "its answers are kept for their TTL"
	case ok:
		at.Until, at.Reason = until, "it is lost, and answers what it holds until then at most"
	case why != "":
		at.Reason, at.Unknown = "it is lost; "+why, true
	default:
		at.Reason = "it is lost, and answers what it holds without an end"
	}
	return at
}

// holdStep is how exactly Holding says it: each second would be news while somebody is lost.
const holdStep = 10 * time.Second

// Holding returns for how long at most the consumers of a catalog, and those whom they answer, use
// what they hold when this owner is lost: negative for ever. Where nobody can know, it says why.
func (s *Server) Holding(catalog string) (hold time.Duration, unknown string) {
	now := time.Now()
	s.mu.Lock()
	var copies []*receipts.Copy
	for session := range s.sessions {
		if session.catalog.name == catalog {
			c := session.copied()
			c.Lost = now
			copies = append(copies, c)
		}
	}
	remembered := s.copies.Remembered(now)
	s.mu.Unlock()
	for _, c := range remembered.Lost {
		if c.Catalog == catalog {
			copies = append(copies, c)
		}
	}
	hold, unknown = max(0, remembered.More.Sub(now)), remembered.Beyond
	for _, c := range copies {
		until, why, ok := c.Until()
		switch {
		case why != "":
			unknown = why
		case !ok:
			hold = receipt.Forever
		case hold >= 0:
			hold = max(hold, until.Sub(now))
		}
	}
	if hold > 0 {
		hold = (hold + holdStep - 1).Truncate(holdStep)
	}
	return hold, unknown
}
