package status

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var update = flag.Bool("update", false, "write the golden files")

// now is when the reports of the tests were made, and ago a time before it.
var now = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

// checkGolden compares a text with the golden file of that name.
func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		must.Do(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want := must.Get(os.ReadFile(path))(t)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", path, diff)
	}
}

// checkText fails if a line could do harm to whoever reads it.
func checkText(t *testing.T, lines []string) {
	t.Helper()
	for _, line := range lines {
		if len(line) > maxLine {
			t.Errorf("a line has %d bytes: %.100s", len(line), line)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("a line is not printable: %q", line)
		}
	}
}

// TestLines has an explanation for each verdict, and for what an owner says.
func TestLines(t *testing.T) {
	servers, synced := []string{"dns://.:53"}, OwnerPart{ID: "o1:8008", State: "synced", Since: ago(2 * time.Hour)}
	holder := &NameHolder{Owner: "o1:8008", Service: "web", FQDN: "web.fed.example.", Updated: ago(3 * time.Minute)}
	lost := OwnerPart{ID: "o2:8008", State: "stale", Since: ago(90 * time.Minute), Expires: now.Add(22*time.Hour + 30*time.Minute), Failure: "Unavailable: connection refused", NextAttempt: now.Add(2 * time.Minute)}
	outside := OwnerPart{ID: "o9:8008", State: "synced", Since: ago(time.Hour), Refusals: []RefusedService{
		{At: ago(time.Second), Service: "web", FQDN: "fed.example.", Field: "fqdn", Reason: "reserved_name", Rule: `"fed.example." is reserved`},
		{At: ago(time.Minute), Service: "web", FQDN: "web.fed.example.", Field: "fqdn", Reason: "out_of_zone", Rule: `"web.fed.example." is outside the zones given to this owner (o9.example.)`},
	}}
	tests := []struct {
		name      string
		answer    BlockAnswer
		elsewhere []OwnerPart
	}{
		{name: "live", answer: BlockAnswer{
			Verdict: Live, Is: "service", Rcode: "NOERROR", Holder: holder, Owners: []OwnerPart{synced},
			Records: []string{"web.fed.example. 30 IN A 192.0.2.1", "web.fed.example. 30 IN A 192.0.2.2"},
		}},
		{name: "live-instance-renamed", answer: BlockAnswer{
			Verdict: Live, Is: "instance", Rcode: "NOERROR", Owners: []OwnerPart{synced},
			Records: []string{"v1.web.fed.example. 30 IN TXT \"protocol=HTTP2\" \"a\\\"b\""},
			Holder: &NameHolder{
				Owner: "o1:8008", Service: "web", FQDN: "web.fed.example.", Original: "web.o1.example.", Instance: "v1",
				Faults: map[string]int{"name_too_long": 2, "txt_dropped": 1},
			},
			Rivals: []RivalService{{"o2:8008", "web-2", "web.fed.example.", "owner o1:8008 comes first in the Corefile"}},
		}},
		{name: "stale", answer: BlockAnswer{
			Verdict: Stale, Is: "service", Rcode: "NOERROR", Errors: []string{"3 (Stale Answer): owner o2:8008 is lost"},
			Records: []string{"web.fed.example. 30 IN A 192.0.2.1"}, Owners: []OwnerPart{lost},
			Holder: &NameHolder{
				Owner: "o2:8008", Service: "web", FQDN: "web.fed.example.", Updated: ago(72 * time.Hour),
				Stale: true, StaleFrom: ago(90 * time.Minute), Expires: now.Add(22*time.Hour + 30*time.Minute),
			},
		}},
		{name: "stale-forever", answer: BlockAnswer{
			Verdict: Stale, Is: "service", Rcode: "NOERROR", Records: []string{"web.fed.example. 30 IN A 192.0.2.1"},
			Owners: []OwnerPart{{ID: "o2:8008", State: "parked", Since: ago(time.Hour), Failure: "Unauthenticated: not allowed"}},
			Holder: &NameHolder{Owner: "o2:8008", Service: "web", FQDN: "web.fed.example.", Stale: true, StaleFrom: ago(time.Hour)},
		}},
		{name: "paused", answer: BlockAnswer{
			Verdict: Stale, Is: "service", Rcode: "NOERROR", Records: []string{"web.fed.example. 30 IN A 192.0.2.1"}, Owners: []OwnerPart{synced, lost},
			Holder: &NameHolder{Owner: "o1:8008", Service: "web", FQDN: "web.fed.example.", Stale: true, StaleFrom: ago(time.Hour), Expires: now.Add(23 * time.Hour)},
		}},
		{name: "stale-syncing", answer: BlockAnswer{
			Verdict: Stale, Is: "service", Rcode: "NOERROR", Records: []string{"web.fed.example. 30 IN A 192.0.2.1"},
			Owners: []OwnerPart{{ID: "o2:8008", State: "syncing", Known: true, Since: ago(4 * time.Second)}},
			Holder: &NameHolder{Owner: "o2:8008", Service: "web", FQDN: "web.fed.example.", Stale: true, StaleFrom: ago(time.Hour), Expires: now.Add(23 * time.Hour)},
		}},
		{name: "stale-parked", answer: BlockAnswer{
			Verdict: Stale, Is: "service", Rcode: "NOERROR", Records: []string{"web.fed.example. 30 IN A 192.0.2.1"},
			Owners: []OwnerPart{{ID: "o2:8008", State: "parked", Known: true, Since: ago(time.Minute), Expires: now.Add(23 * time.Hour), Failure: "Unauthenticated: not allowed"}},
			Holder: &NameHolder{Owner: "o2:8008", Service: "web", FQDN: "web.fed.example.", Stale: true, StaleFrom: ago(time.Hour), Expires: now.Add(23 * time.Hour)},
		}},
		{name: "expired-parked", answer: BlockAnswer{Verdict: NoNameLost, Is: "missing", Rcode: "NXDOMAIN", Owners: []OwnerPart{
			{
				ID: "o2:8008", State: "parked", Known: true, Since: ago(25 * time.Hour), Failure: "Unauthenticated: not allowed",
				Gone: []GoneService{{ago(time.Hour), "web", "web.fed.example.", "expired"}, {ago(26 * time.Hour), "web", "web.fed.example.", "moved"}},
			},
		}}},
		{name: "not-known-one", answer: BlockAnswer{Verdict: NotKnownYet, Is: "missing", Rcode: "SERVFAIL", Owners: []OwnerPart{
			{ID: "o1:8008", State: "stale", Known: true, Since: ago(time.Hour), Failure: "Unavailable: connection refused"},
			{ID: "o3:8008", State: "connecting", Since: ago(time.Hour), Failure: "Unavailable: connection refused"},
		}}},
		{name: "zone", answer: BlockAnswer{
			Verdict: OwnData, Is: "zone", Rcode: "NOERROR", Serial: 7, Owners: []OwnerPart{synced},
			Records: []string{"fed.example. 5 IN SOA ns.dns.fed.example. hostmaster.fed.example. 7 7200 1800 86400 5"},
		}},
		{name: "no-data", answer: BlockAnswer{Verdict: NoData, Is: "service", Rcode: "NOERROR", Holder: holder, Owners: []OwnerPart{synced}}},
		{name: "no-data-empty", answer: BlockAnswer{Verdict: NoData, Is: "empty", Rcode: "NOERROR", Owners: []OwnerPart{synced}}},
		{name: "no-name", answer: BlockAnswer{Verdict: NoName, Is: "missing", Rcode: "NXDOMAIN", Nearest: []string{"web-1.fed.example.", "wet.fed.example."}, Owners: []OwnerPart{synced}}},
		{name: "no-name-refused", answer: BlockAnswer{Verdict: NoName, Is: "missing", Rcode: "NXDOMAIN", Owners: []OwnerPart{{
			ID: "o1:8008", State: "synced", Since: ago(time.Hour), NotAdmitted: `"web.fed.example" is outside the zones given to this owner`,
			Refusals: []RefusedService{{At: ago(time.Minute), Service: "web", FQDN: "web.fed.example.", Field: "endpoints[0].address", Reason: "address", Rule: `"127.0.0.1" is a loopback address`}},
			Gone:     []GoneService{{ago(time.Hour), "web", "web.fed.example.", "withdrawn"}, {ago(2 * time.Hour), "web", "web.fed.example.", "excluded"}},
		}}}},
		{name: "no-name-not-imported", answer: BlockAnswer{Verdict: NoName, Is: "missing", Rcode: "NXDOMAIN", Owners: []OwnerPart{
			{ID: "o1:8008", State: "synced", Since: ago(time.Hour), NotImported: "import_names *.pay.example"},
			{ID: "o2:8008", State: "synced", Since: ago(time.Hour)},
			{ID: "o3:8008", State: "synced", Since: ago(time.Hour)},
		}}},
		{name: "no-name-lost", answer: BlockAnswer{Verdict: NoNameLost, Is: "missing", Rcode: "NXDOMAIN", Errors: []string{"19 (Stale NXDOMAIN Answer)"}, Owners: []OwnerPart{
			lost, {ID: "o3:8008", State: "expired", Since: ago(25 * time.Hour), Gone: []GoneService{{ago(time.Hour), "web", "web.fed.example.", "expired"}}},
		}}},
		{name: "not-known", answer: BlockAnswer{Verdict: NotKnownYet, Is: "missing", Rcode: "SERVFAIL", Errors: []string{"14 (Not Ready)"}, Owners: []OwnerPart{
			{ID: "o1:8008", State: "connecting", Since: ago(20 * time.Second), Failure: "TLS handshake: unknown authority"},
			{ID: "o2:8008", State: "syncing", Since: ago(4 * time.Second)},
		}}},
		{name: "unresolved", answer: BlockAnswer{
			Verdict: Unresolved, Is: "service", Rcode: "SERVFAIL", Holder: holder, Owners: []OwnerPart{synced},
			Hosts: []HostEndpoint{{Name: "db.example.", Failure: "SERVFAIL from 192.0.2.53"}, {Name: "old.example.", Addresses: []string{"192.0.2.9"}, Stale: true}, {Name: "none.example."}},
		}},
		{name: "denied", answer: BlockAnswer{
			Verdict: Denied, Is: "service", Rcode: "NOERROR", Errors: []string{"15 (Blocked)"}, Holder: holder, Owners: []OwnerPart{synced},
			Hosts: []HostEndpoint{{Name: "db.example.", Addresses: []string{"127.0.0.1"}}},
		}},
		{name: "shared", answer: BlockAnswer{
			Verdict: Live, Is: "service", Rcode: "NOERROR", Owners: []OwnerPart{synced, lost}, Records: []string{"web.fed.example. 30 IN A 192.0.2.1"},
			Holder: &NameHolder{Owner: "o1:8008", Owners: []string{"o2:8008"}, Service: "web", FQDN: "web.fed.example.", Updated: ago(time.Minute), Shared: slices.Concat([]SharedEndpoint{
				{Endpoint: "192.0.2.1:80", Owners: []string{"o1:8008"}, Answered: true, Rule: "it is live"},
				{Endpoint: "192.0.2.2:80", Owners: []string{"o1:8008", "o2:8008"}, Tier: 1, Rule: "it is live, but better tiers have enough live endpoints (min)"},
				{Endpoint: "[2001:db8::1]:80", Owners: []string{"o2:8008"}, Answered: true, Rule: "its owner is lost", Expires: now.Add(30 * time.Second)},
			}, slices.Repeat([]SharedEndpoint{{Endpoint: "192.0.2.3:80", Owners: []string{"o2\n:8008"}, Tier: 9, Rule: "\x1b"}}, 22))},
		}},
		{name: "shared-instance", answer: BlockAnswer{
			Verdict: Live, Is: "instance", Rcode: "NOERROR", Owners: []OwnerPart{synced, lost}, Records: []string{"v1.web.fed.example. 30 IN A 192.0.2.1"},
			Holder: &NameHolder{Owner: "o1:8008", Owners: []string{"o1:8008", "o2:8008"}, Service: "web", FQDN: "web.fed.example.", Instance: "v1", Alone: true},
			Rivals: []RivalService{{"o3:8008", "web-3", "web.fed.example.", "owner o1:8008 comes first in the Corefile; the block of o3:8008 does not share the name"}},
		}},
		{name: "circle", answer: BlockAnswer{Verdict: NoData, Is: "service", Rcode: "NOERROR", Holder: holder, Owners: []OwnerPart{synced}, Circle: "web.fed.example."}},
		{name: "circle-beside", answer: BlockAnswer{
			Verdict: Live, Is: "service", Rcode: "NOERROR", Holder: holder, Owners: []OwnerPart{synced}, Circle: "db.fed.example.", Records: []string{"web.fed.example. 30 IN A 192.0.2.1"},
		}},
		{name: "passed-on", answer: BlockAnswer{Verdict: PassedOn, Is: "missing", Passed: true, Owners: []OwnerPart{synced}}},
		{name: "parked-retried", answer: BlockAnswer{Verdict: NotKnownYet, Is: "missing", Rcode: "SERVFAIL", Owners: []OwnerPart{
			{ID: "o2:8008", State: "parked", Since: ago(time.Minute), Failure: "Unauthenticated: not allowed", NextAttempt: now.Add(3*time.Minute + time.Second)},
		}}},
		{name: "refused-lost", answer: BlockAnswer{Verdict: NoNameLost, Is: "missing", Rcode: "NXDOMAIN", Owners: []OwnerPart{
			{
				ID: "o1:8008", State: "stale", Since: ago(time.Hour), Failure: "dial tcp: connection refused", Remedy: "start the owner", NextAttempt: ago(time.Millisecond),
				Refusals: []RefusedService{{At: ago(time.Hour), Service: "web", FQDN: "web.fed.example.", Field: "description", Reason: "limit", Rule: "100000 bytes, the limit is 4096"}},
			},
		}}},
		{name: "refused-elsewhere", answer: BlockAnswer{Verdict: PassedOn, Is: "missing", Passed: true, Owners: []OwnerPart{synced}}, elsewhere: []OwnerPart{outside}},
		{name: "live-elsewhere", answer: BlockAnswer{
			Verdict: Live, Is: "service", Rcode: "NOERROR", Holder: holder, Owners: []OwnerPart{synced}, Records: []string{"web.fed.example. 30 IN A 192.0.2.1"},
		}, elsewhere: []OwnerPart{outside}},
		{name: "not-known-refused", answer: BlockAnswer{Verdict: NotKnownYet, Is: "missing", Rcode: "SERVFAIL", Owners: []OwnerPart{
			{ID: "o1:8008", State: "syncing", Refusals: []RefusedService{{At: ago(time.Minute), Reason: "undecodable"}}},
		}}},
		{name: "unknown-verdict", answer: BlockAnswer{Verdict: "later version", Is: "cloud", Rcode: "NOERROR"}},
	}
	seen := make(map[AnswerVerdict]bool)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.answer.Servers, test.answer.Zone = servers, "fed.example."
			why := NameExplanation{Role: Consumer, Now: now, Name: "web.fed.example.", Type: "A", Answers: []BlockAnswer{test.answer}}
			why.AddRefused(test.elsewhere)
			lines := why.Lines()
			checkText(t, lines)
			checkGolden(t, "why-"+test.name, strings.Join(lines, "\n")+"\n")
			seen[why.Answers[0].Verdict] = true
		})
	}
	for _, verdict := range []AnswerVerdict{Live, Stale, OwnData, NoData, NoName, NoNameLost, NotKnownYet, Refused, Unresolved, Denied, PassedOn} {
		if !seen[verdict] {
			t.Errorf("no test has the verdict %s", verdict)
		}
	}
}

// TestLinesOfOwner has what an owner says of a name.
func TestLinesOfOwner(t *testing.T) {
	file := CatalogSource{Name: "catalog.yaml", State: "current", Services: 3}
	tests := []struct {
		name string
		CatalogPublication
	}{
		{"published", CatalogPublication{Sources: []CatalogSource{file}, Services: []OfferedService{{
			Name: "web", FQDN: "web.fed.example.", Source: "catalog.yaml", Endpoints: 2, Instances: 1,
			Withheld: "v1alpha1: it has no SAN",
			Audience: []ToldClass{
				{Class: "1", Consumers: 3, Rule: 1},
				{Class: "2+3", Consumers: 1, Rule: 3, As: "web.partner.example."},
				{Class: "4", Rule: 4, Hidden: true},
				{Class: "none", Consumers: 2, Hidden: true},
			},
		}}}},
		{"everybody", CatalogPublication{Catalog: "east", Sources: []CatalogSource{file}, Services: []OfferedService{{
			Name: "web", FQDN: "web.fed.example.", Source: "catalog.yaml", Endpoints: 1, Audience: []ToldClass{{Class: "everybody", Consumers: 1}},
		}}}},
		{"hidden", CatalogPublication{Sources: []CatalogSource{file}, Services: []OfferedService{{
			Name: "web", FQDN: "web.fed.example.", Source: "b.yaml", Hidden: "source catalog.yaml has the fqdn",
		}}}},
		{"missing", CatalogPublication{Sources: []CatalogSource{file}}},
		{"unavailable", CatalogPublication{
			Unavailable: "source cluster: waiting for its first state", Sources: []CatalogSource{
				{Name: "cluster", State: "waiting"},
				{Name: "old", State: "away", Away: "connection refused", Since: ago(time.Hour), Lifetime: 86400, Services: 5},
			}, Services: []OfferedService{{Name: "web", FQDN: "web.fed.example.", Source: "old"}},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			why := NameExplanation{Role: Owner, Now: now, Name: "web.fed.example.", Type: "A", Catalogs: []CatalogPublication{test.CatalogPublication}}
			lines := why.Lines()
			checkText(t, lines)
			checkGolden(t, "owner-"+test.name, strings.Join(lines, "\n")+"\n")
		})
	}
}

// TestLinesOfImporter has what an importer says of a name.
func TestLinesOfImporter(t *testing.T) {
	synced := OwnerPart{ID: "mesh-a", State: "synced", Known: true, Since: ago(time.Hour)}
	lost := OwnerPart{ID: "mesh-b", State: "stale", Known: true, Since: ago(time.Hour), Expires: now.Add(23 * time.Hour), Failure: "Unavailable: connection refused"}
	web := ImportedService{Object: "fed/web", Owner: "mesh-a", Service: "web", FQDN: "web.a.fed.example.", State: ImportWritten}
	taken, stale, rival, kept, pending, standby := web, web, web, web, web, web
	taken.State, taken.Since, taken.Rule = ImportNameTaken, ago(time.Minute), "fed/web is an object of somebody else"
	stale.Owner, stale.State = "mesh-b", ImportStale
	rival.State, rival.Rule = ImportRival, "the objects of the name are those of the service at web.a.fed.example. of owner mesh-b"
	kept.State, pending.State, standby.State = ImportKept, ImportPending, ImportStandby
	nameless := ImportedService{Object: "fed/web", State: ImportRejected, Rule: "quota"}
	refused := synced
	refused.Refusals = []RefusedService{{At: ago(time.Minute), Service: "web", FQDN: "web.fed.example.", Field: "fqdn", Reason: "out_of_zone", Rule: "outside the zones given to this owner (a.fed.example.)"}}
	gone, excluded := synced, synced
	gone.Gone = []GoneService{{ago(time.Hour), "web", "web.fed.example.", "withdrawn"}}
	excluded.NotImported = "import_names *.pay.example"
	for name, tc := range map[string]struct {
		imports []ImportedService
		owners  []OwnerPart
	}{
		"written":  {[]ImportedService{web}, []OwnerPart{synced, lost}},
		"taken":    {[]ImportedService{taken}, []OwnerPart{synced, lost}},
		"stale":    {[]ImportedService{stale, rival}, []OwnerPart{synced, lost}},
		"kept":     {[]ImportedService{kept, pending, standby}, []OwnerPart{synced, lost}},
		"nameless": {[]ImportedService{nameless}, []OwnerPart{synced, lost}},
		"refused":  {nil, []OwnerPart{refused, lost}},
		"gone":     {nil, []OwnerPart{gone}},
		"excluded": {nil, []OwnerPart{excluded}},
		"missing":  {nil, []OwnerPart{synced}},
	} {
		t.Run(name, func(t *testing.T) {
			why := NameExplanation{Role: Importer, Now: now, Name: "web.fed.example.", Type: "A", Imports: tc.imports, Refused: tc.owners}
			lines := why.Lines()
			checkText(t, lines)
			checkGolden(t, "import-"+name, strings.Join(lines, "\n")+"\n")
		})
	}
}

// TestLinesOfNothing has explanations without an answer.
func TestLinesOfNothing(t *testing.T) {
	for role, want := range map[ProcessRole]string{
		Consumer: "web.example A: not answered here: the name is in none of the zones of the federation blocks",
		Owner:    "web.example: this owner has no catalog",
		Importer: "web.example: no object is written for this name",
	} {
		why := NameExplanation{Role: role, Now: now, Name: "web.example.", Type: "A"}
		if got := why.Lines(); got[0] != want {
			t.Errorf("of role %s: %q, expected %q", role, got, want)
		}
	}
	why := NameExplanation{Role: Consumer, Now: now, Name: "web.example.", Type: "A"}
	why.AddRefused([]OwnerPart{{ID: "o1:8008", State: "synced", Refusals: []RefusedService{{
		At: ago(time.Hour), Service: "web", FQDN: "web.example.", Field: "fqdn", Reason: "out_of_zone", Rule: "outside the zones given to this owner (fed.example.)",
	}}}})
	checkGolden(t, "why-refused-outside", strings.Join(why.Lines(), "\n")+"\n")
}

func testStatus(role ProcessRole) *Status {
	s := &Status{Role: role, Version: "v1.2.3", Now: now, Began: ago(50 * time.Hour), Ready: true}
	lost := FollowedOwner{
		ID: "o2:8008/east", State: "stale", Since: ago(time.Hour), Known: true, Failure: "Unavailable: connection refused", Remedy: "check the address in owner",
		LastAttempt: ago(10 * time.Second), NextAttempt: now.Add(4 * time.Second), LastSync: ago(5 * time.Hour), Lost: ago(time.Hour), Expires: now.Add(23 * time.Hour), Retention: 86400,
		Services: 100, Instances: 200, Octets: 3 << 20, Stale: 100, Paused: 3, NotAdmitted: 2, NotImported: 1, Hops: 2, Path: "o2 o9", Resumes: 4, Restored: ago(time.Hour), Unsaved: "save /var/lib/o2: no space left on device",
		Updates: EventRate{LastMinute: 1, LastHour: 20, Last: ago(2 * time.Second)}, Conflicts: map[string]int{"fqdn_conflict": 1}, Unshared: []string{"web.fed.example", "*.x.fed.example"},
		Refusals:     []RefusedService{{At: ago(time.Minute), Service: "web", FQDN: "web.fed.example.", Field: "fqdn", Reason: "out_of_zone", Rule: "outside"}},
		Certificates: Certificates{Certificate: now.Add(100 * time.Hour), Authority: now.Add(1000 * time.Hour)},
	}
	if role != Owner {
		s.Ready, s.Waiting = false, []string{"the first catalog of o3:8008"}
		s.Owners = []FollowedOwner{
			{ID: "o1:8008", State: "synced", Since: ago(time.Minute), Known: true, LastSync: ago(time.Minute), Services: 1, Instances: 1, Octets: 700},
			lost,
			{ID: "o3:8008", State: "connecting", Retention: 86400},
		}
		if role == Importer {
			s.Imports = &Imports{
				Cluster: "https://10.0.0.1:6443", Namespace: "fed", Leads: true, Leader: "pod-a", Services: map[string]int{ImportWritten: 7, ImportPending: 1, ImportKept: 2},
				Failure: "connection refused", PendingSince: ago(time.Minute),
				Refused: map[string]int{ImportRival: 1}, Problems: []ImportedService{{"fed/web", "o1:8008", "web", "web.fed.example.", ImportRival, ago(time.Minute), "an earlier service has the name"}},
			}
			return s
		}
		s.Zones = []Zone{{Name: "fed.example.", Servers: []string{"dns://.:53"}, Serial: 12, Owners: []string{"o1:8008", "o2:8008/east"}}}
		return s
	}
	s.Publisher = &PublishingOwner{
		Config: "owner.yaml", Applied: ago(time.Hour), Restart: []string{"listen"}, Broken: map[string]string{"catalog.yaml": "line 3: bad"},
		Listen: "[::]:8008", Connections: 4, Certificates: Certificates{Certificate: now.Add(time.Hour), Authority: now.Add(48 * time.Hour)},
		TurnedAway: []TurnedAway{
			{At: ago(time.Minute), Times: 3, Role: "consumer", Address: "192.0.2.7:40123", Identities: "spiffe://new.example/dns, new.example", Reason: "identity", Rule: "its certificate carries no identity that is allowed", Remedy: "name one of these identities in allow"},
			{At: ago(3 * time.Hour), Times: 1, Role: "provider", Address: "[2001:db8::1]:5", Reason: "limit", Rule: "there are too many: the limit connections is reached"},
		},
	}
	s.Catalogs = []Catalog{{
		Services: 5, Consumers: map[string]int{"v1alpha1": 1, "v1alpha2": 2}, Withheld: map[string]int{"v1alpha1": 2}, Classes: []ConsumerClass{{"1+2", 2, 4}, {"none", 1, 0}}, Unsent: 3, InFlight: 1,
		Behind: 2, Lost: 1, Subscribers: []Subscriber{
			{Consumer: "spiffe://fed.example/dns", Address: "192.0.2.53:41710", State: "behind", Behind: 4, Since: ago(70 * time.Second)},
			{Consumer: "spiffe://fed.example/dns", Address: "192.0.2.54:41710", State: "behind", Behind: 1},
			{Consumer: "spiffe://west.example/dns", State: "lost", Since: ago(12 * time.Minute)},
			{Consumer: "dns.partner.example", Address: "[2001:db8::53]:38200", State: "current"},
		},
		Oldest: ago(70 * time.Second),
		Sources: []CatalogSource{
			{Name: "programs", State: "current", Services: 2, Hidden: 1, Refused: map[string]int{"name": 2}, Registration: &RegistrationSource{
				Address: "[::]:8009", Nodes: 3, Providers: 2, Old: 1, Pending: 4, Convergence: 12, StoreAway: true,
			}},
			{Name: "up", State: "away", Away: "the owner is stale", Since: ago(time.Hour), Lifetime: 86400, Services: 100, Relay: &lost},
			{Name: "cluster", State: "waiting"},
			{Name: "west", State: "current", Services: 40, Paused: 30, WithdrawAt: now.Add(40 * time.Minute)},
			{Name: "mesh", State: "away", Away: "connection refused", Services: 10, Paused: 10},
		},
	}, {Name: "east", Unavailable: "source x has had no state yet"}}
	return s
}

// hostile is what a peer could send to hurt a terminal or a page.
const hostile = "\x1b[2J\u202eevil\u0085\r\n<script>\xff\u2028"

// fill sets a value and everything below it: lists and maps to n entries.
func fill(v reflect.Value, text string, n int) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text, n)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(ago(time.Hour)))
			return
		}
		for _, field := range v.Fields() {
			fill(field, text, n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(v.Index(i), text, n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for i := range n {
			value := reflect.New(v.Type().Elem()).Elem()
			fill(value, text, n)
			v.SetMapIndex(reflect.ValueOf(fmt.Sprint(text, i)), value)
		}
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Func:
	case reflect.Int, reflect.Int64:
		v.SetInt(1 << 30)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(1 << 30)
	case reflect.Float64:
		v.SetFloat(1e9)
	default:
		panic(v.Kind())
	}
}

// TestHostileText fills every field with what a peer must not get on to a terminal.
func TestHostileText(t *testing.T) {
	for text, n := range map[string]int{hostile: maxShown + 1, strings.Repeat(hostile, 1000): 1} {
		var why NameExplanation
		fill(reflect.ValueOf(&why.Catalogs).Elem(), text, min(n, 6))
		checkText(t, why.Lines())
		why = NameExplanation{Name: text, Type: text, Role: Importer}
		checkText(t, why.Lines())
		fill(reflect.ValueOf(&why.Refused).Elem(), text, n)
		checkText(t, why.Lines())
		fill(reflect.ValueOf(&why.Imports).Elem(), text, n)
		checkText(t, why.Lines())
		why = NameExplanation{Name: text, Type: text}
		checkText(t, why.Lines())
		why.Answers = make([]BlockAnswer, 1)
		fill(reflect.ValueOf(&why.Answers[0]).Elem(), text, n)
		for _, verdict := range []AnswerVerdict{Live, Stale, OwnData, NoData, NoName, NoNameLost, NotKnownYet, Unresolved, Denied, PassedOn, AnswerVerdict(text)} {
			why.Answers[0].Verdict = verdict
			checkText(t, why.Lines())
		}
		var status Status
		fill(reflect.ValueOf(&status).Elem(), text, min(n, 6))
		for _, role := range []ProcessRole{Consumer, Owner, Importer} {
			status.Role = role
			checkRows(t, &status)
		}
	}
}

// checkRows fails if the rows of a status could do harm to whoever reads them.
func checkRows(t *testing.T, s *Status) {
	t.Helper()
	for _, row := range s.Rows() {
		texts := []string{row.Name, row.State, row.Note}
		for _, f := range row.Findings {
			texts = append(texts, f.Says)
		}
		for _, text := range texts {
			if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("a text is not printable: %q", text)
			}
		}
	}
}

// FuzzText reads what a process says, as federationctl does, and shows it.
func FuzzText(f *testing.F) {
	for _, seed := range []any{testStatus(Consumer), testStatus(Owner), testStatus(Importer)} {
		data := must.Get(json.Marshal(seed))(f)
		f.Add(data)
	}
	var why NameExplanation
	fill(reflect.ValueOf(&why).Elem(), "x", 2)
	data := must.Get(json.Marshal(why))(f)
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var why NameExplanation
		if json.Unmarshal(data, &why) == nil {
			checkText(t, why.Lines())
		}
		var status Status
		if json.Unmarshal(data, &status) == nil {
			checkRows(t, &status)
		}
	})
}
