package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	tick    = 50 * time.Millisecond
	oneCall = 30 * time.Second // bounds one request to Prometheus

	// window is what a quarter of an hour is in the rules of the test. For so long an alert
	// about what has been counted once fires.
	window = "8s"
)

// eventually waits until a condition has nothing to complain of.
var eventually = await.Eventually

// scaled returns the rules with other durations, so that what takes minutes takes
// seconds. Their proportions are for promtool.
func scaled(t testing.TB, text string) string {
	t.Helper()
	for _, change := range []struct{ from, to string }{
		{`(?m)^    for: \d+m$`, "    for: 1s"},
		{`\[(5|10|15)m\]`, "[" + window + "]"},
		{`offset 15m\b`, "offset " + window},
		{`offset 1d\b`, "offset 2s"},
		{`\[[16]h\]`, "[2m]"}, // longer than any fault of the test
		{`federation_owner_lag_seconds > 60\b`, "federation_owner_lag_seconds > 1"},
		{`federation_owner_source_away_seconds > 300\b`, "federation_owner_source_away_seconds > 1"},
	} {
		pattern := regexp.MustCompile(change.from)
		if !pattern.MatchString(text) {
			t.Fatalf("the rules have no %s to scale", change.from)
		}
		text = pattern.ReplaceAllString(text, change.to)
	}
	if left := regexp.MustCompile(`(\[\d+|offset \d+|for: \d+)[smhd]`).FindAllString(regexp.MustCompile(`(\[`+window+`|offset `+window+`|offset 2s|for: 1s|\[2m)`).ReplaceAllString(text, ""), -1); len(left) > 0 {
		t.Fatalf("not scaled: %v", left)
	}
	return text
}

// prometheus is a running Prometheus.
type prometheus struct {
	*realserver.Process

	url string

	mu      sync.Mutex
	targets map[string]target // by instance
	seen    map[string]bool   // alerts that have fired and ended
}

// target is what is scraped.
type target struct{ job, address string }

// startPrometheus starts a Prometheus with the rules.
func startPrometheus(t testing.TB, at *place.Place) *prometheus {
	t.Helper()
	path := tool(t, "prometheus")
	address := loopback.Address(t)
	at.Put(t, "targets.json", "[]")
	at.Put(t, "rules.yaml", scaled(t, read(t, folder+"/rules.yaml")))
	config := at.Put(t, "prometheus.yaml", `
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [rules.yaml]
scrape_configs:
- job_name: none # each target has its own
  file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]
`)
	p := &prometheus{url: "http://" + address, targets: make(map[string]target), seen: make(map[string]bool)}
	p.Process = &realserver.Process{
		Name: "prometheus", Path: path, Dir: at.Dir,
		Args: []string{"--config.file=" + config, "--storage.tsdb.path=" + at.Path("data"), "--web.listen-address=" + address, "--log.level=warn"},
		Ready: func(ctx context.Context) error {
			_, err := p.get(ctx, "/-/ready", nil)
			return err
		},
	}
	p.StartFor(t)
	return p
}

// scrape adds a target, or takes it away if the address is empty.
func (p *prometheus) scrape(t testing.TB, job, instance, address string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets[instance] = target{job, address}
	if address == "" {
		delete(p.targets, instance)
	}
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	groups := make([]group, 0, len(p.targets))
	for instance, of := range p.targets {
		groups = append(groups, group{[]string{of.address}, map[string]string{"job": of.job, "instance": instance}})
	}
	text, err := json.Marshal(groups)
	must.Do(t, err)
	must.Do(t, (&place.Place{Dir: p.Dir}).Write("targets.json", string(text)))
}

// get asks the API.
func (p *prometheus) get(ctx context.Context, path string, values url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path+"?"+values.Encode(), http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.300s", path, response.Status, text)
	}
	return text, err
}

// query returns how many series an expression has now.
func (p *prometheus) query(ctx context.Context, expr string) (int, error) {
	text, err := p.get(ctx, "/api/v1/query", url.Values{"query": {expr}})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", expr, err)
	}
	var reply struct {
		Data struct {
			Result []json.RawMessage `json:"result"`
		} `json:"data"`
	}
	err = json.Unmarshal(text, &reply)
	return len(reply.Data.Result), err
}

// alert is an alert as Prometheus shows it.
type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	State       string            `json:"state"`
}

// active returns the alerts that are pending or fire.
func (p *prometheus) active(ctx context.Context) ([]alert, error) {
	text, err := p.get(ctx, "/api/v1/alerts", nil)
	if err != nil {
		return nil, err
	}
	var reply struct {
		Data struct {
			Alerts []alert `json:"alerts"`
		} `json:"data"`
	}
	err = json.Unmarshal(text, &reply)
	return reply.Data.Alerts, err
}

// on returns the alerts of a name that are about an instance, or about a job.
func on(all []alert, name, of string) (about []alert) {
	for _, a := range all {
		if a.Labels["alertname"] == name && (a.Labels["instance"] == of || a.Labels["instance"] == "" && a.Labels["job"] == of) {
			about = append(about, a)
		}
	}
	return about
}

// fires waits until alerts about an instance or a job have fired, and looks at their texts.
func (p *prometheus) fires(t testing.TB, of string, names ...string) {
	t.Helper()
	p.allFire(t, map[string][]string{of: names})
}

// allFire is fires for several instances and jobs. The alerts need not fire at the same time,
// as some do so only for a while.
func (p *prometheus) allFire(t testing.TB, names map[string][]string) {
	t.Helper()
	fired := make(map[[2]string]alert) // by instance or job, and name
	eventually(t, func() string {
		all, err := p.active(t.Context())
		if err != nil {
			return err.Error()
		}
		missing := ""
		for of, names := range names {
			for _, name := range names {
				for _, a := range on(all, name, of) {
					if a.State == "firing" {
						fired[[2]string{of, name}] = a
					}
				}
				if _, ok := fired[[2]string{of, name}]; !ok {
					missing = fmt.Sprintf("%s does not fire for %s; there are %v", name, of, all)
				}
			}
		}
		return missing
	})
	for key, firing := range fired {
		name := key[1]
		for key, text := range firing.Annotations {
			if strings.Contains(text, "<") || strings.Contains(text, "%!") {
				t.Errorf("%s of %s is %s", key, name, text)
			}
		}
		if _, ok := firing.Labels["severity"]; !ok || firing.Annotations["summary"] == "" {
			t.Errorf("%s has the labels %v and the annotations %v", name, firing.Labels, firing.Annotations)
		}
		t.Logf("%s: %s: %s", name, firing.Annotations["summary"], firing.Annotations["description"])
	}
}

// ends waits until alerts about an instance or a job, which have fired, are neither
// pending nor firing.
func (p *prometheus) ends(t testing.TB, of string, names ...string) {
	t.Helper()
	for _, name := range names {
		eventually(t, func() string {
			all, err := p.active(t.Context())
			if err != nil {
				return err.Error()
			}
			if left := on(all, name, of); len(left) > 0 {
				return fmt.Sprintf("%s does not end for %s: %v", name, of, left)
			}
			return ""
		})
		p.mu.Lock()
		p.seen[name] = true
		p.mu.Unlock()
	}
}
