package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

var size = flag.Int("services", 10_000, "how many Services BenchmarkClusters exports")

const (
	perNamespace = 500
	changes      = 500
	seed         = 1
	bulk         = 5 * time.Minute // bounds what is done for each of many Services
)

// ownerUser is what the API server calls the owners.
const ownerUser = "system:serviceaccount:default:" + domain.Account

// nth returns the namespace, the name and the first address of the i-th Service.
func nth(i int) (space, name string, address netip.Addr) {
	return fmt.Sprintf("team-%03d", i/perNamespace), fmt.Sprintf("svc-%05d", i), version(i, 0)
}

// version returns the address of the i-th Service after some changes.
func version(i, changed int) netip.Addr {
	return netip.AddrFrom4([4]byte{100, byte(64 + changed%64), byte(i >> 8), byte(i)})
}

// exportMany creates Services with an external IP each, and a ServiceExport for each.
func exportMany(b *testing.B, d *domain.Domain, n int) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), bulk)
	defer cancel()
	client := d.Cluster.Client.CoreV1()
	for i := 0; i < n; i += perNamespace {
		space, _, _ := nth(i)
		_, err := client.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}}, metav1.CreateOptions{})
		must.Do(b, err)
	}
	must.Do(b, realserver.Each(ctx, n, func(ctx context.Context, i int) error {
		space, name, address := nth(i)
		_, err := client.Services(space).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{
				ExternalIPs: []string{address.String()},
				Ports:       []corev1.ServicePort{{Name: "https", Port: 443}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		export := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": map[string]any{"name": name},
		}}
		_, err = d.Cluster.Dynamic.Resource(serviceExports).Namespace(space).Create(ctx, export, metav1.CreateOptions{})
		return err
	}))
}

// ready returns how many ServiceExports have the condition Ready.
func ready(b *testing.B, d *domain.Domain) (n int) {
	b.Helper()
	all, err := d.Cluster.Dynamic.Resource(serviceExports).List(b.Context(), metav1.ListOptions{})
	must.Do(b, err)
	for i := range all.Items {
		conditions, err := conditionsOf(&all.Items[i])
		must.Do(b, err)
		if conditions[condReady].Status == metav1.ConditionTrue {
			n++
		}
	}
	return n
}

// awaitReady waits until every ServiceExport is ready. It looks once a second: to
// list them all costs the API server more than to take the conditions.
func awaitReady(b *testing.B, d *domain.Domain) {
	b.Helper()
	deadline, ticker := time.Now().Add(bulk), time.NewTicker(time.Second)
	defer ticker.Stop()
	for n := ready(b, d); n != *size; n = ready(b, d) {
		if time.Now().After(deadline) {
			b.Fatalf("%d ServiceExports are ready", n)
		}
		<-ticker.C
	}
}

// memory returns how much memory a process has, now and at most, in MiB.
func memory(b *testing.B, pid int) (now, most float64) {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must.Do(b, err)
	value := func(field string) float64 {
		match := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(text)
		if match == nil {
			b.Fatalf("/proc has no %s", field)
		}
		n, err := strconv.ParseFloat(string(match[1]), 64)
		must.Do(b, err)
		return n / 1024
	}
	return value("VmRSS"), value("VmHWM")
}

// requests returns how many requests the owners have made so far.
func requests(b *testing.B, d *domain.Domain) map[string]int {
	b.Helper()
	all, err := d.Cluster.Requests()
	must.Do(b, err)
	return all[ownerUser]
}

// sum returns the sum of what is in one and not yet in the other.
func sum(after, before map[string]int) (n int) {
	for what, count := range after {
		n += count - before[what]
	}
	return n
}

// BenchmarkClusters measures what federation adds to a cluster with many exported
// Services: from the acknowledgement of the API server for a change to the answer of
// another cluster's CoreDNS, the owner's memory, the time of a cold start, and the
// requests to the API server.
func BenchmarkClusters(b *testing.B) {
	domains := world(b, both("west", 1), both("east", -1))
	west, east := domains[0], domains[1]
	o := west.Owners[0]
	must.Do(b, o.Stop())
	begin := time.Now()
	exportMany(b, west, *size)
	b.Logf("%d Services and ServiceExports are created in %v", *size, time.Since(begin).Round(time.Second))

	before := requests(b, west)
	begin = time.Now()
	must.Do(b, o.Start(b.Context()))
	isReady(b, o)
	b.ReportMetric(time.Since(begin).Seconds(), "cold-start-s")
	f := follow(b, west)
	await.Until(b, bulk, bulk, func() string {
		if n := len(f.now()); n != *size {
			return fmt.Sprintf("%d services are published", n)
		}
		return ""
	})
	answers(b, east, fqdn(west, *size-1), dns.TypeA, "NOERROR "+version(*size-1, 0).String())
	awaitReady(b, west)
	b.ReportMetric(time.Since(begin).Seconds(), "conditions-s")
	b.ReportMetric(float64(sum(requests(b, west), before))/float64(*size), "requests/Service-at-start")
	now, most := memory(b, o.PID())
	b.ReportMetric(now, "owner-MiB")
	b.ReportMetric(most, "owner-peak-MiB")

	before = requests(b, west)
	took := change(b, west, east)
	b.ReportMetric(float64(sum(requests(b, west), before))/changes, "requests/change")
	slices.Sort(took)
	milliseconds := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(milliseconds(took[len(took)/2]), "median-ms")
	b.ReportMetric(milliseconds(took[len(took)*99/100]), "p99-ms")
	b.ReportMetric(milliseconds(took[len(took)-1]), "max-ms")
	now, most = memory(b, o.PID())
	b.Logf("after %d changes the owner has %.0f MiB, %.0f at most", changes, now, most)
	b.ReportMetric(0, "ns/op") // says nothing
}

// fqdn returns the name of the i-th Service.
func fqdn(d *domain.Domain, i int) string {
	space, name, _ := nth(i)
	return name + "." + space + "." + d.Zone
}

// change changes the address of Services, one after the other and in random order,
// and returns how long each took from the acknowledgement to the answer in the other
// cluster.
func change(b *testing.B, west, east *domain.Domain) (took []time.Duration) {
	b.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	for n := range changes {
		i := random.IntN(*size)
		space, name, _ := nth(i)
		address := version(i, n+1).String()
		patch := fmt.Sprintf(`{"spec":{"externalIPs":[%q]}}`, address)
		_, err := west.Cluster.Client.CoreV1().Services(space).Patch(b.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		acknowledged := time.Now()
		must.Do(b, err)
		for want := "NOERROR " + address; east.DNS.Answer(b.Context(), fqdn(west, i), dns.TypeA) != want; {
			if time.Since(acknowledged) > await.Patience {
				b.Fatalf("%s is not %s after %v", fqdn(west, i), address, await.Patience)
			}
		}
		took = append(took, time.Since(acknowledged))
	}
	return took
}
