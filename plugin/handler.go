package federationplugin

import (
	"context"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/fall"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/dns/agent"
	"github.com/hamlet-federation/coredns-federation/federation/dns/hostname"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
)

// Federation answers from the catalogs of the owners of one server block.
type Federation struct {
	Next plugin.Handler

	// Read-only after setup.
	wasReady bool              // the server is in service with an earlier configuration
	config   agent.BlockConfig // but for Configuration and the addresses of the server
	origins  []origin
	falls    bool                             // names of some origin go to the next plugin
	admits   map[string]func(netip.Addr) bool // which addresses an owner may publish, by its ID
	hosts    *hostname.Resolver

	block atomic.Pointer[block] // set at start-up, before the first query
}

// block is what queries need of an agent.Block.
type block interface {
	Zone() *zone.Zone
	Ready() bool
}

// origin is one zone of the server block.
type origin struct {
	name    string // lower case, absolute
	through fall.F // names that go to the next plugin when they do not exist
}

// newFederation returns the handler of a server block, which answers once it
// has its block. Blocks that name the same owner agree on the connection to it,
// or the agent refuses them.
func newFederation(blocks []corefile.Block) *Federation {
	f := &Federation{admits: make(map[string]func(netip.Addr) bool)}
	retentions := make(map[string]time.Duration)
	for i := range blocks {
		b := &blocks[i]
		o := b.Zone
		o.ID, o.Retention = b.Owner.ID(), b.Owner.Retention
		o.Admits = wire.Policy{AllowAddresses: b.Owner.AllowAddresses}.Admits
		f.config.Owners = append(f.config.Owners, b.Owner)
		f.config.Zone.Owners = append(f.config.Zone.Owners, o)
		f.admits[o.ID], retentions[o.ID] = o.Admits, o.Retention
		for _, z := range o.Origins {
			i := slices.IndexFunc(f.origins, func(o origin) bool { return o.name == z.String() })
			if i < 0 {
				i = len(f.origins)
				f.origins = append(f.origins, origin{name: z.String()})
			}
			f.origins[i].through.Zones = append(f.origins[i].through.Zones, b.Fall.Zones...)
		}
		f.falls = f.falls || len(b.Fall.Zones) > 0
	}
	f.hosts = hostname.New(retentions)
	return f
}

// serve makes f answer from the block from now on.
func (f *Federation) serve(b block) { f.block.Store(&b) }

// zone returns the newest version of the zone. A query loads it once and is wholly
// answered from it: of two versions, one could have what the other denies.
func (f *Federation) zone() *zone.Zone { return (*f.block.Load()).Zone() }

// Name implements plugin.Handler.
func (f *Federation) Name() string { return corefile.Directive }

// ServeDNS implements plugin.Handler.
//
// The goroutine of a query starts on a small stack, and when it runs out of it, all
// of it is copied to one of twice the size. So what finds and makes the answer returns
// before the reply is packed and sent: neither has the frames of the other beneath
// it. TestFrames has the bounds.
func (f *Federation) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	m, rcode := f.answer(ctx, f.zone(), w, r)
	switch {
	case m != nil:
		_ = w.WriteMsg(m) // on failure the client is gone
	case rcode == handOn:
		return f.next(ctx, w, r)
	}
	return rcode, nil
}

// handOn is the code of a query that is left to the next plugin.
const handOn = -1

// answer returns the reply to a query from a zone, or the code with which the server replies
// by itself, or handOn.
func (f *Federation) answer(ctx context.Context, z *zone.Zone, w dns.ResponseWriter, r *dns.Msg) (*dns.Msg, int) {
	var now time.Time
	if z.Timed() {
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

	m := reply.To(r)
	switch result.Kind {
	case zone.Unsynced, zone.Unheard:
		// Not NXDOMAIN: it would be cached for a name that may well exist.
		fail(&m.Msg, r, dns.ExtendedErrorCodeNotReady, "catalog not received yet")
	case zone.NameError:
		m.Rcode = dns.RcodeNameError
		m.SetAuthority(&result)
	case zone.NoData:
		m.SetAuthority(&result)
	case zone.Success:
		room := f.room(w, r)
		m.SetAnswer(&result, room)
		if question.Qtype == dns.TypeSRV || question.Qtype == dns.TypeNS {
			addGlue(m, w, r, &result, room, now)
		}
	case zone.Indirect:
		if question.Qtype == dns.TypeSRV {
			f.answerTargets(ctx, m, w, r, &result, now)
		} else {
			f.answerIndirect(ctx, m, r, &result)
		}
	}
	annotate(&m.Msg, r, &result)
	if result.Stale() && m.Rcode == dns.RcodeSuccess {
		countStale(w, &result)
	}
	return &m.Msg, dns.RcodeSuccess
}

// room returns how many octets of a reply can reach the client: the server would
// cut off what is made beyond that. Where zones fall through, plugin cache may keep
// the reply for other clients, and it must be whole. A signed reply is not
// truncated, either.
func (f *Federation) room(w dns.ResponseWriter, r *dns.Msg) int {
	if f.falls || r.IsTsig() != nil {
		return dns.MaxMsgSize
	}
	state := request.Request{W: w, Req: r}
	return state.Size()
}

// next hands the query on. Without a next plugin it is refused, as the server does
// with names outside its zones.
func (f *Federation) next(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if f.Next == nil {
		return dns.RcodeRefused, nil
	}
	return plugin.NextOrFailure(f.Name(), f.Next, ctx, w, r)
}

// fallsThrough reports whether a name that does not exist is handed on. Of nested
// zones, the innermost that contains the name decides.
func (f *Federation) fallsThrough(name string) bool {
	if !f.falls {
		return false
	}
	var in origin
	for _, o := range f.origins {
		if len(o.name) > len(in.name) && dns.IsSubDomain(o.name, name) {
			in = o
		}
	}
	return in.through.Through(name)
}

// annotate adds the extended errors of an answer that is stale, or negative while
// an owner is lost (RFC 8914 sections 4.4 and 4.20), or that lacks an address which
// is not allowed.
func annotate(m, r *dns.Msg, result *zone.Result) {
	negative := m.Rcode == dns.RcodeNameError || m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0
	switch {
	case negative && result.Lost():
		addError(m, r, dns.ExtendedErrorCodeStaleNXDOMAINAnswer, "")
	case result.Stale() && m.Rcode == dns.RcodeSuccess:
		addError(m, r, dns.ExtendedErrorCodeStaleAnswer, "")
	}
	if result.Denied() {
		addError(m, r, dns.ExtendedErrorCodeBlocked, denied)
	}
}

// countStale counts a stale answer, unless it is only explained.
func countStale(w dns.ResponseWriter, result *zone.Result) {
	if _, explained := w.(asker); !explained {
		staleAnswers.WithLabelValues(result.StaleOwner()).Inc()
	}
}

// fail turns the reply into SERVFAIL with an extended error.
func fail(m, r *dns.Msg, code uint16, text string) {
	m.Rcode = dns.RcodeServerFailure
	m.Authoritative = false
	addError(m, r, code, text)
}

// addError adds an extended error (RFC 8914), once, for a client that speaks EDNS:
// to others an OPT must not be sent (RFC 6891 section 7). The server fills in the
// rest of the OPT.
func addError(m, r *dns.Msg, code uint16, text string) {
	if r.IsEdns0() == nil {
		return
	}
	opt := m.IsEdns0()
	if opt == nil {
		opt = &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		m.Extra = append(m.Extra, opt)
	}
	if slices.ContainsFunc(opt.Option, func(o dns.EDNS0) bool {
		ede, ok := o.(*dns.EDNS0_EDE)
		return ok && ede.InfoCode == code
	}) {
		return
	}
	opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: code, ExtraText: text})
}

const (
	// maxError is the size of the extended error of a stale answer, in octets.
	maxError = 2 + 2 + 2

	// minGlue is the least size of an address record, in octets: a pointer to
	// its name, type, class, TTL, length and an IPv4 address.
	minGlue = 2 + 2 + 2 + 4 + 2 + 4
)

// addGlue adds as many whole RRsets as fit the client's buffer: what is
// optional must not cause truncation (RFC 2181 section 9).
func addGlue(m *reply.Message, w dns.ResponseWriter, r *dns.Msg, result *zone.Result, room int, now time.Time) {
	limit := glueLimit(w, r)
	if limit == 0 {
		return
	}
	if m.Len() > limit {
		m.Compress = true // as the server will
		if m.Len()+minGlue > limit {
			return
		}
	}
	m.SetGlue(result, room, now)
	if m.Len() > limit {
		trimGlue(m, limit)
	}
}

// glueLimit returns how many octets a reply with glue may have. Over UDP a client
// that sets DO gets no glue, so that is 0: plugin dnssec would add a signature for
// each RRset.
func glueLimit(w dns.ResponseWriter, r *dns.Msg) int {
	state := request.Request{W: w, Req: r}
	if state.Do() && state.Proto() == "udp" {
		return 0
	}
	limit := state.Size()
	if opt := r.IsEdns0(); opt != nil {
		limit -= dns.Len(opt) + maxError
	}
	return limit
}

// trimGlue leaves as many RRsets of the glue as fit the limit, in octets.
func trimGlue(m *reply.Message, limit int) {
	glue := m.Extra
	m.Compress, m.Extra = true, nil
	fit := sort.Search(min(len(glue), (limit-m.Len())/minGlue), func(n int) bool {
		m.Extra = glue[:n+1]
		return m.Len() > limit
	})
	for fit > 0 && fit < len(glue) && sameSet(glue[fit-1], glue[fit]) {
		fit--
	}
	m.Extra = slices.Clip(glue[:fit])
}

// sameSet reports whether two records of one class are in the same RRset.
func sameSet(a, b dns.RR) bool {
	return a.Header().Rrtype == b.Header().Rrtype && a.Header().Name == b.Header().Name
}
