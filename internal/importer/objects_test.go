package importer

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

func TestObjectName(t *testing.T) {
	for _, tc := range []struct{ fqdn, zones, template, name, rule string }{
		{"web.shop.a.example", "a.example", "{service}", "web-shop", ""},
		{"web.shop.a.example", "a.example shop.a.example", "{service}", "web", ""},
		{"web.shop.a.example", "", "{service}", "web-shop-a-example", ""},
		{"web.shop.a.example", "b.example", "{service}", "web-shop-a-example", ""},
		{"web.shop.a.example", "a.example", "mesh-{service}-a", "mesh-web-shop-a", ""},
		{"9.a.example", "a.example", "s{service}", "s9", ""},
		{"9.a.example", "a.example", "{service}", "", "9 is no name of a Service, which begins with a letter"},
		{"a.example", "a.example", "{service}", "", "is that of the zone"},
		{strings.Repeat("a", 32) + "." + strings.Repeat("b", 32) + ".a.example", "a.example", "{service}", "", strings.Repeat("a", 32) + "-" + strings.Repeat("b", 32) + " is no name of a Service, which"},
	} {
		var zones []federation.FQDN
		for zone := range strings.FieldsSeq(tc.zones) {
			zones = append(zones, services.FQDN(zone))
		}
		name, invalid := (&Target{Name: tc.template}).objectNameFor(services.FQDN(tc.fqdn), zones)
		rule := ""
		if invalid != nil {
			rule = invalid.Rule
		}
		if name != tc.name && rule == "" || !strings.HasPrefix(rule, tc.rule) || (tc.rule == "") != (rule == "") {
			t.Errorf("%s in %s: %q, %q, want %q, %q", tc.fqdn, tc.zones, name, rule, tc.name, tc.rule)
		}
	}
}

// shownPorts returns the ports of a service and its slices as text.
func shownPorts(s *federation.Service) (lines []string) {
	addresses := make([][]netip.Addr, len(s.Endpoints))
	for i, e := range s.Endpoints {
		if ip, ok := e.Address.IP(); ok {
			addresses[i] = []netip.Addr{ip}
		}
	}
	ports := servedPorts(s, addresses)
	for _, p := range ports {
		lines = append(lines, fmt.Sprintf("%s %d", p.name, p.number))
	}
	for _, o := range newSlices(metav1.ObjectMeta{Name: "web"}, ports) {
		slice := o.(*discoveryv1.EndpointSlice)
		var at []string
		for _, e := range slice.Endpoints {
			at = append(at, e.Addresses...)
		}
		lines = append(lines, fmt.Sprintf("%s %s %d: %s", slice.Name, *slice.Ports[0].Name, *slice.Ports[0].Port, strings.Join(at, " ")))
	}
	return lines
}

func TestPorts(t *testing.T) {
	service := func(instances string, endpoints ...string) *federation.Service {
		s := &federation.Service{Name: "web", FQDN: services.FQDN("web.example")}
		for i, text := range strings.Fields(instances) {
			protocol, label, _ := strings.Cut(text, "=")
			parsed, _ := federation.ParseProtocol(protocol)
			in := federation.Instance{ID: fmt.Sprint("i", i), Protocol: parsed}
			if label != "" {
				in.EndpointSelector = []string{label}
			}
			s.Instances = append(s.Instances, in)
		}
		for _, text := range endpoints {
			at, label, _ := strings.Cut(text, "=")
			place := netip.MustParseAddrPort(at)
			s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: must.Value(federation.ParseAddress(place.Addr().String())), Port: place.Port(), Labels: []string{label}})
		}
		return s
	}
	for name, tc := range map[string]struct {
		of   *federation.Service
		want []string
	}{
		"families":                {service("HTTPS", "192.0.2.1:443", "[2001:db8::1]:443", "192.0.2.2:443"), []string{"https 443", "web-v4-https-443 https 443: 192.0.2.1 192.0.2.2", "web-v6-https-443 https 443: 2001:db8::1"}},
		"machines with numbers":   {service("TCP", "192.0.2.1:5432", "192.0.2.2:5433"), []string{"tcp 5432", "web-v4-tcp-5432 tcp 5432: 192.0.2.1", "web-v4-tcp-5433 tcp 5433: 192.0.2.2"}},
		"two ports of a protocol": {service("HTTP=a HTTP=b", "192.0.2.1:80=a", "192.0.2.1:8080=b", "192.0.2.2:80=a"), []string{"http 80", "http-8080 8080", "web-v4-http-80 http 80: 192.0.2.1 192.0.2.2", "web-v4-http-8080-8080 http-8080 8080: 192.0.2.1"}},
		"protocols":               {service("GRPC=a HTTP=b", "192.0.2.1:9090=a", "192.0.2.1:80=b"), []string{"grpc 9090", "http 80", "web-v4-grpc-9090 grpc 9090: 192.0.2.1", "web-v4-http-80 http 80: 192.0.2.1"}},
		"one number":              {service("TLS HTTPS", "192.0.2.1:443"), []string{"tls 443", "web-v4-tls-443 tls 443: 192.0.2.1"}},
		"selected by none":        {service("TCP=x TCP=a", "192.0.2.1:1=a", "192.0.2.1:1=a"), []string{"tcp 1", "web-v4-tcp-1 tcp 1: 192.0.2.1"}},
	} {
		if diff := cmp.Diff(tc.want, shownPorts(tc.of)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if limits.Endpoints > 1000 {
		t.Error("an EndpointSlice takes 1,000 endpoints")
	}
}

func TestWithWanted(t *testing.T) {
	there := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "1", ResourceVersion: "7", Labels: map[string]string{"of": "others", managedBy: manager}}}
	there.Spec.ClusterIP, there.Spec.Ports = "10.0.0.1", []corev1.ServicePort{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080}, {Name: "added", Protocol: "TCP", Port: 1}}
	there.Spec.IPFamilyPolicy, there.Spec.Type = new(corev1.IPFamilyPolicyPreferDualStack), corev1.ServiceTypeClusterIP
	wanted := newService(metav1.ObjectMeta{Name: "web", Labels: map[string]string{managedBy: manager}}, []servedPort{{name: "http", protocol: "TCP", number: 80}}, false)
	next := withWanted(there, wanted).(*corev1.Service)
	if len(next.Spec.Ports) != 1 || next.Spec.ClusterIP != "10.0.0.1" || next.ResourceVersion != "7" || next.Labels["of"] != "others" {
		t.Errorf("changed: %+v", next)
	}
	if again := withWanted(next, wanted); !apiequality.Semantic.DeepEqual(next, again) {
		t.Errorf("changed once more: %+v", again)
	}
}

func TestLabelValue(t *testing.T) {
	for text, want := range map[string]string{"mesh-a": "mesh-a", "spiffe://a.example/hamlet": "spiffe___a.example_hamlet", "-é-": "", strings.Repeat("a", 70): strings.Repeat("a", 63)} {
		if got := labelValue(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
