package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/domain"
)

// crowd exports n Services and a StatefulSet in a namespace, waits until the other
// domain answers for all of them, and asks for them all the time from then on.
func crowd(t *testing.T, from, to *domain.Domain, space string, n int) (*prober, map[question]string) {
	t.Helper()
	namespace(t, from, space)
	zone := space + "." + from.Zone
	want := map[question]string{
		{"db." + zone, dns.TypeA}:      "NOERROR 10.9.0.10 10.9.0.11",
		{"db-1.db." + zone, dns.TypeA}: "NOERROR 10.9.0.11",
	}
	apply(t, from, stateful(space, "db", "10.9.0.10", "10.9.0.11"), export(space, "db"))
	for i := range n {
		name, address := fmt.Sprintf("svc-%d", i), fmt.Sprintf("203.0.113.%d", i+1)
		apply(t, from, balanced(space, name, address), export(space, name))
		want[question{name + "." + zone, dns.TypeA}] = "NOERROR " + address
	}
	for q, answer := range want {
		answers(t, to, q.name, q.qtype, answer)
	}
	return probe(t, to, want), want
}

// Whatever of the two sides is killed and started again, no answer is wrong, nothing
// is withdrawn or sent twice, and what changed meanwhile is published afterwards.
func TestKilled(t *testing.T) {
	west, east := two(t)
	const space = "killed"
	p, _ := crowd(t, west, east, space, 20)
	f := follow(t, west)
	f.synced(t)
	for _, tt := range []struct {
		name string
		kill func(context.Context) error
	}{
		{"kube-apiserver", west.Cluster.API.Restart},
		{"kube-controller-manager", west.Cluster.Controllers.Restart},
		{"etcd", west.Cluster.Etcd.Restart},
		{"owner-1", west.Owners[0].Restart},
		{"owner-2", west.Owners[1].Restart},
	} {
		t.Run(tt.name, func(t *testing.T) {
			must(t, tt.kill(t.Context()))
			name := "after-" + tt.name
			eventually(t, func() string { // an API server that has just come back may fail once
				if err := west.Cluster.Apply(t.Context(), balanced(space, name, "203.0.113.99")+"---\n"+export(space, name)); err != nil {
					return err.Error()
				}
				return ""
			})
			answers(t, east, fmt.Sprintf("%s.%s.%s", name, space, west.Zone), dns.TypeA, "NOERROR 203.0.113.99")
		})
	}
	p.check(t)
	f.undisturbed(t)
	same(t, west, west.Owners...)
}
