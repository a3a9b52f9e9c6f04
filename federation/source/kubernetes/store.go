package kubernetes

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
)

// store is the part of the world that one watch keeps. It is a
// [cache.TransformingStore].
type store struct {
	world *world
	id    watched
}

var _ cache.TransformingStore = store{}

// Transformer trims objects where a list is collected.
func (s store) Transformer() cache.TransformFunc { return export.Trim }

// Add takes an object that is new or has changed.
func (s store) Add(object any) error {
	trimmed, err := trim(object)
	if err != nil {
		return err
	}
	s.world.mu.Lock()
	s.world.put(s.id.kind, trimmed)
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
		trimmed, err := trim(object)
		if err != nil {
			return err
		}
		listed[nameOf(trimmed)] = trimmed
	}
	s.world.mu.Lock()
	for _, object := range listed {
		s.world.put(s.id.kind, object)
	}
	for of := range s.world.objects[s.id.kind] {
		if _, ok := listed[of]; !ok && (s.id.namespace == "" || of.Namespace == s.id.namespace) {
			s.world.remove(s.id.kind, of)
		}
	}
	if p := s.world.health.watches[s.id]; p != nil {
		p.synced, p.once = true, true
		p.problem.set(nil, time.Time{})
	}
	s.world.mu.Unlock()
	s.world.rouse()
	return nil
}

// Resync has nothing to do.
func (s store) Resync() error { return nil }

func trim(object any) (metav1.Object, error) {
	trimmed, err := export.Trim(object)
	if err != nil {
		return nil, err
	}
	o, ok := trimmed.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("an object is a %T", trimmed)
	}
	return o, nil
}
