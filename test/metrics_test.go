package test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

// TestMetrics compares the values of the metrics with what happened, and their
// names with those in the README.
func TestMetrics(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	web := simpleService(t, "web", "web.fed.example", "192.0.2.1")
	web.Instances = append(web.Instances, federation.Instance{ID: "not a name", Protocol: federation.TCP})
	o := startOwner(t, p.owner, "", web,
		simpleService(t, "outside", "web.other.example", "192.0.2.1"),
		simpleService(t, "web again", "web.fed.example", "192.0.2.9"))
	metrics, ready := freeAddress(t), freeAddress(t)
	kept := filepath.Join(t.TempDir(), "catalog")
	writeFile(t, kept, "no catalog")
	began := time.Now()
	d := startCoreDNS(t, federationBlock(p, "fed.example", "prometheus "+metrics+"\nready "+ready, o.address+" retention 1h\nshare *\npersist "+kept))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	awaitStatus(t, "http://"+ready+"/ready", http.StatusOK)
	owner := fmt.Sprintf("owner=%q", o.address)
	expect := func(want map[string]float64) {
		t.Helper()
		eventually(t, patience, func() string {
			samples := place.Scrape(t, metrics)
			got := make(map[string]float64)
			for series := range want {
				metric, labels, _ := strings.Cut(series, " ")
				got[series] = samples.Sum("coredns_federation_"+metric, append(strings.Fields(labels), owner)...)
			}
			return cmp.Diff(want, got)
		})
	}
	expect(map[string]float64{
		`owner_state state="synced"`:                  1,
		`owner_state`:                                 1,
		`services`:                                    2,
		`instances`:                                   3,
		`conflicts reason="fqdn_conflict"`:            1,
		`conflicts reason="instance_id"`:              1,
		`responses_total operation="upsert"`:          2,
		`responses_total operation="end"`:             1,
		`nacks_total reason="out_of_zone"`:            1,
		`sessions_total`:                              0,
		`persist_errors_total`:                        1,
		`stale_since_timestamp_seconds`:               0,
		`stale_answers_total`:                         0,
		`last_sync_timestamp_seconds state="nothing"`: 0,
		`owner_hops`:                                  1,
		`resumed_streams_total`:                       0,
		`retention_seconds`:                           3600,
	})
	eventually(t, patience, func() string { // they are timed after all else
		if n := place.Scrape(t, metrics)["coredns_federation_update_duration_seconds_count"]; n != 3 {
			return fmt.Sprintf("%v updates were timed, want 3", n)
		}
		return ""
	})
	samples := place.Scrape(t, metrics)
	if got := samples.Sum("coredns_federation_ready"); got != 1 {
		t.Errorf("ready is %v on a server that is ready", got)
	}
	since := func(metric string, from time.Time) {
		t.Helper()
		at, now := samples.Sum("coredns_federation_"+metric, owner), time.Now()
		if at < float64(from.Unix()) || at > float64(now.Unix()+1) {
			t.Errorf("%s is %v, want between %d and %d", metric, at, from.Unix(), now.Unix()+1)
		}
	}
	since("last_attempt_timestamp_seconds", began)
	since("last_sync_timestamp_seconds", began)

	stopped := time.Now()
	o.stop()
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	d.awaitStale(t, "web.fed.example")
	samples = place.Scrape(t, metrics)
	if left := samples.Sum("coredns_federation_retention_remaining_seconds", owner); left < 3500 || left > 3600 {
		t.Errorf("%v s of the retention are left, want nearly 3600", left)
	}
	since("stale_since_timestamp_seconds", stopped)
	if n := samples.Sum("coredns_federation_stale_answers_total", owner); n < 1 {
		t.Errorf("%v stale answers", n)
	}

	// Every metric has a series by now.
	operating := must.Get(os.ReadFile("../docs/operating.md"))(t)
	documented := regexp.MustCompile(`coredns_federation_[a-z_]+`).FindAllString(string(operating), -1)
	var exported []string
	for _, series := range federationSeries(samples) {
		name, _, _ := strings.Cut(series, "{")
		if strings.HasPrefix(name, "coredns_federation_update_duration_seconds") {
			name = "coredns_federation_update_duration_seconds"
		}
		exported = append(exported, name)
	}
	slices.Sort(documented)
	slices.Sort(exported)
	if d := cmp.Diff(slices.Compact(documented), slices.Compact(exported)); d != "" {
		t.Errorf("metrics (-docs/operating.md +exported):\n%s", d)
	}

	response := must.Get(http.Get("http://" + metrics + "/metrics"))(t)
	defer response.Body.Close()
	problems := must.Get(promlint.New(response.Body).Lint())(t)
	for _, problem := range problems {
		if strings.HasPrefix(problem.Metric, "coredns_federation_") {
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
}

// TestMetricsOfStreams has an owner that is replaced by another one with the same services,
// to which they come through a relay.
func TestMetricsOfStreams(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	web := simpleService(t, "web", "web.fed.example", "192.0.2.1")
	origin := startOwner(t, p.owner, "", web)
	metrics := freeAddress(t)
	d := startCoreDNS(t, federationBlock(p, "fed.example", "prometheus "+metrics, origin.address+" retention 1h"))
	label := fmt.Sprintf("owner=%q", origin.address)
	expect := func(hops, resumed float64) {
		t.Helper()
		eventually(t, patience, func() string {
			samples := place.Scrape(t, metrics)
			return cmp.Diff([]float64{1, hops, resumed}, []float64{
				samples.Sum("coredns_federation_owner_state", `state="synced"`, label),
				samples.Sum("coredns_federation_owner_hops", label),
				samples.Sum("coredns_federation_resumed_streams_total", label),
			})
		})
	}
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	expect(1, 0)

	origin.stop()
	relay := registry.New()
	must.Do(t, relay.SetPath(wire.Path{"origin"}))
	mustUpsert(t, relay, web)
	serveRegistry(t, p.owner, origin.address, relay, 1)
	expect(2, 1)
}

// TestSeriesAreUnique has two owners at one address, and two roles in one
// certificate file, through reloads. A series that is exported twice would make the
// whole page an error. The values of all labels must be of a fixed set.
func TestSeriesAreUnique(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	o := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"), simpleService(t, "two", "web.two.example", "192.0.2.2"))
	var all strings.Builder // certificate, key and authority in one file
	for _, path := range []string{p.consumer.Cert, p.consumer.Key, p.consumer.CA} {
		content := must.Get(os.ReadFile(path))(t)
		all.Write(content)
	}
	one := filepath.Join(t.TempDir(), "all.pem")
	writeFile(t, one, all.String())
	metrics := freeAddress(t)
	corefile := func(id string) string {
		return fmt.Sprintf(`.:PORT {
	bind 127.0.0.1
	prometheus %s
	federation fed.example {
		name %[2]s
		owner %[2]s
		%[3]s
		owner_id %[4]s
	}
	federation two.example {
		owner %[2]s
		tls %[5]s %[5]s %[5]s
		tls_servername localhost
	}
}`, metrics, o.address, p.tls(), id, one)
	}
	d := startCoreDNS(t, corefile(ownerID))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	d.awaitAnswer(t, "web.two.example", dns.TypeA, "NOERROR 192.0.2.2")

	stop := keepFetching(t, "http://"+metrics+"/metrics", func(status int, body string) string {
		if status != http.StatusOK {
			return fmt.Sprintf("metrics: %d %.300s", status, body)
		}
		return ""
	})
	for i := range 20 {
		d.write(t, corefile([]string{"localhost", ownerID}[i%2]))
		d.reload(t)
		d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	}
	stop()
	o.stop() // so that there are sessions that have ended, with a code
	eventually(t, patience, func() string {
		if place.Scrape(t, metrics).Sum("coredns_federation_sessions_total") < 2 {
			return "the sessions have not ended"
		}
		return ""
	})

	words := map[string][]string{
		"owner":     {o.address, o.address + "/localhost"},
		"file":      {p.consumer.Cert, p.consumer.CA, one},
		"state":     {"connecting", "syncing", "synced", "stale", "expired", "parked"},
		"operation": {"upsert", "delete", "end", "alive"},
		"reason": {
			"undecodable", "missing", "name", "address", "port", "protocol", "limit", "out_of_zone", "reserved_name",
			"fqdn_conflict", "instance_conflict", "instance_id", "name_too_long", "rrset_too_large", "txt_dropped",
		},
		"code": {"OK", "Canceled", "Unavailable"},
	}
	label := regexp.MustCompile(`([a-z_]+)="([^"]*)"`)
	seen := make(map[string]bool)
	for _, series := range federationSeries(place.Scrape(t, metrics)) {
		for _, m := range label.FindAllStringSubmatch(series, -1) {
			seen[m[1]] = true
			if m[1] != "le" && !slices.Contains(words[m[1]], m[2]) {
				t.Errorf("%s: the label %s has the value %q", series, m[1], m[2])
			}
		}
	}
	for name := range words {
		if !seen[name] {
			t.Errorf("no series has the label %s", name)
		}
	}
}

// keepFetching fetches a page until stop is called, and fails the test when wrong
// returns what is wrong with it. That there is no reply at all is no failure, as
// the page is restarted with each reload; that there never is one is.
func keepFetching(t testing.TB, url string, wrong func(status int, body string) string) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var fetching sync.WaitGroup
	fetching.Go(func() {
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		fetched := 0
		for {
			select {
			case <-done:
				if fetched == 0 {
					t.Errorf("%s was never there", url)
				}
				return
			case <-pace.C:
			}
			status, body, err := get(url)
			if err != nil {
				continue
			}
			fetched++
			if why := wrong(status, body); why != "" {
				t.Error(why)
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { close(done); fetching.Wait() })
	t.Cleanup(stop)
	return stop
}

// TestReadyAndHealthy shows when a server is ready: once its owners are known, and
// from then on, even when an owner is lost or a new one cannot be reached. Its
// health does not depend on owners.
func TestReadyAndHealthy(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	address := freeAddress(t)
	ready, health := freeAddress(t), freeAddress(t)
	corefile := func(more string) string {
		return fmt.Sprintf(`.:PORT {
	bind 127.0.0.1
	ready %s
	health %s
	federation fed.example {
		owner %s
		%s
	}
	%s
}`, ready, health, address, p.tls(), more)
	}
	d := startCoreDNS(t, corefile(""))
	awaitStatus(t, "http://"+health+"/health", http.StatusOK)
	if status, body, err := get("http://" + ready + "/ready"); err != nil || status != http.StatusServiceUnavailable || body != "federation" {
		t.Errorf("ready without an owner: %d %s %v, want %d federation", status, body, err, http.StatusServiceUnavailable)
	}
	o := startOwner(t, p.owner, address, simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	awaitStatus(t, "http://"+ready+"/ready", http.StatusOK)

	stop := keepFetching(t, "http://"+ready+"/ready", func(status int, body string) string {
		if strings.Contains(body, "federation") { // the plugins that are not ready
			return fmt.Sprintf("not ready any more: %d %s", status, body)
		}
		return ""
	})
	// The owner is lost, and reloads add and remove one that was never there.
	o.stop()
	d.awaitLog(t, 1, "owner is lost")
	for i := range 10 {
		more := ""
		if i%2 == 0 {
			more = fmt.Sprintf("federation new.example {\nowner %s\n%s\n}", freeAddress(t), p.tls())
		}
		d.write(t, corefile(more))
		d.reload(t)
	}
	stop()
	awaitStatus(t, "http://"+health+"/health", http.StatusOK)
	awaitStatus(t, "http://"+ready+"/ready", http.StatusOK)
}
