package metrics

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// importing is what is got of an importer with that status.
func importing(s status.Status, path string) (code int, text string) {
	response := httptest.NewRecorder()
	report := func() status.Status { return s }
	Handler(report, NewImportCollector(report)).ServeHTTP(response, httptest.NewRequest(http.MethodGet, path, nil))
	return response.Code, "\n" + response.Body.String()
}

// TestMetricsOfImporter scrapes an importer with owners in several states, and one that has not
// reached anything yet.
func TestMetricsOfImporter(t *testing.T) {
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	s := status.Status{
		Role: status.Importer, Now: now, Ready: true,
		Owners: []status.FollowedOwner{
			{ID: "mesh-a", State: "synced", Services: 9, Stale: 5, Paused: 4, NotAdmitted: 2, Retention: 86400, Lost: now.Add(-time.Hour), Certificates: status.Certificates{Certificate: time.Unix(7, 0), Authority: time.Unix(8, 0)}},
			{ID: "mesh \x1b\u202e\n\"b", State: "stale", Lost: now.Add(-time.Minute)},
		},
		Imports: &status.Imports{
			Leads: true, Failure: "x", Services: map[string]int{status.ImportWritten: 12, status.ImportPending: 3, status.ImportKept: 2},
			Refused: map[string]int{status.ImportNameTaken: 1},
		},
	}
	const b = `owner="mesh ` + "\x1b\u202e" + `\n\"b"`
	_, text := importing(s, "/metrics")
	for _, line := range []string{
		`ready 1`, `leads 1`, `api_away 1`, `services{state="written"} 12`, `services{state="pending"} 3`, `services{state="kept"} 2`,
		`unwritten_services{reason="name_taken"} 1`,
		`owner_state{owner="mesh-a",state="synced"} 1`, `owner_state{owner="mesh-a",state="stale"} 0`, `owner_state{` + b + `,state="stale"} 1`,
		`owner_lost_seconds{owner="mesh-a"} 0`, `owner_lost_seconds{` + b + `} 60`, `owner_retention_seconds{owner="mesh-a"} 86400`,
		`owner_refused_services{owner="mesh-a"} 2`,
		`certificate_expiry_timestamp_seconds{file="cert",owner="mesh-a"} 7`, `certificate_expiry_timestamp_seconds{file="ca",owner="mesh-a"} 8`,
	} {
		if !strings.Contains(text, "\nfederation_import_"+line+"\n") {
			t.Errorf("there is no federation_import_%s:%s", line, text)
		}
	}
	for _, absent := range []string{"owner_retention_seconds{" + b, "expiry_timestamp_seconds{file=\"ca\"," + b} {
		if strings.Contains(text, absent) {
			t.Errorf("there is %s:%s", absent, text)
		}
	}
	for _, p := range must.Get(promlint.New(strings.NewReader(text)).Lint())(t) {
		if strings.HasPrefix(p.Metric, "federation_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	s.Imports = new(status.Imports)
	if _, text = importing(s, "/metrics"); !strings.Contains(text, "\nfederation_import_api_away 0\n") {
		t.Errorf("the API server is away:%s", text)
	}
	if _, text = importing(status.Status{}, "/metrics"); !strings.Contains(text, "\nfederation_import_ready 0\n") {
		t.Errorf("there is no federation_import_ready 0:%s", text)
	}
}

// TestProbesOfImporter asks whether an importer lives and is ready.
func TestProbesOfImporter(t *testing.T) {
	s := status.Status{Role: status.Importer, Waiting: []string{"the owner \x1b[31m\n\u202e"}}
	for _, want := range []struct {
		ready bool
		path  string
		code  int
		text  string
	}{
		{false, "/healthz", 200, "\nok\n"},
		{false, "/readyz", 503, "\nnot ready\nthe owner \\x1b[31m\\n\\u202e\n"},
		{true, "/readyz", 200, "\nready\n"},
	} {
		s.Ready = want.ready
		if code, text := importing(s, want.path); code != want.code || text != want.text {
			t.Errorf("%s: %d %q", want.path, code, text)
		}
	}
	if _, text := importing(s, "/"); !strings.Contains(text, `"role":"importer"`) {
		t.Errorf("the status is %s", text)
	}
}
