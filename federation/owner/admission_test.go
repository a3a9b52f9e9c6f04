package owner

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/owner/internal/turnstile"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
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

// TestCatalogsTakeTurns has consumers that do not read take all slots, and others wait.
// One that has little to be sent does not wait. The others have their turn once the slots
// are lost, one of each identity first, and make room when they have the catalog.
func TestCatalogsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.Window = fewServices })
		f.server.admission = newAdmission(2)
		set(t, f.registry, catalogOf(2*fewServices))
		for range 2 {
			subscribe(t, f.dial(t, strangerID))
		}
		synctest.Wait()
		var begun []string
		said, released, complete := make(chan string, 100), make(chan struct{}), make(chan struct{}, 100)
		for _, name := range []string{"a", "a", "a", "b"} {
			c := subscribe(t, f.dial(t, "spiffe://consumer.example/"+name))
			synctest.Wait()
			go func() {
				m, err := c.stream.Recv()
				said <- name
				<-released
				for err == nil {
					if m.GetResponse().GetOperation() == 0 {
						complete <- struct{}{}
					}
					if c.stream.Send(&rdpb.BidirectionalStream{Request: wire.Ack(m.GetResponse().GetNonce(), "")}) != nil {
						return
					}
					m, err = c.stream.Recv()
				}
			}()
		}
		synctest.Wait()
		if got, want := f.server.Stats().Admission, (AdmissionStats{Sending: 2, Waiting: 4}); got != want {
			t.Errorf("state is %+v, expected %+v", got, want)
		}
		time.Sleep(catalogHold)
		synctest.Wait()
		for len(said) > 0 {
			begun = append(begun, <-said)
		}
		slices.Sort(begun)
		if !slices.Equal(begun, []string{"a", "b"}) {
			t.Errorf("the catalogs of %v begin, expected one of each identity", begun)
		}
		close(released)
		for range 4 {
			<-complete
		}
		synctest.Wait()
		if got := f.server.Stats().Admission; got != (AdmissionStats{}) {
			t.Errorf("state is %+v when all is done, expected nothing", got)
		}
	})
}

// TestFewServicesDoNotWait subscribes to a small catalog while all slots are taken.
func TestFewServicesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.server.admission = newAdmission(1)
		set(t, f.registry, catalogOf(fewServices))
		held := f.server.admission.turns.Enter("other")
		begin := time.Now()
		subscribe(t, f.dial(t, consumerID)).next()
		if d := time.Since(begin); d > 0 {
			t.Errorf("the first service came after %v", d)
		}
		held.Leave()
	})
}

// TestStreamEndsInTheQueue ends streams while they wait: one by its consumer, one because
// the catalog becomes unavailable.
func TestStreamEndsInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.server.admission = newAdmission(1)
		set(t, f.registry, catalogOf(2*fewServices))
		held := f.server.admission.turns.Enter("other")
		one, other := f.dial(t, consumerID), subscribe(t, f.dial(t, consumerID))
		subscribe(t, one)
		synctest.Wait()
		one.Close()
		synctest.Wait()
		if got := f.server.Stats().Admission.Waiting; got != 1 {
			t.Errorf("%d wait after one has gone, expected 1", got)
		}
		f.registry.SetUnavailable("test", time.Time{})
		expectUnavailable(t, other)
		synctest.Wait()
		if got := f.server.Stats().Admission; got.Waiting != 0 || got.TurnedAway != 0 {
			t.Errorf("state is %+v, expected that nobody waits or was turned away", got)
		}
		held.Leave()
	})
}

// TestTurnNeverComes has streams wait in vain. Each is told to come back after a second, and a
// part of the time that all consumers need.
func TestTurnNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.server.admission.turns = turnstile.New[string](turnstile.Config{Slots: 1, Hold: time.Hour, Wait: longestWait})
		set(t, f.registry, catalogOf(2*fewServices))
		held := f.server.admission.turns.Enter("other")
		begin := time.Now()
		c := subscribe(t, f.dial(t, consumerID))
		if d := delayOf(t, c.status().Err()); d < time.Second || d > 2*time.Second {
			t.Errorf("the consumer is to come back after %v", d)
		}
		if d := time.Since(begin); d != longestWait {
			t.Errorf("the stream has ended after %v, expected %v", d, longestWait)
		}
		if got := f.server.Stats().Admission.TurnedAway; got != 1 {
			t.Errorf("%d are turned away", got)
		}
		held.Leave()
		for range 10 * consumersPerSecond {
			f.server.sessions[new(session)] = struct{}{}
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
