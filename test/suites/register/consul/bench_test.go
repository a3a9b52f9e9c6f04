package consul

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var benchServices = flag.Int("services", 1000, "services of BenchmarkConsul, with three instances each")

const (
	benchChanges = 200
	benchBatch   = 10 // services in a transaction: six operations each, of 128 at most
	restTime     = 2 * time.Minute
)

// BenchmarkConsul has an owner read many services over https, and one after another change.
func BenchmarkConsul(b *testing.B) {
	enabled(b)
	for b.Loop() {
		s := newShop(b)
		server := s.server(b, "server", "dc1", map[string]any{"telemetry": fields{"prometheus_retention_time": "1h"}})
		s.secure(b, server)
		s.run(b, server)
		fill(b, server, *benchServices)

		files := s.Files("coredns")
		begun := time.Now()
		s.serve(b, fmt.Sprintf("consul: {address: \"https://%s\", zone: %s, tls: {ca: %q, cert: %q, key: %q}}", server.secure, zone, files.CA, files.Cert, files.Key))
		s.startDNS(b)
		s.answers(b, fmt.Sprintf("s%d.%s", *benchServices-1, zone), dns.TypeA, "NOERROR 192.0.2.1 192.0.2.2 192.0.2.3")
		b.ReportMetric(time.Since(begun).Seconds(), "s-to-complete")
		b.ReportMetric(residentMiB(b, s), "MiB-owner")

		lists, services := server.requests(b)
		<-time.NewTimer(restTime).C
		lists2, services2 := server.requests(b)
		b.ReportMetric(float64(lists2-lists)/restTime.Minutes(), "lists/min-at-rest")
		b.ReportMetric(float64(services2-services)/restTime.Minutes(), "reads/min-at-rest")

		var took []time.Duration
		lists, services = server.requests(b)
		for i := range benchChanges {
			took = append(took, s.change(b, server, i))
		}
		lists2, services2 = server.requests(b)
		slices.Sort(took)
		b.ReportMetric(float64(lists2-lists)/benchChanges, "lists/change")
		b.ReportMetric(float64(services2-services)/benchChanges, "reads/change")
		b.ReportMetric(float64(took[benchChanges/2].Microseconds())/1000, "ms-p50")
		b.ReportMetric(float64(took[benchChanges*99/100].Microseconds())/1000, "ms-p99")
		b.ReportMetric(float64(took[benchChanges-1].Microseconds())/1000, "ms-max")
	}
}

// fill registers services with three instances each, on three nodes.
func fill(b *testing.B, server *agent, services int) {
	b.Helper()
	for node := range 3 {
		server.put(b, "/v1/catalog/register", fields{"Node": fmt.Sprintf("n%d", node), "Address": fmt.Sprintf("192.0.2.%d", node+1)}, nil)
	}
	for first := 0; first < services; first += benchBatch {
		var ops []fields
		for i := first; i < min(first+benchBatch, services); i++ {
			for node := range 3 {
				id := fmt.Sprintf("s%d-%d", i, node)
				ops = append(ops,
					fields{"Service": fields{"Verb": "set", "Node": fmt.Sprintf("n%d", node), "Service": fields{"ID": id, "Service": fmt.Sprintf("s%d", i), "Port": 80, "Tags": []string{"v1", "http"}}}},
					fields{"Check": fields{"Verb": "set", "Check": fields{"Node": fmt.Sprintf("n%d", node), "CheckID": id, "Name": id, "Status": "passing", "ServiceID": id}}})
			}
		}
		server.put(b, "/v1/txn", ops, nil)
	}
}

// change moves an instance of a service, and returns how long it takes until CoreDNS answers its
// new address.
func (s *testShop) change(b *testing.B, server *agent, i int) time.Duration {
	b.Helper()
	address := fmt.Sprintf("198.51.100.%d", i%250+1)
	name := fmt.Sprintf("s%d", i%*benchServices)
	server.put(b, "/v1/catalog/register", fields{
		"Node": "n0", "SkipNodeUpdate": true, "Service": fields{"ID": name + "-0", "Service": name, "Port": 80, "Address": address, "Tags": []string{"v1", "http"}},
	}, nil)
	begun, pace := time.Now(), time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for !strings.Contains(s.dns.Answer(b.Context(), name+"."+zone, dns.TypeA), address) {
		if time.Since(begun) > time.Minute {
			b.Fatalf("%s is not at %s after a minute", name, address)
		}
		<-pace.C
	}
	return time.Since(begun)
}

// requests returns how many requests the server has answered, for the list and for services.
func (a *agent) requests(b *testing.B) (lists, services int) {
	b.Helper()
	response := must.Get(http.Get("http://" + a.address + "/v1/agent/metrics?format=prometheus"))(b)
	defer response.Body.Close()
	text := string(must.Get(io.ReadAll(response.Body))(b))
	count := func(path string) int {
		found := regexp.MustCompile(`(?m)^consul_api_http_count\{method="GET",path="` + path + `"\} (\d+)`).FindStringSubmatch(text)
		if found == nil {
			return 0
		}
		return must.Get(strconv.Atoi(found[1]))(b)
	}
	return count("v1_catalog_services"), count("v1_health_service_")
}

// residentMiB returns the memory of the owner.
func residentMiB(b *testing.B, s *testShop) float64 {
	b.Helper()
	text := string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", s.owner.PID())))(b))
	found := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindStringSubmatch(text)
	return float64(must.Get(strconv.Atoi(found[1]))(b)) / 1024
}
