package mcs_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// full is an export with every field, as JSON.
const full = `{"cluster":"west","namespace":"shop","name":"web","created":"2026-01-02T03:04:05Z",` +
	`"ports":[{"name":"http","protocol":"TCP","appProtocol":"kubernetes.io/h2c","port":80},{"name":"dns","protocol":"UDP","port":53}],"type":"ClusterSetIP",` +
	`"sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":10800}},"ipFamilies":["IPv6","IPv4"],"internalTrafficPolicy":"Local","trafficDistribution":"PreferClose",` +
	`"targets":{"TCP/80":[8080,9090],"UDP/53":[30053]},"labels":{"tier":"public"},"annotations":{"example.com/Owner":"the shop's \"team\""}}`

// least is an export with the fields that each has.
const least = `{"cluster":"west","namespace":"shop","name":"web","created":"2026-01-02T03:04:05Z","ports":[{"protocol":"SCTP","port":42}],"type":"Headless"}`

func TestParse(t *testing.T) {
	want := mcs.Export{
		Cluster: "west", Namespace: "shop", Name: "web", Created: metav1.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		ServiceImportSpec: mcsv1beta1.ServiceImportSpec{
			Type: mcsv1beta1.ClusterSetIP,
			Ports: []mcsv1beta1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, AppProtocol: new("kubernetes.io/h2c")}, {Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53},
			},
			SessionAffinity: corev1.ServiceAffinityClientIP, SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(10800))}},
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal), TrafficDistribution: new(corev1.ServiceTrafficDistributionPreferClose),
			IPFamilies: []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol},
		},
		Targets: map[string][]uint16{"TCP/80": {8080, 9090}, "UDP/53": {30053}},
		Labels:  map[string]string{"tier": "public"}, Annotations: map[string]string{"example.com/Owner": `the shop's "team"`},
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
	// Whoever writes the time in another zone, or a field that an export does not have, is understood.
	later := strings.NewReplacer("03:04:05Z", `05:04:05+02:00`, `"name":"web"`, `"name":"web","weight":3,"ips":["192.0.2.1"]`).Replace(full)
	if diff := cmp.Diff(want, must.Get(mcs.Parse(later))(t)); diff != "" {
		t.Errorf("parsed with other fields (-want +got):\n%s", diff)
	}
}

// ports returns n ports as JSON.
func ports(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`{"name":"p%d","protocol":"TCP","port":%d}`, i, 1+i))
	}
	return `"ports":[` + strings.Join(list, ",") + "]"
}

// TestParseLimits replaces a part of an export by one that is just valid, and by one beyond.
func TestParseLimits(t *testing.T) {
	const twoPorts = `"ports":[{"name":"http","protocol":"TCP","appProtocol":"kubernetes.io/h2c","port":80},{"name":"dns","protocol":"UDP","port":53}]`
	long := strings.Repeat("a", 63)
	for _, tc := range []struct{ replace, valid, invalid, want string }{
		{`"west"`, `"` + long + `"`, `"` + long + `a"`, "cluster: "},
		{`"west"`, `"w"`, `"West"`, `cluster: "West": a lowercase RFC 1123 label must consist of`},
		{`"west"`, `"w"`, `"west.registry"`, "cluster: "},
		{`"shop"`, `"` + long + `"`, `"` + long + `a"`, "namespace: "},
		{`"shop"`, `"s"`, `"../../api"`, `namespace: "../../api": a lowercase RFC 1123 label must consist of`},
		{`"name":"web"`, `"name":"` + long + `"`, `"name":"` + long + `a"`, "name: "},
		{`"name":"web"`, `"name":"1"`, `"name":""`, `name: "": a lowercase RFC 1123 label must consist of`},
		{"2026-01-02T03", "1970-01-01T03", "1969-01-01T03", "created: "},
		{`"created":"2026-01-02T03:04:05Z",`, `"created":"2026-01-02T03:04:05.678Z",`, ``, "created: "},
		{`"2026-01-02T03:04:05Z"`, `"9999-12-31T23:59:59Z"`, `"9999-12-31T23:59:59-01:00"`, "created: "},
		{`"2026-01-02T03:04:05Z"`, `"2026-01-02T03:04:05+01:00"`, `"yesterday"`, "not an export as JSON: "},
		{`"ClusterSetIP"`, `"Headless"`, `"ExternalName"`, `type: "ExternalName": supported values: "ClusterSetIP", "Headless"`},
		{`"ClientIP"`, `"None"`, `"Cookie"`, "sessionAffinity: "},
		{"10800", "86400", "86401", `sessionAffinityConfig.clientIP.timeoutSeconds: "86401": must be between 1 and 86400, inclusive`},
		{"10800", "1", "0", "sessionAffinityConfig.clientIP.timeoutSeconds: "},
		{`"sessionAffinityConfig":{"clientIP":{"timeoutSeconds":10800}}`, `"sessionAffinityConfig":null`, `"sessionAffinityConfig":{"clientIP":null}`, "sessionAffinityConfig.clientIP.timeoutSeconds: "},
		{`"Local"`, `"Cluster"`, `"Global"`, "internalTrafficPolicy: "},
		{`"Local"`, `null`, `""`, "internalTrafficPolicy: "},
		{`["IPv6","IPv4"]`, `["IPv6"]`, `["IPv6","IPv6"]`, "ipFamilies: "},
		{`["IPv6","IPv4"]`, `[]`, `["IPv6","IPv4","IPv6"]`, "ipFamilies: "},
		{`["IPv6","IPv4"]`, `["IPv4","IPv6"]`, `["IPv5"]`, "ipFamilies: "},
		{`{"tier":"public"}`, `{"a.example/b":""}`, `{"a.example/b":"c d"}`, `labels: "c d": a valid label must be`},
		{`{"tier":"public"}`, `null`, `{"a/b/c":""}`, "labels: "},
		{`{"example.com/Owner":"the shop's \"team\""}`, `{}`, `{"a b":""}`, "annotations: "},
		{twoPorts, ports(100), ports(101), `ports: "101": must be between 1 and 100, inclusive`},
		{twoPorts, ports(1), `"ports":[]`, `ports: "0": must be between 1 and 100, inclusive`},
		{`"dns"`, `"dns-udp"`, `"dns_udp"`, `ports[1].name: "dns_udp": a lowercase RFC 1123 label must consist of`},
		{`"dns"`, `""`, `"` + long + `a"`, `ports[1].name: `},
		{`"UDP"`, `"SCTP"`, `"ICMP"`, `ports[1].protocol: "ICMP": supported values: "TCP", "UDP", "SCTP"`},
		{`"UDP"`, `"TCP"`, `""`, "ports[1].protocol: "},
		{`"port":53`, `"port":65535`, `"port":65536`, "ports[1].port: "},
		{`"port":53`, `"port":1`, `"port":0`, "ports[1].port: "},
		{`"port":53`, `"port":2`, `"port":4294967349`, "not an export as JSON: "},
		{`"kubernetes.io/h2c"`, `"grpc"`, `"a b"`, "ports[0].appProtocol: "},
		{`"kubernetes.io/h2c"`, `null`, `""`, "ports[0].appProtocol: "},
		{`[8080,9090]`, `[1,65535]`, `[1,65536]`, "not an export as JSON: "},
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
		if _, err := e.Encode(); err == nil {
			t.Errorf("encoded with %.80s", tc.invalid)
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
// can be merged with itself: without a conflict, and to ports that an API server takes.
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
		merged, conflict := mcs.Merge([]mcs.Export{e, other})
		if conflict.Status != metav1.ConditionFalse || len(merged.Spec.Ports) == 0 {
			t.Errorf("with itself: ports %v, conflict %v", merged.Spec.Ports, conflict)
		}
		taken := make(map[string]bool) // what the API server takes once in a Service, and no name beside others
		for _, p := range merged.Spec.Ports {
			if taken[p.Name] || taken[mcs.PortKey(p)] || p.Name == "" && len(merged.Spec.Ports) > 1 {
				t.Errorf("port %v of %v", p, merged.Spec.Ports)
			}
			taken[p.Name], taken[mcs.PortKey(p)] = true, true
		}
	})
}
