package federationplugin

import (
	"slices"
	"sort"
	"time"

	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
)

// queryClient says what the client of a query accepts.
type queryClient struct {
	edns bool // the client understands extended errors (RFC 8914)
	asks bool // the client wants an explanation, and its answers do not count

	// proves is set where plugin dnssec may sign the reply: it must not sign what is another zone's.
	proves bool

	// room is how many octets of a reply can reach the client: the server would cut off what is
	// made beyond that.
	room int

	// glue is how many octets a reply with glue may have; 0: there may be none.
	glue int

	// opt is how many octets the server adds for EDNS to a reply that has no OPT.
	opt int
}

// minGlue is the least size of an address record, in octets: a pointer to its name,
// type, class, TTL, length and an IPv4 address.
const minGlue = 2 + 2 + 2 + 4 + 2 + 4

// clientOf returns what the client of a query accepts.
func (f *Federation) clientOf(w dns.ResponseWriter, r *dns.Msg) queryClient {
	state := request.Request{W: w, Req: r}
	c := queryClient{room: state.Size()}
	_, c.asks = w.(explainClient)
	c.proves = state.Do()
	// Over UDP a client that sets DO gets no glue: plugin dnssec would add a signature for
	// each RRset.
	if !c.proves || state.Proto() != "udp" {
		c.glue = c.room
	}
	if opt := r.IsEdns0(); opt != nil {
		c.edns, c.opt = true, dns.Len(opt)
	}
	// Where zones fall through, plugin cache may keep the reply for other clients, and it
	// must be whole. A signed reply is not truncated, either.
	if f.anyFallThrough || r.IsTsig() != nil {
		c.room = dns.MaxMsgSize
	}
	return c
}

// addExtendedErrors adds the extended errors of an answer that is stale, or negative while an owner
// is lost (RFC 8914 sections 4.4 and 4.20), or that lacks an address which is not allowed. It also
// counts stale answers.
func (c queryClient) addExtendedErrors(m *reply.Message, result *zone.Result) {
	negative := m.Rcode == dns.RcodeNameError || m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0
	stale := result.IsStale() && m.Rcode == dns.RcodeSuccess
	switch {
	case negative && result.HasLostOwner():
		c.addError(m, dns.ExtendedErrorCodeStaleNXDOMAINAnswer, "")
	case stale:
		c.addError(m, dns.ExtendedErrorCodeStaleAnswer, "")
	}
	if result.IsDenied() {
		c.addError(m, dns.ExtendedErrorCodeBlocked, denied)
	}
	if stale && !c.asks {
		staleAnswers.WithLabelValues(result.StaleOwner()).Inc()
	}
}

// setServerFailure turns the reply into SERVFAIL with an extended error.
func (c queryClient) setServerFailure(m *reply.Message, code uint16, text string) {
	m.Rcode = dns.RcodeServerFailure
	m.Authoritative = false
	c.addError(m, code, text)
}

// addError adds an extended error (RFC 8914), once, if the client speaks EDNS: other clients must
// not be sent an OPT (RFC 6891 section 7). The server fills in the rest of the OPT.
func (c queryClient) addError(m *reply.Message, code uint16, text string) {
	if !c.edns || hasError(&m.Msg, code) {
		return
	}
	opt := m.IsEdns0()
	if opt == nil {
		opt = &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		m.Extra = append(m.Extra, opt)
	}
	opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: code, ExtraText: text})
}

// addGlue adds as many whole RRsets as fit the client's buffer together with the rest of the reply,
// which is complete. Optional records must not cause truncation (RFC 2181 section 9).
func (c queryClient) addGlue(m *reply.Message, result *zone.Result, now time.Time) {
	if c.glue == 0 || len(m.Answer) == 0 {
		return
	}
	room, opt := c.glue-c.opt, m.IsEdns0() // which has extended errors, and is all there is
	if opt != nil {
		room = c.glue - dns.Len(opt)
	}
	m.Extra = nil
	if m.Len() > room {
		m.Compress = true // as the server will
	}
	if !m.Compress || m.Len()+minGlue <= room {
		m.SetGlue(result, c.room, now)
		if m.Len() > room {
			trimGlue(m, room)
		}
	}
	if opt != nil {
		m.Extra = append(m.Extra, opt)
	}
}

// trimGlue removes RRsets of the glue until the reply fits the room.
func trimGlue(m *reply.Message, room int) {
	glue := m.Extra
	m.Compress, m.Extra = true, nil
	fit := sort.Search(min(len(glue), (room-m.Len())/minGlue), func(n int) bool {
		m.Extra = glue[:n+1]
		return m.Len() > room
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
