package mcs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Import is what the exports of one Service by several clusters make together.
type Import struct {
	Spec                mcsv1beta1.ServiceImportSpec // without IPs, which each cluster allocates itself
	Labels, Annotations map[string]string            // that are exported
	Clusters            []string                     // that export the Service, the oldest export first
}

// Conflict is a property in which the exports of one Service differ. KEP-1645, 'Global Properties',
// wants it on the ServiceExports of all clusters.
type Conflict struct {
	Reason  mcsv1beta1.ServiceExportConditionReason
	Message string // which value counts, and why; at most 1 KiB
}

// property is what all exports of one Service should have the same of.
type property struct {
	name   string
	reason mcsv1beta1.ServiceExportConditionReason
	value  func(*Export) any // becomes the same JSON where the property is the same
}

// properties returns those for which v1beta1 has a reason.
func properties() []property {
	return []property{
		{"ports", mcsv1beta1.ServiceExportReasonPortConflict, (*Export).sortedPorts},
		{"type", mcsv1beta1.ServiceExportReasonTypeConflict, func(e *Export) any { return e.Type }},
		{"sessionAffinity", mcsv1beta1.ServiceExportReasonSessionAffinityConflict, func(e *Export) any { return e.SessionAffinity }},
		{"timeoutSeconds", mcsv1beta1.ServiceExportReasonSessionAffinityConfigConflict, func(e *Export) any { return e.AffinitySeconds }},
		{"exportedLabels", mcsv1beta1.ServiceExportReasonLabelsConflict, func(e *Export) any { return e.Labels }},
		{"exportedAnnotations", mcsv1beta1.ServiceExportReasonAnnotationsConflict, func(e *Export) any { return e.Annotations }},
		{"internalTrafficPolicy", mcsv1beta1.ServiceExportReasonInternalTrafficPolicyConflict, func(e *Export) any { return e.InternalTrafficPolicy }},
		{"trafficDistribution", mcsv1beta1.ServiceExportReasonTrafficDistributionConflict, func(e *Export) any { return e.TrafficDistribution }},
		// In whatever order the families are, traffic of each reaches all backends.
		{"ipFamilies", mcsv1beta1.ServiceExportReasonIPFamilyConflict, func(e *Export) any { return slices.Sorted(slices.Values(e.IPFamilies)) }},
	}
}

// sortedPorts returns what clients see of the ports, in a fixed order.
func (e *Export) sortedPorts() any {
	var ports []string
	for _, p := range e.Ports {
		ports = append(ports, fmt.Sprintf("%s/%d %q %s", p.Protocol, p.Number, p.Name, p.AppProtocol))
	}
	slices.Sort(ports)
	return ports
}

// textOf returns the value of the property as JSON, or "not set" for each that says nothing.
func (p property) textOf(e *Export) string {
	text, err := json.Marshal(p.value(e))
	if err != nil || slices.Contains([]string{`""`, "0", "{}", "null"}, string(text)) {
		return "not set"
	}
	return string(text)
}

// Merge returns what the exports of one Service make together, and in what they differ. There is at
// least one export, and one of each cluster, in any order. The oldest says what each property is, and
// of two that are as old, that of the first cluster by name; but the ports are those of all.
func Merge(exports []Export) (Import, []Conflict) {
	exports = slices.SortedFunc(slices.Values(exports), func(a, b Export) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Cluster, b.Cluster))
	})
	oldest := &exports[0]
	merged := Import{Labels: oldest.Labels, Annotations: oldest.Annotations, Spec: mcsv1beta1.ServiceImportSpec{
		Type: oldest.Type, Ports: mergePorts(exports), SessionAffinity: oldest.SessionAffinity, IPFamilies: oldest.IPFamilies,
		InternalTrafficPolicy: pointerTo(oldest.InternalTrafficPolicy), TrafficDistribution: pointerTo(oldest.TrafficDistribution),
	}}
	if seconds := pointerTo(oldest.AffinitySeconds); seconds != nil {
		merged.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: seconds}}
	}
	for i := range exports {
		merged.Clusters = append(merged.Clusters, exports[i].Cluster)
	}
	var conflicts []Conflict
	for _, p := range properties() {
		value, others := p.textOf(oldest), 0
		for i := range exports {
			if p.textOf(&exports[i]) != value {
				others++
			}
		}
		if others > 0 {
			conflicts = append(conflicts, p.conflict(oldest.Cluster, value, others, len(exports)))
		}
	}
	return merged, conflicts
}

// conflict returns the conflict where other clusters of all do not have the value of the oldest.
func (p property) conflict(oldest, value string, others, all int) Conflict {
	counts := fmt.Sprintf("is %s, as in %s", safetext.Printable(value), oldest)
	if p.reason == mcsv1beta1.ServiceExportReasonPortConflict {
		counts = "are those of all clusters, but where two have one name, or one protocol and number, that of " + oldest
	}
	return Conflict{p.reason, fmt.Sprintf("%s %s, because its ServiceExport is the oldest; %d of %d clusters have others", p.name, counts, others, all)}
}

// mergePorts returns the ports of all exports, of which the oldest is the first. KEP-1645, 'Service
// Port': no two have one name, nor one protocol and number, and a port that has either of an earlier
// one is left out. The API server wants names where there are several ports, so that one without a
// name is then called port-NUMBER.
func mergePorts(exports []Export) (merged []mcsv1beta1.ServicePort) {
	var all []Port
	for i := range exports {
		all = append(all, exports[i].Ports...)
	}
	union := dropClashes(all)
	if len(union) > 1 {
		for i := range all {
			all[i].Name = cmp.Or(all[i].Name, fmt.Sprintf("port-%d", all[i].Number))
		}
		union = dropClashes(all)
	}
	for _, p := range union {
		merged = append(merged, mcsv1beta1.ServicePort{Name: p.Name, Protocol: p.Protocol, AppProtocol: pointerTo(p.AppProtocol), Port: p.Number})
	}
	return merged
}

// dropClashes returns the ports that clash with none before them.
func dropClashes(ports []Port) (kept []Port) {
	for _, p := range ports {
		if !slices.ContainsFunc(kept, p.clashes) {
			kept = append(kept, p)
		}
	}
	return kept
}

// PortFor returns the port of the export that answers for a port of the Import: the one that clients reach
// under its number, whatever its name is. Without one it returns a port that has no targets.
func (e *Export) PortFor(port mcsv1beta1.ServicePort) (found Port) {
	for _, p := range e.Ports {
		if p.Protocol == port.Protocol && p.Number == port.Port {
			found = p
		}
	}
	return found
}

// pointerTo returns a pointer to the value, or nil for the zero value.
func pointerTo[T comparable](value T) *T {
	if value == *new(T) {
		return nil
	}
	return &value
}
