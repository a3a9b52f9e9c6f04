package registry_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
)

// TestSubscriptionOfAnUnavailableRegistry waits for an event when the registry becomes
// unavailable, and subscribes when it is.
func TestSubscriptionOfAnUnavailableRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry.New()
		s := r.Subscribe()
		defer s.Close()
		drain(s)
		go func() {
			synctest.Wait() // for Next
			r.SetUnavailable("away", time.Time{})
		}()
		if e, err := s.Next(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("Next gave %v, %v, expected Unavailable", e, err)
		}
		other := r.Subscribe()
		defer other.Close()
		upsert(t, r, service("a", 1))
		if e, err := other.Next(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("Next of a new subscription gave %v, %v, expected Unavailable", e, err)
		}
		r.SetUnavailable("", time.Time{})
		if got := drain(other); len(got) > 0 {
			t.Errorf("a subscription of before was told %v", got)
		}
	})
}
