package export

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
)

// addExportLabel adds the label of package mcs to those of a service that a ServiceExport exports.
// Where the label does not fit it is left out with a warning, because consumers that make no
// ServiceImport do not need it.
func (t *translation) addExportLabel(labels map[string]string) {
	e := t.describeExport()
	text, err := e.Encode()
	if err == nil && len(labels) >= limits.Labels {
		err = fmt.Errorf("the Service has %d labels without it", len(labels))
	}
	if err != nil {
		t.warnf(NoExportLabel, "the Service %s is not described to those who make ServiceImports: %v", t.serviceName(), err)
		return
	}
	labels[mcs.Label] = text
}

// describeExport returns what the MCS API needs of the Service in other clusters. Like conditions,
// it does not change with pods that come and go, unless they answer under other numbers.
func (t *translation) describeExport() mcs.Export {
	spec, of := &t.Service.Spec, t.Export
	e := mcs.Export{
		Cluster: t.Cluster, Namespace: of.Namespace, Name: of.Name, Created: of.CreationTimestamp.Time, Type: mcsv1beta1.ClusterSetIP,
		SessionAffinity: spec.SessionAffinity, InternalTrafficPolicy: valueOr(spec.InternalTrafficPolicy, ""), TrafficDistribution: valueOr(spec.TrafficDistribution, ""),
		IPFamilies: spec.IPFamilies, Labels: of.Spec.ExportedLabels, Annotations: of.Spec.ExportedAnnotations,
	}
	if t.isHeadless() {
		e.Type = mcsv1beta1.Headless
	}
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil {
		e.AffinitySeconds = valueOr(c.ClientIP.TimeoutSeconds, 0)
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		e.Ports = append(e.Ports, mcs.Port{
			Name: p.Name, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), Number: p.Port, AppProtocol: valueOr(p.AppProtocol, ""), Targets: t.targetsOf(p),
		})
	}
	return e
}

// targetsOf returns the numbers under which the endpoints of the service answer for a port, as
// mcs.Port has them. The endpoints are for TCP; those of another protocol are found in the same way.
func (t *translation) targetsOf(p *corev1.ServicePort) []int32 {
	ports, found, numbers := t.ports, t.found, sets.New[int32]()
	isTCP := isOneProtocol(p.Protocol, corev1.ProtocolTCP)
	if !isTCP && t.verdict.Kind != Gateway { // a route that is read leads to TCP ports only
		alone := *t
		alone.ports = []publishedPort{{spec: *p}}
		ports = alone.ports
		found, _ = alone.lookups()[t.verdict.Kind]()
	}
	for i := range ports {
		for at, labels := range found {
			if ports[i].spec == *p && labels.Has(ports[i].id) {
				numbers.Insert(int32(at.port))
			}
		}
	}
	if !isTCP && len(numbers) > 1 {
		return nil // nothing says which pod has which number
	}
	return sets.List(numbers)
}

// isOneProtocol reports whether two fields name one protocol, which is TCP where a field is empty.
func isOneProtocol(a, b corev1.Protocol) bool {
	return cmp.Or(a, corev1.ProtocolTCP) == cmp.Or(b, corev1.ProtocolTCP)
}
