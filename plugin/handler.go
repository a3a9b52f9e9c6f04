package federationplugin

import (
	"context"
	"slices"
	"sort"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/fall"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/agent"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/zone"
)

// Federation answers from the catalogs of the owners of one server block.
type Federation struct {
	Next plugin.Handler

	// Read-only after setup.
	wasReady bool // the server is in service with an earlier configuration
	configs  []Config
	origins  []origin
	falls    bool                   // names of some origin go to the next plugin
	policies map[string]wire.Policy // by the owner's ID
	hosts    *resolver

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
	through fall.F // what the next plugin is asked for when it does not exist
}

// newFederation returns the handler of a server block, which answers once it
// has its block.
func newFederation(configs []Config) *Federation {
	f := &Federation{configs: configs, policies: make(map[string]wire.Policy), hosts: newResolver()}
	for _, c := range configs {
		id := (&agent.OwnerConfig{Addresses: c.Addresses, ServerName: c.ServerName}).ID()
		f.policies[id] = wire.Policy{AllowAddresses: slices.Concat(f.policies[id].AllowAddresses, c.AllowAddresses)}
		f.hosts.admit(id, c.Retention)
		for _, z := range c.Zones {
			i := slices.IndexFunc(f.origins, func(o origin) bool { return o.name == z.String() })
			if i < 0 {
				i = len(f.origins)
				f.origins = append(f.origins, origin{name: z.String()})
			}
			f.origins[i].through.Zones = append(f.origins[i].through.Zones, c.Fall.Zones...)
		}
		f.falls = f.falls || len(c.Fall.Zones) > 0
	}
	return f
}

// serve answers from the block from now on.
func (f *Federation) serve(b block) { f.block.Store(&b) }

// zone returns the version of the zone that answers a query. There is one for
// each query: of two, one could say what the other denies.
func (f *Federation) zone() *zone.Zone { return (*f.block.Load()).Zone() }

// Name implements plugin.Handler.
func (f *Federation) Name() string { return directive }

// ServeDNS implements plugin.Handler.
func (f *Federation) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	z := f.zone()
	var now time.Time
	if z.Timed() {
		now = time.Now()
	}
	result := z.Lookup(state.Name(), state.QType(), now)
	switch {
	case result.Kind == zone.Outside || state.QClass() != dns.ClassINET:
		return f.next(ctx, w, r)
	case r.Opcode != dns.OpcodeQuery:
		return dns.RcodeNotImplemented, nil
	case state.QType() == dns.TypeAXFR || state.QType() == dns.TypeIXFR:
		return dns.RcodeRefused, nil // allowed ones never come here: the transfer plugin takes them
	case (result.Kind == zone.NameError || result.Kind == zone.Unheard) && f.fallsThrough(state.Name()):
		return f.next(ctx, w, r)
	}

	m := new(dns.Msg)
	m.SetReply(r)
	m.Authoritative = true
	switch result.Kind {
	case zone.Unsynced, zone.Unheard:
		// Not NXDOMAIN: it would be cached for a name that may well exist.
		fail(m, r, dns.ExtendedErrorCodeNotReady, "catalog not received yet")
	case zone.NameError:
		m.Rcode = dns.RcodeNameError
		m.Ns = result.Authority()
	case zone.NoData:
		m.Ns = result.Authority()
	case zone.Success:
		result.Room = f.room(&state)
		m.Answer = result.Answer(m.Question[0].Name)
		if t := state.QType(); t == dns.TypeSRV || t == dns.TypeNS {
			addGlue(m, &state, &result, now)
		}
	case zone.Indirect:
		f.answerIndirect(ctx, m, &state, &result)
	}
	annotate(m, r, &result)
	_ = w.WriteMsg(m) // the client is gone; nobody is left to tell
	return dns.RcodeSuccess, nil
}

// room is how many octets of a reply can reach the client. What is more would
// only be made for the server to cut it off again. It is all of them for a reply
// that somebody may keep who takes it for whole: a cache, where zones fall
// through. A signed reply is not truncated, either.
func (f *Federation) room(state *request.Request) int {
	if f.falls || state.Req.IsTsig() != nil {
		return dns.MaxMsgSize
	}
	return state.Size()
}

// next hands the query on. Without a next plugin the server has no answer, which
// is no failure.
func (f *Federation) next(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if f.Next == nil {
		return dns.RcodeRefused, nil
	}
	return plugin.NextOrFailure(f.Name(), f.Next, ctx, w, r)
}

// fallsThrough reports whether a name that does not exist is handed on. Of zones
// within each other, the one that has the name decides.
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

// annotate adds what a client should know of an answer that an owner is missing
// from, or an address.
func annotate(m, r *dns.Msg, result *zone.Result) {
	negative := m.Rcode == dns.RcodeNameError || m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0
	switch {
	case negative && result.Lost():
		addError(m, r, dns.ExtendedErrorCodeStaleNXDOMAINAnswer, "")
	case result.Stale() && m.Rcode == dns.RcodeSuccess:
		addError(m, r, dns.ExtendedErrorCodeStaleAnswer, "")
	}
	if result.Stale() && m.Rcode == dns.RcodeSuccess {
		staleAnswers.WithLabelValues(result.StaleOwner()).Inc()
	}
	if result.Denied() {
		addError(m, r, dns.ExtendedErrorCodeBlocked, "endpoint host has an address that is not allowed")
	}
}

// fail turns the reply into a failure that no resolver takes for an answer.
func fail(m, r *dns.Msg, code uint16, text string) {
	m.Rcode = dns.RcodeServerFailure
	m.Authoritative = false
	addError(m, r, code, text)
}

// addError adds an extended error (RFC 8914) for a client that speaks EDNS; to
// others an OPT must not be sent (RFC 6891 section 7). The server fills in the
// rest of the OPT. An error that is there already is not added again.
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
	// its owner, type, class, TTL, length and an IPv4 address.
	minGlue = 2 + 2 + 2 + 4 + 2 + 4
)

// addGlue adds as many whole RRsets as fit the client's buffer: what is
// optional must not cause truncation (RFC 2181 section 9). Over UDP a signature
// for each would follow for a client that sets DO, so it gets none.
func addGlue(m *dns.Msg, state *request.Request, result *zone.Result, now time.Time) {
	if state.Do() && state.Proto() == "udp" {
		return
	}
	limit := state.Size()
	if opt := state.Req.IsEdns0(); opt != nil {
		limit -= dns.Len(opt) + maxError
	}
	if m.Len() > limit {
		m.Compress = true // as the server will
		if m.Len()+minGlue > limit {
			return
		}
	}
	glue := result.Glue(m.Answer, now)
	m.Extra = glue
	if m.Len() <= limit {
		return
	}
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

// sameSet tells whether two records, which are in one class, are of one RRset.
func sameSet(a, b dns.RR) bool {
	return a.Header().Rrtype == b.Header().Rrtype && a.Header().Name == b.Header().Name
}
