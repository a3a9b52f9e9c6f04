package stream

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/wiretest"
)

// The files may change while the attempt with the old ones is under way.
func TestIdentityChangesDuringAttempt(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		var once sync.Once
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			once.Do(sim.identity.Change)
			return status.Error(codes.Unauthenticated, "who are you?")
		})
		sim.run(sim.config())
		time.Sleep(time.Hour)
		if n := len(sim.Records("dialed")); n != 2 {
			t.Errorf("%d attempts, want 2", n)
		}
	})
}

func TestReplicas(t *testing.T) {
	unauthenticated := func(rdpb.DiscoveryService_EstablishStreamServer) error {
		return status.Error(codes.Unauthenticated, "who are you?")
	}
	config := func(sim *testConsumer) Config {
		config := sim.config()
		config.Addresses = []string{"a:1", "b:1", "c:1"}
		return config
	}
	dialed := func(sim *testConsumer, from, to time.Duration) (found []string) {
		for _, r := range sim.Records("dialed") {
			if from <= r.At && r.At <= to {
				found = append(found, r.Detail)
			}
		}
		return found
	}

	t.Run("each has delays of its own", func(t *testing.T) {
		n := make(map[string]int) // attempts, in five outages: chance decides much of one
		for range 5 {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				sim.TimesOut("b:1")
				sim.serve("c:1", silent)
				sim.run(config(sim))
				time.Sleep(quickFor)
				if diff := cmp.Diff([]string{"a:1", "b:1", "c:1"}, sim.Details("dialed")[:3]); diff != "" {
					t.Errorf("at first, -want +got:\n%s", diff)
				}
				for _, address := range sim.Details("dialed") {
					n[address]++
				}
				// a:1 waits while b:1 and c:1 are tried, and no longer than for each of them once.
				for i, busy := 1, sim.Records("dialed"); i < len(busy); i++ {
					if d := busy[i].At - busy[i-1].At; d > maxDelay+maxQuickDelay {
						t.Errorf("nothing is tried for %v", d)
					}
				}
			})
		}
		if n["a:1"] < 2*n["b:1"] || n["b:1"] > 100 || n["c:1"] > 100 || n["b:1"] < 25 || n["c:1"] < 25 {
			t.Errorf("attempts: %v", n)
		}
	})

	t.Run("the next one takes over", func(t *testing.T) {
		simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
			stop := sim.serve("b:1", good)
			sim.run(config(sim))
			time.Sleep(time.Hour)
			if diff := cmp.Diff([]string{"a:1", "b:1"}, dialed(sim, 0, time.Hour)); diff != "" {
				t.Errorf("at first, -want +got:\n%s", diff)
			}
			sim.serve("c:1", good)
			stop()
			time.Sleep(time.Hour)
			// The one that was of use is tried first.
			if diff := cmp.Diff([]string{"b:1", "c:1"}, dialed(sim, time.Hour, 2*time.Hour)); diff != "" {
				t.Errorf("after the loss, -want +got:\n%s", diff)
			}
		})
	})

	t.Run("parked when all are", func(t *testing.T) {
		simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
			for _, address := range []string{"a:1", "b:1", "c:1"} {
				sim.serve(address, unauthenticated)
			}
			sim.run(config(sim))
			time.Sleep(time.Hour)
			if diff := cmp.Diff([]string{"a:1", "b:1", "c:1"}, dialed(sim, 0, time.Hour)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if lines := sim.Logged.Lines(); len(lines) != 3 || !strings.Contains(lines[2], "owner is parked: there is no attempt until") {
				t.Errorf("logged: %v", lines)
			}
			if lost, parked := len(sim.Records("lost")), len(sim.Records("parked")); lost != 2 || parked != 1 {
				t.Errorf("%d lost, %d parked", lost, parked)
			}
			sim.identity.Change()
			time.Sleep(time.Hour)
			if n := len(sim.Records("dialed")); n != 6 {
				t.Errorf("%d attempts after a change, want 6", n)
			}
		})
	})

	t.Run("a refusal counts for its address", func(t *testing.T) {
		simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
			sim.serve("b:1", unauthenticated)
			sim.run(config(sim))
			time.Sleep(10 * time.Minute)
			if n := len(sim.Records("dialed")); n < 2*10 || sim.Records("parked") != nil {
				t.Errorf("%d attempts, parked %v", n, sim.Records("parked"))
			}
			if n := strings.Count(strings.Join(sim.Details("dialed"), " "), "b:1"); n != 1 {
				t.Errorf("%d attempts with the one that refused, want 1", n)
			}
			sim.identity.Change()
			time.Sleep(10 * time.Minute)
			if n := strings.Count(strings.Join(sim.Details("dialed"), " "), "b:1"); n != 2 {
				t.Errorf("%d attempts with the one that refused after a change, want 2", n)
			}
		})
	})
}

func TestBackoff(t *testing.T) {
	for limit, ceilings := range map[time.Duration][]int{
		maxDelay:     {2, 4, 8, 16, 32, 60, 60, 60},
		maxSlowDelay: {2, 4, 8, 16, 32, 64, 128, 256, 300, 300},
	} {
		var wait retryBackoff
		for range 3 {
			for _, ceiling := range ceilings {
				delay := wait.nextDelay(limit)
				if delay < time.Second || delay > time.Duration(ceiling)*time.Second {
					t.Errorf("delay %v, want between 1 and %v s", delay, ceiling)
				}
			}
			wait.reset()
		}
	}
	// Uniform, the first delay as well: a tenth of many delays lies in each tenth of the range.
	for before, limit := range map[time.Duration]time.Duration{0: 2 * minDelay, maxDelay: maxDelay} {
		var tenths [10]int
		const n = 100_000
		for range n {
			wait := retryBackoff{ceiling: before}
			tenths[(wait.nextDelay(maxDelay)-minDelay)*10/(limit-minDelay+1)]++
		}
		for i, got := range tenths {
			if got < n/10-1000 || got > n/10+1000 { // ten standard deviations
				t.Errorf("up to %v: tenth %d has %d of %d delays", limit, i, got, n)
			}
		}
	}
}

// The bounds hold for real attempts too: no backoff of gRPC's comes on top. Who refuses
// connections is about to start, and is found soon.
func TestOutage(t *testing.T) {
	const (
		outage = 12 * time.Minute
		early  = quickFor / 2
	)
	refuses := func(*testConsumer) {}
	for name, tc := range map[string]struct {
		away                 func(sim *testConsumer)
		early, later, within time.Duration // the longest delays at first and later, and until it is found
		takes                time.Duration // each attempt
	}{
		"refuses":   {refuses, maxQuickDelay, maxLaterDelay, maxLaterDelay, 0},
		"times out": {func(sim *testConsumer) { sim.TimesOut(ownerAddress) }, maxDelay, maxDelay, maxDelay + connectTimeout, connectTimeout},
		"ends streams": {func(sim *testConsumer) {
			sim.serve(ownerAddress, func(rdpb.DiscoveryService_EstablishStreamServer) error {
				return status.Error(codes.Unavailable, "the catalog is not complete")
			})
		}, maxDelay, maxDelay, maxDelay, 0},
		"refuses after it timed out": {func(sim *testConsumer) {
			sim.TimesOut(ownerAddress)
			time.AfterFunc(outage-quickFor+time.Minute, func() { sim.Forget(ownerAddress, nil) })
		}, maxDelay, maxDelay, maxQuickDelay, connectTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
					tc.away(sim)
					sim.run(sim.config())
					time.Sleep(outage)
					sim.serve(ownerAddress, good)
					time.Sleep(5 * time.Minute)

					attempts := sim.Records("dialed")
					ceiling := time.Second
					for i := 1; i < len(attempts); i++ {
						limit := tc.early
						if attempts[i-1].At > early {
							limit = max(limit, tc.later)
						}
						ceiling = min(2*ceiling, limit)
						if delay := attempts[i].At - attempts[i-1].At; delay < time.Second || delay > ceiling+tc.takes {
							t.Errorf("delay %d, at %v, is %v, want 1s to %v", i, attempts[i].At, delay, ceiling)
						}
						if attempts[i-1].At > early {
							ceiling = limit
						}
					}
					if applied := sim.Records("applied"); len(applied) != 1 || applied[0].At > outage+tc.within {
						t.Errorf("owner came back after %v, applied %v", outage, applied)
					}
				})
			}
		})
	}
}

// For five seconds an address that refuses connections is tried every two at least, for ten
// minutes every five, and every fifteen after that. The ten minutes begin anew after another end.
func TestQuickDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, lost := sessionError{verdict: quick}, sessionError{verdict: retry}
		var r replica
		longest := func() (d time.Duration) {
			for range 1000 {
				d = max(d, r.noteEnd(refused))
			}
			return d.Round(time.Second)
		}
		if d := longest(); d != 2*time.Second {
			t.Errorf("at first the longest delay is %v", d)
		}
		time.Sleep(catalog.Grace)
		if d := longest(); d != maxQuickDelay {
			t.Errorf("after that the longest delay is %v", d)
		}
		time.Sleep(quickFor - catalog.Grace - 1)
		if d := longest(); d != maxQuickDelay {
			t.Errorf("after ten minutes the longest delay is %v", d)
		}
		time.Sleep(time.Nanosecond)
		if d := longest(); d != maxLaterDelay {
			t.Errorf("after more than ten minutes the longest delay is %v", d)
		}
		r.noteEnd(lost)
		if d := longest(); d != 2*time.Second {
			t.Errorf("after another end the longest delay is %v", d)
		}
		time.Sleep(quickFor)
		r.resetBackoff()
		if d := longest(); d != 2*time.Second {
			t.Errorf("after it was of use the longest delay is %v", d)
		}
	})
}

// A valid message makes the delays short again; an open stream does not, nor
// does a message that is refused.
func TestBackoffReset(t *testing.T) {
	for name, tc := range map[string]struct {
		event   wire.Event
		refuse  bool
		atLeast int // attempts in two minutes
		atMost  int
	}{
		"valid message":   {event: upsert("a"), atLeast: 60, atMost: 120},
		"refused message": {event: upsert("a"), refuse: true, atLeast: 5, atMost: 25},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				if tc.refuse {
					sim.apply = func(wire.Event) *federation.InvalidError { return &federation.InvalidError{Rule: "no"} }
				}
				sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
					session, err := subscription(stream)
					if err != nil {
						return err
					}
					_ = publish(stream, session, tc.event)
					return nil
				})
				sim.run(sim.config())
				time.Sleep(2 * time.Minute)
				if n := len(sim.Records("dialed")); n < tc.atLeast || n > tc.atMost {
					t.Errorf("%d attempts in two minutes, want %d to %d", n, tc.atLeast, tc.atMost)
				}
			})
		})
	}
}

// A change is no reason to come back earlier to an owner that is only away or busy.
func TestChangeShortensNoDelay(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		stop := sim.serve(ownerAddress, good)
		sim.run(sim.config())
		time.Sleep(time.Minute)
		stop()
		time.Sleep(time.Millisecond)
		sim.identity.Change()
		sim.serve(ownerAddress, busy(durationpb.New(2*time.Minute)))
		for range 100 {
			time.Sleep(time.Second)
			sim.identity.Change()
		}
		attempts := sim.Records("dialed")
		if n := len(attempts); n != 2 || attempts[1].At < time.Minute+minDelay {
			t.Errorf("lost after a minute, tried %d times, again after %v", n, attempts[n-1].At)
		}
		time.Sleep(5 * time.Minute)
		if n := len(sim.Records("dialed")); n < 3 || n > 5 {
			t.Errorf("%d attempts in seven minutes", n)
		}
	})
}

// New credentials make an attempt due where they may help, a second after the last one, and nowhere else.
func TestForgive(t *testing.T) {
	for verdict, helps := range map[retryVerdict]bool{retry: false, quick: false, calm: false, slow: true, park: true} {
		var r replica
		r.noteEnd(sessionError{verdict: verdict})
		r.due = r.failed.Add(2 * minDelay)
		if r.retryFixable(); r.nextAttempt().Equal(r.failed.Add(minDelay)) != helps || r.final {
			t.Errorf("after the verdict %d the next attempt is at %v", verdict, r.nextAttempt())
		}
	}
}

// oversized is a service whose message has that many bytes.
func oversized(t *testing.T, name string, size int) *rdpb.StreamResponse {
	t.Helper()
	event := upsert(name)
	response, err := wiretest.Response(event, "n", "")
	for err == nil && proto.Size(response) < size {
		missing := size - proto.Size(response)
		if missing > 100 {
			missing -= 50 // as lengths get longer with it
		}
		event.Service.Description += strings.Repeat("x", missing)
		response, err = wiretest.Response(event, "n", "")
	}
	if err != nil || proto.Size(response) != size {
		t.Fatalf("%d bytes, want %d: %v", proto.Size(response), size, err)
	}
	return response
}

// A service in a message that is too large is refused by its name and the rule, and nothing else
// suffers. One that is too large to be read ends the stream, and comes again on the next one: the
// whole catalog before it must not be fetched every second, nor is there a reason to give an owner
// up that can mend it.
func TestLargeMessages(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		const envelope = 5 // bytes of the message around the response
		streams := 0
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			session, err := subscription(stream)
			if err != nil {
				return err
			}
			if err := publish(stream, session, upsert("a")); err != nil {
				return err
			}
			if streams++; streams > 1 { // what gRPC says of the message is said again, at less cost
				return status.Error(codes.ResourceExhausted, "grpc: received message larger than max")
			}
			// The description is over a limit of its own, which comes later.
			request, err := exchange(stream, oversized(t, "big", wire.MaxMessageBytes+1))
			if err != nil {
				return err
			}
			sim.Record("said", request.GetStatus().GetMessage())
			withdrawn := oversized(t, "big", maxRead-envelope)
			withdrawn.Operation = rdpb.StreamResponse_DELETE
			if _, err = exchange(stream, withdrawn); err != nil {
				return err
			}
			return stream.Send(&rdpb.BidirectionalStream{Response: oversized(t, "big", maxRead)})
		})
		sim.run(sim.config())
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]string{"upsert a", "delete big", "upsert a"}, sim.Details("applied")[:3]); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		const want = `service "big": message of 16777217 bytes is larger than the 16777216 that are allowed`
		if said := sim.Details("said"); len(said) != 1 || !strings.HasPrefix(said[0], want) || !slices.Equal(sim.Details("refused"), []string{"limit"}) {
			t.Errorf("said %q, want %q; refused %v", said, want, sim.Details("refused"))
		}
		lost := sim.Details("lost")
		if len(lost) < 13 || len(lost) > 50 || slices.ContainsFunc(lost, func(s string) bool {
			return !strings.HasPrefix(s, "ResourceExhausted: grpc: received message larger than max")
		}) {
			t.Errorf("%d sessions were lost: %v", len(lost), slices.Compact(lost))
		}
		if lines := sim.Logged.Lines(); len(lines) != 3 || !strings.Contains(lines[2], "have the owner split the service") {
			t.Errorf("logged:\n%s", strings.Join(lines, ""))
		}
	})
}

// Over many retries the log has one line for each change.
func TestLog(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		stop := sim.serve(ownerAddress, good)
		config := sim.config()
		config.Addresses = []string{ownerAddress, "other.example:8008"}
		config.Logger = slog.New(slog.NewTextHandler(&sim.Logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
		sim.run(config)
		time.Sleep(time.Hour)
		stop()
		time.Sleep(30 * time.Minute)
		// Another reason, and one whose text changes each time.
		stop = sim.serve(ownerAddress, func(rdpb.DiscoveryService_EstablishStreamServer) error {
			return status.Errorf(codes.Unavailable, "it is %v", time.Now())
		})
		time.Sleep(30 * time.Minute)
		stop()
		sim.serve(ownerAddress, good)
		time.Sleep(time.Hour)

		if n := len(sim.Records("attempted")); n < 200 {
			t.Errorf("only %d attempts", n)
		}
		want := []string{
			"level=INFO msg=\"connected to owner\" address=owner.example:8008\n",
			"level=INFO msg=\"stream of owner has ended, opening another one\" address=owner.example:8008 error=\"Unavailable: ",
			"level=INFO msg=\"not connected to owner, still trying\" address=owner.example:8008 error=\"dial tcp: connection refused\" remedy=\"start the owner; if it runs, compare the address that it listens on with the address here\"\n",
			"level=INFO msg=\"not connected to owner, still trying\" address=other.example:8008 error=\"dial tcp: connection refused\" remedy=\"start the owner; if it runs, compare the address that it listens on with the address here\"\n",
			"level=DEBUG msg=\"owner is back\" address=owner.example:8008 after=1h0m",
		}
		lines := sim.Logged.Lines()
		if len(lines) != len(want) {
			t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), strings.Join(lines, ""))
		}
		for i := range want {
			if !strings.Contains(lines[i], want[i]) {
				t.Errorf("line %d is\n%swant\n%s", i, lines[i], want[i])
			}
		}
	})
}

// A catalog full of bad services is worth a line for each of the first, and a
// count of the others.
func TestLogOfRefusals(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			if _, err := subscription(stream); err != nil {
				return err
			}
			for i := range 1000 {
				id := fmt.Sprintf("service\x1b[31m %d", i)
				for _, response := range []*rdpb.StreamResponse{{ResourceId: id, Operation: rdpb.StreamResponse_UPSERT}, {ResourceId: id, Operation: 77}} {
					if _, err := exchange(stream, response); err != nil {
						return err
					}
				}
			}
			return silent(stream)
		})
		sim.run(sim.config())
		time.Sleep(2 * time.Minute)
		text := strings.Join(sim.Logged.Lines(), "")
		if n := strings.Count(text, "msg=\"message of owner refused\""); n != loglimit.PerMinute || len(sim.Records("refused")) != 2000 ||
			!strings.Contains(text, fmt.Sprintf("count=%d\n", 2000-loglimit.PerMinute)) || strings.Contains(text, "\x1b") {
			t.Errorf("logged:\n%s", text)
		}
	})
}

// Wherever it stands, Run ends at once, or soon where an owner has to end its
// stream, leaves no goroutine (the bubble sees to that), and tells nobody of a loss.
func TestStop(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(sim *testConsumer, config *Config)
		lost    int
		within  time.Duration // 0: at once
	}{
		"dialing": {func(_ *testConsumer, config *Config) {
			config.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}, 0, 0},
		"in the handshake": {func(sim *testConsumer, _ *Config) {
			sim.secure()
			sim.accept(ownerAddress, swallow)
		}, 0, 0},
		"in a silent stream": {func(sim *testConsumer, _ *Config) { sim.serve(ownerAddress, silent) }, 0, leaveTimeout},
		"in a stream in use": {func(sim *testConsumer, _ *Config) { sim.serve(ownerAddress, good) }, 0, leaveTimeout},
		"of an owner that goes as well": {func(sim *testConsumer, _ *Config) {
			sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
				for {
					if _, err := stream.Recv(); err != nil {
						return nil //nolint:nilerr // the consumer is gone
					}
				}
			})
		}, 0, 0},
		"in a flood": {func(sim *testConsumer, _ *Config) {
			sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
				for {
					if err := stream.Send(&rdpb.BidirectionalStream{Response: &rdpb.StreamResponse{}}); err != nil {
						return err
					}
				}
			})
		}, 0, leaveTimeout},
		"between attempts": {func(*testConsumer, *Config) {}, 1, 0},
		"parked": {func(sim *testConsumer, _ *Config) {
			sim.serve(ownerAddress, func(rdpb.DiscoveryService_EstablishStreamServer) error {
				return status.Error(codes.Unauthenticated, "who are you?")
			})
		}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				config := sim.config()
				tc.prepare(sim, &config)
				_, stop := sim.run(config)
				time.Sleep(500 * time.Millisecond)
				before := time.Now()
				stop()
				if took := time.Since(before); took > tc.within+10*time.Millisecond {
					t.Errorf("Run ended after %v", took)
				}
				if n := len(sim.Records("lost")) + len(sim.Records("parked")); n != tc.lost {
					t.Errorf("%d losses told, want %d", n, tc.lost)
				}
			})
		})
	}
}

// Somebody who wants an attempt gets one at once, whatever the consumer waits for, but no
// two of them in a second. Where the identity may be the reason, a change of it is a wish as well.
func TestRetry(t *testing.T) {
	for name, prepare := range map[string]func(sim *testConsumer){
		"after a backoff": func(sim *testConsumer) { sim.TimesOut(ownerAddress) },
		"parked": func(sim *testConsumer) {
			sim.serve(ownerAddress, func(rdpb.DiscoveryService_EstablishStreamServer) error {
				return status.Error(codes.Unauthenticated, "who are you?")
			})
		},
		"slow": func(sim *testConsumer) {
			sim.secure()
			sim.accept(ownerAddress, reply("HTTP/1.1 503 Service Unavailable\r\n\r\n"))
		},
		"busy": func(sim *testConsumer) { sim.serve(ownerAddress, busy(durationpb.New(4*time.Minute))) },
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				prepare(sim)
				c, _ := sim.run(sim.config())
				for _, wish := range []func(){c.RetryNow, sim.identity.Change} {
					var before, waits int
					for idle := time.Duration(0); idle < 5*time.Second; { // it waits for longer
						time.Sleep(time.Second)
						idle += time.Second
						if n := len(sim.Records("waiting")); n != waits || n < len(sim.Records("dialed")) {
							waits, idle = n, 0
						}
						before = len(sim.Records("dialed"))
					}
					for range 1000 {
						wish()
					}
					synctest.Wait()
					if n := len(sim.Records("dialed")); n != before+1 {
						t.Errorf("%d attempts, want one more than %d", n, before)
					}
					time.Sleep(connectTimeout + time.Millisecond)
					if name != "parked" && name != "slow" {
						break
					}
				}
				attempts := len(sim.Records("dialed"))
				for range 30 {
					c.RetryNow()
					time.Sleep(100 * time.Millisecond)
				}
				if n := len(sim.Records("dialed")); n > attempts+4 {
					t.Errorf("%d attempts in three seconds", n-attempts)
				}
			})
		})
	}
	t.Run("with a stream", func(t *testing.T) {
		simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
			stop := sim.serve(ownerAddress, good)
			c, _ := sim.run(sim.config())
			time.Sleep(time.Minute)
			c.RetryNow()
			time.Sleep(time.Minute)
			if n := len(sim.Records("dialed")); n != 1 || sim.Records("lost") != nil {
				t.Errorf("%d attempts, lost %v", n, sim.Records("lost"))
			}
			// What was asked for then is over when the stream is.
			stop()
			time.Sleep(maxQuickDelay)
			if attempts := sim.Records("dialed"); attempts[1].At < 2*time.Minute+minDelay {
				t.Errorf("lost after 2m, tried again after %v", attempts[1].At)
			}
		})
	})
}

// The observer learns of each wait, and of how long it is.
func TestWaiting(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.run(sim.config())
		time.Sleep(10 * time.Minute)
		dialed, waiting := sim.Records("dialed"), sim.Records("waiting")
		for i := 1; i < len(dialed); i++ {
			if d, err := time.ParseDuration(waiting[i-1].Detail); err != nil || waiting[i-1].At+d != dialed[i].At {
				t.Errorf("at %v it waits for %s, and goes on at %v", waiting[i-1].At, waiting[i-1].Detail, dialed[i].At)
			}
		}
		sim.serve(ownerAddress, func(rdpb.DiscoveryService_EstablishStreamServer) error {
			return status.Error(codes.Unauthenticated, "who are you?")
		})
		time.Sleep(time.Minute)
		if waiting := sim.Details("waiting"); waiting[len(waiting)-1] != "" {
			t.Errorf("parked, it waits for %s", waiting[len(waiting)-1])
		}
	})
}

// forbidding is an owner that refuses consumers, and says after what time they may come back.
func forbidding(t *testing.T, code codes.Code, after time.Duration) handler {
	t.Helper()
	s := must.Get(status.New(code, "who are you?").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)}))(t)
	return func(rdpb.DiscoveryService_EstablishStreamServer) error { return s.Err() }
}

// An owner that says that it may be tried again is, although it is parked: as often as it
// says, and without a line in the log for each time.
func TestParkedIsTriedAgain(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
			stop := sim.serve(ownerAddress, forbidding(t, codes.Unauthenticated, 4*time.Minute))
			sim.run(sim.config())
			time.Sleep(2 * time.Hour)
			attempts := sim.Records("dialed")
			for i := 1; i < len(attempts); i++ {
				if d := attempts[i].At - attempts[i-1].At; d < 4*time.Minute || d > 6*time.Minute {
					t.Errorf("attempt %d is after %v", i, d)
				}
			}
			if n := len(sim.Records("parked")); n != len(attempts) || n < 20 || sim.Records("lost") != nil {
				t.Errorf("%d attempts, %d parked, lost %v", len(attempts), n, sim.Details("lost"))
			}
			if lines := sim.Logged.Lines(); len(lines) != 1 || !strings.Contains(lines[0], "owner is parked: the next attempt is in some minutes") {
				t.Errorf("logged: %v", lines)
			}
			sim.identity.Change() // which is not made to wait
			synctest.Wait()
			if n := len(sim.Records("dialed")); n != len(attempts)+1 {
				t.Errorf("%d attempts at once after a change", n-len(attempts))
			}
			stop()
			sim.serve(ownerAddress, good)
			time.Sleep(6 * time.Minute)
			if applied := sim.Details("applied"); len(applied) != 1 {
				t.Errorf("applied: %v", applied)
			}
		})
	})
	t.Run("of two", func(t *testing.T) {
		simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
			sim.serve("a:1", forbidding(t, codes.Unauthenticated, 4*time.Minute))
			sim.serve("b:1", func(rdpb.DiscoveryService_EstablishStreamServer) error {
				return status.Error(codes.Unauthenticated, "who are you?")
			})
			config := sim.config()
			config.Addresses = []string{"a:1", "b:1"}
			sim.run(config)
			time.Sleep(time.Hour)
			n := make(map[string]int)
			for _, address := range sim.Details("dialed") {
				n[address]++
			}
			if n["b:1"] != 1 || n["a:1"] < 10 || n["a:1"] > 16 || len(sim.Records("lost")) != 1 {
				t.Errorf("attempts %v, lost %v", n, sim.Details("lost"))
			}
			if waiting := sim.Details("waiting"); waiting[len(waiting)-1] == "" {
				t.Error("it waits for a change")
			}
		})
	})
}
