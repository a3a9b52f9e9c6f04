package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
)

// holder is a sink that holds something.
type holder struct {
	*testConsumer

	digests  resume.Digests
	unwanted error // what Announced returns
}

func (h holder) HeldDigests(context.Context) resume.Digests { return h.digests }

func (h holder) AcceptHeader(_ context.Context, a Announcement) error {
	h.Record("announced", fmt.Sprintf("marked %v, resumed %v with %d of %d, through %v", a.Marked, a.Resumed, a.Whole.Len(), a.Whole.TotalBuckets(), a.Path))
	return h.unwanted
}

// held returns digests of some services.
func held() resume.Digests {
	var sum resume.CatalogSum
	for i := range 64 {
		sum.Add(fmt.Sprint("s", i), nil)
	}
	return sum.Digests().FoldTo(4)
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

// What the owner says of a part of its catalog is believed only where it makes sense.
func TestAnnouncement(t *testing.T) {
	digests := held()
	some := digests.DifferingBuckets(make(resume.Digests, 4)).Header()
	none := digests.DifferingBuckets(digests).Header()
	for name, tc := range map[string]struct {
		asked  resume.Digests
		header []string
		want   string // what is announced, or the beginning of why it makes no sense
	}{
		"nothing held":         {nil, nil, "whole, through []"},
		"nothing is said":      {digests, nil, "whole, through []"},
		"other words":          {digests, []string{wire.ResumeHeader, "declined"}, "whole, through []"},
		"some differ":          {digests, []string{wire.ResumeHeader, some}, "4 of 4, through []"},
		"none differ":          {digests, []string{wire.ResumeHeader, none}, "0 of 4, through []"},
		"with a path":          {digests, []string{wire.PathHeader, "a,b"}, "whole, through [a b]"},
		"with a path in parts": {digests, []string{wire.PathHeader, "a", wire.PathHeader, "b"}, "whole, through [a b]"},
		"with an odd path":     {digests, []string{wire.PathHeader, "a,,b"}, "whole, through []"},
		"marked twice":         {digests, []string{wire.CatalogEndHeader, "odd"}, "whole, through []"},
		"nothing was asked":    {nil, []string{wire.ResumeHeader, none}, "it accepts digests, but this consumer sent none"},
		"another number":       {digests, []string{wire.ResumeHeader, "accepted 8/AA"}, "it does not say that 4 digests are accepted"},
		"not base64":           {digests, []string{wire.ResumeHeader, "accepted 4/@@"}, "buckets: illegal base64"},
		"two answers":          {digests, []string{wire.ResumeHeader, none, wire.ResumeHeader, some}, "buckets: illegal base64"},
		"not marked":           {digests, []string{"-" + wire.CatalogEndHeader, "", wire.ResumeHeader, none}, "it accepts digests on a stream without an end marker"},
		"neither":              {digests, []string{"-" + wire.CatalogEndHeader, ""}, "whole, through [], not marked"},
		"odd mark":             {digests, []string{"-" + wire.CatalogEndHeader, "", wire.CatalogEndHeader, "odd"}, "whole, through [], not marked"},
	} {
		header := metadata.Pairs(tc.header...)
		if _, unmarked := header["-"+wire.CatalogEndHeader]; !unmarked {
			header.Append(wire.CatalogEndHeader, wire.CatalogEndMarked)
		}
		a := awaitHeader((&recorder{header: header}).stream(), tc.asked)
		got := fmt.Sprintf("whole, through %v", a.Path)
		if a.Resumed {
			got = fmt.Sprintf("%d of %d, through %v", a.Whole.Len(), a.Whole.TotalBuckets(), a.Path)
		}
		if !a.Marked {
			got += ", not marked"
		}
		if refused, ok := errors.AsType[*resumeError](a.accepts); ok {
			if got = refused.reason; refused.asked != (tc.asked != nil) || a.Resumed {
				t.Errorf("%s: %+v", name, refused)
			}
		}
		if !strings.HasPrefix(got, tc.want) || !a.header {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
	if a := awaitHeader((&recorder{fails: io.EOF}).stream(), digests); a.header || a.Marked {
		t.Errorf("without a header %+v is announced", a)
	}
}

// Of a stream whose header makes no sense nothing is applied, and the next one asks for
// everything. An owner that is mended within an hour resumes after it.
func TestAsksAgain(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		digests := held()
		stop := sim.serve(ownerAddress, sim.announcing(wire.CatalogEndHeader, wire.CatalogEndMarked, wire.ResumeHeader, "accepted"))
		config := sim.config()
		config.Sink = holder{testConsumer: sim, digests: digests}
		sim.run(config)
		time.Sleep(10 * time.Minute)
		if lost := sim.Details("lost"); !strings.HasPrefix(lost[0], "the owner's header federation-resume: ") || sim.Records("applied", "announced") != nil {
			t.Errorf("lost %v, and then %v", lost, sim.Records("applied", "announced"))
		}
		stop()
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			ctx, cancel := context.WithTimeout(stream.Context(), 20*time.Minute)
			defer cancel()
			asked, _ := metadata.FromIncomingContext(ctx)
			sim.Record("asked", strings.Join(asked.Get(wire.ResumeHeader), ","))
			<-ctx.Done()
			return nil
		})
		time.Sleep(80 * time.Minute)
		asked := sim.Details("asked")
		n := len(asked)
		if asked[0] != digests.Header() || asked[1] != "" || asked[n-1] != digests.Header() {
			t.Errorf("asked with %q", asked)
		}
	})
}

// A stream that the Sink does not want is tried again slowly, and logged once. One that it cannot
// take now is tried again like one that was lost.
func TestUnwanted(t *testing.T) {
	for name, tc := range map[string]struct {
		says            error
		atLeast, atMost int // streams in an hour
	}{
		"not wanted": {UnwantedError{errors.New("it is a loop")}, 12, 40},
		"not now":    {errors.New("it is a loop"), 60, 200},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				sim.serve(ownerAddress, sim.announcing(wire.PathHeader, "a"))
				config := sim.config()
				config.Sink = holder{testConsumer: sim, unwanted: tc.says}
				sim.run(config)
				time.Sleep(time.Hour)
				lost := sim.Details("lost")
				if n := len(lost); n < tc.atLeast || n > tc.atMost || sim.Records("applied", "parked") != nil {
					t.Errorf("%d streams were lost in an hour, and then %v", n, sim.Records("applied", "parked"))
				}
				if lost[0] != "header: it is a loop" && lost[0] != "Unknown: header: it is a loop" {
					t.Errorf("lost: %s", lost[0])
				}
				if lines := sim.Logged.Lines(); len(lines) != 1 || !strings.Contains(lines[0], "it is a loop") {
					t.Errorf("logged:\n%s", strings.Join(lines, ""))
				}
			})
		})
	}
}

// A peer for which the digests may be too much is asked without them.
func TestDigestsAreTooMuch(t *testing.T) {
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

// chooser is a sink that wants no stream whose path begins with "loop".
type chooser struct{ *testConsumer }

func (c chooser) AcceptHeader(_ context.Context, a Announcement) error {
	if len(a.Path) > 0 && a.Path[0] == "loop" {
		return UnwantedError{errors.New("it is a loop")}
	}
	return nil
}

// A replica is tried as soon, and as often, as it would be alone, although the one before
// it is not wanted, which alone is tried rarely.
func TestUnwantedBesideGood(t *testing.T) {
	for name, tc := range map[string]struct {
		first handler // of the good one, for a quarter of an hour; nil: it is away
		last  time.Duration
	}{
		"away":     {nil, maxDelay},
		"breaking": {func(rdpb.DiscoveryService_EstablishStreamServer) error { return status.Error(codes.Unavailable, "no") }, maxDelay},
		"busy":     {busy(durationpb.New(20 * time.Second)), 30*time.Second + maxDelay},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
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

// While one replica does not want to be tried, the other ones are: at once, and by the
// usual delays.
func TestRetryInfoOfReplica(t *testing.T) {
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

// The size of an update is that of what came, and one that is refused has the name of its service.
func TestReceived(t *testing.T) {
	m := &rdpb.StreamResponse{Nonce: "nonce", Resource: &anypb.Any{Value: []byte("value")}}
	var refusal error
	read := func() (Update, int) {
		return newUpdate(m, func(*rdpb.StreamResponse) (wire.Event, error) { return wire.Event{}, refusal })
	}
	if u, size := read(); size != len("noncevalue") || time.Since(u.Received) > time.Minute || u.Invalid != nil {
		t.Errorf("received %+v, %d", u, size)
	}
	refusal = &federation.InvalidError{Service: "a"}
	if u, _ := read(); u.Name != "a" || !errors.Is(u.Invalid, refusal) {
		t.Errorf("received %+v", u)
	}
}
