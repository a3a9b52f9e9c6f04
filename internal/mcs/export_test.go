package mcs_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// full is an export with every field, as JSON.
const full = `{"cluster":"west.registry","namespace":"shop","name":"web","created":"2026-01-02T03:04:05Z","type":"ClusterSetIP",` +
	`"ports":[{"name":"http","protocol":"TCP","port":80,"appProtocol":"kubernetes.io/h2c","targets":[8080,9090]},{"name":"dns","protocol":"UDP","port":53,"targets":[30053]}],` +
	`"sessionAffinity":"ClientIP","affinitySeconds":10800,"internalTrafficPolicy":"Local","trafficDistribution":"PreferClose","ipFamilies":["IPv6","IPv4"],` +
	`"labels":{"tier":"public"},"annotations":{"example.com/Owner":"the shop's \"team\""}}`

// least is an export with the fields that each has.
const least = `{"cluster":"west","namespace":"shop","name":"web","created":"2026-01-02T03:04:05Z","type":"Headless","ports":[{"protocol":"SCTP","port":42}]}`

func TestParse(t *testing.T) {
	want := mcs.Export{
		Cluster: "west.registry", Namespace: "shop", Name: "web", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Type: mcsv1beta1.ClusterSetIP,
		Ports: []mcs.Port{
			{Name: "http", Protocol: corev1.ProtocolTCP, Number: 80, AppProtocol: "kubernetes.io/h2c", Targets: []uint16{8080, 9090}},
			{Name: "dns", Protocol: corev1.ProtocolUDP, Number: 53, Targets: []uint16{30053}},
		},
		SessionAffinity: corev1.ServiceAffinityClientIP, AffinitySeconds: 10800, InternalTrafficPolicy: corev1.ServiceInternalTrafficPolicyLocal,
		TrafficDistribution: corev1.ServiceTrafficDistributionPreferClose, IPFamilies: []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol},
		Labels: map[string]string{"tier": "public"}, Annotations: map[string]string{"example.com/Owner": `the shop's "team"`},
	}
	if diff := cmp.Diff(want, must.Get(mcs.Parse(full))(t)); diff != "" {
		t.Errorf("parsed (-want +got):\n%s", diff)
	}
	for _, text := range []string{full, least} {
		e := must.Get(mcs.Parse(text))(t)
		if got := must.Get(e.Encode())(t); got != text {
			t.Errorf("encoded anew:\n%s\nwant\n%s", got, text)
		}
	}
	// Whoever writes the field in another zone, or a later version with another field, is understood.
	later := strings.NewReplacer("03:04:05Z", `05:04:05.678+02:00`, `"name":"web"`, `"name":"web","weight":3`).Replace(full)
	if diff := cmp.Diff(want, must.Get(mcs.Parse(later))(t)); diff != "" {
		t.Errorf("parsed of a later version (-want +got):\n%s", diff)
	}
}

// ports returns n ports, and numbers n numbers, as JSON.
func ports(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`{"name":"p%d","protocol":"TCP","port":%d}`, i, 1+i))
	}
	return `"ports":[` + strings.Join(list, ",") + "]"
}

func numbers(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprint(1+i))
	}
	return `"targets":[` + strings.Join(list, ",") + "]"
}

// pairs returns an object with n entries.
func pairs(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`"k%d":"v"`, i))
	}
	return "{" + strings.Join(list, ",") + "}"
}

// TestParseLimits replaces a part of an export by one that is just valid, and by one beyond.
func TestParseLimits(t *testing.T) {
	const twoPorts = `"ports":[{"name":"http","protocol":"TCP","port":80,"appProtocol":"kubernetes.io/h2c","targets":[8080,9090]},{"name":"dns","protocol":"UDP","port":53,"targets":[30053]}]`
	long := strings.Repeat("a", 63)
	for _, tc := range []struct{ replace, valid, invalid, want string }{
		{`"west.registry"`, `"west"`, `"west.registry.example"`, "cluster: \"west.registry.example\" is not a cluster ID, which is one DNS label, or two with a dot between them, of at most 63 characters"},
		{`"west.registry"`, `"` + long[:31] + "." + long[:31] + `"`, `"` + long[:32] + "." + long[:31] + `"`, "cluster: "},
		{`"west.registry"`, `"` + long + `"`, `"` + long + `a"`, "cluster: "},
		{`"west.registry"`, `"w"`, `"West"`, "cluster: "},
		{`"shop"`, `"` + long + `"`, `"` + long + `a"`, "namespace: "},
		{`"shop"`, `"s"`, `"../../api"`, "namespace: \"../../api\" is not a DNS label"},
		{`"name":"web"`, `"name":"` + long + `"`, `"name":"` + long + `a"`, "name: "},
		{`"name":"web"`, `"name":"1"`, `"name":""`, `name: "" is not a DNS label`},
		{"2026-01-02T03", "1970-01-01T03", "1969-01-01T03", "created: "},
		{`"2026-01-02T03:04:05Z"`, `"9999-12-31T23:59:59Z"`, `"9999-12-31T23:59:59-01:00"`, "created: "},
		{`"2026-01-02T03:04:05Z"`, `"2026-01-02T03:04:05+01:00"`, `"yesterday"`, "not an export as JSON: "},
		{`"ClusterSetIP"`, `"Headless"`, `"ExternalName"`, `type: "ExternalName" is not ClusterSetIP or Headless`},
		{`"ClientIP"`, `"None"`, `"Cookie"`, "sessionAffinity: "},
		{"10800", "86400", "86401", "affinitySeconds: "},
		{"10800", "1", "-1", "affinitySeconds: "},
		{`"Local"`, `"Cluster"`, `"Global"`, "internalTrafficPolicy: "},
		{`"PreferClose"`, `"PreferSameNode"`, `"Prefer Close"`, "trafficDistribution: "},
		{`["IPv6","IPv4"]`, `["IPv6"]`, `["IPv6","IPv6"]`, "ipFamilies: "},
		{`["IPv6","IPv4"]`, `[]`, `["IPv6","IPv4","IPv6"]`, "ipFamilies: "},
		{`["IPv6","IPv4"]`, `["IPv4","IPv6"]`, `["IPv5"]`, "ipFamilies: "},
		{`{"tier":"public"}`, pairs(64), pairs(65), "labels: "},
		{`{"tier":"public"}`, `{"a.example/b":""}`, `{"a.example/b":"c d"}`, "labels: "},
		{`{"tier":"public"}`, `null`, `{"a/b/c":""}`, "labels: "},
		{`{"example.com/Owner":"the shop's \"team\""}`, pairs(64), pairs(65), "annotations: "},
		{`{"example.com/Owner":"the shop's \"team\""}`, `{}`, `{"a b":""}`, "annotations: "},
		{twoPorts, ports(100), ports(101), `ports: "101" is not 1 to 100`},
		{twoPorts, ports(1), `"ports":[]`, `ports: "0" is not 1 to 100`},
		{twoPorts, `"ports":[{"protocol":"UDP","port":1}]`, `"ports":[{"protocol":"UDP","port":1},{"name":"a","protocol":"UDP","port":2}]`, "ports[0].name: "},
		{`"dns"`, `"dns-udp"`, `"dns_udp"`, `ports[1].name: "dns_udp" is not a DNS label`},
		{`"dns"`, `"d"`, `"http"`, "ports[1].name: "},
		{`"UDP","port":53`, `"UDP","port":80`, `"TCP","port":80`, "ports[1].name: \"dns\" is not the only port of its name, or of its protocol and number"},
		{`"UDP"`, `"SCTP"`, `"ICMP"`, "ports[1].protocol: "},
		{`53,`, `65535,`, `65536,`, "ports[1].port: "},
		{`53,`, `1,`, `0,`, "ports[1].port: "},
		{`53,`, `2,`, `4294967349,`, "not an export as JSON: "},
		{`"kubernetes.io/h2c"`, `"grpc"`, `"a b"`, "ports[0].appProtocol: "},
		{`"targets":[8080,9090]`, numbers(100), numbers(101), "ports[0].targets: "},
		{`[8080,9090]`, `[1,65535]`, `[1,65536]`, "not an export as JSON: "},
		{`[8080,9090]`, `[1]`, `[0,1]`, "ports[0].targets: "},
		{`[8080,9090]`, `[1,2]`, `[2,1]`, "ports[0].targets: "},
		{`[8080,9090]`, `[1,2,3]`, `[1,1]`, "ports[0].targets: "},
		{`[30053]`, `[]`, `[1,2]`, "ports[1].targets: "},
		{`the shop's`, strings.Repeat("x", limits.ValueBytes-len(full)+len("the shop's")), strings.Repeat("x", limits.ValueBytes-len(full)+len("the shop's")+1), "the export as JSON: 16385 bytes, the limit is 16384"},
		{full, least, "", "not an export as JSON: "},
		{full, least, "[]", "not an export as JSON: "},
		{full, least, "\xff", "the export as JSON: not valid UTF-8"},
		{full, least, least + "{}", "not an export as JSON: "},
		{full, least, strings.Repeat("[", 16000), "not an export as JSON: "},
	} {
		if _, err := mcs.Parse(strings.Replace(full, tc.replace, tc.valid, 1)); err != nil {
			t.Errorf("with %.80s: %v", tc.valid, err)
		}
		e, err := mcs.Parse(strings.Replace(full, tc.replace, tc.invalid, 1))
		if err == nil || !strings.HasPrefix(err.Error(), tc.want) || len(err.Error()) > 1024 {
			t.Errorf("with %.80s: %v, want %s", tc.invalid, err, tc.want)
		}
		if err == nil || strings.Contains(tc.want, "JSON") {
			continue
		}
		if _, err := e.Encode(); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("encoded with %.80s: %v", tc.invalid, err)
		}
	}
}

// TestEncodeLimit has an export that is valid, and larger than a label of a service may be.
func TestEncodeLimit(t *testing.T) {
	e := must.Get(mcs.Parse(least))(t)
	e.Annotations = map[string]string{"a": ""}
	text := must.Get(e.Encode())(t)
	e.Annotations["a"] = strings.Repeat("x", limits.ValueBytes-len(text))
	must.Get(e.Encode())(t)
	e.Annotations["a"] += "x"
	if _, err := e.Encode(); err == nil || err.Error() != "the export as JSON: 16385 bytes, the limit is 16384" {
		t.Errorf("one byte more: %v", err)
	}
}

// FuzzParse checks that what is accepted is the same when it is encoded and parsed again, and that it
// can be merged with itself without a conflict.
func FuzzParse(f *testing.F) {
	for _, text := range []string{full, least, "", "{}", ports(3)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := mcs.Parse(text)
		if err != nil {
			if len(err.Error()) > 1024 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		again, err := e.Encode()
		if err != nil {
			t.Skip(err) // the limit is for what was said; spelled in our way, that may be longer
		}
		if f := must.Get(mcs.Parse(again))(t); must.Get(f.Encode())(t) != again {
			t.Errorf("%s becomes\n%s", text, again)
		}
		other := e
		other.Cluster += "x"
		merged, conflicts := mcs.Merge([]mcs.Export{e, other})
		if len(conflicts) > 0 || len(merged.Spec.Ports) != len(e.Ports) {
			t.Errorf("with itself: ports %v, conflicts %v", merged.Spec.Ports, conflicts)
		}
		for i, p := range merged.Spec.Ports {
			if got := e.PortFor(p); got.Name != e.Ports[i].Name || !slices.Equal(got.Targets, e.Ports[i].Targets) {
				t.Errorf("port %v for port %d", got, i)
			}
		}
	})
}
