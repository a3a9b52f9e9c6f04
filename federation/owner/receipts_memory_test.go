package owner

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// willingStream is the server's end of a stream of a consumer that acknowledges at once.
type willingStream struct {
	grpc.ServerStream

	ctx      context.Context //nolint:containedctx // gRPC asks the stream for its context
	requests chan *rdpb.StreamRequest
	sent     func() // is called for each response; may be nil
}

func (s *willingStream) Context() context.Context   { return s.ctx }
func (*willingStream) SendHeader(metadata.MD) error { return nil }

func (s *willingStream) Send(m *rdpb.BidirectionalStream) error {
	if s.sent != nil {
		s.sent()
	}
	s.requests <- wire.Ack(m.GetResponse().GetNonce(), "session")
	return nil
}

func (s *willingStream) Recv() (*rdpb.BidirectionalStream, error) {
	select {
	case request := <-s.requests:
		return &rdpb.BidirectionalStream{Request: request}, nil
	case <-s.ctx.Done():
		return nil, io.EOF
	}
}

// TestReceiptsMemory compares what consumers at rest cost an owner that give receipts with what
// others do. What gRPC keeps of a header is its own.
func TestReceiptsMemory(t *testing.T) {
	const streams, most = 10_000, 64
	cost := func(receipts bool) (each int64) {
		synctest.Test(t, func(t *testing.T) {
			r := registry.New()
			server := must.Get(New(Config{Registry: r, Credentials: insecure.NewCredentials(), Logger: slog.New(slog.DiscardHandler)}))(t)
			upsert(t, r, service("a", 1))
			ctx, cancel := context.WithCancel(t.Context())
			crowd := willing(ctx, streams, receipts, nil)
			before := heapInUse()
			var serving sync.WaitGroup
			for _, stream := range crowd {
				serving.Go(func() { _ = (v1alpha2{server: server}).EstablishStream(stream) })
			}
			synctest.Wait()
			for version := range 3 {
				upsert(t, r, service("a", version+2))
				synctest.Wait()
			}
			each = (heapInUse() - before) / streams
			if n := server.Stats().Catalogs[""].Acknowledged; n != 5*streams {
				t.Errorf("%d responses are acknowledged, expected %d", n, 5*streams)
			}
			cancel()
			serving.Wait()
			server.readers.Wait()
			runtime.KeepAlive(crowd)
		})
		return each
	}
	cost(true) // what is made once
	// What the runtime keeps besides comes into either figure, and may be gone when the other is
	// taken: so the medians of several runs count where one is not enough.
	var without, with []int64
	for len(with) == 0 || len(with) < 7 && median(with)-median(without) > most {
		without, with = append(without, cost(false)), append(with, cost(true))
	}
	each := median(with) - median(without)
	t.Logf("a stream takes %d octets without receipts, and %d with", without, with)
	if each > most {
		t.Errorf("receipts take %d octets of a stream, expected at most %d", each, most)
	}
}

func median(of []int64) int64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}

// willing returns the streams of a crowd that subscribes.
func willing(ctx context.Context, streams int, receipts bool, sent func()) []*willingStream {
	info := credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}}
	ctx = peer.NewContext(ctx, &peer.Peer{AuthInfo: info})
	crowd := make([]*willingStream, streams)
	for i := range crowd {
		said := receipt.Receipt{Holder: rand.Text(), TTL: 30 * time.Second, Hold: time.Hour}
		header := metadata.Pairs(receipt.Header, said.Header())
		if !receipts {
			header = metadata.Pairs("other", said.Header())
		}
		crowd[i] = &willingStream{
			ctx: metadata.NewIncomingContext(ctx, header), requests: make(chan *rdpb.StreamRequest, 1), sent: sent,
		}
		crowd[i].requests <- wire.Subscribe("session")
	}
	return crowd
}

// BenchmarkReceipts shows what a change costs an owner for each of its consumers, but for gRPC
// and TLS, with receipts and without: the difference counts, beside what a change costs in all.
func BenchmarkReceipts(b *testing.B) {
	const streams = 10_000
	for _, receipts := range []bool{false, true} {
		b.Run(fmt.Sprintf("receipts=%t", receipts), func(b *testing.B) {
			r := registry.New()
			server := must.Get(New(Config{Registry: r, Credentials: insecure.NewCredentials(), Logger: slog.New(slog.DiscardHandler)}))(b)
			upsert(b, r, service("a", 0))
			var sent atomic.Int64
			told := make(chan struct{}, 1)
			ctx, cancel := context.WithCancel(b.Context())
			crowd := willing(ctx, streams, receipts, func() {
				if sent.Add(1)%streams == 0 {
					told <- struct{}{}
				}
			})
			var serving sync.WaitGroup
			for _, stream := range crowd {
				serving.Go(func() { _ = (v1alpha2{server: server}).EstablishStream(stream) })
			}
			<-told // the service
			<-told // the end of the catalog
			changes := 0
			began := processor(b)
			for b.Loop() {
				changes++
				upsert(b, r, service("a", changes))
				<-told
			}
			b.ReportMetric(float64((processor(b)-began).Nanoseconds())/float64(changes*streams), "cpu-ns/stream")
			cancel()
			serving.Wait()
			server.readers.Wait()
		})
	}
}

// processor returns the CPU time of the process.
func processor(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	must.Do(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// heapInUse returns how many octets are reachable.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what pools keep goes with the second one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
