package mcs_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/mcs"
)

// exportOf returns an export of a cluster that was made at an hour, with one port TCP 80 named http,
// and changed.
func exportOf(cluster string, hour int, change ...func(*mcs.Export)) mcs.Export {
	e := mcs.Export{
		Cluster: cluster, Namespace: "shop", Name: "web", Created: metav1.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC),
		ServiceImportSpec: mcsv1beta1.ServiceImportSpec{
			Type: mcsv1beta1.ClusterSetIP, Ports: []mcsv1beta1.ServicePort{port("http", 80)}, SessionAffinity: corev1.ServiceAffinityNone,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		},
	}
	for _, c := range change {
		c(&e)
	}
	return e
}

func port(name string, number int32) mcsv1beta1.ServicePort {
	return mcsv1beta1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: number}
}

func udp(p mcsv1beta1.ServicePort) mcsv1beta1.ServicePort {
	p.Protocol = corev1.ProtocolUDP
	return p
}

func withPorts(ports ...mcsv1beta1.ServicePort) func(*mcs.Export) {
	return func(e *mcs.Export) { e.Ports = ports }
}

func show(merged *mcsv1beta1.ServiceImport, conflict metav1.Condition) string {
	s := merged.Spec
	var parts []string
	for _, p := range s.Ports {
		parts = append(parts, fmt.Sprintf("%s %s", p.Name, mcs.PortKey(p)))
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
	text := strings.Join(said, "; ") + "; of " + strings.Join(clusters(merged), ", ")
	if conflict.Status == metav1.ConditionTrue {
		text += "\n" + conflict.Reason + ": " + conflict.Message
	}
	return text
}

func clusters(merged *mcsv1beta1.ServiceImport) (all []string) {
	for _, c := range merged.Status.Clusters {
		all = append(all, c.Cluster)
	}
	return all
}

// TestMerge has the rules of KEP-1645, 'Constraints and Conflict Resolution', by section. East has
// always the older export, and so counts.
func TestMerge(t *testing.T) {
	const message = ": east has precedence, because its ServiceExport is the oldest; 1 of 2 clusters differ from it"
	const ofPorts = "\nPortConflict" + message
	affinity := func(e *mcs.Export) {
		e.SessionAffinity, e.SessionAffinityConfig = corev1.ServiceAffinityClientIP, &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(10))}}
	}
	for _, tc := range []struct {
		section, name string
		east, west    func(*mcs.Export)
		want          string
	}{
		{"Importing Services", "both are alike", nil, nil, "ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west"},
		{
			"Service Port", "the union of the ports", withPorts(port("tcp", 42), udp(port("udp", 42))), withPorts(port("tcp", 42), port("more", 142)),
			"ClusterSetIP; tcp TCP/42, udp UDP/42, more TCP/142; None; Cluster; [IPv4]; of east, west" + ofPorts,
		},
		{
			"Service Port", "one name with two numbers", withPorts(port("http", 80)), withPorts(port("http", 8080)),
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west" + ofPorts,
		},
		{
			"Service Port", "one number with two names", withPorts(port("http", 80)), withPorts(port("web", 80)),
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west" + ofPorts,
		},
		{
			"Service Port", "one number of two protocols is two ports", withPorts(port("dns-tcp", 53)), withPorts(udp(port("dns", 53))),
			"ClusterSetIP; dns-tcp TCP/53, dns UDP/53; None; Cluster; [IPv4]; of east, west" + ofPorts,
		},
		{
			"Service Port", "one name of two protocols", withPorts(port("dns", 53)), withPorts(udp(port("dns", 53))),
			"ClusterSetIP; dns TCP/53; None; Cluster; [IPv4]; of east, west" + ofPorts,
		},
		{
			"Service Port", "another protocol of the application", nil, func(e *mcs.Export) { e.Ports[0].AppProtocol = new("grpc") },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west" + ofPorts,
		},
		{
			"Service Port", "in another order", withPorts(port("a", 1), port("b", 2)), withPorts(port("b", 2), port("a", 1)),
			"ClusterSetIP; a TCP/1, b TCP/2; None; Cluster; [IPv4]; of east, west",
		},
		{
			"Service Port", "clients see no targets", nil, func(e *mcs.Export) { e.Targets = map[string][]uint16{"TCP/80": {30080}} },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west",
		},
		{
			"Service Port", "without a name, which both have", withPorts(port("", 80)), withPorts(port("", 80)),
			"ClusterSetIP;  TCP/80; None; Cluster; [IPv4]; of east, west",
		},
		{
			"Service Port", "without a name, of one number", withPorts(port("", 80)), withPorts(port("http", 80)),
			"ClusterSetIP;  TCP/80; None; Cluster; [IPv4]; of east, west" + ofPorts,
		},
		{
			"Service Port", "without a name, of two numbers, are one name", withPorts(port("", 80)), withPorts(port("", 81)),
			"ClusterSetIP;  TCP/80; None; Cluster; [IPv4]; of east, west" + ofPorts,
		},
		{
			"Service Port", "without a name among several", withPorts(port("", 80)), withPorts(port("dns", 53), port("port-80", 81)),
			"ClusterSetIP; port-80 TCP/80, dns TCP/53; None; Cluster; [IPv4]; of east, west" + ofPorts,
		},
		{
			"Headlessness", "the oldest is not headless", nil, func(e *mcs.Export) { e.Type = mcsv1beta1.Headless },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\nTypeConflict" + message,
		},
		{
			"Headlessness", "the oldest is headless", func(e *mcs.Export) { e.Type = mcsv1beta1.Headless }, nil,
			"Headless; http TCP/80; None; Cluster; [IPv4]; of east, west\nTypeConflict" + message,
		},
		{
			"Session Affinity", "with a time", affinity, nil,
			"ClusterSetIP; http TCP/80; ClientIP; 10 s; Cluster; [IPv4]; of east, west\nSessionAffinityConfigConflict,SessionAffinityConflict" + message,
		},
		{
			"Session Affinity", "none", nil, affinity,
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\nSessionAffinityConfigConflict,SessionAffinityConflict" + message,
		},
		{
			"Internal Traffic Policy", "", nil, func(e *mcs.Export) { e.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\nInternalTrafficPolicyConflict" + message,
		},
		{
			"Traffic Distribution", "", nil, func(e *mcs.Export) { e.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferClose) },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\nTrafficDistributionConflict" + message,
		},
		{
			"Traffic Distribution", "set", func(e *mcs.Export) { e.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferClose) }, nil,
			"ClusterSetIP; http TCP/80; None; Cluster; PreferClose; [IPv4]; of east, west\nTrafficDistributionConflict" + message,
		},
		{
			"Labels and Annotations", "", func(e *mcs.Export) {
				e.Labels, e.Annotations = map[string]string{"a": "1"}, map[string]string{"b": "2"}
			},
			func(e *mcs.Export) { e.Labels, e.Annotations = map[string]string{"c": "3"}, map[string]string{} },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; map[a:1] map[b:2]; of east, west\nAnnotationsConflict,LabelsConflict" + message,
		},
		{
			"Labels and Annotations", "no map is an empty one", nil, func(e *mcs.Export) { e.Labels = map[string]string{} },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west",
		},
		{
			"IP Families", "", nil, func(e *mcs.Export) { e.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} },
			"ClusterSetIP; http TCP/80; None; Cluster; [IPv4]; of east, west\nIPFamilyConflict" + message,
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
		if merged, conflict := mcs.Merge(tc.exports); !slices.Equal(clusters(merged), tc.want) || conflict.Reason != "NoConflicts" {
			t.Errorf("%s: %v, conflict %v", tc.name, clusters(merged), conflict)
		}
	}
}

// Of none, there is no ServiceImport.
func TestMergeNone(t *testing.T) {
	if merged, conflict := mcs.Merge(nil); merged != nil || conflict.Status != metav1.ConditionFalse {
		t.Errorf("merged %v, conflict %v", merged, conflict)
	}
}
