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
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
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

// properties returns what all exports of one Service should have the same of, by the reason of v1beta1 for a conflict.
func (e *Export) properties() map[mcsv1beta1.ServiceExportConditionReason]any {
	byKey := func(a, b mcsv1beta1.ServicePort) int { return cmp.Compare(PortKey(a), PortKey(b)) }
	return map[mcsv1beta1.ServiceExportConditionReason]any{
		mcsv1beta1.ServiceExportReasonPortConflict:                  slices.SortedFunc(slices.Values(e.Ports), byKey),
		mcsv1beta1.ServiceExportReasonTypeConflict:                  e.Type,
		mcsv1beta1.ServiceExportReasonSessionAffinityConflict:       e.SessionAffinity,
		mcsv1beta1.ServiceExportReasonSessionAffinityConfigConflict: e.SessionAffinityConfig,
		mcsv1beta1.ServiceExportReasonLabelsConflict:                e.Labels,
		mcsv1beta1.ServiceExportReasonAnnotationsConflict:           e.Annotations,
		mcsv1beta1.ServiceExportReasonInternalTrafficPolicyConflict: e.InternalTrafficPolicy,
		mcsv1beta1.ServiceExportReasonTrafficDistributionConflict:   e.TrafficDistribution,
		// In whatever order the families are, traffic of each reaches all backends.
		mcsv1beta1.ServiceExportReasonIPFamilyConflict: slices.Sorted(slices.Values(e.IPFamilies)),
	}
}

// Merge returns the ServiceImport that the exports of one Service make together, nil of none, and the condition
// Conflict, as of now, which KEP-1645, 'Global Properties', wants on the ServiceExports of all clusters. Its reasons say
// in what they differ; the ServiceImport has the values that count. There is one export of each cluster, in any
// order. The oldest says what each property is, and of two that are as old, that of the first cluster by name; but
// the ports are those of all.
func Merge(exports []Export) (*mcsv1beta1.ServiceImport, metav1.Condition) {
	conflict := mcsv1beta1.NewServiceExportCondition(mcsv1beta1.ServiceExportConditionConflict, metav1.ConditionFalse, mcsv1beta1.ServiceExportReasonNoConflicts, "")
	if len(exports) == 0 {
		return nil, conflict
	}
	exports = slices.SortedFunc(slices.Values(exports), func(a, b Export) int {
		return cmp.Or(a.Created.Compare(b.Created.Time), cmp.Compare(a.Cluster, b.Cluster))
	})
	oldest := &exports[0]
	merged := (&mcsv1beta1.ServiceImport{
		TypeMeta:   metav1.TypeMeta{APIVersion: mcsv1beta1.GroupVersion.String(), Kind: mcsv1beta1.ServiceImportKindName},
		ObjectMeta: metav1.ObjectMeta{Namespace: oldest.Namespace, Name: oldest.Name, Labels: oldest.Labels, Annotations: oldest.Annotations},
		Spec:       oldest.ServiceImportSpec,
		Status:     mcsv1beta1.ServiceImportStatus{EndpointSliceObjects: mcsv1beta1.EndpointSliceObjectsPresent},
	}).DeepCopy()
	merged.Spec.Ports = mergePorts(exports)
	reasons, others, properties := sets.New[string](), sets.New[string](), oldest.properties()
	for i := range exports {
		merged.Status.Clusters = append(merged.Status.Clusters, mcsv1beta1.ClusterStatus{Cluster: exports[i].Cluster})
		for reason, value := range exports[i].properties() {
			if !apiequality.Semantic.DeepEqual(value, properties[reason]) {
				reasons.Insert(string(reason))
				others.Insert(exports[i].Cluster)
			}
		}
	}
	if len(reasons) > 0 {
		conflict.Status, conflict.Reason = metav1.ConditionTrue, strings.Join(sets.List(reasons), ",")
		conflict.Message = fmt.Sprintf("%s has precedence, because its ServiceExport is the oldest; %d of %d clusters differ from it", oldest.Cluster, len(others), len(exports))
	}
	return merged, conflict
}

// mergePorts returns the ports of all exports, of which the oldest is the first. KEP-1645, 'Service
// Port': no two have one name, nor one protocol and number, and a port that has either of an earlier
// one is left out. The API server wants names where there are several ports, so that one without a
// name is then called port-NUMBER.
func mergePorts(exports []Export) (merged []mcsv1beta1.ServicePort) {
	named := func(p mcsv1beta1.ServicePort) string { return cmp.Or(p.Name, fmt.Sprintf("port-%d", p.Port)) }
	for i := range exports {
		for _, p := range exports[i].DeepCopy().Ports {
			clashes := func(q mcsv1beta1.ServicePort) bool {
				return p.Name == q.Name || named(p) == named(q) || PortKey(p) == PortKey(q)
			}
			if !slices.ContainsFunc(merged, clashes) {
				merged = append(merged, p)
			}
		}
	}
	if len(merged) > 1 {
		for i := range merged {
			merged[i].Name = named(merged[i])
		}
	}
	return merged
}
