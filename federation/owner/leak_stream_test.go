package owner

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/policy/policytest"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// receiver is a consumer on a stream. It may be slow, and then receives only when it may.
type receiver struct {
	registrytest.Holder

	version wire.Version
	receive func() (event federation.Event, acknowledge func(), err error)
	may     chan struct{} // nil unless it is slow

	received []federation.Event // since they were looked at
	over     error              // why the stream has ended; nil while it is open

	header    func() (metadata.MD, error)
	closeSend func() error
}

// listen opens a stream of a consumer, with these pairs in its header.
func listen(t testing.TB, f *fixture, ids []federation.ID, version wire.Version, pairs ...string) *receiver {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(t.Context(), pairs...)
	leaf := mtls.Leaf{Name: "test"}
	for _, id := range ids {
		if strings.Contains(id.String(), "://") {
			leaf.URIs = []string{id.String()} // a certificate has one at most
		} else {
			leaf.DNSNames = append(leaf.DNSNames, id.String())
		}
	}
	l := &receiver{Holder: *registrytest.NewHolder(nil, nil), version: version}
	for _, name := range append(leaf.URIs, leaf.DNSNames...) {
		l.IDs = append(l.IDs, idOf(t, name))
	}
	conn := f.dialAs(t, leaf)
	if version == wire.V1Alpha1 {
		stream := must.Get(rdpb1.NewDiscoveryServiceClient(conn).EstablishStream(ctx))(t)
		c := &client1{t, stream}
		c.request(wire.SubscribeV1Alpha1())
		l.header, l.closeSend = stream.Header, stream.CloseSend
		l.receive = func() (federation.Event, func(), error) {
			m, err := c.stream.Recv()
			if err != nil {
				return federation.Event{}, nil, err
			}
			event, err := wire.DecodeV1Alpha1(m)
			return event, func() { c.request(wire.AckV1Alpha1(m.GetNonce())) }, err
		}
		return l
	}
	stream := must.Get(rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx))(t)
	c := &client{t, stream}
	c.request(wire.Subscribe("session"))
	l.header, l.closeSend = stream.Header, stream.CloseSend
	l.receive = func() (federation.Event, func(), error) {
		m, err := c.stream.Recv()
		if err != nil {
			return federation.Event{}, nil, err
		}
		event, err := wire.Decode(m.GetResponse())
		return event, func() { c.request(wire.Ack(m.GetResponse().GetNonce(), "session")) }, err
	}
	return l
}

// run receives until the stream ends.
func (l *receiver) run() {
	for {
		if l.may != nil {
			<-l.may
		}
		event, acknowledge, err := l.receive()
		if err != nil {
			l.over = err
			return
		}
		l.received = append(l.received, event)
		acknowledge()
	}
}

// onWire returns a service as a version of the API says it, or nil where it cannot.
func onWire(t testing.TB, version wire.Version, s *federation.Service) *federation.Service {
	t.Helper()
	if s == nil {
		return nil
	}
	event := federation.Event{Operation: federation.Upsert, Name: s.Name, Service: s}
	var decoded federation.Event
	if version == wire.V1Alpha1 {
		m, err := wire.EncodeV1Alpha1(event, "", false)
		if err != nil {
			return nil
		}
		if decoded, err = wire.DecodeV1Alpha1(m); err != nil {
			t.Fatal(err)
		}
		return decoded.Service
	}
	m, err := wire.Encode(event, "", "")
	if err != nil {
		return nil
	}
	if decoded, err = wire.Decode(m); err != nil {
		t.Fatal(err)
	}
	return decoded.Service
}

// comeBack opens a stream of a consumer that holds services already, of which it sends
// the digests of so many buckets. What is in a bucket that is not selected counts as held,
// and all else is forgotten: it is swept at the end marker, unless it comes before.
func comeBack(t testing.TB, f *fixture, ids []federation.ID, version wire.Version, state map[string]*federation.Service, buckets int) (l *receiver, resumed bool) {
	t.Helper()
	digests := registrytest.SumOf(t, registry.Form{Version: version, MaxMessage: defaultMaxMessage}, state).Fold(buckets)
	l = listen(t, f, ids, version, wire.ResumeHeader, digests.Header())
	header := must.Get(l.header())(t)
	values := header.Get(wire.ResumeHeader)
	if len(values) == 0 {
		return l, false
	}
	selection := must.Get(resume.ParseSelection(values[0], buckets))(t)
	for name, s := range state {
		if !selection.Has(name) {
			l.Held[name] = s
		}
	}
	return l, true
}

// look holds what a receiver has received. All that a fast one receives in a step must be
// true after it, since one thing changes in it.
func (l *receiver) look(t *testing.T, w *registrytest.World) {
	t.Helper()
	for _, e := range l.received {
		switch e.Operation {
		case federation.Upsert:
			if want := onWire(t, l.version, w.Told(&l.Holder, e.Name)); l.may == nil && (want == nil || !want.Equal(e.Service)) {
				t.Fatalf("a %s of %v is told %+v, expected %+v", l.version, l.IDs, e.Service, want)
			}
			l.Held[e.Name] = e.Service
		case federation.Delete:
			if l.Held[e.Name] == nil {
				t.Fatalf("a %s of %v is told to delete %s, of which it does not know", l.version, l.IDs, e.Name)
			}
			delete(l.Held, e.Name)
		default:
			l.Ended = true
		}
	}
	l.received = nil
}

// compare compares what a receiver holds that has received everything.
func (l *receiver) compare(t *testing.T, w *registrytest.World) {
	t.Helper()
	for i := range 8 {
		name := string(rune('a' + i))
		want, held := onWire(t, l.version, w.Told(&l.Holder, name)), l.Held[name]
		if (want == nil) != (held == nil) || want != nil && !want.Equal(held) {
			t.Fatalf("a %s of %v holds %+v of %s, expected %+v", l.version, l.IDs, held, name, want)
		}
	}
	if l.Ended == l.misses(t, w) {
		t.Fatalf("a %s of %v received the end of the catalog: %v, which it has in part: %v", l.version, l.IDs, l.Ended, !l.Ended)
	}
}

// misses reports whether the version of the API cannot express a service that the receiver
// may be told of.
func (l *receiver) misses(t *testing.T, w *registrytest.World) bool {
	t.Helper()
	for i := range 8 {
		if s := w.Told(&l.Holder, string(rune('a'+i))); s != nil && onWire(t, l.version, s) == nil {
			return true
		}
	}
	return false
}

// again returns the receiver, or another one in its place where its stream has ended because
// the version of the API cannot express a service any more.
func (l *receiver) again(t *testing.T, f *fixture, w *registrytest.World, running *sync.WaitGroup) *receiver {
	t.Helper()
	if l.over == nil {
		return l
	}
	if l.version != wire.V1Alpha1 || status.Code(l.over) != codes.Unavailable || !l.Ended {
		t.Fatalf("the stream of a %s of %v has ended: %v", l.version, l.IDs, l.over)
	}
	l.look(t, w)
	back, _ := comeBack(t, f, l.IDs, l.version, l.Held, 8)
	back.may = l.may
	running.Go(back.run)
	synctest.Wait()
	return back
}

// TestNothingLeaksOnStreams is TestNothingLeaks with the streams of a server, in both
// versions of the API. Some consumers receive so slowly that changes of several policies
// are one.
func TestNothingLeaksOnStreams(t *testing.T) {
	for seed := range uint64(unlessShort(12, 4)) {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, func(c *Config) { c.Window = 1 + int(seed%4) })
			w := registrytest.NewWorld(t, seed, registrytest.Hooks{})
			w.Registry = f.registry
			consumers := policytest.New(seed)
			var receivers []*receiver
			var running sync.WaitGroup
			upserts, resumptions := 0, 0
			for step := range 60 {
				switch {
				case step%4 == 3 && len(receivers) > 0: // one leaves, and comes back when something has changed
					i := w.IntN(len(receivers))
					l := receivers[i]
					if l.may != nil {
						break
					}
					must.Do(t, l.closeSend())
					synctest.Wait()
					for range w.IntN(3) {
						w.Do(byte(w.IntN(10)))
						synctest.Wait()
						for _, other := range receivers { // before something else is true
							upserts += len(other.received)
							other.look(t, w)
						}
					}
					back, resumed := comeBack(t, f, l.IDs, l.version, l.Held, 1<<w.IntN(10))
					if resumed {
						resumptions++
					}
					receivers[i] = back
					running.Go(back.run)
				case step%5 == 0 && len(receivers) < 8:
					l := listen(t, f, consumers.IDs(), []wire.Version{wire.V1Alpha2, wire.V1Alpha1}[len(receivers)%2])
					if len(receivers) > 5 {
						l.may = make(chan struct{}, 1<<10)
					}
					receivers = append(receivers, l)
					running.Go(l.run)
				case w.IntN(3) == 0: // a service that v1alpha1 can express
					s := expressible(w.Name(), step)
					s.FQDN = w.Service(s.Name).FQDN
					upsert(t, f.registry, s)
					w.Services[s.Name] = s
				default:
					w.Do(byte(w.IntN(10)))
				}
				for _, l := range receivers {
					if l.may != nil && w.IntN(3) == 0 {
						l.may <- struct{}{}
					}
				}
				synctest.Wait()
				for i, l := range receivers {
					upserts += len(l.received)
					l.look(t, w)
					receivers[i] = l.again(t, f, w, &running)
					if receivers[i].look(t, w); l.may == nil {
						receivers[i].compare(t, w)
					}
				}
			}
			for _, l := range receivers {
				if l.may != nil {
					close(l.may)
				}
			}
			synctest.Wait()
			for i, l := range receivers {
				l.look(t, w)
				receivers[i] = l.again(t, f, w, &running)
				receivers[i].look(t, w)
				receivers[i].compare(t, w)
			}
			if upserts < 100 || resumptions < 3 {
				t.Errorf("%d messages came, and %d streams were resumed, too few to tell anything", upserts, resumptions)
			}
			f.stop()
			running.Wait()
		})
	}
}
