package owner

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// expectUnavailable checks that a stream has ended because its catalog is not available, and is
// not told why, nor of a loss but one so many seconds ago, but when to come back.
func expectUnavailable(t *testing.T, c *client, lost ...string) {
	t.Helper()
	const want = "the catalog is not available just now; the owner's status page and log say why"
	got := c.status()
	if got.Message() != want {
		t.Errorf("the stream ended with %v, expected Unavailable: %s", got, want)
	}
	if told := c.stream.Trailer().Get(wire.LostTrailer); !slices.Equal(told, lost) {
		t.Errorf("the stream ended with a loss %q seconds ago, expected %q", told, lost)
	}
	delayOf(t, got.Err())
}

// TestUnavailable makes the registry unavailable for streams in every state, and then
// available again:
//
//  1. Each of them ends without the reason: one that has everything, one whose window is
//     full, and those that have not sent their initial request, one of which resumes. It says since when the origin is
//     lost, where that is why.
//  2. New streams end as well, as Unavailable only where their consumers may subscribe.
//  3. What changes meanwhile is told to nobody, and to those that come afterwards.
func TestUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.Allow = []federation.ID{idOf(t, consumerID)} })
		set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1)})
		conn := f.dial(t, consumerID)
		synced, stuck, silent := subscribe(t, conn), subscribe(t, conn), open(t, conn)
		resumed := open(t, conn, resumes(t, map[string]*federation.Service{"a": service("a", 1)}, resume.Leaves)...)
		synced.nextN(3)
		stuck.receive()
		synctest.Wait()

		begun := time.Now()
		lost := begun.Add(-90*time.Second - time.Nanosecond)
		f.registry.SetUnavailable("the cluster is away", lost)
		f.registry.UpdateEncoded([]*wire.EncodedService{encoded(t, service("c", 1))}, []string{"a"})
		for _, c := range []*client{synced, stuck, silent, resumed} {
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
		if stats.Unavailable != "the cluster is not complete" || stats.Services != 2 || stats.Unsent != 0 || stats.Ended[codes.Unavailable] != 7 {
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

// TestStreamsEndForAMoment ends the stream of a registry that is available again before the
// stream has noticed, as it may have missed a change, and of one whose services come by another
// path.
func TestStreamsEndForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		conn := f.dial(t, consumerID)
		c := subscribe(t, conn)
		c.next()
		f.registry.SetUnavailable("a moment", time.Time{})
		f.registry.SetUnavailable("", time.Time{})
		expectUnavailable(t, c)
		c = subscribe(t, conn)
		c.next()
		must.Do(t, f.registry.SetPath(wire.OwnerPath{"origin"}))
		expectUnavailable(t, c)
		header, want := must.Get(subscribe(t, conn).stream.Header())(t), f.registry.Path().Header()
		if got := header.Get(wire.PathHeader); !slices.Equal(got, []string{want}) {
			t.Errorf("the header has the path %v, expected %s", got, want)
		}
	})
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
		resuming := resumes(t, services, resume.Leaves)
		awaiting := []string{wire.CatalogEndHeader, wire.CatalogEndAwaited}
		conn := f.dial(t, consumerID)
		expectUnavailable(t, subscribe(t, conn))
		expectUnavailable(t, subscribe(t, conn, slices.Concat(resuming, awaiting)...))
		fresh := subscribe(t, conn, awaiting...)
		if got, want := fresh.nextN(3), []string{"upsert s000 1", "upsert s001 1", "upsert s002 1"}; !cmp.Equal(want, got) {
			t.Errorf("a consumer that awaits the end is told %v, expected %v", got, want)
		}
		time.Sleep(sourcesTime + time.Nanosecond)
		expectUnavailable(t, subscribe(t, conn, resuming...)) // which does not await the end
		back := subscribe(t, conn, slices.Concat(resuming, awaiting)...)
		if header := must.Get(back.stream.Header())(t); len(header.Get(wire.ResumeHeader)) != 1 {
			t.Errorf("a consumer that resumes later gets the header %v", header)
		}
		upsert(t, f.registry, expressible("s001", 2))
		f.registry.SetComplete(true)
		for _, c := range []*client{fresh, back} {
			if got, want := c.nextN(2), []string{"upsert s001 2", "end"}; !cmp.Equal(want, got) {
				t.Errorf("a consumer is told %v when the catalog is complete, expected %v", got, want)
			}
		}
	})
}
