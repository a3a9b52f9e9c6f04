// Package mcs has what clusters tell each other for the Multi-Cluster Services API (KEP-1645), which
// leaves that to implementations: an [Export] is what one cluster says of one Service that a
// ServiceExport exports, and [Merge] makes one ServiceImport of the exports of several clusters.
//
// The owner of a cluster publishes the Export as one label of the service, [Label], whose value
// [Export.Encode] returns and [Parse] reads. So a consumer that does not know the label sees an
// ordinary service, and an importer learns what a service has no field for, such as UDP ports.
//
// The package is pure but for the time of the condition Conflict: values go in, and values come out.
package mcs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Label is the key of the label of a federation.Service whose value is an [Export].
const Label = mcsv1beta1.GroupName + "/export"

// maxPorts is how many ports an Export may have: each is a port of the derived Service, and has slices
// of its own. The rest is bounded by limits.ValueBytes.
const maxPorts = 100

// Export is what one cluster says of one Service that it exports.
type Export struct {
	Cluster   string      `json:"cluster"`
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	Created   metav1.Time `json:"created"` // the ServiceExport was

	// The ServiceImport would have this if no other cluster exported the Service. There are no IPs, which
	// each cluster allocates itself.
	mcsv1beta1.ServiceImportSpec

	// Targets are the numbers under which the endpoints of the federation.Service answer for a port, by
	// its [PortKey]. A TCP port is answered by those endpoints that have such a number, and a port of
	// another protocol under its only target by the address of each endpoint. A port without targets
	// cannot be reached from outside of its cluster.
	Targets map[string][]uint16 `json:"targets,omitempty"`

	Labels      map[string]string `json:"labels,omitempty"` // that the spec of the ServiceExport has, as the annotations
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PortKey returns by what clients tell a port of a Service from others, such as TCP/80.
func PortKey(p mcsv1beta1.ServicePort) string { return fmt.Sprintf("%s/%d", p.Protocol, p.Port) }

// Describe returns what a cluster says of a Service that it exports. There are no targets.
func Describe(cluster string, of *mcsv1beta1.ServiceExport, service *corev1.Service) Export {
	spec := &service.Spec
	e := Export{
		Cluster: cluster, Namespace: of.Namespace, Name: of.Name, Created: of.CreationTimestamp,
		ServiceImportSpec: mcsv1beta1.ServiceImportSpec{
			Type: mcsv1beta1.ClusterSetIP, IPFamilies: spec.IPFamilies, SessionAffinity: spec.SessionAffinity, SessionAffinityConfig: spec.SessionAffinityConfig,
			InternalTrafficPolicy: spec.InternalTrafficPolicy, TrafficDistribution: spec.TrafficDistribution,
		},
		Labels: of.Spec.ExportedLabels, Annotations: of.Spec.ExportedAnnotations,
	}
	if spec.ClusterIP == corev1.ClusterIPNone {
		e.Type = mcsv1beta1.Headless
	}
	for _, p := range spec.Ports {
		e.Ports = append(e.Ports, mcsv1beta1.ServicePort{Name: p.Name, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), AppProtocol: p.AppProtocol, Port: p.Port})
	}
	return e
}

// Encode returns the export as the value of a [Label], in compact JSON. An export that Parse would
// refuse is an error.
func (e *Export) Encode() (string, error) {
	text, err := json.Marshal(e)
	if err == nil {
		_, err = Parse(string(text))
	}
	return string(text), err
}

// Parse returns the export that the value of a [Label] is. The API server takes each value that a peer
// says there in the field that it is of. Other fields are passed over.
func Parse(text string) (e Export, err error) {
	if err := limits.CheckText(text, limits.ValueBytes).Of("the export as JSON"); err != nil {
		return Export{}, err
	}
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return Export{}, fmt.Errorf("not an export as JSON: %s", safetext.Printable(err.Error())) // which may have words of the peer
	}
	e.IPs = nil // of the other cluster
	return e, e.check()
}

// check returns an error that names the first field that is not valid. Ports may clash with each other, because
// Merge leaves out what the API server would not take beside others. For a name that is not said stands a valid one.
func (e *Export) check() error {
	errs := slices.Concat(
		checkRules("cluster", e.Cluster, validation.IsDNS1123Label(e.Cluster)),
		checkRules("namespace", e.Namespace, validation.IsDNS1123Label(e.Namespace)),
		checkRules("name", e.Name, validation.IsDNS1123Label(e.Name)),
		checkRules("created", e.Created, validation.IsInRange(e.Created.UTC().Year(), 1970, 9999)),
		checkChoice("type", e.Type, mcsv1beta1.ClusterSetIP, mcsv1beta1.Headless),
		checkChoice("sessionAffinity", e.SessionAffinity, "", corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP),
		checkChoice("internalTrafficPolicy", ptr.Deref(e.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster), corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal),
		checkChoice("ipFamilies", fmt.Sprint(e.IPFamilies), "[]", "[IPv4]", "[IPv6]", "[IPv4 IPv6]", "[IPv6 IPv4]"),
		metav1validation.ValidateLabels(e.Labels, field.NewPath("labels")),
		apivalidation.ValidateAnnotations(e.Annotations, field.NewPath("annotations")),
		checkRules("ports", len(e.Ports), validation.IsInRange(len(e.Ports), 1, maxPorts)),
	)
	if c := e.SessionAffinityConfig; c != nil {
		seconds := ptr.Deref(ptr.Deref(c.ClientIP, corev1.ClientIPConfig{}).TimeoutSeconds, 0)
		errs = append(errs, checkRules("sessionAffinityConfig.clientIP.timeoutSeconds", seconds, validation.IsInRange(int(seconds), 1, 86400))...)
	}
	for i, p := range e.Ports {
		at, appProtocol := fmt.Sprintf("ports[%d].", i), ptr.Deref(p.AppProtocol, "none")
		errs = slices.Concat(errs,
			checkRules(at+"name", p.Name, validation.IsDNS1123Label(cmp.Or(p.Name, "none"))),
			checkChoice(at+"protocol", p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP),
			checkRules(at+"appProtocol", appProtocol, validation.IsQualifiedName(appProtocol)),
			checkRules(at+"port", p.Port, validation.IsValidPortNum(int(p.Port))),
		)
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s: %s", errs[0].Field, safetext.Quote(fmt.Sprint(errs[0].BadValue)), errs[0].Detail)
}

// checkRules returns an error for each rule that the value of a field breaks.
func checkRules(name string, value any, broken []string) (errs field.ErrorList) {
	for _, rule := range broken {
		errs = append(errs, field.Invalid(field.NewPath(name), value, rule))
	}
	return errs
}

// checkChoice returns an error if the value of a field is none of those that the field takes.
func checkChoice[T ~string](name string, value T, supported ...T) field.ErrorList {
	if slices.Contains(supported, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(field.NewPath(name), value, supported)}
}
