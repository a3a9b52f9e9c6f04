// Package spiffeagent is a stand-in for a SPIFFE agent: it speaks the Workload API for
// X509-SVIDs and issues what a test tells it to. The real agent is tested against by
// the tests of SPIRE.
package spiffeagent

import (
	"encoding/pem"
	"errors"
	"net"
	"sync"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// errUnknown is what a real agent says to a process without a registration entry.
var errUnknown = status.Error(codes.PermissionDenied, "no identity issued")

// Agent is an agent without an address: it answers wherever it is served. The zero value
// issues nothing.
type Agent struct {
	workload.UnimplementedSpiffeWorkloadAPIServer

	mu      sync.Mutex
	answer  *workload.X509SVIDResponse // nil: there is no identity
	err     error                      // instead of an answer
	changed chan struct{}              // closed when one of them has changed
}

// Serve answers on a listener until stop is called, which also closes the streams.
func (a *Agent) Serve(listener net.Listener) (stop func()) {
	server := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(server, a)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	return func() {
		server.Stop()
		serving.Wait()
	}
}

// Issue tells whoever asks, and those who have asked, of these identities and bundles of
// federated trust domains, by name, in PEM.
func (a *Agent) Issue(federated map[string][]byte, svids ...SVID) {
	answer := &workload.X509SVIDResponse{FederatedBundles: make(map[string][]byte)}
	for _, s := range svids {
		answer.Svids = append(answer.Svids, &workload.X509SVID{
			SpiffeId: s.ID, X509Svid: der(s.Cert), X509SvidKey: der(s.Key), Bundle: der(s.Bundle),
		})
	}
	for name, bundle := range federated {
		answer.FederatedBundles["spiffe://"+name] = der(bundle)
	}
	a.set(answer, nil)
}

// Fail ends the streams, and refuses new ones with err.
func (a *Agent) Fail(err error) { a.set(nil, err) }

func (a *Agent) set(answer *workload.X509SVIDResponse, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer, a.err = answer, err
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// SVID is an identity that an agent issues, in PEM.
type SVID struct {
	ID                string
	Cert, Key, Bundle []byte
}

// FetchX509SVID implements workload.SpiffeWorkloadAPIServer.
func (a *Agent) FetchX509SVID(_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	// SPIFFE Workload Endpoint section 6.1: the header shows that no browser was tricked into the call.
	if header, _ := metadata.FromIncomingContext(stream.Context()); len(header.Get("workload.spiffe.io")) != 1 {
		return status.Error(codes.InvalidArgument, "security header missing")
	}
	for {
		a.mu.Lock()
		answer, err := a.answer, a.err
		if a.changed == nil {
			a.changed = make(chan struct{})
		}
		changed := a.changed
		a.mu.Unlock()
		if answer == nil && err == nil {
			err = errUnknown
		}
		if err != nil {
			return err
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return errors.New("the stream is over")
		}
	}
}

// der returns the content of the PEM blocks, one after the other.
func der(text []byte) (all []byte) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		all = append(all, block.Bytes...)
	}
	return all
}
