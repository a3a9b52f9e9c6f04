package e2e

import (
	"fmt"
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
	for _, tt := range []struct {
		owner, consumer *domain.Domain
		balancer, pods  string
	}{
		{west, east, "203.0.113.10", "10.1.0.1"},
		{east, west, "198.51.100.10", "10.2.0.1"},
	} {
		t.Run(tt.owner.Name+" to "+tt.consumer.Name, func(t *testing.T) {
			space := "shop-" + tt.owner.Name
			namespace(t, tt.owner, space)
			zone := space + "." + tt.owner.Zone
			apply(t, tt.owner, balanced(space, "web", tt.balancer), export(space, "web"),
				stateful(space, "db", tt.pods+"0", tt.pods+"1"), export(space, "db"), balanced(space, "internal", tt.balancer))

			answers(t, tt.consumer, "web."+zone, dns.TypeA, "NOERROR "+tt.balancer)
			srv(t, tt.consumer, "web."+zone, 443, tt.balancer)
			srv(t, tt.consumer, "_https._tcp.web."+zone, 443, tt.balancer)
			answers(t, tt.consumer, "db."+zone, dns.TypeA, fmt.Sprintf("NOERROR %s0 %[1]s1", tt.pods))
			srv(t, tt.consumer, "db."+zone, 5432, tt.pods+"0", tt.pods+"1")
			answers(t, tt.consumer, "db-0.db."+zone, dns.TypeA, "NOERROR "+tt.pods+"0")
			answers(t, tt.consumer, "db-1.db."+zone, dns.TypeA, "NOERROR "+tt.pods+"1")
			answers(t, tt.consumer, "internal."+zone, dns.TypeA, "NXDOMAIN")

			says(t, tt.owner, space, "web", "Valid", "True", "Valid")
			says(t, tt.owner, space, "db", "Ready", "True", "Exported")

			service, err := tt.owner.Cluster.Client.CoreV1().Services(space).Get(t.Context(), "web", metav1.GetOptions{})
			must.Do(t, err)
			local := "web." + space + ".svc." + domain.ClusterZone
			answers(t, tt.owner, local, dns.TypeA, "NOERROR "+service.Spec.ClusterIP)
			answers(t, tt.consumer, local, dns.TypeA, "NXDOMAIN")

			apply(t, tt.owner, pod(space, "db", 0, tt.pods+"0", false))
			answers(t, tt.consumer, "db-0.db."+zone, dns.TypeA, "NXDOMAIN")
			answers(t, tt.consumer, "db."+zone, dns.TypeA, "NOERROR "+tt.pods+"1")

			remove(t, tt.owner, export(space, "web"), export(space, "db"))
			for _, name := range []string{"web.", "db.", "db-1.db."} {
				answers(t, tt.consumer, name+zone, dns.TypeA, "NXDOMAIN")
			}
			answers(t, tt.owner, local, dns.TypeA, "NOERROR "+service.Spec.ClusterIP)
		})
	}
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
