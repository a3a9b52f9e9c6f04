package reply

import (
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
)

// Message is a reply, in one piece of memory with its question and the first of its
// records: a garbage collector that has less to do is a good part of a fast answer.
// The sections have no room to grow into each other.
type Message struct {
	dns.Msg

	question [1]dns.Question
	records  [4]dns.RR // of all sections, until there are more
}

// NewReply returns an authoritative reply to a query, without records.
func NewReply(query *dns.Msg) *Message {
	m := new(Message)
	// As dns.Msg.SetReply, which allocates the question.
	m.Id, m.Opcode, m.Response, m.Authoritative = query.Id, query.Opcode, true, true
	if query.Opcode == dns.OpcodeQuery {
		m.RecursionDesired, m.CheckingDisabled = query.RecursionDesired, query.CheckingDisabled
	}
	m.question[0] = query.Question[0]
	m.Question = m.question[:]
	return m
}

// spareRecords returns the unused room for records.
func (m *Message) spareRecords() []dns.RR {
	used := min(len(m.Answer)+len(m.Ns)+len(m.Extra), len(m.records))
	return m.records[used:used]
}

// SetAnswer makes the records of AppendAnswer the answer, with the name as in the
// question.
func (m *Message) SetAnswer(r *zone.Result, room int) {
	m.Answer = clipSection(AppendAnswer(m.spareRecords(), r, m.question[0].Name, room))
}

// SetResolved makes the records of AppendResolved the answer.
func (m *Message) SetResolved(r *zone.Result, others []netip.Addr, ttl uint32) {
	m.Answer = clipSection(AppendResolved(m.spareRecords(), r, m.question[0].Name, others, ttl))
}

// SetAuthority makes the SOA of a negative answer the authority.
func (m *Message) SetAuthority(r *zone.Result) {
	m.Ns = clipSection(AppendAuthority(m.spareRecords(), r))
}

// SetGlue makes the records of AppendGlue the additional ones.
func (m *Message) SetGlue(r *zone.Result, room int, now time.Time) {
	m.Extra = AppendGlue(m.spareRecords(), r, m.Answer, room, now)
}

// clipSection returns a section without the room behind it, which is that of others.
func clipSection(rrs []dns.RR) []dns.RR {
	if len(rrs) == 0 {
		return nil
	}
	return slices.Clip(rrs)
}
