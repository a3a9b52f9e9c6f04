package owner

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// expectUnavailable checks that a stream has ended because its catalog is not available, and is
// not told why, nor of a loss but one so many seconds ago. It returns when the consumer is to come
// back.
func expectUnavailable(t *testing.T, c *client, lost ...string) time.Duration {
	t.Helper()
	const want = "the catalog is not available just now; the owner's status page and log say why"
	got := c.status()
	if got.Message() != want {
		t.Errorf("the stream ended with %v, expected Unavailable: %s", got, want)
	}
	if told := c.stream.Trailer().Get(wire.LostTrailer); !slices.Equal(told, lost) {
		t.Errorf("the stream ended with a loss %q seconds ago, expected %q", told, lost)
	}
	return delayOf(t, got.Err())
}

// TestUnavailable makes the registry unavailable for streams in every state, and then
// available again:
//
//  1. Each of them ends without the reason: one that has everything, one whose window is
//     full, and one that has not sent its initial request. It says since when the origin is
//     lost, where that is why.
//  2. New streams end as well, as Unavailable only where their consumers may subscribe.
//  3. What changes meanwhile is told to nobody, and to those that come afterwards.
func TestUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.Allow = []federation.ID{idOf(t, consumerID)} })
		set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1)})
		conn := f.dial(t, consumerID)
		synced, stuck, silent := subscribe(t, conn), subscribe(t, conn), open(t, conn)
		synced.nextN(3)
		stuck.receive()
		synctest.Wait()

		begun := time.Now()
		lost := begun.Add(-90*time.Second - time.Nanosecond)
		f.registry.SetUnavailable("the cluster is away", lost)
		f.registry.UpdateEncoded([]*wire.Encoded{encoded(t, service("c", 1))}, []string{"a"})
		for _, c := range []*client{synced, stuck, silent} {
			expectUnavailable(t, c, "90")
		}
		expectUnavailable(t, open(t, conn), "90")
		f.registry.SetUnavailable("the cluster is away", lost.Add(-time.Second))
		expectUnavailable(t, subscribe(t, conn), "91")
		f.registry.SetUnavailable("the cluster is not complete", time.Time{})
		expectUnavailable(t, subscribe(t, conn))
		if got := subscribe(t, f.dial(t, strangerID)).status().Code(); got != codes.Unauthenticated {
			t.Errorf("a stranger got %v, expected Unauthenticated", got)
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("the streams ended after %v, expected at once", took)
		}
		stats := f.server.Stats().Catalogs[""]
		if stats.Unavailable != "the cluster is not complete" || stats.Services != 2 || stats.Unsent != 0 || stats.Ended[codes.Unavailable] != 6 {
			t.Errorf("unexpected figures %+v", stats)
		}

		f.registry.SetUnavailable("", time.Time{})
		f.registry.SetUnavailable("", time.Time{}) // is no other availability
		c := subscribe(t, conn)
		if diff := cmp.Diff([]string{"upsert b 1", "upsert c 1", "end"}, c.nextN(3)); diff != "" {
			t.Errorf("unexpected catalog (-want +got):\n%s", diff)
		}
		f.registry.SetUnavailable("", time.Time{})
		upsert(t, f.registry, service("d", 1))
		if got := c.next(); got != "upsert d 1" {
			t.Errorf("the next event is %s, expected upsert d 1", got)
		}
	})
}

// TestStreamsEndForAMoment ends streams of a registry that is available again before any of
// them has noticed, as they may have missed a change, and of one whose services come by another
// path. The consumers come back one after the other.
func TestStreamsEndForAMoment(t *testing.T) {
	for name, do := range map[string]func(r *registry.Registry) error{
		"unavailable": func(r *registry.Registry) error {
			r.SetUnavailable("a moment", time.Time{})
			r.SetUnavailable("", time.Time{})
			return nil
		},
		"another path": func(r *registry.Registry) error { return r.SetPath(wire.Path{"origin"}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, nil)
				all := make([]*client, 2*consumersPerSecond)
				var conn *grpc.ClientConn
				for i := range all {
					if i%8 == 0 {
						conn = f.dial(t, consumerID)
					}
					all[i] = subscribe(t, conn)
					all[i].next()
				}
				must.Do(t, do(f.registry))
				halves := [2]int{}
				for _, c := range all {
					delay := expectUnavailable(t, c) - time.Second
					if delay < 0 || delay > 2*time.Second {
						t.Fatalf("one of %d consumers comes back after a second and %v", len(all), delay)
					}
					halves[int(delay/time.Second)%2]++
				}
				if halves[0] < 400 || halves[1] < 400 {
					t.Errorf("in each second %v consumers come back", halves)
				}
				if got, want := must.Get(subscribe(t, conn).stream.Header())(t), f.registry.Path().Header(); !slices.Equal(got.Get(wire.PathHeader), []string{want}) {
					t.Errorf("the header is %v, expected the path %s", got, want)
				}
			})
		})
	}
}

// TestNoHalfOfACatalogIsTold turns a registry over for each catalog that a consumer gets:
// while it is unavailable it holds a half of the next catalog. Subscribers and streams
// that come at any time get the end marker after whole catalogs only.
func TestNoHalfOfACatalogIsTold(t *testing.T) {
	const services, whole = 40, 300
	f := start(t, func(c *Config) { c.Window = 16 })
	halves := func(version int) (first, second []*wire.Encoded) {
		for i := range services {
			e := encoded(t, service(fmt.Sprintf("s%d", i), version))
			if i%2 == 0 {
				first = append(first, e)
			} else {
				second = append(second, e)
			}
		}
		return first, second
	}
	first, second := halves(0)
	f.registry.UpdateEncoded(append(first, second...), nil)

	ctx, cancel := context.WithCancel(t.Context())
	var turning, consumers sync.WaitGroup
	turns := make(chan struct{}, 1) // has a token when a consumer has got a catalog
	turn := func() {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
		}
	}
	turning.Go(func() {
		for version := 1; ; version++ {
			select {
			case <-turns:
			case <-ctx.Done():
				return
			}
			first, second := halves(version)
			var others []string
			for _, s := range second {
				others = append(others, s.Name())
			}
			f.registry.SetUnavailable("half", time.Time{})
			f.registry.UpdateEncoded(first, others)
			f.registry.UpdateEncoded(second, nil)
			f.registry.SetUnavailable("", time.Time{})
		}
	})
	// check takes the services up to the end marker, by version.
	check := func(versions map[string]int) {
		if len(versions) != 1 {
			t.Errorf("a catalog had services by version %v, expected one version", versions)
		}
		for version, n := range versions {
			if n != services {
				t.Errorf("a catalog had %d services of version %s, expected %d", n, version, services)
			}
		}
	}
	consumers.Go(func() {
		for got := 0; got < whole; {
			s := f.registry.Subscribe()
			versions := make(map[string]int)
			for {
				e, err := s.Next(ctx)
				if err != nil {
					break
				}
				if e.Operation == federation.End {
					check(versions)
					got++
					turn()
					break
				}
				versions[e.Service.Description]++
			}
			s.Close()
		}
	})
	conn := f.dial(t, consumerID)
	consumers.Go(func() {
		for got := 0; got < whole/10; {
			c := subscribe(t, conn)
			versions := make(map[string]int)
			for {
				m, err := c.stream.Recv()
				if status.Code(err) == codes.Unavailable {
					break
				}
				if err != nil {
					t.Errorf("the stream ended with %v, expected Unavailable", err)
					return
				}
				response := m.GetResponse()
				c.request(wire.Ack(response.GetNonce(), response.GetContext()))
				event, err := wire.Decode(response)
				if err != nil {
					t.Error(err)
					return
				}
				if event.Service == nil {
					check(versions)
					got++
					turn()
					if err := c.stream.CloseSend(); err != nil {
						t.Error(err)
					}
					c.status()
					break
				}
				versions[event.Service.Description]++
			}
		}
	})
	consumers.Wait()
	cancel()
	turning.Wait()
}

// TestIncomplete opens streams while the catalog is not complete: a consumer that awaits the end
// is told what there is, and one that resumes too, once the sources had time to say what they
// have. Others come back.
func TestIncomplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.registry.SetComplete(false)
		services := expressibles(3)
		for _, s := range services {
			upsert(t, f.registry, s)
		}
		resuming := []string{wire.ResumeHeader, registrytest.SumOf(t, registrytest.Plain, services).Header()}
		awaiting := []string{wire.CatalogEndHeader, wire.CatalogEndAwaited}
		listen := func(pairs ...string) *receiver {
			return listen(t, f, []federation.ID{idOf(t, consumerID)}, wire.V1Alpha2, pairs...)
		}
		expectUnavailable(t, subscribe(t, f.dial(t, consumerID)))
		ends := func(who string, pairs ...string) {
			t.Helper()
			if _, _, err := listen(pairs...).receive(); status.Code(err) != codes.Unavailable {
				t.Errorf("a consumer that %s gets %v, expected Unavailable", who, err)
			}
		}
		ends("resumes at the start", slices.Concat(resuming, awaiting)...)
		fresh := listen(awaiting...)
		if got, want := fresh.nextN(t, 3), []string{"upsert s000 1", "upsert s001 1", "upsert s002 1"}; !cmp.Equal(want, got) {
			t.Errorf("a consumer that awaits the end is told %v, expected %v", got, want)
		}
		time.Sleep(sourcesTime + time.Nanosecond)
		ends("resumes and does not await the end", resuming...)
		back := listen(slices.Concat(resuming, awaiting)...)
		if header, err := back.header(); err != nil || len(header.Get(wire.ResumeHeader)) != 1 {
			t.Errorf("a consumer that resumes later gets the header %v, %v", header, err)
		}
		upsert(t, f.registry, expressible("s001", 2))
		f.registry.SetComplete(true)
		for _, l := range []*receiver{fresh, back} {
			if got, want := l.nextN(t, 2), []string{"upsert s001 2", "end"}; !cmp.Equal(want, got) {
				t.Errorf("a consumer is told %v when the catalog is complete, expected %v", got, want)
			}
		}
	})
}
