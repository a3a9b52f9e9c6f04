package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
)

// holder is the sink of a world that holds something.
type holder struct {
	*testConsumer

	digests  resume.Digests
	unwanted error // what Announced returns
}

func (h holder) Holds(context.Context) resume.Digests { return h.digests }

func (h holder) Announced(_ context.Context, a Announcement) error {
	h.Record("announced", fmt.Sprintf("marked %v, resumed %v with %d of %d, through %v", a.Marked, a.Resumed, a.Whole.Len(), a.Whole.Of(), a.Path))
	return h.unwanted
}

// held returns digests of some services.
func held() resume.Digests {
	var sum resume.Sum
	for i := range 64 {
		sum.Add(fmt.Sprint("s", i), nil)
	}
	return sum.Digests().Fold(4)
}

// announcing is an owner that sends the header, and what it says to those that hold
// something, and then one service and the end.
func (sim *testConsumer) announcing(header ...string) handler {
	return func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
		session, err := subscription(stream)
		if err != nil {
			return err
		}
		asked, _ := metadata.FromIncomingContext(stream.Context())
		sim.Record("asked", strings.Join(asked.Get(wire.ResumeHeader), ","))
		if err := stream.SendHeader(metadata.Pairs(header...)); err != nil {
			return err
		}
		if err := publish(stream, session, upsert("a")); err != nil {
			return err
		}
		return silent(stream)
	}
}

// What the owner says of a part of its catalog is believed only where it makes sense. Of
// a stream on which it makes none nothing is applied; the next one asks for everything.
func TestAccepted(t *testing.T) {
	t.Parallel()
	digests := held()
	some := digests.Differ(make(resume.Digests, 4))
	none := digests.Differ(digests)
	marked := []string{wire.CatalogEndHeader, wire.CatalogEndMarked}
	const whole = "marked true, resumed false with 0 of 0, through []"
	const once = "the owner's header federation-resume: "
	for name, tc := range map[string]struct {
		holds     resume.Digests
		header    []string
		announced string // the first; "" for none
		lost      string // why the first stream is lost
		attempts  [2]int // in an hour
	}{
		"nothing held":         {nil, nil, whole, "", [2]int{1, 1}},
		"nothing is said":      {digests, nil, whole, "", [2]int{1, 1}},
		"other words":          {digests, []string{wire.ResumeHeader, "declined"}, whole, "", [2]int{1, 1}},
		"some differ":          {digests, []string{wire.ResumeHeader, some.Header()}, "marked true, resumed true with 4 of 4, through []", "", [2]int{1, 1}},
		"none differ":          {digests, []string{wire.ResumeHeader, none.Header()}, "marked true, resumed true with 0 of 4, through []", "", [2]int{1, 1}},
		"with a path":          {digests, []string{wire.PathHeader, "a,b"}, "marked true, resumed false with 0 of 0, through [a b]", "", [2]int{1, 1}},
		"with a path in parts": {digests, []string{wire.PathHeader, "a", wire.PathHeader, "b"}, "marked true, resumed false with 0 of 0, through [a b]", "", [2]int{1, 1}},
		"with an odd path":     {digests, []string{wire.PathHeader, "a,,b"}, whole, "", [2]int{1, 1}},
		"nothing was asked":    {nil, []string{wire.ResumeHeader, none.Header()}, "", once + "it accepts digests, of which none were sent", [2]int{12, 60}},
		"another number": {
			digests, []string{wire.ResumeHeader, "accepted 8/AA"}, "", once + "it does not say that 4 digests are accepted", [2]int{2, 60},
		},
		"not base64":  {digests, []string{wire.ResumeHeader, "accepted 4/@@"}, "", once + "buckets: illegal base64", [2]int{2, 60}},
		"two answers": {digests, []string{wire.ResumeHeader, none.Header(), wire.ResumeHeader, some.Header()}, "", once + "buckets: illegal base64", [2]int{2, 60}},
		"not marked": {
			digests,
			[]string{wire.CatalogEndHeader, "odd", wire.ResumeHeader, none.Header()},
			"",
			once + "it accepts digests on a stream without an end marker",
			[2]int{2, 60},
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				header := tc.header
				if !slices.Contains(header, wire.CatalogEndHeader) {
					header = slices.Concat(marked, header)
				}
				sim.serve(ownerAddress, sim.announcing(header...))
				config := sim.config()
				config.Sink = holder{testConsumer: sim, digests: tc.holds}
				sim.run(config)
				time.Sleep(59 * time.Minute)
				synctest.Wait()
				if n := len(sim.Records("attempted")); n < tc.attempts[0] || n > tc.attempts[1] {
					t.Errorf("%d attempts in an hour, want %v", n, tc.attempts)
				}
				asked := sim.Details("asked")
				if asked[0] != tc.holds.Header() {
					t.Errorf("asked with %q, want %q", asked[0], tc.holds.Header())
				}
				var first string
				if announced := sim.Details("announced"); len(announced) > 0 {
					first = announced[0]
				}
				if first != tc.announced {
					t.Errorf("announced %q, want %q", first, tc.announced)
				}
				lost := sim.Details("lost")
				if tc.lost == "" {
					if lost != nil || len(sim.Details("applied")) != 1 {
						t.Errorf("lost %v, applied %v", lost, sim.Details("applied"))
					}
					return
				}
				if len(lost) == 0 || !strings.HasPrefix(lost[0], tc.lost) || sim.Details("applied") != nil {
					t.Errorf("lost %v, want %q; applied %v", lost, tc.lost, sim.Details("applied"))
				}
				for _, header := range asked[1:] {
					if header != "" {
						t.Errorf("asked once more with %q", header)
					}
				}
				if lines := sim.Logged.Lines(); len(lines) > 2 {
					t.Errorf("logged:\n%s", strings.Join(lines, ""))
				}
			})
		})
	}
}

// An owner that is mended within an hour resumes after it.
func TestAsksAgain(t *testing.T) {
	t.Parallel()
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		digests := held()
		stop := sim.serve(ownerAddress, sim.announcing(wire.CatalogEndHeader, wire.CatalogEndMarked, wire.ResumeHeader, "accepted"))
		config := sim.config()
		config.Sink = holder{testConsumer: sim, digests: digests}
		sim.run(config)
		time.Sleep(30 * time.Minute)
		stop()
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			ctx, cancel := context.WithTimeout(stream.Context(), 20*time.Minute)
			defer cancel()
			asked, _ := metadata.FromIncomingContext(ctx)
			sim.Record("asked", strings.Join(asked.Get(wire.ResumeHeader), ","))
			<-ctx.Done()
			return nil
		})
		time.Sleep(time.Hour)
		asked := sim.Details("asked")
		n := len(asked)
		if asked[0] == "" || asked[1] != "" || asked[n-1] != digests.Header() {
			t.Errorf("asked with %q", asked)
		}
	})
}

// A peer for which the digests may be too much is asked without them.
func TestDigestsAreTooMuch(t *testing.T) {
	t.Parallel()
	for code, want := range map[codes.Code]bool{codes.Internal: false, codes.Unknown: false, codes.ResourceExhausted: false, codes.Unavailable: true} {
		simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
			sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
				asked, _ := metadata.FromIncomingContext(stream.Context())
				if asked.Get(wire.ResumeHeader) != nil {
					sim.Record("asked", "")
					return status.Error(code, "431")
				}
				return good(stream)
			})
			config := sim.config()
			config.Sink = holder{testConsumer: sim, digests: held()}
			sim.run(config)
			time.Sleep(time.Minute)
			if asked := len(sim.Records("asked")); asked > 1 != want {
				t.Errorf("%v: asked %d times, applied %v", code, asked, sim.Details("applied"))
			}
			for _, announced := range sim.Details("announced") {
				if want {
					t.Errorf("%v: announced %s by a stream without a header", code, announced)
				}
			}
		})
	}
}

// A stream that the Sink does not want is tried again slowly, and logged once.
func TestUnwanted(t *testing.T) {
	t.Parallel()
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve(ownerAddress, sim.announcing(wire.PathHeader, "a"))
		config := sim.config()
		config.Sink = holder{testConsumer: sim, unwanted: UnwantedError{errors.New("it is a loop")}}
		sim.run(config)
		time.Sleep(2 * time.Hour)
		if n := len(sim.Records("lost")); n < 24 || n > 80 || sim.Records("applied") != nil || sim.Records("parked") != nil {
			t.Errorf("%d streams were lost in two hours, applied %v, parked %v", n, sim.Records("applied"), sim.Records("parked"))
		}
		if lost := sim.Details("lost"); lost[0] != "header: it is a loop" {
			t.Errorf("lost: %s", lost[0])
		}
		if lines := sim.Logged.Lines(); len(lines) != 1 || !strings.Contains(lines[0], "it is a loop") {
			t.Errorf("logged:\n%s", strings.Join(lines, ""))
		}
	})
}

// A stream that the Sink cannot take now is tried again like one that was lost.
func TestNotTaken(t *testing.T) {
	t.Parallel()
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve(ownerAddress, sim.announcing(wire.PathHeader, "a"))
		config := sim.config()
		config.Sink = holder{testConsumer: sim, unwanted: errors.New("something has changed")}
		sim.run(config)
		time.Sleep(2 * time.Hour)
		if n := len(sim.Records("lost")); n < 120 || sim.Records("parked") != nil {
			t.Errorf("%d streams were lost in two hours, expected one a minute at least; parked %v", n, sim.Records("parked"))
		}
	})
}

// chooser is the sink of a world that wants no stream whose path begins with "loop".
type chooser struct{ *testConsumer }

func (c chooser) Announced(_ context.Context, a Announcement) error {
	if len(a.Path) > 0 && a.Path[0] == "loop" {
		return UnwantedError{errors.New("it is a loop")}
	}
	return nil
}

// A replica is tried as soon, and as often, as it would be alone, although the one before
// it is not wanted, which alone is tried rarely.
func TestUnwantedBesideGood(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		first handler // of the good one, for a quarter of an hour; nil: it is away
		last  time.Duration
	}{
		"away":     {nil, maxDelay},
		"breaking": {func(rdpb.DiscoveryService_EstablishStreamServer) error { return status.Error(codes.Unavailable, "no") }, maxDelay},
		"busy":     {busy(durationpb.New(20 * time.Second)), 30*time.Second + maxDelay},
	} {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
					sim.serve("a:1", sim.announcing(wire.PathHeader, "loop"))
					stop := func() {}
					if tc.first != nil {
						stop = sim.serve("b:1", tc.first)
					}
					config := sim.config()
					config.Addresses, config.Sink = []string{"a:1", "b:1"}, chooser{sim}
					sim.run(config)
					time.Sleep(15 * time.Minute)
					stop()
					stop = sim.serve("b:1", good)
					time.Sleep(tc.last + time.Second)
					if len(sim.Records("applied")) != 1 {
						t.Fatalf("the good replica is not in use; dialed %v", sim.Records("dialed"))
					}
					dialed := len(sim.Records("dialed"))
					stop() // a stream that was of use is lost
					sim.serve("b:1", good)
					time.Sleep(3 * time.Second)
					if got := sim.Details("dialed")[dialed:]; len(sim.Records("applied")) != 2 || !slices.Equal(got, []string{"b:1"}) {
						t.Errorf("after the loss %v were dialed", got)
					}
				})
			}
		})
	}
}

// busy is an owner that asks not to be tried for a while.
func busy(after *durationpb.Duration) handler {
	return func(rdpb.DiscoveryService_EstablishStreamServer) error {
		s, err := status.New(codes.Unavailable, "too many").WithDetails(&errdetails.RetryInfo{RetryDelay: after})
		if err != nil {
			return err
		}
		return s.Err()
	}
}

// An owner that asks not to be tried for a while is not, up to a bound, and those that
// are asked the same do not come back together.
func TestRetryInfo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		after           *durationpb.Duration
		atLeast, atMost time.Duration // between the first two attempts
	}{
		"a minute":     {durationpb.New(time.Minute), time.Minute, 75 * time.Second},
		"an instant":   {durationpb.New(time.Millisecond), time.Second, time.Second},
		"a year":       {durationpb.New(365 * 24 * time.Hour), maxSlowDelay, maxSlowDelay * 5 / 4},
		"in the past":  {durationpb.New(-time.Hour), time.Second, 2 * time.Second},
		"out of range": {&durationpb.Duration{Seconds: 1 << 62}, time.Second, 2 * time.Second},
		"contradicted": {&durationpb.Duration{Seconds: 60, Nanos: -1}, time.Second, 2 * time.Second},
		"nothing":      {nil, time.Second, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			delays := make(map[time.Duration]bool)
			for range 10 {
				simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
					sim.serve(ownerAddress, busy(tc.after))
					sim.run(sim.config())
					time.Sleep(tc.atMost + time.Second)
					dialed := sim.Records("dialed")
					if len(dialed) < 2 {
						t.Fatal("there is no second attempt")
					}
					delay := dialed[1].At - dialed[0].At
					delays[delay] = true
					if delay < tc.atLeast || delay > tc.atMost+time.Millisecond {
						t.Errorf("the second attempt is after %v, want %v to %v", delay, tc.atLeast, tc.atMost)
					}
				})
			}
			if len(delays) < 5 && tc.atMost > tc.atLeast {
				t.Errorf("the delays are %v", delays)
			}
		})
	}
}

// While one replica does not want to be tried, the other ones are: at once, and by the
// usual delays.
func TestRetryInfoOfReplica(t *testing.T) {
	t.Parallel()
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve("a:1", busy(durationpb.New(4*time.Minute)))
		config := sim.config()
		config.Addresses = []string{"a:1", "b:1"}
		sim.run(config)
		time.Sleep(2 * time.Minute)
		dialed := sim.Records("dialed")
		if dialed[0].Detail != "a:1" || dialed[1].Detail != "b:1" || dialed[1].At-dialed[0].At > time.Millisecond {
			t.Errorf("dialed %v", dialed)
		}
		if n := strings.Count(strings.Join(sim.Details("dialed"), " "), "a:1"); n != 1 || len(dialed) < 6 {
			t.Errorf("%d attempts with the one that is busy, of %d", n, len(dialed))
		}
		sim.serve("b:1", good)
		time.Sleep(time.Minute)
		if len(sim.Records("applied")) != 1 {
			t.Error("the other replica is not in use")
		}
	})
}

// New credentials do not make a busy owner be tried earlier, nor all the time.
func TestRetryInfoAndCredentials(t *testing.T) {
	t.Parallel()
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve(ownerAddress, busy(durationpb.New(2*time.Minute)))
		sim.run(sim.config())
		for range 100 {
			time.Sleep(time.Second)
			sim.identity.Change()
		}
		if n := len(sim.Records("dialed")); n != 1 {
			t.Errorf("%d attempts", n)
		}
		time.Sleep(5 * time.Minute)
		if n := len(sim.Records("dialed")); n < 2 || n > 4 {
			t.Errorf("%d attempts in seven minutes", n)
		}
	})
}

// The size of an update is that of what came, and one that is refused has the name of its service.
func TestReceived(t *testing.T) {
	t.Parallel()
	s := upsert("a")
	at := time.Now()
	u, size, err := received(at, "nonce", []byte("value"), s, nil)
	if size != len("noncevalue") || !u.Received.Equal(at) || err != nil {
		t.Errorf("received %+v, %d, %v", u, size, err)
	}
	if u, _, _ := received(time.Time{}, "", []byte("value"), federation.Event{}, &federation.InvalidError{Service: "a"}); u.Name != "a" || u.Invalid == nil {
		t.Errorf("received %+v", u)
	}
}
