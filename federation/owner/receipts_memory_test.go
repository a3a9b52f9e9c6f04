package owner

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"runtime"
	"sync"
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
}

func (s *willingStream) Context() context.Context   { return s.ctx }
func (*willingStream) SendHeader(metadata.MD) error { return nil }

func (s *willingStream) Send(m *rdpb.BidirectionalStream) error {
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
	const streams, most = 2000, 112
	cost := func(receipts bool) (each int64) {
		synctest.Test(t, func(t *testing.T) {
			r := registry.New()
			server := must.Get(New(Config{Registry: r, Credentials: insecure.NewCredentials(), Logger: slog.New(slog.DiscardHandler)}))(t)
			upsert(t, r, service("a", 1))
			info := credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}}
			ctx, cancel := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info}))
			crowd := make([]*willingStream, streams)
			for i := range crowd {
				said := receipt.Receipt{Holder: rand.Text(), TTL: 30 * time.Second, Hold: time.Hour}
				header := metadata.Pairs(receipt.Header, said.Header())
				if !receipts {
					header = metadata.Pairs("other", said.Header())
				}
				crowd[i] = &willingStream{ctx: metadata.NewIncomingContext(ctx, header), requests: make(chan *rdpb.StreamRequest, 1)}
				crowd[i].requests <- wire.Subscribe("session")
			}
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
	without, with := cost(false), cost(true)
	t.Logf("a stream takes %d octets without receipts, and %d with", without, with)
	if with-without > most {
		t.Errorf("receipts take %d octets of a stream, expected at most %d", with-without, most)
	}
}

// heapInUse returns how many octets are reachable.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what pools keep goes with the second one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
