package mcs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

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
