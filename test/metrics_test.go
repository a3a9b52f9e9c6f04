package test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

// TestMetrics compares the values of the metrics with what happened.
func TestMetrics(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	web := simpleService("web", "web.fed.example", "192.0.2.1")
	web.Instances = append(web.Instances, federation.Instance{ID: "not a name", Protocol: federation.TCP})
	o := startOwner(t, p, web,
		simpleService("outside", "web.other.example", "192.0.2.1"),
		simpleService("web again", "web.fed.example", "192.0.2.9"))
	metrics, ready := loopback.Address(t), loopback.Address(t)
	kept := p.Put(t, "catalog", "no catalog")
	// Another owner at the same address, with two roles in one file: a series that is exported twice
	// would make the whole page an error.
	files := p.Files("consumer")
	one := p.Put(t, "all.pem", string(must.Get(os.ReadFile(files.Cert))(t))+string(must.Get(os.ReadFile(files.Key))(t)))
	began := time.Now()
	d := startCoreDNS(t, federationBlock(p, "fed.example", "prometheus "+metrics+"\nready "+ready, o.address+" retention 1h\nshare *\npersist "+kept)+
		fmt.Sprintf("two.example:PORT {\nbind 127.0.0.1\nfederation {\nowner %s\ntls %s %[2]s %[3]s\ntls_servername localhost\n}\n}\n", o.address, one, files.CA))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	await.Eventually(t, func() string {
		if status, body, err := get("http://" + ready + "/ready"); status != http.StatusOK {
			return fmt.Sprint(status, body, err)
		}
		return ""
	})
	owner := fmt.Sprintf("owner=%q", o.address)
	expect := func(want map[string]float64) {
		t.Helper()
		await.Eventually(t, func() string {
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
	await.Eventually(t, func() string { // they are timed after all else
		if n := place.Scrape(t, metrics)["coredns_federation_update_duration_seconds_count"]; n != 4 {
			return fmt.Sprintf("%v updates were timed, want 4, with the end of the other owner", n)
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
	o.Delete("outside")
	must.Do(t, o.SetPath(wire.OwnerPath{"origin"})) // the rest comes through another owner
	serveRegistry(t, p, o.address, o.Registry, 1)
	expect(map[string]float64{`owner_state state="synced"`: 1, `owner_hops`: 2, `resumed_streams_total`: 1})

	response := must.Get(http.Get("http://" + metrics + "/metrics"))(t)
	defer response.Body.Close()
	problems := must.Get(promlint.New(response.Body).Lint())(t)
	for _, problem := range problems {
		if strings.HasPrefix(problem.Metric, "coredns_federation_") {
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
}
