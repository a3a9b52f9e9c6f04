package test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var updateWhy = flag.Bool("update-why", false, "write the golden files of TestWhy; read the difference before you keep it")

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

// whyOf explains an answer, and checks that it is the one that a client gets.
func whyOf(t testing.TB, d *coreDNS, reported, name, qtype string) status.Why {
	t.Helper()
	w := statusOf[status.Why](t, reported, "/v1/why?name="+url.QueryEscape(name)+"&type="+qtype)
	query := new(dns.Msg)
	query.SetQuestion(dns.Fqdn(name), dns.StringToType[qtype]).SetEdns0(4096, false)
	m, _, err := (&dns.Client{Net: "tcp", Timeout: patience}).Exchange(query, d.address)
	must.Do(t, err)
	if len(w.Answers) == 0 {
		if m.Rcode != dns.RcodeRefused {
			t.Errorf("no explanation of %s, and a client gets\n%v", name, m)
		}
		return w
	}
	a := slices.MaxFunc(w.Answers, func(x, y status.Answer) int { return len(x.Zone) - len(y.Zone) }) // whom CoreDNS asks
	if a.Passed {
		return w // what the next plugin answers is not explained
	}
	records := []string{}
	for _, rr := range m.Answer {
		records = append(records, strings.ReplaceAll(rr.String(), "\t", " "))
	}
	explained := slices.Clone(a.Records)
	slices.Sort(records)
	slices.Sort(explained)
	if a.Rcode != dns.RcodeToString[m.Rcode] || !slices.Equal(explained, records) {
		t.Errorf("%s %s is explained as %s %q, and a client gets\n%v", name, qtype, a.Rcode, a.Records, m)
	}
	return w
}

// placeholders replaces what differs between two runs: times, spans and serials.
var placeholders = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`), "TIME"},
	{regexp.MustCompile(`\b\d+ (s|min|h|days)\b( \d+ min)?`), "SPAN"},
	{regexp.MustCompile(`/\S+/ca\.pem`), "FILE"},
	{regexp.MustCompile(`next attempt (now|in SPAN)`), "next attempt in SPAN"},
	{regexp.MustCompile(`serial \d+`), "serial SERIAL"},
	{regexp.MustCompile(`(hostmaster\S*) \d+`), "$1 SERIAL"},
}

// whyCase is one answer that is explained.
type whyCase struct {
	name    string // of the golden file
	query   string
	qtype   string
	verdict status.Verdict
}

// TestWhy lets CoreDNS explain one answer of every kind: of each state of an owner, each
// conflict and each rule, and of the symptoms in docs/symptoms.md. Every explanation has the
// reply that a client gets.
func TestWhy(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	foreign := newPKI(t)
	names := startNameserver(t, map[string]string{"gw.hosts.example.": "3600 A 198.51.100.7", "loop.hosts.example.": "3600 A 127.0.0.9", "broken.hosts.example.": "SERVFAIL"})

	// What is answered, by one owner and by two.
	long := strings.TrimSuffix(strings.Repeat("a23456789012345678901234567890.", 7), ".")
	first := startOwner(t, p.owner, "",
		fixtureService(t, "web", "web.live.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "both", "both.live.example", []string{"192.0.2.2:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "twice-b", "twice.live.example", []string{"192.0.2.4:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "twice-a", "twice.live.example", []string{"192.0.2.3:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "deep", "deep.empty.live.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "gw", "gw.live.example", []string{"gw.hosts.example:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "broken", "broken.live.example", []string{"broken.hosts.example:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "loop", "loop.live.example", []string{"loop.hosts.example:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "gone", "gone.live.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "strange", "strange.live.example", []string{"192.0.2.1:443"}, []string{"not a label! HTTPS"}),
		fixtureService(t, "alike", "alike.live.example", []string{"192.0.2.1:443"}, []string{"Alpha HTTPS", "alpha HTTPS"}),
		fixtureService(t, "circle", "circle.live.example", []string{"circle.live.example:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "parent", "parent.live.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "child", "v1.parent.live.example", []string{"192.0.2.5:443"}, []string{"v2 HTTPS"}),
		fixtureService(t, "longish", long+".live.example", []string{"192.0.2.1:443"}, []string{strings.Repeat("i", 50) + " HTTPS"}),
	)
	wide := "b" + long[1:]
	many := fixtureService(t, "many", wide+".live.example", nil, []string{"v1 HTTPS"}) // of which each SRV has a long target
	txt := fixtureService(t, "txt", "txt.live.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"})
	txt.Instances[0].Metadata = []federation.Pair{{Key: "long", Value: strings.Repeat("x", 300)}, {Key: "short", Value: "x"}}
	for i := range 1000 {
		many.Endpoints = append(many.Endpoints, federation.Endpoint{Address: mustAddress(t, fmt.Sprintf("198.18.%d.%d", i/250, i%250)), Port: 443})
	}
	mustUpsert(t, first, txt)
	mustUpsert(t, first, many)
	second := startOwner(t, p.owner, "",
		fixtureService(t, "both-too", "both.live.example", []string{"203.0.113.2:443"}, []string{"v1 HTTPS"}))
	chosen := startOwner(t, p.owner, "",
		fixtureService(t, "other", "other.chosen.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "b", "b.pay.chosen.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}))
	renamed := startOwner(t, p.owner, "",
		fixtureService(t, "crm", "crm.corp.internal", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "longer.renamed.example", long+".big.corp.internal", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}))
	shared := startOwner(t, p.owner, "",
		fixtureService(t, "here", "here.one.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "there", "there.two.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}),
		fixtureService(t, "reserved", "x.dns.three.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}))
	near := startOwner(t, p.owner, "", fixtureService(t, "near", "web.joint.example", []string{"192.0.2.1:443", "192.0.2.2:443@[far]"}, []string{"v1 HTTPS"}))
	far := startOwner(t, p.owner, "", fixtureService(t, "far", "web.joint.example", []string{"192.0.2.2:443", "192.0.2.3:443"}, []string{"v1 HTTPS"}))
	falls := startOwner(t, p.owner, "")

	// What is refused.
	message := func(name, port, instances string) string {
		return fmt.Sprintf(`message {"name":%q,"fqdn":"%s.refused.example","endpoints":[{"address":"192.0.2.1","port":%s}],"instances":[%s]}`+"\n",
			name, cmp.Or(name, "missing"), port, instances)
	}
	const instance = `{"id":"v1","protocol":"HTTPS"}`
	refused := startScripted(t, p.owner, "announce\n"+message("", "443", instance)+message("name", "443", instance+","+instance)+
		message("port", "70000", instance)+message("protocol", "443", `{"id":"v1","protocol":"SMTP"}`)+
		`truncated undecodable undecodable.refused.example 192.0.2.1
		upsert not.a.name.refused.example bad..name.refused.example 192.0.2.1
		upsert address address.refused.example 127.0.0.1
		oversized 100000 limit limit.refused.example 192.0.2.1
		upsert outside.refused.example outside.elsewhere.example 192.0.2.1
		upsert reserved x.dns.refused.example 192.0.2.1
		end`)

	// The states of an owner.
	nobody := freeAddress(t)
	strict := startOwner(t, foreign.owner, "")
	silent := startScripted(t, p.owner, "hang")
	closed := startScripted(t, p.owner, "status Unauthenticated\n---\nannounce\nend")
	lost := startOwner(t, p.owner, "", fixtureService(t, "old", "old.stale.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}))
	over := startOwner(t, p.owner, "", fixtureService(t, "old", "old.expired.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}))
	again := startScripted(t, p.owner, "upsert old old.again.example 192.0.2.1\nawait\nstatus Unavailable\n---\nhang")
	turned := startScripted(t, p.owner, "announce\nupsert old old.turned.example 192.0.2.1\nend\nawait\nstatus Unavailable\n---\nstatus Unauthenticated")
	turnedToo := startScripted(t, p.owner, "status Unauthenticated")
	held := startScripted(t, p.owner, "services 0 20 held.example\nawait\nstatus Unavailable\n---\nservices 0 1 held.example")

	page := freeAddress(t)
	d := startCoreDNS(t, strings.Join([]string{
		federationBlock(p, "live.example", "", first.address+" status "+page, second.address),
		federationBlock(p, "joint.example", "", near.address+" share *\n\t\ttier 1 far", far.address+" share web.joint.example\n\t\ttier 1"),
		federationBlock(p, "chosen.example", "", chosen.address+" import_names *.pay.chosen.example"),
		federationBlock(p, "renamed.example", "", renamed.address+" rename corp.internal renamed.example\n\t\trename "+"big.corp.internal "+strings.Repeat("b23456789.", 9)+"renamed.example"),
		federationBlock(p, "one.example", "", shared.address),
		federationBlock(p, "two.example:PORT three.example", "", shared.address),
		federationBlock(p, "x.dns.three.example", "", shared.address),
		federationBlock(p, "falls.example", "forward . "+names.address, falls.address+" fallthrough"),
		federationBlock(p, "refused.example", "", refused.address),
		federationBlock(p, "connecting.example", "", nobody),
		federationBlock(p, "handshake.example", "", strict.address),
		federationBlock(p, "syncing.example", "", silent.address),
		federationBlock(p, "parked.example", "", closed.address),
		federationBlock(p, "stale.example", "", lost.address+" retention 1h"),
		federationBlock(p, "expired.example", "", over.address+" retention 1s"),
		federationBlock(p, "again.example", "", again.address+" settle 100ms"),
		fmt.Sprintf("turned.example:PORT {\n\tbind 127.0.0.1\n\tfederation {\n\t\towner %s %s\n\t\t%s\n\t}\n}\n", turned.address, turnedToo.address, p.tls()),
		federationBlock(p, "held.example", "", held.address+" settle 100ms"),
		fmt.Sprintf("hosts.example:PORT {\n\tbind 127.0.0.1\n\tforward . %s\n}\n", names.address),
	}, ""))
	d.awaitAnswer(t, "nope.live.example", dns.TypeA, "NXDOMAIN")
	d.awaitAnswer(t, "nope.refused.example", dns.TypeA, "NXDOMAIN")
	d.awaitAnswer(t, "b.pay.chosen.example", dns.TypeA, "NOERROR 192.0.2.1")
	d.awaitAnswer(t, "here.one.example", dns.TypeA, "NOERROR 192.0.2.1")
	d.awaitAnswer(t, "there.two.example", dns.TypeA, "NOERROR 192.0.2.1")
	d.awaitAnswer(t, "web.joint.example", dns.TypeA, "NOERROR 192.0.2.1")
	d.awaitAnswer(t, "crm.renamed.example", dns.TypeA, "NOERROR 192.0.2.1")
	d.awaitAnswer(t, "old.stale.example", dns.TypeA, "NOERROR 192.0.2.1")
	d.awaitAnswer(t, "old.expired.example", dns.TypeA, "NOERROR 192.0.2.1")
	state := func(address, want, failure string) {
		t.Helper()
		eventually(t, patience, func() string {
			for _, u := range statusOf[status.Status](t, page, "/v1/status").Owners {
				if u.ID == address && u.State == want && strings.Contains(u.Failure, failure) {
					return ""
				}
			}
			return fmt.Sprintf("%s is not %s, with the failure %q", address, want, failure)
		})
	}
	for _, o := range []*realOwner{first, second, chosen, renamed, shared, near, far, falls, lost, over} {
		state(o.address, "synced", "") // which comes after the answers from a catalog
	}
	lost.stop()
	over.stop()
	d.awaitStale(t, "old.stale.example")
	d.awaitAnswer(t, "old.expired.example", dns.TypeA, "NXDOMAIN")
	first.Delete("gone")
	d.awaitAnswer(t, "gone.live.example", dns.TypeA, "NXDOMAIN")
	d.awaitLog(t, 1, "owner is synced", held.address)
	held.goOn(t)
	d.awaitLog(t, 1, "came back without most of its services", held.address)
	d.awaitLog(t, 1, "owner is synced", again.address)
	again.goOn(t)
	d.awaitLog(t, 1, "owner is synced", turned.address)
	turned.goOn(t)
	mustUpsert(t, chosen, fixtureService(t, "b", "b.shop.chosen.example", []string{"192.0.2.1:443"}, []string{"v1 HTTPS"}))
	d.awaitAnswer(t, "b.pay.chosen.example", dns.TypeA, "NXDOMAIN")
	state(nobody, "connecting", "connection refused")
	state(strict.address, "connecting", "TLS handshake")
	state(silent.address, "syncing", "")
	state(closed.address, "parked", "Unauthenticated")
	state(lost.address, "stale", "connection refused") // of the next attempt, not of the stream that has ended
	state(over.address, "expired", "connection refused")
	state(again.address, "syncing", "")
	state(turned.address, "parked", "")

	owners := strings.NewReplacer(
		first.address, "first:8008", near.address, "near:8008", far.address, "far:8008", second.address, "second:8008", chosen.address, "chosen:8008", renamed.address, "renamed:8008",
		shared.address, "shared:8008", falls.address, "falls:8008", refused.address, "refused:8008", nobody, "nobody:8008",
		strict.address, "strict:8008", silent.address, "silent:8008", closed.address, "closed:8008", lost.address, "lost:8008",
		over.address, "over:8008", held.address, "held:8008",
		again.address, "again:8008", turned.address, "turned:8008", turnedToo.address, "turned-too:8008", ":"+port(d.address), ":53",
	)
	cases := []whyCase{
		{"live", "web.live.example", "A", status.Live},
		{"live-instance", "v1.web.live.example", "SRV", status.Live},
		{"live-protocol", "_https._tcp.web.live.example", "SRV", status.Live},
		{"shared", "web.joint.example", "A", status.Live},
		{"shared-protocol", "_https._tcp.web.joint.example", "SRV", status.Live},
		{"zone-soa", "live.example", "SOA", status.OwnData},
		{"zone-name-server", "ns.dns.live.example", "A", ""},
		{"no-data", "web.live.example", "MX", status.NoData},
		{"no-data-circle", "circle.live.example", "A", status.NoData},
		{"no-data-empty", "empty.live.example", "A", status.NoData},
		{"no-name", "nope.live.example", "A", status.NoName},
		{"withdrawn", "gone.live.example", "A", status.NoName},
		{"outside", "www.elsewhere.example", "A", ""},
		{"host", "gw.live.example", "A", status.Live},
		{"host-unresolved", "broken.live.example", "A", status.Unresolved},
		{"host-denied", "loop.live.example", "A", status.Denied},
		{"not-imported-name", "other.chosen.example", "A", status.NoName},
		{"excluded", "b.pay.chosen.example", "A", status.NoName},
		{"renamed", "crm.renamed.example", "A", status.Live},
		{"fallthrough", "nope.falls.example", "A", status.PassedOn},

		{"conflict-fqdn-two-owners", "both.live.example", "A", status.Live},
		{"conflict-fqdn-one-owner", "twice.live.example", "A", status.Live},
		{"conflict-instance", "v1.parent.live.example", "A", status.Live},
		{"conflict-instances", "alike.live.example", "A", status.Live},
		{"conflict-instance-id", "strange.live.example", "A", status.Live},
		{"conflict-name-too-long", long + ".live.example", "A", status.Live},
		{"conflict-rrset-too-large", wide + ".live.example", "SRV", ""},
		{"conflict-name", "longer.renamed.example", "A", status.Refused},
		{"conflict-out-of-zone", "there.two.example", "A", status.Live},
		{"conflict-reserved-name", "x.dns.three.example", "A", ""},
		{"conflict-txt-dropped", "v1.txt.live.example", "TXT", status.Live},

		{"refused-undecodable", "undecodable.refused.example", "A", status.Refused},
		{"refused-missing", "missing.refused.example", "A", status.Refused},
		{"refused-name", "name.refused.example", "A", status.Refused},
		{"refused-name-fqdn", "not.a.name.refused.example", "A", status.Refused},
		{"refused-address", "address.refused.example", "A", status.Refused},
		{"refused-port", "port.refused.example", "A", status.Refused},
		{"refused-protocol", "protocol.refused.example", "A", status.Refused},
		{"refused-limit", "limit.refused.example", "A", status.Refused},
		{"refused-out-of-zone", "outside.refused.example", "A", status.Refused},
		{"refused-outside", "outside.elsewhere.example", "A", ""},
		{"refused-below", "_https._tcp.address.refused.example", "SRV", status.Refused},
		{"refused-reserved-name", "x.dns.refused.example", "A", status.Refused},

		{"state-connecting", "web.connecting.example", "A", status.NotKnownYet},
		{"state-connecting-handshake", "web.handshake.example", "A", status.NotKnownYet},
		{"state-syncing", "web.syncing.example", "A", status.NotKnownYet},
		{"state-syncing-stale", "old.again.example", "A", status.Stale},
		{"state-parked-stale", "old.turned.example", "A", status.Stale},
		{"state-parked", "web.parked.example", "A", status.NotKnownYet},
		{"state-stale", "old.stale.example", "A", status.Stale},
		{"state-stale-no-name", "nope.stale.example", "A", status.NoNameLost},
		{"state-expired", "old.expired.example", "A", status.NoNameLost},
		{"held", "s3.held.example", "A", status.Stale},
	}
	wanted := make(map[string]bool)
	for _, tc := range cases {
		wanted[tc.name+".txt"] = true
		t.Run(tc.name, func(t *testing.T) {
			w := whyOf(t, d, page, tc.query, tc.qtype)
			if tc.verdict != "" && (len(w.Answers) != 1 || w.Answers[0].Verdict != tc.verdict) {
				t.Errorf("explained by %+v, want the verdict %q", w.Answers, tc.verdict)
			}
			got := owners.Replace(strings.Join(w.Lines(), "\n") + "\n")
			for _, p := range placeholders {
				got = p.pattern.ReplaceAllString(got, p.with)
			}
			file := filepath.Join("testdata", "why", tc.name+".txt")
			if *updateWhy {
				writeFile(t, file, got)
			}
			want := must.Get(os.ReadFile(file))(t)
			if diff := gocmp.Diff(string(want), got); diff != "" {
				t.Errorf("explanation (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("retry", func(t *testing.T) {
		for _, u := range statusOf[status.Status](t, page, "/v1/status").Owners {
			if (u.ID == nobody) == u.NextAttempt.IsZero() && (u.ID == nobody || u.ID == closed.address) {
				t.Errorf("owner %s is %s, and the next attempt at %v", u.ID, u.State, u.NextAttempt)
			}
		}
		target := "http://" + page + "/v1/retry?of=" + closed.address
		if code, _, err := get(target); err != nil || code != http.StatusMethodNotAllowed {
			t.Errorf("GET: %d, %v", code, err)
		}
		response, err := http.Post(target, "", nil)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", response, err)
		}
		response.Body.Close()
		state(closed.address, "synced", "") // which was parked
	})
	files := must.Get(os.ReadDir(filepath.Join("testdata", "why")))(t)
	for _, f := range files {
		if !wanted[f.Name()] {
			t.Errorf("no case for testdata/why/%s; there are %v", f.Name(), slices.Sorted(maps.Keys(wanted)))
		}
	}
}

func port(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

func mustAddress(t testing.TB, s string) federation.Address {
	t.Helper()
	a := must.Get(federation.ParseAddress(s))(t)
	return a
}
