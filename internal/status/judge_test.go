package status

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// The manual for whoever is on call. The table of conditions is on its first page.
const (
	docs    = "../../docs/"
	runbook = "runbook.md"
)

// conditions are all of them, in the order of the manual.
var conditions = []Condition{
	ownerSynced, ownerComparing, ownerSyncing, ownerConnecting, ownerStale,
	ownerNearExpiry, ownerExpired, ownerRetried, ownerParked, ownerUnknown,
	ownerDamaged, ownerPaused, ownerRefused, ownerConflicts, ownerUnshared,
	ownerEmpty,
	ownerRestored, ownerUnsaved, ownerAllRefused,
	relayedSyncing, relayedConnecting, relayedRetried, relayedParked, relayedLost,
	importedSyncing, importedConnecting, importedStale, importedNearExpiry, importedExpired,
	importedRetried, importedParked, importedDamaged,
	certificateExpired, certificateAging, certificateUnusable, certificateKept,
	sourceCurrent, sourceAway, sourceKept, sourceNearLapse, sourceLapsed,
	sourceWaiting, sourcePaused, sourceWithdraws, sourceRefused, sourceRelays,
	registrationStoreAway, registrationConverges,
	catalogServed, catalogUnavailable, catalogBehind, catalogEmpty, catalogUnread,
	importWritten, importStandby, importAway, importLeaderless, importRefused,
	importPending,
	processFileBroken, processRestart, processTurnedAway, processWaits,
}

// section returns a link from the runbook to the section of the manual that says more of a condition, or
// nothing if there is none.
func section(t *testing.T, c Condition) string {
	t.Helper()
	m := c.Manual()
	if !regexp.MustCompile(`(?m)^##+ ` + regexp.QuoteMeta(m.Title) + `$`).Match(must.Get(os.ReadFile(docs + m.Page))(t)) {
		return ""
	}
	return fmt.Sprintf("[%s](%s)", c.State, strings.TrimPrefix(strings.TrimPrefix(m.URL(), ManualBase), runbook))
}

// table returns the conditions as the manual has them: a row for each thing that has states,
// and in it a column for each level.
func table(t *testing.T) string {
	t.Helper()
	var things []string
	states := make(map[string][]string)
	for _, c := range conditions {
		if !slices.Contains(things, c.Of) {
			things = append(things, c.Of)
		}
		cell := c.Of + c.Level.String()
		if state := section(t, c); !slices.Contains(states[cell], state) {
			states[cell] = append(states[cell], state)
		}
	}
	var rows []string
	for _, of := range things {
		cell := func(l Level) string { return strings.Join(states[of+l.String()], ", ") }
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s |", of, cell(Well), cell(Look), cell(Act)))
	}
	return strings.Join(rows, "\n")
}

// TestConditions has a level, a sentence, a remedy and a section of the manual for each
// condition. Where names are missing the alert pages somebody; what can wait is a ticket. The manual
// has the table, but for sentences and remedies, which the page shows: -update writes it there.
func TestConditions(t *testing.T) {
	doc := string(must.Get(os.ReadFile(docs + runbook))(t))
	rules := string(must.Get(os.ReadFile("../../deploy/monitoring/rules.yaml"))(t))
	if n := strings.Count(string(must.Get(os.ReadFile("judge.go"))(t)), "= Condition{"); n != len(conditions) {
		t.Errorf("the list of conditions has %d of %d", len(conditions), n)
	}
	for i, c := range conditions {
		if c.Of == "" || c.State == "" || c.Sentence == "" || c.Remedy == "" || c.Runbook == "" {
			t.Errorf("condition %d is not complete: %+v", i, c)
		}
		if c.Level > Well && c.Remedy == nothing {
			t.Errorf("%s %s: something is to do: %q", c.Of, c.State, c.Remedy)
		}
		if section(t, c) == "" {
			t.Errorf("%s %s: the manual has no section %q", c.Of, c.State, c.Runbook)
		}
		if !strings.HasPrefix(c.Runbook, "Federation") {
			continue
		}
		_, alert, found := strings.Cut(rules, "alert: "+c.Runbook+"\n")
		_, severity, _ := strings.Cut(alert, "severity: ")
		severity, _, _ = strings.Cut(severity, "}")
		if !found || c.Level == Act && severity != "page" || c.Level == Look && severity != "ticket" {
			t.Errorf("%s %s: the alert %s has the severity %q", c.Of, c.State, c.Runbook, severity)
		}
		if !strings.Contains(alert, `runbook_url: "`+c.Manual().URL()+`"`) {
			t.Errorf("%s %s: the alert %s has another link than %s", c.Of, c.State, c.Runbook, c.Manual().URL())
		}
	}
	const head = "| of | well | look | act |\n|---|---|---|---|\n"
	before, rest, _ := strings.Cut(doc, head)
	has, after, found := strings.Cut(rest, "\n\n")
	if !found {
		t.Fatal("the manual has no table of conditions")
	}
	want := table(t)
	if *update {
		must.Do(t, os.WriteFile(docs+runbook, []byte(before+head+want+"\n\n"+after), 0o600))
	} else if d := cmp.Diff(want, has); d != "" {
		t.Errorf("the table in the manual differs (-want +got); after a change that is meant, run the test with -update:\n%s", d)
	}
}

// TestJudge judges what the golden files of the page do not have.
func TestJudge(t *testing.T) {
	owner := func(u FollowedOwner) Judgement { return u.Judge(now, Consumer) }
	relayed := func(u FollowedOwner) Judgement { return u.Judge(now, Owner) }
	imported := func(u FollowedOwner) Judgement { return u.Judge(now, Importer) }
	objects := func(i Imports) Judgement {
		v, state := i.Judge(now)
		if len(v.Findings) > 0 && state != v.Findings[0].State {
			t.Errorf("the objects are %s: %+v", state, v)
		}
		return v
	}
	source := func(s CatalogSource) Judgement { return s.Judge(now) }
	for name, tc := range map[string]struct {
		got  Judgement
		want []Condition
	}{
		"synced":          {owner(FollowedOwner{State: "synced", Services: 1}), nil},
		"first catalog":   {owner(FollowedOwner{State: "syncing"}), []Condition{ownerSyncing}},
		"half gone":       {owner(FollowedOwner{State: "stale", Lost: ago(13 * time.Hour), Expires: now.Add(11 * time.Hour)}), []Condition{ownerNearExpiry}},
		"half left":       {owner(FollowedOwner{State: "stale", Lost: ago(12 * time.Hour), Expires: now.Add(12 * time.Hour)}), []Condition{ownerStale}},
		"retried":         {owner(FollowedOwner{State: "parked", NextAttempt: now}), []Condition{ownerRetried}},
		"damaged":         {owner(FollowedOwner{State: "stale", Damage: "x"}), []Condition{ownerDamaged, ownerStale}},
		"restored":        {owner(FollowedOwner{State: "stale", Services: 1, Stale: 1, Restored: ago(time.Hour)}), []Condition{ownerStale, ownerRestored}},
		"restored, gone":  {owner(FollowedOwner{State: "expired", Restored: ago(time.Hour)}), []Condition{ownerExpired}},
		"restored, relay": {relayed(FollowedOwner{State: "stale", Services: 1, Stale: 1, Restored: ago(time.Hour)}), []Condition{relayedLost}},
		"unsaved":         {owner(FollowedOwner{State: "synced", Services: 1, Unsaved: "x"}), []Condition{ownerUnsaved}},
		"paused":          {owner(FollowedOwner{State: "synced", Stale: 2, Services: 2}), []Condition{ownerPaused}},
		"conflicts":       {owner(FollowedOwner{State: "synced", Services: 1, Conflicts: map[string]int{"name": 1}}), []Condition{ownerConflicts}},
		"unshared":        {owner(FollowedOwner{State: "synced", Services: 1, Unshared: []string{"web.fed.example"}}), []Condition{ownerUnshared}},
		"empty":           {owner(FollowedOwner{State: "synced"}), []Condition{ownerEmpty}},
		"some refused":    {owner(FollowedOwner{State: "synced", Services: 1, NotAdmitted: 1}), []Condition{ownerRefused}},
		"all refused":     {owner(FollowedOwner{State: "synced", NotAdmitted: 1, NotImported: 1}), []Condition{ownerAllRefused}},
		"all, syncing":    {owner(FollowedOwner{State: "syncing", NotAdmitted: 1}), []Condition{ownerSyncing, ownerAllRefused}},
		"relays refused":  {relayed(FollowedOwner{State: "synced", NotAdmitted: 1}), []Condition{ownerAllRefused}},
		"later version":   {owner(FollowedOwner{State: "cloudy"}), []Condition{ownerUnknown}},
		"no state":        {owner(FollowedOwner{State: "held"}), []Condition{ownerUnknown}},
		"relay stale":     {relayed(FollowedOwner{State: "stale"}), []Condition{relayedLost}},
		"relay synced":    {relayed(FollowedOwner{State: "synced", Services: 1}), nil},
		"relay syncing":   {relayed(FollowedOwner{State: "syncing", Known: true}), []Condition{relayedSyncing}},
		"relay unreached": {relayed(FollowedOwner{State: "connecting"}), []Condition{relayedConnecting}},
		"relay parked":    {relayed(FollowedOwner{State: "parked"}), []Condition{relayedParked}},
		"relay retried":   {relayed(FollowedOwner{State: "parked", NextAttempt: now}), []Condition{relayedRetried}},
		"import synced":   {imported(FollowedOwner{State: "synced", Services: 1}), nil},
		"import syncing":  {imported(FollowedOwner{State: "syncing", Known: true}), []Condition{importedSyncing}},
		"import first":    {imported(FollowedOwner{State: "syncing"}), []Condition{importedSyncing}},
		"import unknown":  {imported(FollowedOwner{State: "connecting"}), []Condition{importedConnecting}},
		"import half gone": {
			imported(FollowedOwner{State: "stale", Lost: ago(13 * time.Hour), Expires: now.Add(11 * time.Hour)}), []Condition{importedNearExpiry},
		},
		"import parked, half gone": {
			imported(FollowedOwner{State: "parked", Lost: ago(13 * time.Hour), Expires: now.Add(11 * time.Hour)}), []Condition{importedNearExpiry},
		},
		"import stale":    {imported(FollowedOwner{State: "stale", Stale: 2, Services: 2, Restored: ago(time.Hour)}), []Condition{importedStale, ownerRestored}},
		"import expired":  {imported(FollowedOwner{State: "expired"}), []Condition{importedExpired}},
		"import parked":   {imported(FollowedOwner{State: "parked"}), []Condition{importedParked}},
		"import retried":  {imported(FollowedOwner{State: "parked", NextAttempt: now}), []Condition{importedRetried}},
		"import damaged":  {imported(FollowedOwner{State: "connecting", Damage: "x"}), []Condition{importedDamaged, importedConnecting}},
		"import no state": {imported(FollowedOwner{State: "damaged"}), []Condition{ownerUnknown}},
		"written":         {objects(Imports{Leads: true, Services: map[string]int{ImportWritten: 1, ImportPending: 2}, PendingSince: now}), nil},
		"standby":         {objects(Imports{Leader: "b"}), nil},
		"no leader":       {objects(Imports{}), []Condition{importLeaderless}},
		"cluster away":    {objects(Imports{Failure: "x", Refused: map[string]int{ImportRival: 1}}), []Condition{importAway, importRefused}},
		"not written":     {objects(Imports{Leads: true, Refused: map[string]int{ImportRival: 2}}), []Condition{importRefused}},
		"pending":         {objects(Imports{Leads: true, Services: map[string]int{ImportPending: 1}, PendingSince: ago(late + 1)}), []Condition{importPending}},
		"not long":        {objects(Imports{Leads: true, Services: map[string]int{ImportPending: 1}, PendingSince: ago(late)}), nil},
		"current":         {source(CatalogSource{State: "current"}), nil},
		"lapsed":          {source(CatalogSource{State: "lapsed", Away: "x", Lifetime: 3600}), []Condition{sourceLapsed}},
		"away":            {source(CatalogSource{State: "away", Away: "x", Lifetime: -1}), []Condition{sourceAway}},
		"kept":            {source(CatalogSource{State: "away", Away: "x", Lifetime: 3600, Since: ago(29 * time.Minute)}), []Condition{sourceAway, sourceKept}},
		"near lapse":      {source(CatalogSource{State: "away", Away: "x", Lifetime: 3600, Since: ago(31 * time.Minute)}), []Condition{sourceAway, sourceNearLapse}},
		"relays":          {source(CatalogSource{State: "current", Relay: &FollowedOwner{State: "parked"}}), []Condition{sourceRelays}},
	} {
		var states []Condition
		for _, f := range tc.got.Findings {
			is := f.Condition
			if is.State == sourceRelays.State {
				is = sourceRelays // its level and its remedy are those of the owner
			}
			states = append(states, is)
			if strings.Contains(f.Says, "%!") {
				t.Errorf("%s: %s", name, f.Says)
			}
		}
		if d := cmp.Diff(tc.want, states); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	if v := source(CatalogSource{State: "current", Relay: &FollowedOwner{State: "parked"}}); v.Level != Act {
		t.Errorf("a source is as bad as the owner that it relays: %+v", v)
	}
	for _, v := range []Judgement{
		imported(FollowedOwner{State: "stale", Failure: "down", Remedy: "start it"}),
		owner(FollowedOwner{State: "connecting", Damage: "x", Failure: "down", Remedy: "start it"}), relayed(FollowedOwner{State: "connecting", Failure: "down", Remedy: "start it"}),
		owner(FollowedOwner{State: "parked", Failure: "down", Remedy: "start it"}), owner(FollowedOwner{State: "stale", Failure: "down", Remedy: "start it"}),
		source(CatalogSource{State: "away", Lifetime: 3600, Relay: &FollowedOwner{State: "stale", Failure: "down", Remedy: "start it"}}),
	} {
		var said []string
		for i := range v.Findings {
			if todo := v.Advice(i); todo != "" && v.Findings[i].State != "damaged" {
				said = append(said, todo)
			}
		}
		if len(said) != 1 || said[0] != "start it" {
			t.Errorf("where the reason is known, the remedy is that of the reason, once, and not %q", said)
		}
	}
}

// TestNothingAccepted has an owner of which nothing is accepted: the reason stands in the table,
// and what to do follows from it.
func TestNothingAccepted(t *testing.T) {
	s := Status{Role: Consumer, Now: now, Ready: true, Owners: []FollowedOwner{{
		ID: "o1:8008", State: "synced", Known: true, NotAdmitted: 3,
		Refusals: []RefusedService{{Service: "web", FQDN: "web.fed.example.", Reason: "out_of_zone", Rule: "outside the zones given to this owner (fde.example.)"}},
	}}}
	v := s.Owners[0].Judge(now, Consumer)
	if f := v.Findings[0]; v.Level != Act || !strings.Contains(f.Says, "(3)") || !strings.HasSuffix(f.Says, "(fde.example.)") || !strings.Contains(f.Remedy, "add its zone to those given") {
		t.Errorf("the judgement is %+v", v)
	}
	if sum := s.Judge(); sum.Findings[0].Says != "Act on 1 of 1 owner: 1 refused." {
		t.Errorf("in sum it says %+v", sum)
	}
}

// TestJudgeImporter sums up an importer: what is worst comes first.
func TestJudgeImporter(t *testing.T) {
	problem := ImportedService{Owner: "a", Service: "web", FQDN: "web.a.example.", Object: "fed/web", State: ImportNameTaken, Rule: "somebody else has made it"}
	lost := FollowedOwner{ID: "b", State: "stale", Services: 2, Stale: 2, Lost: ago(time.Hour), Expires: now.Add(23 * time.Hour)}
	well := FollowedOwner{ID: "a", State: "synced", Services: 3}
	for _, tc := range []struct {
		Imports

		owners []FollowedOwner
		want   []string
	}{
		{Imports{Leads: true, Services: map[string]int{ImportWritten: 3}}, []FollowedOwner{well}, []string{"1 owner synced, 3 services.", "3 services written."}},
		{Imports{Leader: "pod-b"}, []FollowedOwner{well}, []string{"1 owner synced, 3 services.", "Replica pod-b writes."}},
		{Imports{Leads: true, Refused: map[string]int{ImportNameTaken: 1}, Problems: []ImportedService{problem}}, []FollowedOwner{well}, []string{
			`Cluster https://k:6443: The objects of 1 service are not as they should be (name_taken 1). The newest: service "web" (web.a.example) of owner a: somebody else has made it.`,
			"1 owner synced, 3 services.",
		}},
		{Imports{Leads: true, Refused: map[string]int{ImportRejected: 1}, Problems: []ImportedService{{Object: "fed/web", State: ImportRejected}}}, []FollowedOwner{well}, []string{
			"Cluster https://k:6443: The objects of 1 service are not as they should be (rejected 1). The newest: fed/web: rejected.", "1 owner synced, 3 services.",
		}},
		{Imports{Leads: true, Refused: map[string]int{ImportRejected: 1}}, []FollowedOwner{well, {ID: "c", State: "expired"}}, []string{
			"Act on 1 of 2 owners: 1 expired.", "Cluster https://k:6443: The objects of 1 service are not as they should be (rejected 1).",
		}},
		{Imports{Failure: "connection refused"}, []FollowedOwner{lost}, []string{
			"Cluster https://k:6443: The API server cannot be asked, so objects stay as they are: connection refused", "Look at 1 of 1 owner: 1 stale.",
		}},
	} {
		tc.Cluster = "https://k:6443"
		s := Status{Role: Importer, Now: now, Ready: true, Owners: tc.owners, Imports: &tc.Imports}
		v := s.Judge()
		var says []string
		for _, f := range v.Findings {
			says = append(says, f.Says)
		}
		if d := cmp.Diff(tc.want, says); d != "" || v.Level != v.Findings[0].Level {
			t.Errorf("%s (-want +got):\n%s", v.Level, d)
		}
	}
	s := Status{Role: Importer, Now: now, Ready: true, Owners: []FollowedOwner{lost}}
	if rows := s.Rows(); rows[0].Note != "objects go in 23 h" {
		t.Errorf("the row of a lost owner is %+v", rows[0])
	}
	remedies := make(map[string]string)
	for _, reason := range []string{ImportNameTaken, ImportRival, ImportNoEndpoint, ImportRejected, ImportNamespace, "of a later version"} {
		remedy := (&ImportedService{State: reason}).Remedy()
		if of, twice := remedies[remedy]; twice {
			t.Errorf("%s and %s have one remedy: %s", of, reason, remedy)
		}
		remedies[remedy] = reason
	}
}

// TestCount has one thing, and several.
func TestCount(t *testing.T) {
	for want, got := range map[string]string{
		"1 class": CountNoun(1, "class"), "0 classes": CountNoun(0, "class"), "1,234 owners": CountNoun(1234, "owner"), "-1,000 owners": CountNoun(-1000, "owner"),
		"and 1 more class": describeRest(make([]int, maxShown+1), "class"), "and 2 more owners": describeRest(make([]int, maxShown+2), "owner"), "": describeRest(make([]int, maxShown), "owner"),
	} {
		if got != want {
			t.Errorf("it says %q, not %q", got, want)
		}
	}
}
