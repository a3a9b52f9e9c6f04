package e2e

import (
	"testing"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
)

// What one cluster exports is resolved in the other, by name, by SRV with its port,
// and for a StatefulSet by pod. Un-exported it is gone. cluster.local stays local.
func TestTwoClusters(t *testing.T) {
	west, east := two(t)
	const space, balancer, pods = "shop", "203.0.113.10", "10.1.0.1"
	namespace(t, west, space)
	zone := space + "." + west.Zone
	apply(t, west, balanced(space, "web", balancer), export(space, "web"),
		stateful(space, "db", pods+"0", pods+"1"), export(space, "db"), balanced(space, "internal", balancer))

	answers(t, east, "web."+zone, dns.TypeA, "NOERROR "+balancer)
	srv(t, east, "web."+zone, 443, balancer)
	srv(t, east, "_https._tcp.web."+zone, 443, balancer)
	answers(t, east, "db."+zone, dns.TypeA, "NOERROR "+pods+"0 "+pods+"1")
	srv(t, east, "db."+zone, 5432, pods+"0", pods+"1")
	answers(t, east, "db-0.db."+zone, dns.TypeA, "NOERROR "+pods+"0")
	answers(t, east, "db-1.db."+zone, dns.TypeA, "NOERROR "+pods+"1")
	answers(t, east, "internal."+zone, dns.TypeA, "NXDOMAIN")
	exported(t, west, space, "web")

	service, err := west.Cluster.Client.CoreV1().Services(space).Get(t.Context(), "web", metav1.GetOptions{})
	must.Do(t, err)
	local := "web." + space + ".svc." + domain.ClusterZone
	answers(t, west, local, dns.TypeA, "NOERROR "+service.Spec.ClusterIP)
	answers(t, east, local, dns.TypeA, "NXDOMAIN")

	apply(t, west, pod(space, "db", 0, pods+"0", false))
	answers(t, east, "db-0.db."+zone, dns.TypeA, "NXDOMAIN")
	answers(t, east, "db."+zone, dns.TypeA, "NOERROR "+pods+"1")

	remove(t, west, export(space, "web"), export(space, "db"))
	for _, name := range []string{"web.", "db.", "db-1.db."} {
		answers(t, east, name+zone, dns.TypeA, "NXDOMAIN")
	}
	answers(t, west, local, dns.TypeA, "NOERROR "+service.Spec.ClusterIP)
}

// srv checks the SRV records of a name: one for each of the addresses, which are in
// the additional section, all with this port.
func srv(t *testing.T, d *domain.Domain, name string, port uint16, addresses ...string) {
	t.Helper()
	reply, err := d.DNS.Ask(t.Context(), name, dns.TypeSRV)
	must.Do(t, err)
	want := make(map[string]bool)
	for _, address := range addresses {
		want[address] = true
	}
	glue := make(map[string]string)
	for _, rr := range reply.Extra {
		if a, ok := rr.(*dns.A); ok {
			glue[a.Hdr.Name] = a.A.String()
		}
	}
	for _, rr := range reply.Answer {
		record, ok := rr.(*dns.SRV)
		if !ok || record.Port != port || !want[glue[record.Target]] {
			t.Errorf("%s has the record %v at %s, want port %d at one of %q", name, rr, glue[record.Target], port, addresses)
		}
		delete(want, glue[record.Target])
	}
	if len(want) > 0 {
		t.Errorf("%s has no SRV record for %v, in\n%v", name, want, reply)
	}
}
