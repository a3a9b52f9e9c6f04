package kubernetes

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
)

// store is the part of the state that one watch keeps. It is a
// [cache.TransformingStore].
type store struct {
	state *clusterState
	id    watched
	rules export.Rules
}

var _ cache.TransformingStore = store{}

// Transformer trims objects where a list is collected.
func (s store) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return s.rules.Trim(object) }
}

// Add takes an object that is new or has changed.
func (s store) Add(object any) error {
	trimmed, err := s.rules.Trim(object)
	if err != nil {
		return err
	}
	s.change(func() { s.state.put(s.id.kind, trimmed) })
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
	s.change(func() { s.state.remove(s.id.kind, nameOf(gone)) })
	return nil
}

// Replace takes everything that there is. What is not in it is gone.
func (s store) Replace(objects []any, _ string) error {
	listed := make(map[name]metav1.Object, len(objects))
	for _, object := range objects {
		trimmed, err := s.rules.Trim(object)
		if err != nil {
			return err
		}
		listed[nameOf(trimmed)] = trimmed
	}
	s.change(func() {
		for _, object := range listed {
			s.state.put(s.id.kind, object)
		}
		for of := range s.state.objects[s.id.kind] {
			if _, ok := listed[of]; !ok && (s.id.namespace == "" || of.Namespace == s.id.namespace) {
				s.state.remove(s.id.kind, of)
			}
		}
		p := s.state.health.watches[s.id]
		p.synced, p.once = true, true
		s.state.health.watches[s.id] = p
	})
	return nil
}

// Resync has nothing to do.
func (s store) Resync() error { return nil }

// change changes the state, and has the publisher look at it.
func (s store) change(change func()) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	change()
	rouse(s.state.wake)
}
