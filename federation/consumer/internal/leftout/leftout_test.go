package leftout_test

import (
	"fmt"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/consumer/internal/leftout"
)

// Histories of a catalog are in the oracle of package catalog. This is what they cannot
// reach, or would reach too seldom.
func TestLimit(t *testing.T) {
	const limit = 3
	s := leftout.New()
	for i := range 2 * limit {
		s.Add(fmt.Sprint("s", i), fmt.Sprint("id-", i), leftout.Sent{}, limit)
		s.AddBefore(limit)
	}
	if s.Count() != limit || !s.Has("s2") || s.Has("s3") || s.Remove("s3") || s.RemoveByID("id-3") {
		t.Errorf("%d are known, with those beyond the limit", s.Count())
	}
	s.Complete()
	if !s.RemoveByID("id-1") || s.Count() != limit-1 || s.RemoveByID("id-1") {
		t.Errorf("%d are known without the second", s.Count())
	}
	s.Add("s4", "", leftout.Sent{}, limit)
	if !s.Has("s4") || s.Count() != limit {
		t.Errorf("%d are known with another one in its place", s.Count())
	}
	s.Opened(limit)
	if s.Has("s0") || s.RemoveByID("id-0") || s.Count() != limit {
		t.Errorf("%d are known of the stream before", s.Count())
	}
}

func TestReleaseID(t *testing.T) {
	s := leftout.New()
	s.Add("a", "b", leftout.Sent{}, 0)
	s.Add("c", "id", leftout.Sent{}, 0)
	s.ReleaseID("b", "")
	s.ReleaseID("d", "id")
	if s.RemoveByID("b") || s.RemoveByID("id") || s.Count() != 2 {
		t.Errorf("%d are known, and others have their IDs", s.Count())
	}
}
