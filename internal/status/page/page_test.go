package page

import (
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var update = flag.Bool("update", false, "write the golden files")

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// ago returns a time before noon.
func ago(d time.Duration) time.Time { return noon.Add(-d) }

// hostile is a name that would be markup, and turn what follows it.
const hostile = "<script>alert(1)</script>\u202egnp.exe\n\x1b[31m"

func consumer() *fixed {
	rate := status.EventRate{LastMinute: 12, LastHour: 340, Last: ago(3 * time.Second)}
	return &fixed{status: status.Status{
		Role: status.Consumer, Version: "v1.2.3", Host: "dns1", PID: 4711, Now: noon, Began: ago(50 * time.Hour), Ready: true,
		Owners: []status.FollowedOwner{
			{
				ID: "o1.example:8008", State: "synced", Since: ago(49 * time.Hour), Known: true, LastSync: ago(49 * time.Hour), Retention: 86400,
				Services: 100_000, Instances: 250_000, Octets: 61 << 20, Updates: rate, Certificates: status.Certificates{Certificate: noon.Add(60 * 24 * time.Hour), Authority: noon.Add(900 * 24 * time.Hour)},
			},
			{
				ID: "o2.example:8008", State: "stale", Since: ago(2 * time.Hour), Known: true, LastSync: ago(40 * time.Hour), Lost: ago(2 * time.Hour), Expires: noon.Add(22 * time.Hour), Retention: 86400,
				Services: 1, Instances: 1, Octets: 700, Stale: 1, Failure: "Unavailable: connection refused", Remedy: "check that the owner runs, and the address in the Corefile", LastAttempt: ago(10 * time.Second), NextAttempt: noon.Add(4 * time.Second),
			},
			{ID: "o3.example:8008", State: "expired", Since: ago(time.Hour), Known: true, Lost: ago(25 * time.Hour), Retention: 86400, Failure: "Unavailable: no route to host", LastAttempt: ago(70 * time.Second)},
			{ID: "o4.example:8008", State: "parked", Since: ago(9 * time.Minute), Failure: "Unauthenticated: " + hostile, Remedy: "have the owner accept this side's certificate", Retention: 86400, Certificates: status.Certificates{Certificate: ago(time.Minute)}},
			{ID: "o5.example:8008", State: "connecting"},
			{
				ID: "o6.example:8008", State: "synced", Since: ago(time.Minute), Known: true, Services: 3, Instances: 4, Octets: 3000, NotAdmitted: 2, NotImported: 7, Hops: 2, Path: "o6 o9", Resumes: 3,
				Conflicts: map[string]int{"fqdn_conflict": 1}, Refusals: slices.Repeat([]status.RefusedService{
					{At: ago(time.Minute), Service: hostile, FQDN: "web.fed.example.", Field: "endpoints[0].address", Reason: "address", Rule: `"127.0.0.1" is a loopback address`},
				}, 5),
			},
			{ID: "o7.example:8008", State: "syncing", Since: ago(5 * time.Second), Known: true, Services: 4, Retention: 86400, Lost: ago(time.Hour), Expires: noon.Add(23 * time.Hour)},
			{
				ID: "o8.example:8008", State: "stale", Since: ago(13 * time.Hour), Known: true, Lost: ago(13 * time.Hour), Expires: noon.Add(11 * time.Hour), Retention: 86400,
				Services: 9, Stale: 9, Failure: "keepalive ping failed", Remedy: "restart the owner",
			},
		},
		Zones: []status.Zone{{Name: "fed.example.", Servers: []string{"dns://.:53"}, Serial: 1714, Owners: []string{"o1.example:8008", "o2.example:8008"}}},
	}, why: status.NameExplanation{
		Role: status.Consumer, Now: noon, Type: "A", Answers: []status.BlockAnswer{{
			Servers: []string{"dns://.:53"}, Zone: "fed.example.", Rcode: "NOERROR", Records: []string{"web.fed.example. 30 IN A 192.0.2.1"}, Is: "service", Verdict: status.Live,
			Holder: &status.NameHolder{Owner: "o1.example:8008", Service: "web", FQDN: "web.fed.example.", Updated: ago(time.Hour)},
		}},
	}, first: []status.CatalogService{
		{Name: "web", FQDN: "web.fed.example.", Service: json.RawMessage(`{"name":"web","endpoints":[{"address":"192.0.2.1","port":443},{"address":"2001:db8::1","port":443},{"address":"</pre>\u202e","port":1},{"address":"192.0.2.4","port":443}],"x":"</pre><script>\u202e"}`), Updated: ago(time.Hour)},
		{Name: hostile, FQDN: "x.fed.example.", Service: json.RawMessage("{\"name\":\"\u202e\"}"), Stale: true},
	}}
}

func owner() *fixed {
	return &fixed{status: status.Status{
		Role: status.Owner, Version: "v1.2.3", Host: "owner1<b>", PID: 4711, Now: noon, Began: ago(3 * time.Minute), Ready: false, Waiting: []string{"source cluster of the default catalog"},
		Publisher: &status.PublishingOwner{
			Config: "owner.yaml", Applied: ago(3 * time.Minute), Restart: []string{"listen"}, Broken: map[string]string{"catalog.yaml": "line 3: " + hostile},
			Listen: "[::]:8008", Connections: 4, Certificates: status.Certificates{Certificate: noon.Add(time.Hour), Authority: noon.Add(400 * 24 * time.Hour)},
			TurnedAway: []status.TurnedAway{
				{At: ago(time.Minute), Times: 3, Role: "consumer", Address: "192.0.2.7:40123", Identities: "spiffe://new.example/dns", Reason: "identity", Rule: "its certificate carries no identity that is allowed"},
				{At: ago(3 * time.Hour), Times: 1, Role: "provider", Address: "192.0.2.8:5", Identities: hostile, Reason: "certificate", Rule: "x509: " + hostile, Remedy: "add the CA of the peer to ca.pem"},
				{At: ago(4 * time.Hour), Times: 1, Role: "consumer", Address: "192.0.2.9:5", Reason: "limit", Rule: "there are too many: the limit connections_per_address is reached"},
			},
		},
		Catalogs: []status.Catalog{
			{
				Services: 5, Consumers: map[string]int{"v1alpha1": 1, "v1alpha2": 2}, Withheld: map[string]int{"v1alpha1": 2}, Unsent: 3, InFlight: 1, Oldest: ago(70 * time.Second),
				Behind: 1, Lost: 1, Subscribers: []status.Subscriber{
					{Consumer: "spiffe://fed.example/dns", Address: "192.0.2.53:41710", State: "behind", Behind: 4, Since: ago(70 * time.Second)},
					{Consumer: "spiffe://west.example/dns", State: "lost", Since: ago(12 * time.Minute)},
					{Consumer: "dns.partner.example", Address: "[2001:db8::53]:38200", State: "current"},
				},
				Classes: []status.ConsumerClass{{Name: "1+2", Consumers: 2, Services: 4}, {Name: "none", Consumers: 1}},
				Sources: []status.CatalogSource{
					{
						Name: "programs", State: "current", Services: 2, Hidden: 1, Refused: map[string]int{"name": 2},
						Registration: &status.RegistrationSource{Address: "[::]:8009", Nodes: 3, Providers: 2, Old: 1, Pending: 4, Convergence: 12, StoreAway: true},
					},
					{
						Name: "up", State: "away", Away: "the owner is stale", Since: ago(time.Hour), Lifetime: 86400, Services: 100,
						Relay: &status.FollowedOwner{ID: "o2:8008", State: "stale", Since: ago(time.Hour), Known: true, Lost: ago(time.Hour), Expires: noon.Add(23 * time.Hour), Retention: 86400, Services: 100, Stale: 100, Failure: "Unavailable: connection refused"},
					},
					{Name: "cluster", State: "waiting"},
					{Name: "west", State: "current", Services: 40, Paused: 30, WithdrawAt: noon.Add(40 * time.Minute)},
				},
			},
			{Name: "east.example", Unavailable: "source x has had no state yet"},
		},
	}, why: status.NameExplanation{Role: status.Owner, Now: noon, Catalogs: []status.CatalogPublication{{}}}}
}

// cluster is the API server of the importer.
const cluster = "https://10.96.0.1:443"

func importer() *fixed {
	problem := status.ImportedService{Since: ago(time.Minute), Owner: "mesh-a", Service: hostile, FQDN: "web.a.fed.example.", Object: "fed/web", State: status.ImportNameTaken, Rule: "fed/web is an object of somebody else"}
	return &fixed{status: status.Status{
		Role: status.Importer, Version: "v1.2.3", Host: "import-0", PID: 7, Now: noon, Began: ago(3 * time.Hour), Ready: true,
		Owners: []status.FollowedOwner{
			{ID: "mesh-a", State: "synced", Since: ago(3 * time.Hour), Known: true, LastSync: ago(3 * time.Hour), Retention: 86400, Services: 120, Instances: 240, Octets: 61 << 10, Updates: status.EventRate{LastHour: 3, Last: ago(time.Minute)}},
			{
				ID: "mesh-b", State: "stale", Since: ago(2 * time.Hour), Known: true, Lost: ago(2 * time.Hour), Expires: noon.Add(22 * time.Hour), Retention: 86400,
				Services: 9, Instances: 9, Octets: 900, Stale: 9, Failure: "Unavailable: connection refused", Remedy: "start the owner", NextAttempt: noon.Add(4 * time.Second),
			},
			{ID: "mesh-c", State: "stale", Since: ago(2 * time.Hour), Known: true, Lost: ago(2 * time.Hour), Services: 1, Stale: 1},
		},
		Imports: &status.Imports{
			Cluster: cluster, Namespace: "fed", Leads: true, Leader: "import-0_1", Services: map[string]int{status.ImportWritten: 1240, status.ImportPending: 3, status.ImportKept: 12},
			PendingSince: ago(2 * time.Minute), Refused: map[string]int{status.ImportNameTaken: 1, status.ImportRival: 2}, Problems: []status.ImportedService{problem, problem},
		},
	}, why: status.NameExplanation{
		Role: status.Importer, Now: noon, Refused: []status.OwnerPart{{ID: "mesh-a", State: "synced", Known: true}}, Imports: []status.ImportedService{problem},
	}}
}

// TestPages compares whole pages with golden files, without their style, and sees to it
// that no text of a peer becomes markup or a control character on any of them.
func TestPages(t *testing.T) {
	ready := consumer()
	ready.status.Owners = ready.status.Owners[:1]
	standby, away := importer(), importer()
	standby.status.Owners = standby.status.Owners[:1]
	standby.status.Imports = &status.Imports{Cluster: cluster, Namespace: "fed", Leader: "import-1_<b>"}
	away.status.Owners, away.status.Ready, away.status.Waiting = nil, false, []string{"the API server"}
	away.status.Imports = &status.Imports{Cluster: cluster, Namespace: "fed", Failure: hostile}
	shared := consumer()
	shared.status.Owners = shared.status.Owners[:1]
	shared.why.Answers[0].Holder.Shared = []status.SharedEndpoint{
		{Endpoint: "192.0.2.1:80", Owners: []string{"o1.example:8008", hostile}, Answered: true, Rule: "it is live"},
		{Endpoint: hostile + ":80", Owners: []string{"o2.example:8008"}, Tier: 1, Rule: "its owner is lost", Expires: noon.Add(30 * time.Second)},
	}
	missing := consumer()
	missing.status.Owners = missing.status.Owners[:1]
	missing.why.Answers = []status.BlockAnswer{{
		Servers: []string{"dns://.:53"}, Zone: "fed.example.", Rcode: "NXDOMAIN", Is: "missing", Verdict: status.NoName,
		Nearest: []string{"web.fed.example.", "web-2.fed.example."}, Owners: []status.OwnerPart{{ID: "o1.example:8008", State: "synced", Known: true}},
	}}
	for name, tc := range map[string]struct {
		source *fixed
		path   string
		code   int
	}{
		"consumer":    {consumer(), "/", 200},
		"ready":       {ready, "/", 200},
		"owner":       {owner(), "/", 200},
		"why":         {ready, "/?name=WEB.fed.example&type=AAAA", 200},
		"why-shared":  {shared, "/?name=web.fed.example&type=A", 200},
		"why-nearest": {missing, "/?name=wbe.fed.example&type=SRV", 200},
		"why-owner":   {owner(), "/?name=web.fed.example", 200},
		"why-wrong":   {ready, "/?name=%3cb%3e..%e2%80%ae&type=%3cb%3e", 400},
		"importer":    {importer(), "/", 200},
		"why-import":  {importer(), "/?name=web.a.fed.example", 200},
		"standby":     {standby, "/", 200},
		"no-cluster":  {away, "/", 200},
		"services":    {consumer(), "/services?of=o1.example:8008&after=a%3cb%3e", 200},
		"no-such":     {consumer(), "/services?of=%3cb%3e%e2%80%ae", 404},
		"no-owners":   {&fixed{status: status.Status{Role: status.Consumer, Now: noon, Began: noon, Ready: true}}, "/", 200},
		"empty":       {&fixed{status: status.Status{Role: status.Consumer, Now: noon, Began: noon, Ready: true, Owners: []status.FollowedOwner{{ID: "o1", State: "synced", Known: true}}}}, "/", 200},
		"no-consumer": {&fixed{status: status.Status{Role: status.Owner, Now: noon, Began: noon, Ready: true, Catalogs: []status.Catalog{{}}}}, "/", 200},
		"no-catalog":  {&fixed{status: status.Status{Role: status.Owner, Now: noon, Began: noon, Ready: true}}, "/", 200},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			NewHandler(tc.source).ServeHTTP(w, httptest.NewRequest(http.MethodGet, tc.path, nil))
			if w.Code != tc.code {
				t.Errorf("the code is %d, expected %d", w.Code, tc.code)
			}
			page := strings.NewReplacer(status.ManualBase, "", cluster, "CLUSTER").Replace(unscripted(w.Body.String())) // the only links that lead elsewhere, and a text
			for _, never := range []string{"<script", "<b>", "\u202e", "\x1b", "onclick", "style=", "http://", "https://", "ZgotmplZ", "&lt;nil"} {
				if strings.Contains(page, never) {
					t.Errorf("the page has %q in it", never)
				}
			}
			_, body, _ := strings.Cut(page, "</style>")
			body = formToken.ReplaceAllString(body, "${1}TOKEN")
			golden(t, name+".html", body)
		})
	}
}

// unscripted returns a page without its own script.
func unscripted(page string) string {
	return strings.Replace(page, "<script>"+scriptText+"</script>", "", 1)
}

var formToken = regexp.MustCompile(`(name="token" value=")([^"]*)`)

// What a POST changes nobody else can have changed: no GET, no form of a page from elsewhere
// and none without the token of this page.
func TestRetry(t *testing.T) {
	source := consumer()
	tried, confirmed := 0, 0
	source.status.Owners[0].Retry = func() { tried++ }
	source.status.Catalogs = []status.Catalog{{Name: "o1", Sources: []status.CatalogSource{{Name: "west", Paused: 1, Confirm: func() int { confirmed++; return 1 }}}}}
	h := NewHandler(source)
	ask := func(method, path, body string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "http://localhost:9154"+path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	page := ask(http.MethodGet, "/", "").Body.String()
	token := formToken.FindStringSubmatch(page)[2]
	other := formToken.FindStringSubmatch(func() string {
		w := httptest.NewRecorder()
		NewHandler(source).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w.Body.String()
	}())[2]
	if len(token) < 26 || token == other {
		t.Fatalf("the tokens are %q and %q", token, other)
	}
	parts := "--b\r\nContent-Disposition: form-data; name=\"token\"\r\n\r\n" + token + "\r\n--b\r\nContent-Disposition: form-data; name=\"of\"\r\n\r\n" + ownerID + "\r\n--b--\r\n"
	form := "of=" + ownerID + "&token="
	for name, tc := range map[string]struct {
		w    *httptest.ResponseRecorder
		code int
	}{
		"form":                {ask("POST", "/retry", form+token, "Sec-Fetch-Site", "same-origin"), 303},
		"form of old browser": {ask("POST", "/retry", form+token, "Origin", "http://localhost:9154"), 303},
		"script":              {ask("POST", "/v1/retry?of="+ownerID, ""), 200},
		"unknown":             {ask("POST", "/v1/retry?of=x", ""), 404},
		"unknown in form":     {ask("POST", "/retry", "of=x&token="+token), 404},
		"GET":                 {ask("GET", "/v1/retry?of="+ownerID, ""), 405},
		"GET of form":         {ask("GET", "/retry?"+form+token, ""), 405},
		"HEAD":                {ask("HEAD", "/v1/retry?of="+ownerID, ""), 405},
		"no token":            {ask("POST", "/retry", "of="+ownerID), 403},
		"wrong token":         {ask("POST", "/retry", form+other), 403},
		"token in URL":        {ask("POST", "/retry?"+form+token, ""), 403},
		"parts":               {ask("POST", "/retry", parts, "Content-Type", "multipart/form-data; boundary=b"), 403},
		"large":               {ask("POST", "/retry", form+token+"&x="+strings.Repeat("x", maxBody)), 403},
		"confirm in form":     {ask("POST", "/confirm", "of=o1&source=west&token="+token, "Sec-Fetch-Site", "same-origin"), 303},
		"confirm in script":   {ask("POST", "/v1/confirm?of=o1&source=west", ""), 200},
		"confirm other":       {ask("POST", "/v1/confirm?of=o1&source=x", ""), 404},
		"confirm with GET":    {ask("GET", "/v1/confirm?of=o1&source=west", ""), 405},
		"confirm, no token":   {ask("POST", "/confirm", "of=o1&source=west"), 403},
		"confirm, elsewhere":  {ask("POST", "/v1/confirm?of=o1&source=west", "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"), 403},
		"confirm, neighbor":   {ask("POST", "/confirm", "of=o1&source=west&token="+token, "Sec-Fetch-Site", "same-site"), 403},
		"from elsewhere":      {ask("POST", "/retry", form+token, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"), 403},
		"from a neighbor":     {ask("POST", "/v1/retry?of="+ownerID, "", "Sec-Fetch-Site", "same-site"), 403},
		"of another origin":   {ask("POST", "/v1/retry?of="+ownerID, "", "Origin", "http://localhost:3000"), 403},
		"of no origin":        {ask("POST", "/v1/retry?of="+ownerID, "", "Origin", "null"), 403},
	} {
		if tc.w.Code != tc.code {
			t.Errorf("%s: the code is %d, want %d: %s", name, tc.w.Code, tc.code, tc.w.Body)
		}
	}
	if tried != 3 || confirmed != 2 {
		t.Errorf("%d attempts and %d confirmations, want 3 and 2", tried, confirmed)
	}
}

// golden compares a text with a file in testdata.
func golden(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		must.Do(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want := must.Get(os.ReadFile(file))(t)
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("the page differs from %s (-want +got); after a change that is meant, run the test with -update:\n%s", file, diff)
	}
}

// A style or a script that the policy does not name would not be used.
func TestContentPolicy(t *testing.T) {
	w := httptest.NewRecorder()
	NewHandler(consumer()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if !strings.Contains(w.Body.String(), "<style>"+styleText+"</style>") {
		t.Error("the style of the page is not the one that the policy names")
	}
	if !strings.Contains(w.Body.String(), "<script>"+scriptText+"</script>") {
		t.Error("the script of the page is not the one that the policy names")
	}
	if policy := w.Header().Get("Content-Security-Policy"); policy != contentPolicy() {
		t.Errorf("the policy is %s", policy)
	}
}

// TestListing lists the first services that match, and says where there are more.
func TestListing(t *testing.T) {
	source := &fixed{count: mostListed + 1, first: []status.CatalogService{
		{Name: "api", FQDN: "api.fed.example.", Service: json.RawMessage(`{"labels":{"team":"Sales"}}`)},
	}}
	for query, want := range map[string]string{
		"": "The first 1,000 services, in the order", "&match=WEB.fed": "The first 1,000 services that match", "&match=team%3Dsales+api": "<p>1 service that match", "&match=team%3Dsal+web": "<p>0 services that match",
	} {
		recorder := httptest.NewRecorder()
		NewHandler(source).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/services?of="+ownerID+query, http.NoBody))
		if text := recorder.Body.String(); !strings.Contains(text, want) || strings.Contains(text, "There are more") != strings.Contains(want, "first") {
			t.Errorf("%s: no %q in\n%.3000s", query, want, text)
		}
	}
}
