package importing

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

var many = flag.Int("services", 10_000, "how many services BenchmarkImport imports")

const (
	changes = 20               // that are measured
	atRest  = 20 * time.Second // for which nothing happens
)

// BenchmarkImport measures what an importer asks of the API server, and takes: for a start without objects,
// for a change, for an owner that is started again, for a start with all objects, and at rest. An API server
// of Kubernetes 1.36 counts all virtual addresses whenever it gives one out, so with these a start is slower, the more
// Services there are.
func BenchmarkImport(b *testing.B) {
	for kind, more := range map[string]string{"headless": "  headless: true\n", "virtual": ""} {
		b.Run(kind, func(b *testing.B) { benchmarkImport(b, more) })
	}
}

func benchmarkImport(b *testing.B, more string) {
	two(b)
	cluster := realserver.StartCluster(b)
	cluster.API.Args = append(cluster.API.Args, auditArgs(b)...)
	must.Do(b, cluster.API.Restart(b.Context()))
	for b.Loop() {
		b.ReportMetric(0, "ns/op") // which says nothing here
		s := newSite(b, cluster, "bench", services(*many), options{more: more})
		s.watch.stop() // it would compete for the processors
		begin := time.Now()
		i := s.start(b, "importer")
		i.written(b, *many)
		b.ReportMetric(time.Since(begin).Seconds(), "s-start")
		report(b, s, nil, "a start")
		b.ReportMetric(i.memory(b, "VmRSS"), "MiB")
		b.ReportMetric(i.memory(b, "VmHWM"), "MiB-most")

		var took []time.Duration
		before := s.requests(b)
		for n := range changes {
			address := fmt.Sprintf("10.200.0.%d", n)
			s.publish(b, s.now.with(catalog{"s1": {address + ":443"}}))
			begin := time.Now() // the owner reads its file, which takes most of the time
			eventually(b, func() string {
				slice, err := s.cluster.Client.DiscoveryV1().EndpointSlices(s.namespace).Get(b.Context(), "s1-v4-https-443", metav1.GetOptions{})
				if err != nil || slice.Endpoints[0].Addresses[0] != address {
					return fmt.Sprintf("the slice is %v, %v", slice, err)
				}
				return ""
			})
			took = append(took, time.Since(begin))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[changes/2])/1e6, "ms-change-p50")
		if n := report(b, s, before, fmt.Sprintf("%d changes", changes)); n > 2*changes {
			b.Errorf("%d changes have taken %d requests", changes, n)
		}

		before = s.requests(b)
		s.owner.Kill()
		i.says(b, `"state":"stale"`)
		must.Do(b, s.owner.Start(b.Context()))
		i.says(b, `"state":"synced"`)
		passes(b, atRest)
		if n := report(b, s, before, "an owner that comes back"); n > 0 {
			b.Errorf("an owner that has come back has taken %d requests", n)
		}

		before = s.requests(b)
		begin = time.Now()
		must.Do(b, i.Stop())
		must.Do(b, i.Start(b.Context()))
		i.written(b, *many)
		b.ReportMetric(time.Since(begin).Seconds(), "s-restart")
		report(b, s, before, "a restart")

		before = s.requests(b)
		passes(b, atRest)
		if n := report(b, s, before, "rest"); n > 0 {
			b.Errorf("at rest there were %d requests but for the lease", n)
		}
		b.Logf("in %v at rest, there are %d requests for the lease", atRest, s.requests(b)["update leases"]-before["update leases"])
	}
}

// report logs what has been asked since then, without the lease, and returns how many requests that were.
func report(b *testing.B, s *site, before map[string]int, of string) int {
	b.Helper()
	more, sum := s.since(b, before)
	b.Logf("requests of %s: %d, %v", of, sum, more)
	return sum
}

// written waits until an importer says that so many names are as they should be. It asks seldom, as the answer
// takes the importer a while.
func (i *importer) written(b *testing.B, n int) {
	b.Helper()
	await.Until(b, 20*time.Minute, func() string {
		passes(b, time.Second/2)
		if got := place.Scrape(b, i.metrics).Sum("federation_import_services", `state="written"`); got != float64(n) {
			return fmt.Sprintf("%v of %d are written", got, n)
		}
		return ""
	})
}

// memory returns what /proc says of the memory of an importer, in MiB.
func (i *importer) memory(b *testing.B, line string) float64 {
	b.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", i.PID())))(b)
	return must.Get(strconv.ParseFloat(string(regexp.MustCompile(line + `:\s+(\d+) kB`).FindSubmatch(text)[1]), 64))(b) / 1024
}
