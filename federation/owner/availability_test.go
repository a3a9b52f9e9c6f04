package owner

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// expectUnavailable checks that a stream has ended because its catalog is not
// available, and is not told why.
func expectUnavailable(tb testing.TB, c *client) {
	tb.Helper()
	const want = "the catalog is not available just now; the owner's status page and log say why"
	if got := c.status(); got.Code() != codes.Unavailable || got.Message() != want {
		tb.Errorf("the stream ended with %v, expected Unavailable: %s", got, want)
	}
}

// TestUnavailable makes the registry unavailable for streams in every state, and then
// available again:
//
//  1. Each of them ends without the reason: one that has everything, one whose window is
//     full, and one that has not sent its initial request.
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
		f.registry.SetUnavailable("the cluster is away")
		f.registry.UpdateEncoded([]*wire.Encoded{encoded(t, service("c", 1))}, []string{"a"})
		for _, c := range []*client{synced, stuck, silent} {
			expectUnavailable(t, c)
		}
		expectUnavailable(t, open(t, conn))
		f.registry.SetUnavailable("the cluster is not complete")
		expectUnavailable(t, subscribe(t, conn))
		if got := subscribe(t, f.dial(t, strangerID)).status().Code(); got != codes.Unauthenticated {
			t.Errorf("a stranger got %v, expected Unauthenticated", got)
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("the streams ended after %v, expected at once", took)
		}
		stats := f.server.Stats().Catalogs[""]
		if stats.Unavailable != "the cluster is not complete" || stats.Services != 2 || stats.Unsent != 0 || stats.Ended[codes.Unavailable] != 5 {
			t.Errorf("unexpected figures %+v", stats)
		}

		f.registry.SetUnavailable("")
		f.registry.SetUnavailable("") // is no other availability
		c := subscribe(t, conn)
		if diff := cmp.Diff([]string{"upsert b 1", "upsert c 1", "end"}, c.nextN(3)); diff != "" {
			t.Errorf("unexpected catalog (-want +got):\n%s", diff)
		}
		f.registry.SetUnavailable("")
		upsert(t, f.registry, service("d", 1))
		if got := c.next(); got != "upsert d 1" {
			t.Errorf("the next event is %s, expected upsert d 1", got)
		}
	})
}

// TestUnavailableForAMoment makes the registry available again before any stream has
// noticed. The streams end all the same: they may have missed a change.
func TestUnavailableForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		c := subscribe(t, f.dial(t, consumerID))
		c.next()
		f.registry.SetUnavailable("a moment")
		f.registry.SetUnavailable("")
		expectUnavailable(t, c)
	})
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
			f.registry.SetUnavailable("half")
			f.registry.SetEncoded(first)
			f.registry.UpdateEncoded(second, nil)
			f.registry.SetUnavailable("")
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
				event, err := wire.Decode(response, wire.Policy{})
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

// patient opens a stream that outlasts that the catalog is unavailable, and sends the initial
// request. The pairs are further metadata.
func patient(tb testing.TB, conn *grpc.ClientConn, pairs ...string) *client {
	tb.Helper()
	ctx := metadata.AppendToOutgoingContext(tb.Context(), append(pairs, wire.AvailabilityHeader, wire.AvailabilityTold)...)
	c := &client{tb, must.Get(rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx))(tb)}
	c.request(wire.Subscribe("session"))
	return c
}

// TestPatient keeps the streams of consumers that understand that the catalog is unavailable:
// they are told that, and later what has changed.
func TestPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		a, b := service("a", 1), service("b", 1)
		set(t, f.registry, []*federation.Service{a, b})
		conn := f.dial(t, consumerID)
		before := patient(t, conn)
		before.nextN(3)

		f.registry.SetUnavailable("the cluster is away")
		if got := before.next(); got != "unavailable" {
			t.Errorf("the consumer is told %q", got)
		}
		f.registry.UpdateEncoded([]*wire.Encoded{encoded(t, service("c", 1))}, []string{"a"})
		f.registry.SetUnavailable("the cluster is not complete")
		fresh := patient(t, conn)
		held := patient(t, conn, wire.ResumeHeader, registrytest.SumOf(t, registrytest.Plain, map[string]*federation.Service{"a": a, "b": b}).Header())
		for _, c := range []*client{fresh, held} {
			header := must.Get(c.stream.Header())(t)
			if waits := header.Get(wire.AvailabilityHeader); len(waits) != 1 || waits[0] != wire.AvailabilityWaiting || len(header.Get(wire.PathHeader)) > 0 {
				t.Errorf("the header is %v", header)
			}
		}
		time.Sleep(time.Hour)
		if s := f.server.Stats().Catalogs[""]; !s.Oldest.IsZero() || s.Unsent != 0 || len(s.Ended) > 0 {
			t.Errorf("unexpected figures %+v", s)
		}

		must.Do(t, f.registry.SetPath(wire.Path{"origin"}))
		f.registry.SetUnavailable("")
		now := "available " + f.registry.Path().Header()
		for name, tc := range map[string]struct {
			client *client
			want   []string
		}{
			"before": {before, []string{now, "upsert c 1", "delete a", "end"}},
			"fresh":  {fresh, []string{now, "upsert b 1", "upsert c 1", "end"}},
			"held":   {held, []string{now + " accepted", "upsert c 1", "end"}},
		} {
			got := tc.client.nextN(len(tc.want))
			if name == "held" { // the selection has its own tests
				got[0], _, _ = strings.Cut(got[0], "accepted")
				got[0] += "accepted"
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: unexpected messages (-want +got):\n%s", name, diff)
			}
		}
		synctest.Wait()
		if s := f.server.Stats().Catalogs[""]; !s.Oldest.IsZero() || s.Unsent != 0 {
			t.Errorf("unexpected figures %+v", s)
		}

		must.Do(t, f.registry.SetPath(wire.Path{"origin", "another"}))
		if got, want := before.next(), "available "+f.registry.Path().Header(); got != want {
			t.Errorf("the consumer is told %q, expected %q", got, want)
		}
	})
}
