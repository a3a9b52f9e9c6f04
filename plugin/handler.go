package federationplugin

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/fall"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/hostname"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
)

// Federation answers from the catalogs of the owners of one server block. Setup fills it, and
// afterwards only block changes, once, when the server block starts. It keeps no zone: each query
// loads the newest version from the block, and answers wholly from that version.
type Federation struct {
	Next plugin.Handler

	// Read-only after setup.
	wasReady       bool              // the server is in service with an earlier configuration
	config         agent.BlockConfig // without Configuration and the addresses of the server
	origins        []blockZone
	anyFallThrough bool // names of some origin go to the next plugin
	hosts          *hostname.Resolver

	block atomic.Pointer[queryBlock] // set at start-up, before the first query
}

// queryBlock has the methods of agent.Block that queries need.
type queryBlock interface {
	Ask()
	Work() func(worked time.Duration) bool
	Zone() *zone.Zone
	Ready() bool
}

// blockZone is one zone of the server block.
type blockZone struct {
	name    string // lower case, absolute
	through fall.F // names that go to the next plugin when they do not exist
}

// newFederation returns the handler of a server block, which answers once it has its block. Blocks
// that name the same owner agree on the connection to that owner, or the agent refuses them.
func newFederation(blocks []corefile.Block) *Federation {
	f := new(Federation)
	retentions := make(map[string]time.Duration)
	for i := range blocks {
		b := &blocks[i]
		f.config.AddOwner(b.Owner, b.Zone)
		retentions[b.Owner.Name] = b.Owner.Rules.Retention
		for _, z := range b.Zone.Origins {
			i := slices.IndexFunc(f.origins, func(o blockZone) bool { return o.name == z.String() })
			if i < 0 {
				i = len(f.origins)
				f.origins = append(f.origins, blockZone{name: z.String()})
			}
			f.origins[i].through.Zones = append(f.origins[i].through.Zones, b.Fall.Zones...)
		}
		f.anyFallThrough = f.anyFallThrough || len(b.Fall.Zones) > 0
	}
	f.hosts = hostname.New(retentions, func(cause any) { panics.reportPanic("look-up of a host", cause) })
	return f
}

// setBlock makes f answer from the block from now on.
func (f *Federation) setBlock(b queryBlock) { f.block.Store(&b) }

// newestZone returns the newest version of the zone. A query loads it once and is wholly answered
// from it, because of two versions one could have what the other denies.
func (f *Federation) newestZone() *zone.Zone { return (*f.block.Load()).Zone() }

// zoneForQuery notes that a query has come, and returns what newestZone does.
func (f *Federation) zoneForQuery() *zone.Zone {
	b := *f.block.Load()
	b.Ask()
	return b.Zone()
}

// Name implements plugin.Handler.
func (f *Federation) Name() string { return corefile.Directive }

// ServeDNS implements plugin.Handler.
//
// The goroutine of a query starts on a small stack. When that is full, all of it is copied to a
// stack of twice the size. So the code that finds and makes the answer returns before the reply is
// packed and sent: neither has the frames of the other beneath it. TestFrames has the bounds.
func (f *Federation) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	m, rcode := f.answerQuery(ctx, f.zoneForQuery(), w, r)
	switch {
	case m != nil:
		_ = w.WriteMsg(m) // on failure the client is gone
	case rcode == handOn:
		return f.askNext(ctx, w, r)
	}
	return rcode, nil
}

// handOn is the code for a query that goes to the next plugin.
const handOn = -1

// answerQuery returns the reply to a query from a zone, or the code with which the server replies
// by itself, or handOn.
func (f *Federation) answerQuery(ctx context.Context, z *zone.Zone, w dns.ResponseWriter, r *dns.Msg) (*dns.Msg, int) {
	var now time.Time
	if z.DependsOnTime() {
		now = time.Now()
	}
	question := &r.Question[0]
	name := strings.ToLower(question.Name)

	var result zone.Result
	result.Fill(z, name, question.Qtype, now)
	switch {
	case result.Kind == zone.Outside || question.Qclass != dns.ClassINET:
		return nil, handOn
	case r.Opcode != dns.OpcodeQuery:
		return nil, dns.RcodeNotImplemented
	case question.Qtype == dns.TypeAXFR || question.Qtype == dns.TypeIXFR:
		return nil, dns.RcodeRefused // allowed ones never come here: the transfer plugin takes them
	case (result.Kind == zone.NameError || result.Kind == zone.Unheard) && f.fallsThrough(name):
		return nil, handOn
	}

	m, c := reply.NewReply(r), f.clientOf(w, r)
	switch result.Kind {
	case zone.Unsynced, zone.Unheard:
		// Not NXDOMAIN: it would be cached for a name that may well exist.
		c.setServerFailure(m, dns.ExtendedErrorCodeNotReady, "catalog not received yet")
	case zone.NameError:
		m.Rcode = dns.RcodeNameError
		m.SetAuthority(&result)
	case zone.NoData:
		m.SetAuthority(&result)
	case zone.Success:
		m.SetAnswer(&result, c.room)
	case zone.Indirect:
		if question.Qtype == dns.TypeSRV {
			f.answerTargets(ctx, m, c, &result)
		} else {
			f.answerIndirect(ctx, m, c, &result, now)
		}
	}
	c.addExtendedErrors(m, &result)
	if question.Qtype == dns.TypeSRV || question.Qtype == dns.TypeNS {
		c.addGlue(m, &result, now)
	}
	return &m.Msg, dns.RcodeSuccess
}

// askNext passes the query to the next plugin. Without a next plugin it refuses the query, as the
// server does with names outside its zones.
func (f *Federation) askNext(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if f.Next == nil {
		return dns.RcodeRefused, nil
	}
	return plugin.NextOrFailure(f.Name(), f.Next, ctx, w, r)
}

// fallsThrough reports whether a query for a name that does not exist goes to the next plugin. Of
// nested zones, the innermost that contains the name decides.
func (f *Federation) fallsThrough(name string) bool {
	if !f.anyFallThrough {
		return false
	}
	var in blockZone
	for _, o := range f.origins {
		if len(o.name) > len(in.name) && dns.IsSubDomain(o.name, name) {
			in = o
		}
	}
	return in.through.Through(name)
}
