// Package mcs has what clusters tell each other for the Multi-Cluster Services API (KEP-1645), which
// leaves that to implementations: an [Export] is what one cluster says of one Service that a
// ServiceExport exports, and [Merge] makes one [Import] of the exports of several clusters.
//
// The owner of a cluster publishes the Export as one label of the service, [Label], whose value
// [Export.Encode] returns and [Parse] reads. So a consumer that does not know the label sees an
// ordinary service, and an importer learns what a service has no field for, such as UDP ports.
//
// The package is pure: values go in, and values come out.
package mcs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Label is the key of the label of a federation.Service whose value is an [Export].
const Label = mcsv1beta1.GroupName + "/export"

// How many entries the lists of an Export may have. The whole is bounded by limits.ValueBytes.
const (
	maxPorts   = 100 // as many as an EndpointSlice may have
	maxTargets = 100 // of a port
	maxPairs   = 64  // exported labels, and as many exported annotations
)

// Export is what one cluster says of one Service that it exports. Of the fields from
// SessionAffinity on, a zero value says that the Service does not have the field.
type Export struct {
	Cluster   string    `json:"cluster"` // the cluster ID: one DNS label, or two with a dot between them
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Created   time.Time `json:"created"` // the ServiceExport was, in whole seconds

	Type  mcsv1beta1.ServiceImportType `json:"type"`
	Ports []Port                       `json:"ports"` // in the order of the Service, at least one

	SessionAffinity       corev1.ServiceAffinity              `json:"sessionAffinity,omitempty"`
	AffinitySeconds       int32                               `json:"affinitySeconds,omitempty"` // of sessionAffinityConfig
	InternalTrafficPolicy corev1.ServiceInternalTrafficPolicy `json:"internalTrafficPolicy,omitempty"`
	TrafficDistribution   string                              `json:"trafficDistribution,omitempty"`
	IPFamilies            []corev1.IPFamily                   `json:"ipFamilies,omitempty"`

	Labels      map[string]string `json:"labels,omitempty"` // that the spec of the ServiceExport has, as the annotations
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Port is a port of the exported Service.
type Port struct {
	Name        string          `json:"name,omitempty"` // empty only where there is one port
	Protocol    corev1.Protocol `json:"protocol"`
	Number      int32           `json:"port"` // of the virtual address
	AppProtocol string          `json:"appProtocol,omitempty"`

	// Targets are the numbers, in order, under which the endpoints of the federation.Service answer
	// for this port. A TCP port is answered by those endpoints that have such a number. A port of
	// another protocol has at most one target, and is answered there by the address of each endpoint.
	// A port without targets cannot be reached from outside of its cluster.
	Targets []uint16 `json:"targets,omitempty"`
}

// Describe returns what a cluster says of a Service that it exports. The ports have no targets.
func Describe(cluster string, of *mcsv1beta1.ServiceExport, service *corev1.Service) Export {
	spec := &service.Spec
	e := Export{
		Cluster: cluster, Namespace: of.Namespace, Name: of.Name, Created: of.CreationTimestamp.Time, Type: mcsv1beta1.ClusterSetIP,
		SessionAffinity: spec.SessionAffinity, InternalTrafficPolicy: ptr.Deref(spec.InternalTrafficPolicy, ""), TrafficDistribution: ptr.Deref(spec.TrafficDistribution, ""),
		IPFamilies: spec.IPFamilies, Labels: of.Spec.ExportedLabels, Annotations: of.Spec.ExportedAnnotations,
	}
	if spec.ClusterIP == corev1.ClusterIPNone {
		e.Type = mcsv1beta1.Headless
	}
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil {
		e.AffinitySeconds = ptr.Deref(c.ClientIP.TimeoutSeconds, 0)
	}
	for _, p := range spec.Ports {
		e.Ports = append(e.Ports, Port{Name: p.Name, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), Number: p.Port, AppProtocol: ptr.Deref(p.AppProtocol, "")})
	}
	return e
}

// Encode returns the export as the value of a [Label], in compact JSON. An export that Parse would
// refuse is an error.
func (e *Export) Encode() (string, error) {
	said := *e
	if err := said.check(); err != nil {
		return "", err
	}
	text, err := json.Marshal(said)
	return string(text), cmp.Or(err, limits.CheckText(string(text), limits.ValueBytes).Of("the export as JSON"))
}

// Parse returns the export that the value of a [Label] is. All that a peer says there is checked
// here: each list and text has its bound, and the API server takes each value in the field that it
// is of. Fields of later versions are passed over.
func Parse(text string) (e Export, err error) {
	if err := limits.CheckText(text, limits.ValueBytes).Of("the export as JSON"); err != nil {
		return Export{}, err
	}
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return Export{}, fmt.Errorf("not an export as JSON: %s", safetext.Printable(err.Error())) // which may have words of the peer
	}
	err = e.check()
	return e, err
}

// fieldCheck says whether the value of a field is what the field takes.
type fieldCheck struct {
	field string
	value any
	takes string
	valid bool
}

// firstInvalid returns an error for the first value that is not valid.
func firstInvalid(checks ...fieldCheck) error {
	for _, c := range checks {
		if !c.valid {
			return fmt.Errorf("%s: %s is not %s", c.field, safetext.Quote(fmt.Sprint(c.value)), c.takes)
		}
	}
	return nil
}

// check brings the time into the form that objects have, and returns an error that names the first
// field that is not valid.
func (e *Export) check() error {
	e.Created = e.Created.UTC().Truncate(time.Second)
	year := e.Created.Year()
	err := firstInvalid(
		fieldCheck{"cluster", e.Cluster, "a cluster ID, which is one DNS label, or two with a dot between them, of at most 63 characters", isClusterID(e.Cluster)},
		fieldCheck{"namespace", e.Namespace, "a DNS label", isLabel(e.Namespace)},
		fieldCheck{"name", e.Name, "a DNS label", isLabel(e.Name)},
		fieldCheck{"created", e.Created, "from 1970 to 9999", year >= 1970 && year <= 9999},
		fieldCheck{"type", e.Type, "ClusterSetIP or Headless", isOneOf(e.Type, mcsv1beta1.ClusterSetIP, mcsv1beta1.Headless)},
		fieldCheck{"sessionAffinity", e.SessionAffinity, "None or ClientIP", isOneOf(e.SessionAffinity, "", corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP)},
		fieldCheck{"affinitySeconds", e.AffinitySeconds, "from 0 to 86400", e.AffinitySeconds >= 0 && e.AffinitySeconds <= 86400},
		fieldCheck{"internalTrafficPolicy", e.InternalTrafficPolicy, "Cluster or Local", isOneOf(e.InternalTrafficPolicy, "", corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)},
		fieldCheck{"trafficDistribution", e.TrafficDistribution, "a word", e.TrafficDistribution == "" || isQualified(e.TrafficDistribution)},
		fieldCheck{"ipFamilies", e.IPFamilies, "IPv4, IPv6 or both", isOneOf(fmt.Sprint(e.IPFamilies), "[]", "[IPv4]", "[IPv6]", "[IPv4 IPv6]", "[IPv6 IPv4]")},
		fieldCheck{"labels", e.Labels, fmt.Sprintf("at most %d valid labels", maxPairs), len(e.Labels) <= maxPairs && len(metav1validation.ValidateLabels(e.Labels, nil)) == 0},
		fieldCheck{"annotations", e.Annotations, fmt.Sprintf("at most %d valid annotations", maxPairs), len(e.Annotations) <= maxPairs && len(apivalidation.ValidateAnnotations(e.Annotations, nil)) == 0},
		fieldCheck{"ports", len(e.Ports), fmt.Sprintf("1 to %d", maxPorts), len(e.Ports) >= 1 && len(e.Ports) <= maxPorts},
	)
	for i := 0; i < len(e.Ports) && err == nil; i++ {
		if err = e.Ports[i].check(e.Ports[:i], len(e.Ports) > 1); err != nil {
			err = fmt.Errorf("ports[%d].%w", i, err)
		}
	}
	return err
}

// check returns an error for the first field that the API server would not take in a port of a
// Service after those before it. Named says that the port needs a name, as there are others.
func (p *Port) check(before []Port, named bool) error {
	return firstInvalid(
		fieldCheck{"name", p.Name, "a DNS label", isLabel(p.Name) || p.Name == "" && !named},
		fieldCheck{"protocol", p.Protocol, "TCP, UDP or SCTP", isOneOf(p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)},
		fieldCheck{"port", p.Number, "from 1 to 65535", p.Number >= 1 && p.Number <= math.MaxUint16},
		fieldCheck{"appProtocol", p.AppProtocol, "the name of a protocol", p.AppProtocol == "" || isQualified(p.AppProtocol)},
		fieldCheck{"name", p.Name, "the only port of its name, or of its protocol and number", !slices.ContainsFunc(before, p.clashes)},
		fieldCheck{"targets", p.Targets, fmt.Sprintf("at most %d sorted numbers from 1 to 65535, or one for UDP and SCTP", maxTargets), p.hasTargets()},
	)
}

// clashes reports whether no Service can have both ports.
func (p *Port) clashes(q Port) bool {
	return p.Name == q.Name || p.Protocol == q.Protocol && p.Number == q.Number
}

func (p *Port) hasTargets() bool {
	sorted := slices.Compact(slices.Sorted(slices.Values(p.Targets)))
	return len(sorted) <= maxTargets && (len(sorted) <= 1 || p.Protocol == corev1.ProtocolTCP) &&
		slices.Equal(sorted, p.Targets) && !slices.Contains(sorted, 0)
}

func isQualified(s string) bool { return len(validation.IsQualifiedName(s)) == 0 }

func isLabel(s string) bool { return len(validation.IsDNS1123Label(s)) == 0 }

// isClusterID reports whether s is a cluster ID by KEP-1645, 'Terminology', and fits the label of an
// EndpointSlice that names the source cluster.
func isClusterID(s string) bool {
	name, registry, two := strings.Cut(s, ".")
	return isLabel(name) && (!two || isLabel(registry)) && len(s) <= validation.LabelValueMaxLength
}

func isOneOf[T comparable](value T, values ...T) bool { return slices.Contains(values, value) }
