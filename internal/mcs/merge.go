package mcs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// property is what all exports of one Service should have the same of.
type property struct {
	name   string
	reason mcsv1beta1.ServiceExportConditionReason
	value  any
}

// properties returns those for which v1beta1 has a reason.
func (e *Export) properties() []property {
	byKey := func(a, b mcsv1beta1.ServicePort) int { return cmp.Compare(PortKey(a), PortKey(b)) }
	return []property{
		{"ports", mcsv1beta1.ServiceExportReasonPortConflict, slices.SortedFunc(slices.Values(e.Ports), byKey)},
		{"type", mcsv1beta1.ServiceExportReasonTypeConflict, e.Type},
		{"sessionAffinity", mcsv1beta1.ServiceExportReasonSessionAffinityConflict, e.SessionAffinity},
		{"sessionAffinityConfig", mcsv1beta1.ServiceExportReasonSessionAffinityConfigConflict, e.SessionAffinityConfig},
		{"exportedLabels", mcsv1beta1.ServiceExportReasonLabelsConflict, e.Labels},
		{"exportedAnnotations", mcsv1beta1.ServiceExportReasonAnnotationsConflict, e.Annotations},
		{"internalTrafficPolicy", mcsv1beta1.ServiceExportReasonInternalTrafficPolicyConflict, e.InternalTrafficPolicy},
		{"trafficDistribution", mcsv1beta1.ServiceExportReasonTrafficDistributionConflict, e.TrafficDistribution},
		// In whatever order the families are, traffic of each reaches all backends.
		{"ipFamilies", mcsv1beta1.ServiceExportReasonIPFamilyConflict, slices.Sorted(slices.Values(e.IPFamilies))},
	}
}

// Merge returns the ServiceImport that the exports of one Service make together, nil of none, and the condition
// Conflict, which KEP-1645, 'Global Properties', wants on the ServiceExports of all clusters. There is one export
// of each cluster, in any order. The oldest says what each property is, and of two that are as old, that of the
// first cluster by name; but the ports are those of all.
func Merge(exports []Export) (*mcsv1beta1.ServiceImport, metav1.Condition) {
	conflict := metav1.Condition{
		Type: string(mcsv1beta1.ServiceExportConditionConflict), Status: metav1.ConditionFalse, Reason: string(mcsv1beta1.ServiceExportReasonNoConflicts),
	}
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
	for i := range exports {
		merged.Status.Clusters = append(merged.Status.Clusters, mcsv1beta1.ClusterStatus{Cluster: exports[i].Cluster})
	}
	var reasons, messages []string
	for i, p := range oldest.properties() {
		others := 0
		for j := range exports {
			if !apiequality.Semantic.DeepEqual(exports[j].properties()[i].value, p.value) {
				others++
			}
		}
		if others > 0 {
			reasons, messages = append(reasons, string(p.reason)), append(messages, p.describe(oldest.Cluster, others, len(exports)))
		}
	}
	if len(reasons) > 0 {
		conflict.Status, conflict.Reason, conflict.Message = metav1.ConditionTrue, strings.Join(reasons, ","), strings.Join(messages, "; ")
	}
	return merged, conflict
}

// describe returns what a conflict is: with how many exports of all, and of which cluster the value counts.
func (p property) describe(oldest string, others, all int) string {
	text, err := json.Marshal(p.value)
	if err != nil {
		panic(err) // of texts and numbers
	}
	return fmt.Sprintf("%s: %s has %s, which counts first because its ServiceExport is the oldest, and %d of %d clusters have others", p.name, oldest, safetext.Printable(string(text)), others, all)
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
