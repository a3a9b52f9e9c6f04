package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
)

// statusOf fetches JSON from the status of CoreDNS.
func statusOf[T any](t testing.TB, address, path string) (value T) {
	t.Helper()
	code, body, err := get("http://" + address + path)
	if err == nil && code == http.StatusOK {
		err = json.Unmarshal([]byte(body), &value)
	}
	if err != nil || code != http.StatusOK {
		t.Fatalf("%s: %d %s %v", path, code, body, err)
	}
	return value
}

// TestWhy has CoreDNS explain an answer of every kind, and each is the one that a client gets. The
// rules by which a name has it are in packages zone and agent, the words in package status.
func TestWhy(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	hosts := startNameserver(t, map[string]string{"gw.hosts.example.": "3600 A 198.51.100.7", "loop.hosts.example.": "3600 A 127.0.0.9", "broken.hosts.example.": "SERVFAIL"})
	at := func(fqdn, host string) *federation.Service {
		return fixtureService(fqdn, fqdn, []string{host + ":443"}, []string{"v1 HTTPS"})
	}
	o := startOwner(t, p, at("web.live.example", "192.0.2.1"), at("deep.empty.live.example", "192.0.2.1"), at("circle.live.example", "circle.live.example"),
		at("x.dns.live.example", "192.0.2.1"), at("gw.live.example", "gw.hosts.example"), at("broken.live.example", "broken.hosts.example"),
		at("loop.live.example", "loop.hosts.example"))
	near, far := startOwner(t, p, at("web.joint.example", "192.0.2.1")), startOwner(t, p, at("web.joint.example", "192.0.2.3"))
	lost := startOwner(t, p, at("old.stale.example", "192.0.2.1"))
	page := loopback.Address(t)
	d := startCoreDNS(t, federationBlock(p, "live.example", "", o.address+" status "+page)+
		federationBlock(p, "joint.example", "", near.address+" share *", far.address+" share *\n\t\ttier 1")+
		federationBlock(p, "falls.example", "forward . "+hosts, o.address+" fallthrough")+
		federationBlock(p, "unknown.example", "", loopback.Address(t))+
		federationBlock(p, "stale.example", "", lost.address+" retention 1h")+
		fmt.Sprintf("hosts.example:PORT {\n\tbind 127.0.0.1\n\tforward . %s\n}\n", hosts))
	for _, zone := range []string{"live", "joint", "falls", "stale"} {
		d.awaitComplete(t, "nope."+zone+".example")
	}
	lost.stop()
	d.awaitStale(t, "old.stale.example")
	for _, tt := range []struct {
		name, qtype string
		verdict     status.AnswerVerdict // "" where nobody has to answer
	}{
		{"web.live.example", "A", status.Live},
		{"_https._tcp.web.live.example", "SRV", status.Live},
		{"_https._tcp.web.joint.example", "SRV", status.Live},
		{"gw.live.example", "A", status.Live},
		{"broken.live.example", "A", status.Unresolved},
		{"loop.live.example", "A", status.Denied},
		{"live.example", "SOA", status.OwnData},
		{"web.live.example", "MX", status.NoData},
		{"circle.live.example", "A", status.NoData},
		{"empty.live.example", "A", status.NoData},
		{"nope.live.example", "A", status.NoName},
		{"x.dns.live.example", "A", status.Refused},
		{"nope.falls.example", "A", status.PassedOn},
		{"web.unknown.example", "A", status.NotKnownYet},
		{"old.stale.example", "A", status.Stale},
		{"nope.stale.example", "A", status.NoNameLost},
		{"www.elsewhere.example", "A", ""},
	} {
		w := statusOf[status.NameExplanation](t, page, "/v1/why?name="+url.QueryEscape(tt.name)+"&type="+tt.qtype)
		m := mustQuery(t, d.address, tt.name, dns.StringToType[tt.qtype])
		if len(w.Answers) != 1 {
			if tt.verdict != "" || len(w.Answers) > 0 || m.Rcode != dns.RcodeRefused {
				t.Errorf("%s is explained by %+v, and a client gets\n%v", tt.name, w.Answers, m)
			}
			continue
		}
		a, records := w.Answers[0], []string(nil)
		for _, rr := range m.Answer {
			records = append(records, strings.ReplaceAll(rr.String(), "\t", " "))
		}
		slices.Sort(records)
		slices.Sort(a.Records)
		if a.Verdict != tt.verdict || !a.Passed && (a.Rcode != dns.RcodeToString[m.Rcode] || !slices.Equal(a.Records, records)) {
			t.Errorf("%s %s is explained as %s, %s %q, want %s, and a client gets\n%v", tt.name, tt.qtype, a.Verdict, a.Rcode, a.Records, tt.verdict, m)
		}
	}
}
