package owner

import (
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// delayOf returns what the RetryInfo of a status Unavailable says.
func delayOf(t *testing.T, err error) time.Duration {
	t.Helper()
	return delayWith(t, codes.Unavailable, err)
}

// delayWith returns what the RetryInfo of a status with a code says.
func delayWith(t *testing.T, code codes.Code, err error) time.Duration {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != code || len(s.Details()) != 1 {
		t.Fatalf("error is %v with the details %v, expected %v with a RetryInfo", err, s.Details(), code)
	}
	info, ok := s.Details()[0].(*errdetails.RetryInfo)
	if !ok {
		t.Fatalf("the detail is %v, expected a RetryInfo", s.Details()[0])
	}
	return info.GetRetryDelay().AsDuration()
}

// withSlots has so many streams be sent a catalog at a time, which is taken when fewer are.
func withSlots(t *testing.T, n int64, configure func(*Config)) *fixture {
	t.Helper()
	f := start(t, configure)
	f.server.slots = semaphore.NewWeighted(n)
	return f
}

// TestSlowConsumersDelayOthers has consumers that do not read take all slots, and others wait.
// These have their turn once the slots are lost, and make room when they have the catalog.
func TestSlowConsumersDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, slow = 2, 20
		f := withSlots(t, slots, func(c *Config) { c.Window = fewServices })
		set(t, f.registry, catalogOf(2*fewServices))
		for range slow {
			subscribe(t, f.dial(t, strangerID))
			synctest.Wait()
		}
		begin := time.Now()
		for range 4 {
			c := subscribe(t, f.dial(t, consumerID))
			c.nextN(2*fewServices + 1)
			if d, most := time.Since(begin), slow/slots*catalogHold; d < most || d > most+catalogHold {
				t.Errorf("one has the catalog after %v, expected %v", d, most)
			}
		}
		time.Sleep(catalogHold)
		if !f.server.slots.TryAcquire(slots) {
			t.Error("some slots are taken when all is done")
		}
	})
}

// TestFewServicesDoNotWait subscribes to a small catalog while all slots are taken.
func TestFewServicesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withSlots(t, 0, nil)
		set(t, f.registry, catalogOf(fewServices))
		begin := time.Now()
		subscribe(t, f.dial(t, consumerID)).next()
		if d := time.Since(begin); d > 0 {
			t.Errorf("the first service came after %v", d)
		}
	})
}

// TestStreamEndsInTheQueue ends streams while they wait: one by its consumer, one because
// the catalog becomes unavailable.
func TestStreamEndsInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withSlots(t, 1, nil)
		set(t, f.registry, catalogOf(2*fewServices))
		must.Do(t, f.server.slots.Acquire(t.Context(), 1))
		one, other := f.dial(t, consumerID), subscribe(t, f.dial(t, consumerID))
		subscribe(t, one)
		synctest.Wait()
		one.Close()
		synctest.Wait()
		f.registry.SetUnavailable("test", time.Time{})
		expectUnavailable(t, other)
		f.server.slots.Release(1)
		synctest.Wait()
		if got := f.server.Stats().Postponed; got != 0 || !f.server.slots.TryAcquire(1) {
			t.Errorf("%d were told to come back, or one has a slot yet", got)
		}
	})
}

// TestWaitIsInVain has streams wait in vain. Each is told to come back after a second, and a
// part of the time that all consumers need.
func TestWaitIsInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withSlots(t, 0, nil)
		set(t, f.registry, catalogOf(2*fewServices))
		begin := time.Now()
		c := subscribe(t, f.dial(t, consumerID))
		if d := delayOf(t, c.status().Err()); d < time.Second || d > 2*time.Second {
			t.Errorf("the consumer is to come back after %v", d)
		}
		if d := time.Since(begin); d != longestWait {
			t.Errorf("the stream has ended after %v, expected %v", d, longestWait)
		}
		if got := f.server.Stats().Postponed; got != 1 {
			t.Errorf("%d are told to come back", got)
		}
		for range 10 * consumersPerSecond {
			f.server.sessions[new(streamSession)] = struct{}{}
		}
		least, most := time.Hour, time.Duration(0)
		for range 1000 {
			d := f.server.retryDelay()
			least, most = min(least, d), max(most, d)
		}
		if least < time.Second || least > 2*time.Second || most < 10*time.Second || most > 11*time.Second {
			t.Errorf("5,000 consumers are to come back after %v to %v", least, most)
		}
		clear(f.server.sessions)
	})
}
