package reply_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
)

// TestTo compares the reply with that of the DNS library, which is authoritative on
// top.
func TestTo(t *testing.T) {
	for _, flags := range []dns.MsgHdr{
		{},
		{RecursionDesired: true},
		{CheckingDisabled: true, AuthenticatedData: true, Truncated: true, Zero: true},
		{Opcode: dns.OpcodeNotify, RecursionDesired: true, CheckingDisabled: true},
	} {
		query := &dns.Msg{MsgHdr: flags, Compress: true}
		query.Id = 7
		query.Question = []dns.Question{{Name: "Web.fed.example.", Qtype: dns.TypeA, Qclass: dns.ClassINET}}
		query.SetEdns0(1232, true)
		want := new(dns.Msg).SetReply(query)
		want.Authoritative = true
		got := reply.NewReply(query)
		if d := cmp.Diff(want, &got.Msg); d != "" {
			t.Errorf("%+v (-want +got):\n%s", flags, d)
		}
		if got.Question[0].Name = "changed."; query.Question[0].Name != "Web.fed.example." {
			t.Error("the reply and the query share the question")
		}
	}
}

// TestMessageSections checks that what others append to one section does not change
// the records of another one, whether they fit the message or not.
func TestMessageSections(t *testing.T) {
	more := reply.AppendAuthority(nil, ask("nope.fed.example.", dns.TypeA))
	for _, tt := range []struct {
		name             string
		qtype            uint16
		answer, ns, glue int
	}{
		{"plain.fed.example.", dns.TypeA, 2, 0, 0},
		{"plain.fed.example.", dns.TypeMX, 0, 1, 0},
		{"_http._tcp.chain.fed.example.", dns.TypeSRV, 1, 0, 0},
		{"_http._tcp.via.fed.example.", dns.TypeSRV, 1, 0, 3},
		{"_http._tcp.plain.fed.example.", dns.TypeSRV, 3, 0, 3},
		{"fed.example.", dns.TypeNS, 1, 0, 2},
	} {
		query := new(dns.Msg)
		query.SetQuestion(tt.name, tt.qtype)
		result := ask(tt.name, tt.qtype)
		m := reply.NewReply(query)
		if tt.ns > 0 {
			m.SetAuthority(result)
		} else {
			m.SetAnswer(result, 0)
			m.SetGlue(result, 0, now)
		}
		sections := [][]string{text(m.Answer), text(m.Ns), text(m.Extra)}
		if len(m.Answer) != tt.answer || len(m.Ns) != tt.ns || len(m.Extra) != tt.glue {
			t.Errorf("%s: the sections are %v", tt.name, sections)
		}
		answer, ns := append(m.Answer, more...), append(m.Ns, more...) //nolint:gocritic // the others are what is looked at
		extra := append(m.Extra, more...)                              //nolint:gocritic // as above
		for i, appended := range [][]string{text(answer), text(ns), text(extra)} {
			want := append(sections[i], text(more)...) //nolint:gocritic // a new list
			if d := cmp.Diff(want, appended); d != "" {
				t.Errorf("%s: section %d (-want +got):\n%s", tt.name, i, d)
			}
		}
		if d := cmp.Diff(strings.Join(sections[0], "\n"), strings.Join(text(m.Answer), "\n")); d != "" {
			t.Errorf("%s: the answer has changed (-want +got):\n%s", tt.name, d)
		}
	}
}
