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

	"github.com/hamlet-federation/coredns-federation/internal/mcs"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// exportOf returns an export of a cluster that was made at an hour, with one port TCP 80 named http,
// and changed.
func exportOf(cluster string, hour int, change ...func(*mcs.Export)) mcs.Export {
	e := mcs.Export{
		Cluster: cluster, Namespace: "shop", Name: "web", Created: time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC), Type: mcsv1beta1.ClusterSetIP,
		Ports: []mcs.Port{port("http", 80)}, SessionAffinity: corev1.ServiceAffinityNone, InternalTrafficPolicy: corev1.ServiceInternalTrafficPolicyCluster,
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
	}
	for _, c := range change {
		c(&e)
	}
	return e
}

func port(name string, number int32) mcs.Port {
	return mcs.Port{Name: name, Protocol: corev1.ProtocolTCP, Number: number}
}

func udp(p mcs.Port) mcs.Port {
	p.Protocol = corev1.ProtocolUDP
	return p
}

func withPorts(ports ...mcs.Port) func(*mcs.Export) {
	return func(e *mcs.Export) { e.Ports = ports }
}

func show(merged mcs.Import, conflicts []mcs.Conflict) string {
	s := merged.Spec
	var parts []string
	for _, p := range s.Ports {
		parts = append(parts, fmt.Sprintf("%s %s/%d", p.Name, p.Protocol, p.Port))
	}
	said := []string{string(s.Type), strings.Join(parts, ", "), string(s.SessionAffinity)}
	if s.SessionAffinityConfig != nil {
		said = append(said, fmt.Sprintf("%d s", *s.SessionAffinityConfig.ClientIP.TimeoutSeconds))
	}
	if s.InternalTrafficPolicy != nil {
		said = append(said, string(*s.InternalTrafficPolicy))
	}
	if s.TrafficDistribution != nil {
		said = append(said, *s.TrafficDistribution)
	}
	said = append(said, fmt.Sprint(s.IPFamilies))
	if len(merged.Labels)+len(merged.Annotations) > 0 {
		said = append(said, fmt.Sprint(merged.Labels, merged.Annotations))
	}
	lines := []string{strings.Join(said, "; ") + "; of " + strings.Join(merged.Clusters, ", ")}
	for _, c := range conflicts {
		lines = append(lines, string(c.Reason)+": "+c.Message)
	}
	return strings.Join(lines, "\n")
}

// TestMerge has the rules of KEP-1645, 'Constraints and Conflict Resolution', by section. East has
// always the older export, and so counts.
func TestMerge(t *testing.T) {
	const oldest = ", as in east, because its ServiceExport is the oldest; 1 of 2 clusters have others"
	const ofPorts = "PortConflict: ports are those of all clusters, but where two have one name, or one protocol and number, that of east, because its ServiceExport is the oldest; 1 of 2 clusters have others"
	for _, tc := range []struct {
		section, name string
		east, west    func(*mcs.Export)
		want          string
	}{
		{"Importing Services", "both are alike", nil, nil, "ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west"},
		{
			"Service Port", "the union of the ports", withPorts(port("tcp", 42), udp(port("udp", 42))), withPorts(port("tcp", 42), port("more", 142)),
			"ClusterSetIP; tcp TCP/42, udp UDP/42, more TCP/142; None; Cluster; [IPv4]; of east, west\n" + ofPorts,
		},
		{
			"Service Port", "one name with two numbers", withPorts(port("http", 80)), withPorts(port("http", 8080)),
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\n" + ofPorts,
		},
		{
			"Service Port", "one number with two names", withPorts(port("http", 80)), withPorts(port("web", 80)),
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\n" + ofPorts,
		},
		{
			"Service Port", "one number of two protocols is two ports", withPorts(port("dns-tcp", 53)), withPorts(udp(port("dns", 53))),
			"ClusterSetIP; dns-tcp TCP/53, dns UDP/53; None; Cluster; [IPv4]; of east, west\n" + ofPorts,
		},
		{
			"Service Port", "one name of two protocols", withPorts(port("dns", 53)), withPorts(udp(port("dns", 53))),
			"ClusterSetIP; dns TCP/53; None; Cluster; [IPv4]; of east, west\n" + ofPorts,
		},
		{
			"Service Port", "another protocol of the application", nil, func(e *mcs.Export) { e.Ports[0].AppProtocol = "grpc" },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\n" + ofPorts,
		},
		{
			"Service Port", "in another order", withPorts(port("a", 1), port("b", 2)), withPorts(port("b", 2), port("a", 1)),
			"ClusterSetIP; a TCP/1, b TCP/2; None; Cluster; [IPv4]; of east, west",
		},
		{
			"Service Port", "clients see no targets", nil, func(e *mcs.Export) { e.Ports[0].Targets = []uint16{30080} },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west",
		},
		{
			"Service Port", "without a name, which both have", withPorts(port("", 80)), withPorts(port("", 80)),
			"ClusterSetIP;  TCP/80; None; Cluster; [IPv4]; of east, west",
		},
		{
			"Service Port", "without a name, of one number", withPorts(port("", 80)), withPorts(port("http", 80)),
			"ClusterSetIP;  TCP/80; None; Cluster; [IPv4]; of east, west\n" + ofPorts,
		},
		{
			"Service Port", "without a name, of two numbers, are one name", withPorts(port("", 80)), withPorts(port("", 81)),
			"ClusterSetIP;  TCP/80; None; Cluster; [IPv4]; of east, west\n" + ofPorts,
		},
		{
			"Service Port", "without a name among several", withPorts(port("", 80)), withPorts(port("dns", 53), port("port-80", 81)),
			"ClusterSetIP; port-80 TCP/80, dns TCP/53; None; Cluster; [IPv4]; of east, west\n" + ofPorts,
		},
		{
			"Headlessness", "the oldest is not headless", nil, func(e *mcs.Export) { e.Type = mcsv1beta1.Headless },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\nTypeConflict: type is \"ClusterSetIP\"" + oldest,
		},
		{
			"Headlessness", "the oldest is headless", func(e *mcs.Export) { e.Type = mcsv1beta1.Headless }, nil,
			"Headless; http TCP/80; None; Cluster; [IPv4]; of east, west\nTypeConflict: type is \"Headless\"" + oldest,
		},
		{
			"Session Affinity", "with a time", func(e *mcs.Export) { e.SessionAffinity, e.AffinitySeconds = corev1.ServiceAffinityClientIP, 10 }, nil,
			"ClusterSetIP; http TCP/80; ClientIP; 10 s; Cluster; [IPv4]; of east, west\nSessionAffinityConflict: sessionAffinity is \"ClientIP\"" + oldest +
				"\nSessionAffinityConfigConflict: timeoutSeconds is 10" + oldest,
		},
		{
			"Session Affinity", "none", nil, func(e *mcs.Export) { e.SessionAffinity, e.AffinitySeconds = corev1.ServiceAffinityClientIP, 10 },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\nSessionAffinityConflict: sessionAffinity is \"None\"" + oldest +
				"\nSessionAffinityConfigConflict: timeoutSeconds is not set" + oldest,
		},
		{
			"Internal Traffic Policy", "", nil, func(e *mcs.Export) { e.InternalTrafficPolicy = corev1.ServiceInternalTrafficPolicyLocal },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\nInternalTrafficPolicyConflict: internalTrafficPolicy is \"Cluster\"" + oldest,
		},
		{
			"Traffic Distribution", "", nil, func(e *mcs.Export) { e.TrafficDistribution = corev1.ServiceTrafficDistributionPreferClose },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\nTrafficDistributionConflict: trafficDistribution is not set" + oldest,
		},
		{
			"Traffic Distribution", "set", func(e *mcs.Export) { e.TrafficDistribution = corev1.ServiceTrafficDistributionPreferClose }, nil,
			"ClusterSetIP; http TCP/80; None; Cluster; PreferClose; [IPv4]; of east, west\nTrafficDistributionConflict: trafficDistribution is \"PreferClose\"" + oldest,
		},
		{
			"Labels and Annotations", "", func(e *mcs.Export) {
				e.Labels, e.Annotations = map[string]string{"a": "1"}, map[string]string{"b": "2"}
			},
			func(e *mcs.Export) { e.Labels, e.Annotations = map[string]string{"c": "3"}, map[string]string{} },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; map[a:1] map[b:2]; of east, west\n" +
				`LabelsConflict: exportedLabels is {"a":"1"}` + oldest + "\n" + `AnnotationsConflict: exportedAnnotations is {"b":"2"}` + oldest,
		},
		{
			"Labels and Annotations", "no map is an empty one", nil, func(e *mcs.Export) { e.Labels = map[string]string{} },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west",
		},
		{
			"IP Families", "", nil, func(e *mcs.Export) { e.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\nIPFamilyConflict: ipFamilies is [\"IPv4\"]" + oldest,
		},
		{
			"IP Families", "in another order", func(e *mcs.Export) { e.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol} },
			func(e *mcs.Export) { e.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv6 IPv4]; of east, west",
		},
	} {
		t.Run(tc.section+"/"+tc.name, func(t *testing.T) {
			east, west := exportOf("east", 1), exportOf("west", 2)
			for i, change := range []func(*mcs.Export){tc.east, tc.west} {
				if change != nil {
					change([]*mcs.Export{&east, &west}[i])
				}
			}
			for _, exports := range [][]mcs.Export{{east, west}, {west, east}} {
				before := slices.Clone(exports)
				if diff := cmp.Diff(tc.want, show(mcs.Merge(exports))); diff != "" {
					t.Errorf("merged (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(before, exports); diff != "" {
					t.Errorf("Merge changed its input:\n%s", diff)
				}
			}
		})
	}
}

// TestMergeOrder has who is the oldest: 'creationTimestamp, from oldest to newest', in seconds, so
// that two may be as old.
func TestMergeOrder(t *testing.T) {
	for _, tc := range []struct {
		name    string
		exports []mcs.Export
		want    []string
	}{
		{"one alone", []mcs.Export{exportOf("west", 1)}, []string{"west"}},
		{"by age", []mcs.Export{exportOf("a", 3), exportOf("b", 1), exportOf("c", 2)}, []string{"b", "c", "a"}},
		{"as old", []mcs.Export{exportOf("c", 1), exportOf("a", 1), exportOf("b", 1)}, []string{"a", "b", "c"}},
	} {
		if merged, conflicts := mcs.Merge(tc.exports); !slices.Equal(merged.Clusters, tc.want) || len(conflicts) > 0 {
			t.Errorf("%s: %v, conflicts %v", tc.name, merged.Clusters, conflicts)
		}
	}
}

// TestConflictIsBounded has a value as large as an export may have.
func TestConflictIsBounded(t *testing.T) {
	large := exportOf("east", 1, func(e *mcs.Export) { e.Annotations = map[string]string{"a": strings.Repeat("\n", 7000)} })
	must.Get(large.Encode())(t)
	_, conflicts := mcs.Merge([]mcs.Export{large, exportOf("west", 2)})
	if len(conflicts) != 1 || len(conflicts[0].Message) > 1024 || strings.Contains(conflicts[0].Message, "\n") {
		t.Errorf("conflicts %q", conflicts)
	}
}

// TestPortFor has the ports of an export that may answer for TCP port 80, which is named http.
func TestPortFor(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ports []mcs.Port
		want  mcs.Port
	}{
		{"the same", []mcs.Port{port("web", 8080), port("http", 80)}, port("http", 80)},
		{"its number before its name", []mcs.Port{port("web", 80), port("http", 8080)}, port("web", 80)},
		{"its name alone", []mcs.Port{port("http", 8080)}, mcs.Port{}},
		{"no name", []mcs.Port{port("", 80)}, port("", 80)},
		{"another protocol", []mcs.Port{udp(port("http", 80))}, mcs.Port{}},
	} {
		e := exportOf("west", 1, withPorts(tc.ports...))
		if diff := cmp.Diff(tc.want, e.PortFor(mcsv1beta1.ServicePort{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}
