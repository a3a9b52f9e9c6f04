package serve

import (
	"context"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/stream"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/source/relay"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// receiptsFile returns the path of the file of receipts.
func receiptsFile(c *config.Config) string { return c.Receipts }

// Inquire begins an inquiry of the owner.
func (p *Publisher) Inquire(q owner.Question) *owner.Inquiry { return p.server.Inquire(q) }

// inquireIn returns what begins an inquiry whether services of a catalog are gone.
func (p *Publisher) inquireIn(catalog string) func(gone func(*wire.Encoded) bool) func() status.Settlement {
	return func(gone func(*wire.Encoded) bool) func() status.Settlement {
		return p.server.Inquire(owner.Question{Matches: gone, Catalog: &catalog}).Look
	}
}

const (
	reportInterval = 250 * time.Millisecond // between two looks at what consumers have settled
	roundInterval  = time.Second            // between the beginnings of two rounds
	maxRounds      = 4                      // at a time
)

// round is what the consumers of a relay have yet to settle: all that the owner had sent up to a
// position.
type round struct {
	position stream.Position
	inquiry  *owner.Inquiry
}

// reporting is what an owner is told of the consumers of a relay.
type reporting struct {
	rounds  []round
	begun   stream.Position // the last one of which there was a round
	at      time.Time       // when that began
	settled stream.Position
	said    said
}

// said is what an owner was told last.
type said struct {
	position stream.Position // then: a stream that is new has to be told all
	hold     time.Duration
	unknown  string
}

// reportReceipts tells the owners that are relayed what the consumers have settled, and may hold,
// until ctx ends.
func (p *Publisher) reportReceipts(ctx context.Context) {
	ticker := time.NewTicker(reportInterval)
	defer ticker.Stop()
	reports := make(map[*relay.Source]*reporting)
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		now := make(map[*relay.Source]*reporting)
		p.mu.Lock()
		relays := make(map[string]*relay.Source)
		catalogs := make(map[string]*source.Catalog)
		for name, c := range p.catalogs {
			if of := p.relayOf(name); of != nil {
				relays[name], catalogs[name] = of, c.sources
			}
		}
		p.mu.Unlock()
		for name, of := range relays {
			r := reports[of]
			if r == nil {
				r = &reporting{}
			}
			now[of] = r
			r.report(of, p.server, name, catalogs[name])
		}
		reports = now
	}
}

// report tells the owner what is new. While withdrawals are held back, nothing is settled.
func (r *reporting) report(of *relay.Source, server *owner.Server, catalog string, sources *source.Catalog) {
	position := of.Position() // first: the others then know of all of it
	held := slices.ContainsFunc(sources.Status().Sources, func(s source.SourceStatus) bool { return s.Held > 0 })
	if !held && position != r.begun && len(r.rounds) < maxRounds && (len(r.rounds) == 0 || time.Since(r.at) >= roundInterval) {
		i := server.Inquire(owner.Question{Matches: func(*wire.Encoded) bool { return false }, Catalog: &catalog})
		r.rounds = append(r.rounds, round{position, i})
		r.begun, r.at = position, time.Now()
	}
	done := 0
	for i, round := range r.rounds {
		if s := round.inquiry.Look(); s.Settled {
			done, r.settled = i+1, round.position
		}
	}
	r.rounds = append(r.rounds[:0], r.rounds[done:]...)
	hold, unknown := server.Holding(catalog)
	if now := (said{position, hold, unknown}); done > 0 || now != r.said {
		r.said = now
		of.Report(r.settled, hold, unknown)
	}
}
