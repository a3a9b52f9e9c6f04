package kubernetes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
)

// store is the part of the world that one watch keeps. It is a
// [cache.TransformingStore].
type store struct {
	world *world
	id    watched
	rules export.Rules
}

var _ cache.TransformingStore = store{}

// Transformer trims objects where a list is collected.
func (s store) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return s.trim(object) }
}

// Add takes an object that is new or has changed.
func (s store) Add(object any) error {
	trimmed, err := s.trim(object)
	if err != nil {
		return err
	}
	s.world.mu.Lock()
	s.world.put(s.id.kind, trimmed, false)
	s.world.mu.Unlock()
	s.world.rouse()
	return nil
}

// Update is Add.
func (s store) Update(object any) error { return s.Add(object) }

// Delete takes that an object is gone.
func (s store) Delete(object any) error {
	gone, ok := object.(metav1.Object)
	if !ok {
		return fmt.Errorf("a deleted object is a %T", object)
	}
	s.world.mu.Lock()
	s.world.remove(s.id.kind, nameOf(gone))
	s.world.mu.Unlock()
	s.world.rouse()
	return nil
}

// Replace takes everything that there is. What is not in it is gone.
func (s store) Replace(objects []any, _ string) error {
	listed := make(map[name]metav1.Object, len(objects))
	for _, object := range objects {
		trimmed, err := s.trim(object)
		if err != nil {
			return err
		}
		listed[nameOf(trimmed)] = trimmed
	}
	s.world.mu.Lock()
	p := s.world.health.watches[s.id]
	first := p == nil || !p.synced
	for _, object := range listed {
		s.world.put(s.id.kind, object, first)
	}
	for of := range s.world.objects[s.id.kind] {
		if _, ok := listed[of]; !ok && (s.id.namespace == "" || of.Namespace == s.id.namespace) {
			s.world.remove(s.id.kind, of)
		}
	}
	if p != nil {
		p.synced, p.once = true, true
	}
	s.world.mu.Unlock()
	s.world.rouse()
	return nil
}

// Resync has nothing to do.
func (s store) Resync() error { return nil }

// trim returns what is kept of an object.
func (s store) trim(object any) (metav1.Object, error) {
	if slice, ok := object.(*discoveryv1.EndpointSlice); ok {
		if _, ok := slice.Labels[headless]; !ok {
			return trimNodes(slice), nil
		}
	}
	trimmed, err := s.rules.Trim(object)
	if err != nil {
		return nil, err
	}
	o, ok := trimmed.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("an object is a %T", trimmed)
	}
	if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
		slice.Labels[headless] = "" // trimmed again it stays what it is
	}
	return o, nil
}

// headless is the label of the EndpointSlices of headless Services. Whoever writes such
// a slice by hand has to set it.
const headless = corev1.IsHeadlessService

// trimNodes keeps of the EndpointSlice of a Service that is not headless on which
// nodes it has endpoints: node ports ask for that, and nobody for the pods. So a pod
// that comes or goes changes little, and there is little of it to keep.
func trimNodes(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	trimmed := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: slice.Namespace, Name: slice.Name, UID: slice.UID, ResourceVersion: slice.ResourceVersion,
		Labels: map[string]string{discoveryv1.LabelServiceName: slice.Labels[discoveryv1.LabelServiceName]},
	}}
	type place struct {
		node  string
		ready bool
	}
	seen := make(map[place]struct{})
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if e.NodeName == nil {
			continue
		}
		at := place{*e.NodeName, e.Conditions.Ready == nil || *e.Conditions.Ready}
		if _, again := seen[at]; !again {
			seen[at] = struct{}{}
			trimmed.Endpoints = append(trimmed.Endpoints, discoveryv1.Endpoint{
				NodeName: e.NodeName, Conditions: discoveryv1.EndpointConditions{Ready: &at.ready},
			})
		}
	}
	slices.SortFunc(trimmed.Endpoints, func(a, b discoveryv1.Endpoint) int {
		return cmp.Or(strings.Compare(*a.NodeName, *b.NodeName), compareBool(*a.Conditions.Ready, *b.Conditions.Ready))
	})
	return trimmed
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
