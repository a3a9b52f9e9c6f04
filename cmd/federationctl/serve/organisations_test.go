package serve

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestTwoOrganisations publishes Services by the configuration of the example between two
// organisations in docs/owner.md, and compares who is told what with the table there.
func TestTwoOrganisations(t *testing.T) {
	text := must.Get(os.ReadFile("../../../docs/owner.md"))(t)
	_, section, _ := strings.Cut(string(text), "### An example between two organisations\n")
	_, block, _ := strings.Cut(section, "```yaml\n")
	block, _, _ = strings.Cut(block, "```\n")
	config, problems, warnings := config.Check([]byte(block))
	if len(problems)+len(warnings) > 0 {
		t.Fatalf("problems %v and warnings %v", problems, warnings)
	}
	catalog := config.Catalogs[0]
	rules := catalog.Sources[0].Kubernetes.Rules
	published := func(namespace, name string, public bool, ports ...string) *federation.Service {
		t.Helper()
		s := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
		s.Namespace, s.Name = namespace, name
		s.Labels = map[string]string{export.Label: "true", "internal": "yes"}
		if public {
			s.Labels["tier"] = "public"
		}
		for i, port := range ports {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: port, Port: 443 + int32(i)})
		}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		kept := must.Get(rules.Trim(s))(t)
		v := rules.Translate(export.Input{Service: kept.(*corev1.Service)})
		if v.Refusal != nil {
			t.Fatal(v.Refusal.Message)
		}
		return v.Service
	}
	// told returns what a consumer is told: the fqdn, the number of endpoints, and the labels.
	told := func(consumer string, s *federation.Service) string {
		t.Helper()
		id := must.Get(federation.ParseID(consumer))(t)
		d := catalog.Policy.Explain(catalog.Policy.ClassOf([]federation.ID{id}), s)
		if d.Service == nil {
			return "not told"
		}
		shown := []string{strings.TrimSuffix(d.Service.FQDN.String(), ".")}
		for _, e := range d.Service.Endpoints {
			shown = append(shown, strings.Join(e.Labels, ","))
		}
		for _, l := range d.Service.Labels {
			shown = append(shown, l.Key+"="+l.Value)
		}
		return strings.Join(shown, " ")
	}
	for _, row := range []struct {
		service                  *federation.Service
		partner, test, ourselves string
	}{
		{
			published("pay", "checkout", true, "edge", "admin"),
			"checkout.pay.acme.partner.example edge tier=public", "checkout.pay.acme.partner.example edge tier=public",
			"checkout.pay.west.acme.example edge admin tier=public",
		},
		{published("pay", "checkout", true, "admin"), "not told", "not told", "checkout.pay.west.acme.example admin tier=public"},
		{published("web", "shop", true, "https"), "shop.web.acme.partner.example https", "not told", "shop.web.west.acme.example https tier=public"},
		{published("web", "db", false, "sql"), "not told", "not told", "db.web.west.acme.example sql"},
	} {
		for consumer, want := range map[string]string{
			"spiffe://partner.example/ns/dns/coredns": row.partner, "spiffe://partner.example/ns/test/coredns": row.test,
			"spiffe://acme.example/ns/dns/coredns": row.ourselves,
		} {
			if got := told(consumer, row.service); got != want {
				t.Errorf("%s is told of %s: %s, want %s", consumer, row.service.FQDN, got, want)
			}
		}
	}
}
