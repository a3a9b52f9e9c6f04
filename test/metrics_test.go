package test

import (
	"fmt"
	"io"
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
)

// TestMetrics holds the metrics against the README, and their values against
// what happened.
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
	d := startCoreDNS(t, fmt.Sprintf(`fed.example:PORT {
	bind 127.0.0.1
	prometheus %s
	ready %s
	federation {
		owner %s
		%s
		retention 1h
		persist %s
	}
}`, metrics, ready, o.address, p.tls(), kept))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	eventually(t, patience, func() string {
		response, err := http.Get("http://" + ready + "/ready")
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return response.Status
		}
		return ""
	})
	owner := fmt.Sprintf("owner=%q", o.address)
	expect := func(want map[string]float64) {
		t.Helper()
		eventually(t, patience, func() string {
			samples := scrape(t, metrics)
			got := make(map[string]float64)
			for series := range want {
				metric, labels, _ := strings.Cut(series, " ")
				got[series] = sum(samples, "coredns_federation_"+metric, append(strings.Fields(labels), owner)...)
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
	})
	samples := scrape(t, metrics)
	now := float64(time.Now().Unix())
	for _, metric := range []string{"last_attempt_timestamp_seconds", "last_sync_timestamp_seconds"} {
		if at := sum(samples, "coredns_federation_"+metric, owner); at < now-60 || at > now+1 {
			t.Errorf("%s is %v, now is %v", metric, at, now)
		}
	}
	if n := samples["coredns_federation_update_duration_seconds_count"]; n != 3 {
		t.Errorf("%v updates were timed, want 3", n)
	}

	o.stop()
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	eventually(t, patience, func() string {
		if extendedError(mustQuery(t, d.address, "web.fed.example", dns.TypeA, withEDNS)) < 0 {
			return "the answer is not stale"
		}
		return ""
	})
	samples = scrape(t, metrics)
	if left := sum(samples, "coredns_federation_retention_remaining_seconds", owner); left < 3500 || left > 3600 {
		t.Errorf("%v s of the retention are left, want nearly 3600", left)
	}
	if since := sum(samples, "coredns_federation_stale_since_timestamp_seconds", owner); since < now-1 || since > now+60 {
		t.Errorf("stale since %v, now is %v", since, now)
	}
	if n := sum(samples, "coredns_federation_stale_answers_total", owner); n < 1 {
		t.Errorf("%v stale answers", n)
	}

	// All of them are there now.
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := regexp.MustCompile(`coredns_federation_[a-z_]+`).FindAllString(string(readme), -1)
	var exported []string
	for series := range federationSeries(samples) {
		name, _, _ := strings.Cut(series, "{")
		if strings.HasPrefix(name, "coredns_federation_update_duration_seconds") {
			name = "coredns_federation_update_duration_seconds"
		}
		exported = append(exported, name)
	}
	slices.Sort(documented)
	slices.Sort(exported)
	if d := cmp.Diff(slices.Compact(documented), slices.Compact(exported)); d != "" {
		t.Errorf("metrics (-README +exported):\n%s", d)
	}

	response, err := http.Get("http://" + metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	problems, err := promlint.New(response.Body).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		if strings.HasPrefix(problem.Metric, "coredns_federation_") {
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
}

// get returns the status and the body of a page.
func get(url string) (status int, body string, err error) {
	response, err := http.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return response.StatusCode, string(content), err
}

// TestSeriesStandOnce shows that owners that have something in common are told
// apart, also in the middle of reloads: one series that stands twice makes an
// error of the whole page. And it holds all labels against their sets.
func TestSeriesStandOnce(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	o := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"), simpleService(t, "two", "web.two.example", "192.0.2.2"))
	var all strings.Builder // certificate, key and authority in one file
	for _, path := range []string{p.consumer.Cert, p.consumer.Key, p.consumer.CA} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
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
		owner %s
		%s
		owner_id %s
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

	stop := make(chan struct{})
	var scraping sync.WaitGroup
	scraping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if status, body, err := get("http://" + metrics + "/metrics"); err == nil && status != http.StatusOK {
				t.Errorf("metrics: %d %.300s", status, body)
				return
			}
		}
	})
	for i := range 20 {
		d.write(t, corefile([]string{"localhost", ownerID}[i%2]))
		d.reload(t)
		d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	}
	close(stop)
	scraping.Wait()

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
	for series := range federationSeries(scrape(t, metrics)) {
		for _, m := range label.FindAllStringSubmatch(series, -1) {
			if m[1] != "le" && !slices.Contains(words[m[1]], m[2]) {
				t.Errorf("%s: the label %s has the value %q", series, m[1], m[2])
			}
		}
	}
}

// TestReadyAndHealthy shows that a server is ready once its owners are known,
// stays so whatever becomes of them, and that its health has nothing to do with
// them.
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
	page := func(url string, want int) {
		t.Helper()
		eventually(t, patience, func() string {
			status, body, err := get(url)
			if err != nil {
				return err.Error()
			}
			if status != want {
				return fmt.Sprintf("%s: %d %s", url, status, body)
			}
			return ""
		})
	}
	page("http://"+health+"/health", http.StatusOK)
	if status, body, err := get("http://" + ready + "/ready"); err != nil || status != http.StatusServiceUnavailable || body != "federation" {
		t.Errorf("without an owner: %d %s %v", status, body, err)
	}
	o := startOwner(t, p.owner, address, simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	page("http://"+ready+"/ready", http.StatusOK)

	stop := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for {
			select {
			case <-stop:
				return
			case <-pace.C:
			}
			// The page itself shuts down with each configuration.
			if status, body, err := get("http://" + ready + "/ready"); err == nil && strings.Contains(body, "federation") {
				t.Errorf("ready once, and then: %d %s", status, body)
				return
			}
		}
	})
	// An owner that is lost, and a reload with one that was never there.
	o.stop()
	eventually(t, patience, func() string {
		if d.log.count("owner is lost") == 0 {
			return "the owner is not lost"
		}
		return ""
	})
	for i := range 10 {
		more := ""
		if i%2 == 0 {
			more = fmt.Sprintf("federation new.example {\nowner %s\n%s\n}", freeAddress(t), p.tls())
		}
		d.write(t, corefile(more))
		d.reload(t)
	}
	close(stop)
	asking.Wait()
	page("http://"+health+"/health", http.StatusOK)
	page("http://"+ready+"/ready", http.StatusOK)
}
