package consumer_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
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
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// telling is what a liar says on one stream.
type telling struct {
	header   metadata.MD
	services []*federation.Service
	ends     bool // the catalog, with its mark
}

// liar is an owner that says on each stream what the test wants.
type liar struct {
	rdpb.UnimplementedDiscoveryServiceServer

	tell func(stream int, asked []string) telling // from 1; with the header of the request

	mu    sync.Mutex // guards the fields below
	asked [][]string // headers of the requests
	lost  chan struct{}
}

func (l *liar) serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer()
	rdpb.RegisterDiscoveryServiceServer(server, l)
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(listener)
}

func (l *liar) EstablishStream(stream grpc.BidiStreamingServer[rdpb.BidirectionalStream, rdpb.BidirectionalStream]) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	l.mu.Lock()
	l.asked = append(l.asked, md.Get(wire.ResumeHeader))
	n, lost := len(l.asked), make(chan struct{})
	l.lost = lost
	l.mu.Unlock()
	told := l.tell(n, md.Get(wire.ResumeHeader))
	if err := stream.SendHeader(told.header); err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	say := func(m *rdpb.StreamResponse) error {
		m.ResourceUrl, m.Context = first.GetRequest().GetResourceUrl(), first.GetRequest().GetContext()
		if err := stream.Send(&rdpb.BidirectionalStream{Response: m}); err != nil {
			return err
		}
		_, err := stream.Recv()
		return err
	}
	for _, s := range told.services {
		e, err := wire.NewEncoded(s)
		if err != nil {
			return err
		}
		if err := say(&rdpb.StreamResponse{Resource: e.Resource(), Operation: rdpb.StreamResponse_UPSERT}); err != nil {
			return err
		}
	}
	if told.ends {
		if err := say(&rdpb.StreamResponse{}); err != nil {
			return err
		}
	}
	select {
	case <-lost:
		return status.Error(codes.Unavailable, "lost")
	case <-stream.Context().Done():
		return nil
	}
}

// lose ends the stream that is open.
func (l *liar) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.lost)
}

// requests returns what the consumer has asked for on each stream.
func (l *liar) requests() [][]string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([][]string(nil), l.asked...)
}

// shown returns the ports of the services that were published.
func (w *world) shown() map[string]uint16 {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	ports := make(map[string]uint16)
	for name, s := range w.services {
		ports[name] = s.Endpoints[0].Port
	}
	return ports
}

// FuzzLyingOwner lets an owner that is come back to answer anything to the digests of the
// consumer. Where that says which part of the catalog comes, the consumer has what it held
// of the rest, and what came; where it says nothing, what came; and where it cannot be,
// nothing of that stream, and the whole catalog of one that it opens without digests, no
// sooner than after a second.
func FuzzLyingOwner(f *testing.F) {
	f.Add(uint64(1), uint8(0), "accepted 2/QA")
	f.Add(uint64(2), uint8(0), "accepted 1/gA")
	f.Add(uint64(3), uint8(0), "refused")
	f.Add(uint64(4), uint8(0), "")
	for kind := range uint8(16) {
		f.Add(uint64(kind)+5, kind, "accepted 4/zz")
	}
	f.Fuzz(func(t *testing.T, seed uint64, kind uint8, says string) {
		if strings.ContainsFunc(says, func(r rune) bool { return r < ' ' || r > '~' }) {
			return // gRPC sends no such header
		}
		synctest.Test(t, func(t *testing.T) { lie(t, rand.New(rand.NewPCG(seed, 0)), kind, strings.TrimSpace(says)) })
	})
}

func lie(t *testing.T, random *rand.Rand, kind uint8, says string) {
	held, ports := make([]*federation.Service, 1+random.IntN(200)), make(map[string]uint16)
	version := func(name string, port uint16) *federation.Service {
		s := services.At(name+".fed.example", "192.0.2.1")
		s.Endpoints[0].Port = port
		return s
	}
	for i := range held {
		held[i] = version(fmt.Sprintf("s%d", i), 1)
		ports[held[i].Name] = 1
	}
	buckets := resume.Buckets(len(held))
	marked := metadata.Pairs(wire.CatalogEndHeader, wire.CatalogEndMarked)

	// The second stream lies, and so do all the others where persistent.
	lying := telling{header: metadata.MD{}, ends: kind&1 == 0}
	if kind&2 == 0 {
		lying.header = marked.Copy()
	}
	persistent := kind&4 != 0
	if kind&8 != 0 { // it makes sense, but is not what differs
		some := make(resume.Digests, buckets)
		for i := range some {
			some[i][0] = byte(random.IntN(2))
		}
		says = some.Differ(make(resume.Digests, buckets)).Header()
	}
	lying.header.Set(wire.ResumeHeader, says)
	said := maps.Clone(ports)
	for range random.IntN(10) {
		s := version(fmt.Sprintf("s%d", random.IntN(2*len(held))), 2)
		lying.services = append(lying.services, s)
		said[s.Name] = 2
	}

	w := newPlainWorld(t)
	l := &liar{tell: func(stream int, _ []string) telling {
		switch {
		case stream == 2, stream > 2 && persistent:
			return lying
		default:
			return telling{marked, held, true}
		}
	}}
	w.Serve(w.t, ownerAddress, l.serve)
	config := w.config()
	config.Rules.Settle = 10 * time.Minute // silence says nothing here
	m, _ := w.run(config)
	w.await(m, fmt.Sprintf("synced %d/0", len(held)))
	l.lose()
	time.Sleep(30 * time.Second)

	asked := l.requests()
	if len(asked) < 2 || asked[0] != nil || len(asked[1]) != 1 {
		t.Fatalf("the consumer asks for %q", asked)
	}
	whole, err := resume.ParseSelection(says, buckets)
	accepted := strings.HasPrefix(says, "accepted")
	wants := func(want map[string]uint16) {
		t.Helper()
		if diff := cmp.Diff(want, w.shown()); diff != "" {
			t.Errorf("to %q the consumer has (-want +got):\n%s", says, diff)
		}
	}
	switch isMarked := kind&2 == 0; {
	case accepted && (err != nil || !isMarked):
		wants(ports)
		for _, again := range asked[2:] {
			if again != nil {
				t.Errorf("the consumer asks again for %q", again)
			}
		}
		if len(asked) < 3 {
			t.Error("no other stream was opened")
		}
	case accepted && lying.ends:
		for name := range ports {
			if whole.Has(name) && said[name] == 1 {
				delete(said, name)
			}
		}
		wants(said)
	case isMarked && lying.ends:
		maps.DeleteFunc(said, func(_ string, port uint16) bool { return port == 1 })
		wants(said)
	default: // nobody knows yet what is gone
		wants(said)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 2; i < len(w.dialed); i++ {
		if since := w.dialed[i].Sub(w.dialed[i-1]); since < time.Second {
			t.Errorf("attempt %d comes %v after the one before", i, since)
		}
	}
}

// TestUnreadablePath has an owner say something that is no path: a mirror that wants to
// know it takes nothing of the stream, and one that does not takes all.
func TestUnreadablePath(t *testing.T) {
	t.Parallel()
	for _, accepts := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newPlainWorld(t)
			l := &liar{tell: func(int, []string) telling {
				header := metadata.Pairs(wire.CatalogEndHeader, wire.CatalogEndMarked, wire.PathHeader, strings.Repeat("a,", wire.MaxHops)+"a")
				return telling{header, []*federation.Service{services.At("web.fed.example", "192.0.2.1")}, true}
			}}
			w.Serve(w.t, ownerAddress, l.serve)
			config := w.config()
			if accepts {
				config.Accept = func(path wire.Path) error {
					t.Errorf("asked about the path %v", path)
					return nil
				}
			}
			m, _ := w.run(config)
			time.Sleep(time.Minute)
			synctest.Wait()
			s := m.Status()
			if taken := s.Services == 1; taken == accepts || s.Path != "" {
				t.Errorf("with Accept %v: %d services, path %q", accepts, s.Services, s.Path)
			}
			if accepts && (s.Failure == nil || !strings.Contains(s.Failure.Error(), "names 17 owners, more than 16")) {
				t.Errorf("the failure is %v", s.Failure)
			}
		})
	}
}
