package importing

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// clusterSetZone is the zone of ServiceImports.
const clusterSetZone = "clusterset.local"

// member is a cluster of the set, with an importer that makes ServiceImports of what the other cluster
// exports, and with a CoreDNS that answers for them.
type member struct {
	*domain.Domain

	importer *realserver.Process
	resolver *domain.DNS
	address  string // of what is behind the Services that it exports
}

// newMember starts the importer of a cluster, with no more rights than the chart gives to it, and CoreDNS.
func newMember(t *testing.T, d, other *domain.Domain, address string) *member {
	t.Helper()
	m := &member{Domain: d, address: address}
	must.Do(t, d.Cluster.Apply(t.Context(), string(must.Get(os.ReadFile("testdata/clusterset.yaml"))(t))))
	dir, tls, metrics := t.TempDir(), d.ConsumerFiles(), loopback.Address(t)
	must.Do(t, d.Cluster.WriteKubeconfig(t.Context(), dir+"/kubeconfig", "default", "clusterset", time.Hour))
	config := fmt.Sprintf(`identity:
  files: {cert: %q, key: %q, ca: %q}
owners:
- {name: %s, addresses: [%q], owner_ids: [%s], zones: [%s], retention: 1m}
kubernetes: {kubeconfig: kubeconfig, as: mcs, cluster: %s}
metrics: %s
`, tls.Cert, tls.Key, tls.CA, other.Name, other.Owners[0].Address, other.OwnerID(), other.Zone, d.Name, metrics)
	must.Do(t, os.WriteFile(dir+"/import.yaml", []byte(config), 0o600))
	m.importer = &realserver.Process{
		Name: "importer-" + d.Name, Path: must.Get(place.Program("federationctl"))(t), Dir: dir, Args: []string{"import", "import.yaml"}, Ready: place.Dial(metrics),
	}
	m.importer.StartFor(t)

	m.resolver = &domain.DNS{Address: loopback.Address(t)}
	port := m.resolver.Address[strings.LastIndexByte(m.resolver.Address, ':'):]
	must.Do(t, os.WriteFile(dir+"/Corefile", []byte(fmt.Sprintf(`%s%s {
    bind 127.0.0.1
    errors
    kubernetes %[1]s {
        kubeconfig %[3]s
        multicluster %[1]s
    }
}
`, clusterSetZone, port, d.Cluster.Kubeconfig)), 0o600))
	m.resolver.Process = &realserver.Process{
		Name: "coredns-" + d.Name, Path: must.Get(place.Program("coredns"))(t), Dir: dir, Args: []string{"-conf", "Corefile"}, Ready: place.Dial(m.resolver.Address),
	}
	m.resolver.StartFor(t)
	return m
}

// trial is one row: a namespace of both clusters, in which the Service hello is exported.
type trial struct {
	*testing.T

	clusters  []*member // west, whose export is the older one, and east
	namespace string
}

// newTrial makes the namespace of a trial, which goes with the test.
func newTrial(t *testing.T, clusters []*member, namespace string) *trial {
	t.Helper()
	text := "{apiVersion: v1, kind: Namespace, metadata: {name: " + namespace + "}}"
	for _, m := range clusters {
		must.Do(t, m.Cluster.Apply(t.Context(), text))
	}
	t.Cleanup(func() {
		for _, m := range clusters {
			_ = m.Cluster.Delete(context.WithoutCancel(t.Context()), text)
		}
	})
	return &trial{t, clusters, namespace}
}

// killImporter kills the importer of east twice. What west has changed meanwhile is written then and nothing else,
// and what west has ceased to export goes.
func (x *trial) killImporter(west, east *member) {
	x.Helper()
	x.deploy(west)
	x.export(west, "")
	x.awaitSlices(east, map[string]string{"west tcp": west.address + ":42", "west udp": west.address + ":42"})
	before := x.awaitImport(east, ofType(mcsv1beta1.ClusterSetIP, "west"))
	east.importer.Kill()
	const other = "10.244.1.9"
	x.deploy(west, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{other} })
	must.Do(x, east.importer.Start(x.Context()))
	x.awaitSlices(east, map[string]string{"west tcp": other + ":42", "west udp": other + ":42"})
	if after := x.awaitImport(east, ofType(mcsv1beta1.ClusterSetIP, "west")); after.UID != before.UID || after.ResourceVersion != before.ResourceVersion {
		x.Errorf("the ServiceImport %+v was written again: %+v", before.ObjectMeta, after.ObjectMeta)
	}
	east.importer.Kill()
	x.unexport(west)
	must.Do(x, east.importer.Start(x.Context()))
	x.awaitNoImport(east)
}

// hello is the Service of the suite, at an address from outside that stands in for its pods.
func (x *trial) hello(m *member, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: x.namespace, Name: "hello", Labels: map[string]string{"dummy-svc": "dummy"}, Annotations: map[string]string{"dummy-svc": "dummy"}},
		Spec: corev1.ServiceSpec{
			Ports:           []corev1.ServicePort{{Name: "tcp", Port: 42, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 42, Protocol: corev1.ProtocolUDP}},
			SessionAffinity: corev1.ServiceAffinityClientIP, SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(10))}},
			ExternalIPs: []string{m.address}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
		},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

// deploy applies the Service, and the slice of a pod with the address of the cluster.
func (x *trial) deploy(m *member, change ...func(*corev1.Service)) {
	x.Helper()
	s := x.hello(m, change...)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: x.namespace, Name: "hello-pod", Labels: map[string]string{discoveryv1.LabelServiceName: "hello"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{m.address}}},
	}
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		slice.Labels[corev1.IsHeadlessService] = ""
	}
	for _, p := range s.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol), Port: new(p.Port)})
	}
	must.Do(x, m.Cluster.ApplyObjects(x.Context(), s))
	if s.Spec.Type != corev1.ServiceTypeExternalName {
		must.Do(x, m.Cluster.ApplyObjects(x.Context(), slice))
	}
}

func (x *trial) exportText(spec string) string {
	return fmt.Sprintf("{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceExport, metadata: {name: hello, namespace: %s}, spec: {%s}}", x.namespace, spec)
}

// export exports the Service. What is exported next is younger: times have whole seconds.
func (x *trial) export(m *member, spec string) {
	x.Helper()
	must.Do(x, m.Cluster.Apply(x.Context(), x.exportText(spec)))
	passes(x, time.Second)
}

func (x *trial) unexport(m *member) {
	x.Helper()
	must.Do(x, m.Cluster.Delete(x.Context(), x.exportText("")))
}

// object returns an object of the MCS API into typed, and whether there is one.
func (x *trial) object(m *member, resource string, typed any) bool {
	x.Helper()
	kind := schema.GroupVersionResource{Group: mcsv1beta1.GroupName, Version: "v1beta1", Resource: resource}
	found, err := m.Cluster.Dynamic.Resource(kind).Namespace(x.namespace).Get(x.Context(), "hello", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false
	}
	must.Do(x, err)
	must.Do(x, runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, typed))
	return true
}

// awaitImport waits until a cluster has a ServiceImport of which check has nothing to complain.
func (x *trial) awaitImport(m *member, check func(*mcsv1beta1.ServiceImport) string) *mcsv1beta1.ServiceImport {
	x.Helper()
	var i *mcsv1beta1.ServiceImport
	eventually(x, func() string {
		i = new(mcsv1beta1.ServiceImport)
		if !x.object(m, mcsv1beta1.ServiceImportPluralName, i) {
			return m.Name + " has no ServiceImport"
		}
		if complaint := check(i); complaint != "" {
			return m.Name + ": " + complaint
		}
		return ""
	})
	return i
}

func (x *trial) awaitNoImport(m *member) {
	x.Helper()
	eventually(x, func() string {
		slices := must.Get(m.Cluster.Client.DiscoveryV1().EndpointSlices(x.namespace).List(x.Context(), metav1.ListOptions{LabelSelector: mcsv1beta1.LabelServiceName}))(x)
		services := must.Get(m.Cluster.Client.CoreV1().Services(x.namespace).List(x.Context(), metav1.ListOptions{LabelSelector: mcsv1beta1.LabelServiceName}))(x)
		if i := new(mcsv1beta1.ServiceImport); x.object(m, mcsv1beta1.ServiceImportPluralName, i) || len(slices.Items)+len(services.Items) > 0 {
			return fmt.Sprintf("%s has the ServiceImport %+v, %d slices and %d derived Services", m.Name, i.Spec, len(slices.Items), len(services.Items))
		}
		return ""
	})
}

// awaitCondition waits until the ServiceExport of a cluster has a condition; an empty reason is any.
func (x *trial) awaitCondition(m *member, kind mcsv1beta1.ServiceExportConditionType, status metav1.ConditionStatus, reason mcsv1beta1.ServiceExportConditionReason) {
	x.Helper()
	eventually(x, func() string {
		e := new(mcsv1beta1.ServiceExport)
		x.object(m, mcsv1beta1.ServiceExportPluralName, e)
		c := meta.FindStatusCondition(e.Status.Conditions, string(kind))
		if c != nil && c.Status == status && (reason == "" || c.Reason == string(reason)) {
			return ""
		}
		return fmt.Sprintf("the ServiceExport of %s has the conditions %+v, want %s %s %s", m.Name, e.Status.Conditions, kind, status, reason)
	})
}

// conflicts waits for a conflict on the exports of both clusters.
func (x *trial) conflicts(reason mcsv1beta1.ServiceExportConditionReason) {
	x.Helper()
	for _, m := range x.clusters {
		x.awaitCondition(m, mcsv1beta1.ServiceExportConditionConflict, metav1.ConditionTrue, reason)
		x.awaitCondition(m, mcsv1beta1.ServiceExportConditionReady, metav1.ConditionTrue, "") // which the owner says
	}
}

// ofType checks the type of a ServiceImport, and says whether its status has clusters.
func ofType(want mcsv1beta1.ServiceImportType, clusters ...string) func(*mcsv1beta1.ServiceImport) string {
	return func(i *mcsv1beta1.ServiceImport) string {
		var got []string
		for _, c := range i.Status.Clusters {
			got = append(got, c.Cluster)
		}
		slices.Sort(got)
		if i.Spec.Type != want || !slices.Equal(got, clusters) || i.Status.EndpointSliceObjects != mcsv1beta1.EndpointSliceObjectsPresent {
			return fmt.Sprintf("the ServiceImport is %+v, %+v", i.Spec, i.Status)
		}
		return ""
	}
}

// hasPorts checks the ports of a ServiceImport.
func hasPorts(want ...corev1.ServicePort) func(*mcsv1beta1.ServiceImport) string {
	return func(i *mcsv1beta1.ServiceImport) string {
		var ports []mcsv1beta1.ServicePort
		for _, p := range want {
			ports = append(ports, mcsv1beta1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
		}
		return cmp.Diff(ports, i.Spec.Ports)
	}
}

// both deploys and exports the Service in both clusters, changed in east.
func (x *trial) both(change ...func(*corev1.Service)) {
	x.Helper()
	x.deploy(x.clusters[0])
	x.export(x.clusters[0], "")
	x.deploy(x.clusters[1], change...)
	x.export(x.clusters[1], "")
}

func headless(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ExternalIPs = corev1.ClusterIPNone, nil }

// awaitSlices waits until the endpoints in the slices of a ServiceImport are these, by cluster and port.
func (x *trial) awaitSlices(m *member, want map[string]string) {
	x.Helper()
	eventually(x, func() string {
		got := make(map[string]string)
		for _, s := range must.Get(m.Cluster.Client.DiscoveryV1().EndpointSlices(x.namespace).List(x.Context(), metav1.ListOptions{LabelSelector: mcsv1beta1.LabelServiceName + "=hello"}))(x).Items {
			if s.Labels[discoveryv1.LabelManagedBy] == "" || s.Labels[discoveryv1.LabelManagedBy] == "endpointslice-controller.k8s.io" || len(s.OwnerReferences) != 1 || s.OwnerReferences[0].Kind != "ServiceImport" {
				return fmt.Sprintf("slice %+v", s.ObjectMeta)
			}
			for _, p := range s.Ports {
				for _, e := range s.Endpoints {
					got[s.Labels[mcsv1beta1.LabelSourceCluster]+" "+*p.Name] += fmt.Sprintf("%s:%d", e.Addresses[0], *p.Port)
				}
			}
		}
		return cmp.Diff(want, got)
	})
}

// TestClusterSet has the assertions of the specs of the conformance suite of the MCS API, each with the
// section of KEP-1645 that it is for: the required ones first, then the optional ones that objects and
// DNS can show. Both clusters have an importer that follows the owner of the other one, and nothing else
// between them.
func TestClusterSet(t *testing.T) {
	west, east := two(t)
	clusters := []*member{newMember(t, west, east, "10.244.1.1"), newMember(t, east, west, "10.244.2.1")}
	for n, spec := range []struct {
		section, name string
		run           func(x *trial, west, east *member)
	}{
		{"Importing Services", "a ServiceImport exists as long as one cluster exports", func(x *trial, west, east *member) {
			x.both()
			for _, m := range x.clusters {
				x.awaitImport(m, ofType(mcsv1beta1.ClusterSetIP, "east", "west"))
			}
			x.unexport(west)
			for _, m := range x.clusters {
				x.awaitImport(m, ofType(mcsv1beta1.ClusterSetIP, "east"))
			}
			x.unexport(east)
			for _, m := range x.clusters {
				x.awaitNoImport(m)
			}
		}},
		{"Importing Services", "a ClusterIP Service becomes a ServiceImport in each cluster, and goes", func(x *trial, west, _ *member) {
			x.deploy(west)
			x.export(west, "")
			x.awaitCondition(west, mcsv1beta1.ServiceExportConditionValid, metav1.ConditionTrue, "")
			for _, m := range x.clusters {
				x.awaitImport(m, ofType(mcsv1beta1.ClusterSetIP, "west"))
			}
			x.unexport(west)
			for _, m := range x.clusters {
				x.awaitNoImport(m)
			}
		}},
		{"Session Affinity", "is that of the Service", func(x *trial, west, east *member) {
			x.deploy(west)
			x.export(west, "")
			x.awaitImport(east, func(i *mcsv1beta1.ServiceImport) string {
				want := x.hello(west).Spec
				return cmp.Diff(want.SessionAffinity, i.Spec.SessionAffinity) + cmp.Diff(want.SessionAffinityConfig, i.Spec.SessionAffinityConfig)
			})
		}},
		{"Internal Traffic Policy", "is that of the Service", func(x *trial, west, east *member) {
			x.deploy(west, func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) })
			x.export(west, "")
			x.awaitImport(east, func(i *mcsv1beta1.ServiceImport) string {
				return cmp.Diff(new(corev1.ServiceInternalTrafficPolicyLocal), i.Spec.InternalTrafficPolicy)
			})
		}},
		{"Traffic Distribution", "is that of the Service", func(x *trial, west, east *member) {
			x.deploy(west, func(s *corev1.Service) {
				s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferClose)
			})
			x.export(west, "")
			x.awaitImport(east, func(i *mcsv1beta1.ServiceImport) string {
				return cmp.Diff(new(corev1.ServiceTrafficDistributionPreferClose), i.Spec.TrafficDistribution)
			})
		}},
		{"ClusterSetIP", "there is an IP for each family, in order", func(x *trial, west, east *member) {
			x.deploy(west)
			x.export(west, "")
			for i, m := range []*member{west, east} { // of one family, and of two
				x.awaitImport(m, func(of *mcsv1beta1.ServiceImport) string {
					var families []corev1.IPFamily
					for _, ip := range of.Spec.IPs {
						families = append(families, map[bool]corev1.IPFamily{true: corev1.IPv4Protocol, false: corev1.IPv6Protocol}[must.Get(netip.ParseAddr(ip))(x).Is4()])
					}
					if len(families) != i+1 || !slices.Equal(families, of.Spec.IPFamilies) {
						return fmt.Sprintf("IPs %v of the families %v", of.Spec.IPs, of.Spec.IPFamilies)
					}
					return ""
				})
			}
		}},
		{"Service Port", "the ports are those of the Service", func(x *trial, west, east *member) {
			x.deploy(west)
			x.export(west, "")
			x.awaitImport(east, hasPorts(x.hello(west).Spec.Ports...))
		}},
		{"Service Port", "the union of the ports, and a conflict", func(x *trial, west, _ *member) {
			sctp := corev1.ServicePort{Name: "stcp", Port: 142, Protocol: corev1.ProtocolSCTP}
			x.both(func(s *corev1.Service) { s.Spec.Ports[1] = sctp })
			x.conflicts(mcsv1beta1.ServiceExportReasonPortConflict)
			for _, m := range x.clusters {
				x.awaitImport(m, hasPorts(append(x.hello(west).Spec.Ports, sctp)...))
			}
		}},
		{"Service Port", "of ports that clash the oldest wins, and a conflict that ends", func(x *trial, west, east *member) {
			x.both(func(s *corev1.Service) {
				s.Spec.Ports = []corev1.ServicePort{{Name: "tcp", Port: 43, Protocol: corev1.ProtocolTCP}}
			})
			x.conflicts(mcsv1beta1.ServiceExportReasonPortConflict)
			for _, m := range x.clusters {
				x.awaitImport(m, hasPorts(x.hello(west).Spec.Ports...))
			}
			x.deploy(east)
			for _, m := range x.clusters {
				x.awaitCondition(m, mcsv1beta1.ServiceExportConditionConflict, metav1.ConditionFalse, mcsv1beta1.ServiceExportReasonNoConflicts)
			}
		}},
		{"Service Types", "a headless Service becomes a ServiceImport in each cluster, and goes", func(x *trial, west, _ *member) {
			x.deploy(west, headless)
			x.export(west, "")
			for _, m := range x.clusters {
				x.awaitImport(m, ofType(mcsv1beta1.Headless, "west"))
			}
			x.unexport(west)
			for _, m := range x.clusters {
				x.awaitNoImport(m)
			}
		}},
		{"ClusterSetIP", "a headless ServiceImport has no IP", func(x *trial, west, east *member) {
			x.deploy(west, headless)
			x.export(west, "")
			x.awaitImport(east, ofType(mcsv1beta1.Headless, "west"))
			passes(x, 5*time.Second)
			if i := x.awaitImport(east, ofType(mcsv1beta1.Headless, "west")); len(i.Spec.IPs) > 0 {
				x.Errorf("IPs %v", i.Spec.IPs)
			}
		}},
		{"Service Types", "an ExternalName Service is not valid", func(x *trial, west, east *member) {
			x.deploy(west, func(s *corev1.Service) {
				s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
			})
			x.export(west, "")
			x.awaitCondition(west, mcsv1beta1.ServiceExportConditionValid, metav1.ConditionFalse, mcsv1beta1.ServiceExportReasonInvalidServiceType)
			x.awaitNoImport(west)
			x.awaitNoImport(east)
		}},
		{"Headlessness", "of types that clash the oldest wins, and a conflict", func(x *trial, _, _ *member) {
			x.both(headless)
			x.conflicts(mcsv1beta1.ServiceExportReasonTypeConflict)
			for _, m := range x.clusters {
				x.awaitImport(m, ofType(mcsv1beta1.ClusterSetIP, "east", "west"))
			}
		}},
		{"Exporting Services", "what is not exported is not reachable", func(x *trial, west, east *member) {
			x.deploy(west)
			passes(x, 5*time.Second)
			for _, m := range x.clusters {
				x.awaitNoImport(m)
				x.answers(m, "hello."+x.namespace+".svc."+clusterSetZone, dns.TypeA, "NXDOMAIN")
			}
			x.deploy(east) // which exports, and so west does not become a part
			x.export(east, "")
			for _, m := range x.clusters {
				x.awaitImport(m, ofType(mcsv1beta1.ClusterSetIP, "east"))
			}
		}},

		{"Global Properties", "families that differ are a conflict", func(x *trial, _, _ *member) {
			x.both(func(s *corev1.Service) { s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack) })
			x.conflicts(mcsv1beta1.ServiceExportReasonIPFamilyConflict)
		}},
		{"Labels and Annotations", "optional: only those of the spec are exported", func(x *trial, west, east *member) {
			x.deploy(west)
			x.export(west, "exportedLabels: {dummy-label: a}, exportedAnnotations: {dummy-annotation: b}")
			x.awaitImport(east, func(i *mcsv1beta1.ServiceImport) string {
				want := map[string]string{"dummy-label": "a", "app.kubernetes.io/managed-by": "federationctl-import-mcs"}
				return cmp.Diff(want, i.Labels) + cmp.Diff(map[string]string{"dummy-annotation": "b"}, i.Annotations)
			})
		}},
		{"Labels and Annotations", "optional: the oldest wins, and a conflict", func(x *trial, west, east *member) {
			x.deploy(west)
			x.export(west, "exportedLabels: {dummy-label: a}, exportedAnnotations: {dummy-annotation: b}")
			x.deploy(east)
			x.export(east, "exportedLabels: {dummy-label2: a}, exportedAnnotations: {dummy-annotation2: b}")
			x.conflicts(mcsv1beta1.ServiceExportReasonAnnotationsConflict + "," + mcsv1beta1.ServiceExportReasonLabelsConflict)
			for _, m := range x.clusters {
				x.awaitImport(m, func(i *mcsv1beta1.ServiceImport) string {
					return cmp.Diff([]string{"dummy-annotation"}, slices.Collect(maps.Keys(i.Annotations)))
				})
			}
		}},
		{"Using EndpointSlice objects to track endpoints", "optional: slices have the labels, and go", func(x *trial, west, east *member) {
			x.both()
			for _, m := range x.clusters {
				x.awaitSlices(m, map[string]string{
					"west tcp": west.address + ":42", "west udp": west.address + ":42", "east tcp": east.address + ":42", "east udp": east.address + ":42",
				})
			}
			x.unexport(west)
			for _, m := range x.clusters {
				x.awaitSlices(m, map[string]string{"east tcp": east.address + ":42", "east udp": east.address + ":42"})
			}
		}},
		{"DNS", "optional: the name of a ClusterSetIP has its addresses, and SRV records of its ports", func(x *trial, west, _ *member) {
			x.deploy(west)
			x.export(west, "")
			name := "hello." + x.namespace + ".svc." + clusterSetZone
			for _, m := range x.clusters {
				i := x.awaitImport(m, ofType(mcsv1beta1.ClusterSetIP, "west"))
				x.answers(m, name, dns.TypeA, "NOERROR "+i.Spec.IPs[0])
				record := fmt.Sprintf("NOERROR 0 %d 42 %s.", 100/len(i.Spec.IPs), name)
				x.answers(m, "_tcp._tcp."+name, dns.TypeSRV, record)
				x.answers(m, "_udp._udp."+name, dns.TypeSRV, record)
			}
		}},
		{"DNS", "optional: the name of a headless ServiceImport has the addresses of endpoints", func(x *trial, west, east *member) {
			x.deploy(west, headless)
			x.export(west, "")
			x.deploy(east, headless)
			x.export(east, "")
			for _, m := range x.clusters {
				x.answers(m, "hello."+x.namespace+".svc."+clusterSetZone, dns.TypeA, "NOERROR "+west.address+" "+east.address)
			}
		}},
	} {
		t.Run(spec.section+"/"+spec.name, func(t *testing.T) {
			spec.run(newTrial(t, clusters, fmt.Sprintf("spec-%d", n)), clusters[0], clusters[1])
		})
	}
	t.Run("killed", func(t *testing.T) { newTrial(t, clusters, "spec-killed").killImporter(clusters[0], clusters[1]) })
	for _, m := range clusters { // what west exports is imported by other tests as well
		eventually(t, func() string {
			for _, n := range must.Get(m.Cluster.Client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}))(t).Items {
				if strings.HasPrefix(n.Name, "spec-") {
					return fmt.Sprintf("%s still has the namespace %s", m.Name, n.Name)
				}
			}
			return ""
		})
	}
}

// answers waits for an answer of the CoreDNS for ServiceImports.
func (x *trial) answers(m *member, name string, qtype uint16, want string) {
	x.Helper()
	eventually(x, func() string {
		if got := m.resolver.Answer(x.Context(), name, qtype); got != want {
			return fmt.Sprintf("CoreDNS of %s answers %s %s with %q, want %q", m.Name, name, dns.TypeToString[qtype], got, want)
		}
		return ""
	})
}
