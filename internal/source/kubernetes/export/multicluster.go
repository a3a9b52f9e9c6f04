package export

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
)

// addExportLabel adds the label of package mcs to those of a service that a ServiceExport exports.
// Where the label does not fit it is left out with a warning, because consumers that make no
// ServiceImport do not need it. Like conditions, the label does not change with pods that come and go,
// unless they answer under other numbers.
func (t *translation) addExportLabel(labels map[string]string) {
	e := mcs.Describe(t.Cluster, t.Export, t.Service)
	e.Targets = make(map[string][]uint16)
	for i, p := range e.Ports {
		if targets := t.targetsOf(&t.Service.Spec.Ports[i]); len(targets) > 0 {
			e.Targets[mcs.PortKey(p)] = targets
		}
	}
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

// targetsOf returns the numbers under which the endpoints of the service answer for a port, as
// mcs.Export has them. The endpoints are for TCP; those of another protocol are found in the same way.
func (t *translation) targetsOf(p *corev1.ServicePort) []uint16 {
	ports, found, numbers := t.ports, t.found, sets.New[uint16]()
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
				numbers.Insert(at.port)
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
