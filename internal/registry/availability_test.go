package registry_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// TestSubscriptionOfAnUnavailableRegistry waits for an event when the registry becomes
// unavailable, and subscribes when it is.
func TestSubscriptionOfAnUnavailableRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry.New()
		s := registrytest.Listen(r)
		defer s.Close()
		drain(s.Subscription)
		go func() {
			synctest.Wait() // for Next
			r.SetUnavailable("away", time.Time{})
		}()
		if e, err := s.NextEvent(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("Next gave %v, %v, expected Unavailable", e, err)
		}
		other := registrytest.Listen(r)
		defer other.Close()
		upsert(t, r, service("a", 1))
		if e, err := other.NextEvent(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("Next of a new subscription gave %v, %v, expected Unavailable", e, err)
		}
		r.SetUnavailable("", time.Time{})
		if got := drain(other.Subscription); len(got) > 0 {
			t.Errorf("a subscription of before was told %v", got)
		}
	})
}

// TestEndOfAnIncompleteRegistry subscribes while the catalog is not complete. All that there is
// when it is comes before the end, also for a subscriber that is behind.
func TestEndOfAnIncompleteRegistry(t *testing.T) {
	r := registry.New()
	r.SetComplete(false)
	foreign, s := registrytest.ListenAs(r, registry.Consumer{}), registrytest.Subscribe(r)
	defer s.Close()
	if !foreign.IsOver() {
		t.Error("a subscriber that does not await the end can subscribe")
	}
	upsert(t, r, service("a", 1))
	take := func(when string, n int, want ...string) {
		t.Helper()
		var got []string
		for _, u := range s.TakeUpdates(nil, n) {
			got = append(got, u.Operation.String()+" "+u.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: a subscriber was told %q, expected %q", when, got, want)
		}
	}
	take("at first", 2, "upsert a")
	upsert(t, r, service("b", 1))
	take("before the next one", 0)
	upsert(t, r, service("c", 1))
	r.SetComplete(true)
	if lags := r.Stats().Lags; lags[s].Unsent != 2 || !lags[s].Unended {
		t.Errorf("the subscriber is behind by %+v, expected b, c and the end", lags[s])
	}
	for i, want := range []string{"upsert b", "upsert c", "end "} {
		take("when it is complete, "+strconv.Itoa(i), 1, want)
	}
	late := r.SubscribeAs(registry.Consumer{})
	defer late.Close()
	if got := drain(late); len(got) != 4 {
		t.Errorf("a subscriber of afterwards was told %v", got)
	}
}

// TestEndIsNews has a subscriber wait for nothing but the end.
func TestEndIsNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry.New()
		r.SetComplete(false)
		s := registrytest.Listen(r)
		defer s.Close()
		drain(s.Subscription)
		go func() {
			synctest.Wait() // for Next
			r.SetComplete(true)
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if event, err := s.NextEvent(ctx); err != nil || event.Operation != wire.End {
			t.Errorf("Next gave %v, %v, expected the end", event.Operation, err)
		}
	})
}

// A consumer that had nothing to take before its last source was complete takes one update at a
// time: it is woken for the end behind the last one.
func TestEndBehindTheLastUpdate(t *testing.T) {
	t.Parallel()
	r := registry.New()
	r.SetComplete(false)
	s := registrytest.Subscribe(r)
	defer s.Close()
	if updates := s.TakeUpdates(nil, 1); len(updates) != 0 {
		t.Errorf("before there is anything: %v", updates)
	}
	release := r.HoldChanges()
	must.Get(r.Upsert(services.At("web.example", "192.0.2.1")))(t)
	r.SetComplete(true)
	release()
	var got []wire.Operation
	for range 3 {
		select {
		case <-s.Wake():
			for _, u := range s.TakeUpdates(nil, 1) {
				got = append(got, u.Operation)
			}
		default:
		}
	}
	if want := []wire.Operation{wire.Upsert, wire.End}; !slices.Equal(got, want) {
		t.Errorf("taken: %v, want %v", got, want)
	}
}
