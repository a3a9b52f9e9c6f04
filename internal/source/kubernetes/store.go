package kubernetes

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
)

// watchStore is the part of clusterState that one watch fills. It is a [cache.TransformingStore],
// and keeps nothing itself.
type watchStore struct {
	state *clusterState
	id    watchID
	rules export.Rules
}

var _ cache.TransformingStore = watchStore{}

// Transformer returns the function that trims objects while a list is collected.
func (s watchStore) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return s.rules.Trim(object) }
}

// Add stores an object that is new or has changed.
func (s watchStore) Add(object any) error {
	trimmed, err := s.rules.Trim(object)
	if err != nil {
		return err
	}
	s.changeState(func() { s.state.putObject(s.id.kind, trimmed) })
	return nil
}

// Update does what Add does.
func (s watchStore) Update(object any) error { return s.Add(object) }

// Delete removes an object.
func (s watchStore) Delete(object any) error {
	gone, ok := object.(metav1.Object)
	if !ok {
		return fmt.Errorf("a deleted object is a %T", object)
	}
	s.changeState(func() { s.state.removeObject(s.id.kind, nameOf(gone)) })
	return nil
}

// Replace stores all objects of the watch, and removes those that are not listed.
func (s watchStore) Replace(objects []any, _ string) error {
	listed := make(map[objectName]metav1.Object, len(objects))
	for _, object := range objects {
		trimmed, err := s.rules.Trim(object)
		if err != nil {
			return err
		}
		listed[nameOf(trimmed)] = trimmed
	}
	s.changeState(func() {
		for _, object := range listed {
			s.state.putObject(s.id.kind, object)
		}
		for of := range s.state.objects[s.id.kind] {
			if _, ok := listed[of]; !ok && (s.id.namespace == "" || of.Namespace == s.id.namespace) {
				s.state.removeObject(s.id.kind, of)
			}
		}
		p := s.state.health.watches[s.id]
		p.synced, p.once = true, true
		s.state.health.watches[s.id] = p
	})
	return nil
}

// Resync does nothing, because there is nothing to repeat.
func (s watchStore) Resync() error { return nil }

// changeState changes the state, and wakes the publisher.
func (s watchStore) changeState(change func()) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	change()
	wake.Up(s.state.wake)
}
