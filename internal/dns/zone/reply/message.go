package reply

import (
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
)

// Message is a reply, in one piece of memory with its question and the first of its records,
// because an answer is faster when the garbage collector has less to do. One query uses it. Its
// sections share the room for records, and none has room to grow into another one.
type Message struct {
	dns.Msg

	question [1]dns.Question
	records  [4]dns.RR // the first records of all sections
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

// SetAnswer sets the answer to the records of AppendAnswer, with the name as in the question.
func (m *Message) SetAnswer(r *zone.Result, room int) {
	m.Answer = clipSection(AppendAnswer(m.spareRecords(), r, m.question[0].Name, room))
}

// SetResolved sets the answer to the records of AppendResolved.
func (m *Message) SetResolved(r *zone.Result, others []netip.Addr, ttl uint32) {
	m.Answer = clipSection(AppendResolved(m.spareRecords(), r, m.question[0].Name, others, ttl))
}

// SetAuthority sets the authority to the SOA of a negative answer.
func (m *Message) SetAuthority(r *zone.Result) {
	m.Ns = clipSection(AppendAuthority(m.spareRecords(), r))
}

// SetGlue sets the additional section to the records of AppendGlue.
func (m *Message) SetGlue(r *zone.Result, room int, now time.Time) {
	m.Extra = AppendGlue(m.spareRecords(), r, m.Answer, room, now)
}

// clipSection returns a section without the room after it, which belongs to other sections.
func clipSection(rrs []dns.RR) []dns.RR {
	if len(rrs) == 0 {
		return nil
	}
	return slices.Clip(rrs)
}
