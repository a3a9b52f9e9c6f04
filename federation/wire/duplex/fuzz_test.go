package duplex_test

import (
	"context"
	"io"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/duplex"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// What an octet of a tape says: what is done before its message comes, and what the
// message has in it.
const (
	hasRequest = 1 << iota
	hasResponse
	subscribes
	closesRequests
	closesResponses
)

// tape is a stream on which a message comes for each octet.
type tape struct {
	octets []byte
	before func(octet byte)
	n      int // messages that came

	mu   sync.Mutex
	sent []string
}

func (l *tape) Recv() (*rdpb.BidirectionalStream, error) {
	if l.n == len(l.octets) {
		synctest.Wait() // what is declined is sent before the stream ends
		return nil, io.EOF
	}
	octet, nonce := l.octets[l.n], strconv.Itoa(l.n)
	l.n++
	l.before(octet)
	m := &rdpb.BidirectionalStream{}
	if octet&hasRequest != 0 {
		m.Request = wire.Ack(nonce, "")
	}
	if octet&hasResponse != 0 {
		m.Response = &rdpb.StreamResponse{Nonce: nonce}
	}
	return m, nil
}

func (l *tape) Send(m *rdpb.BidirectionalStream) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if codes.Code(m.GetRequest().GetStatus().GetCode()) == codes.Unimplemented {
		l.sent = append(l.sent, m.GetRequest().GetResponseNonce())
	}
	return nil
}

// drain returns the nonces that come until the half ends.
func drain(recv func() (nonce string, err error)) (nonces []string) {
	for {
		nonce, err := recv()
		if err != nil {
			return nonces
		}
		nonces = append(nonces, nonce)
	}
}

// FuzzStream routes any sequence of messages, while the halves are opened and closed:
// each part comes to its half, in order, or is declined if it is a response, and nothing
// is left behind.
func FuzzStream(f *testing.F) {
	f.Add([]byte{hasResponse, hasRequest | subscribes, hasRequest | hasResponse, 0, hasResponse})
	f.Add([]byte{subscribes | hasResponse, hasRequest | closesRequests, hasResponse | hasRequest, hasResponse | closesResponses})
	f.Add([]byte{closesResponses | hasResponse, subscribes | hasResponse})
	f.Fuzz(func(t *testing.T, octets []byte) {
		if len(octets) > 3000 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			link := &tape{octets: octets}
			stream := duplex.New(ctx, link, cancel)
			var wantRequests, wantResponses, wantDeclined []string
			var open, noRequests, noResponses bool
			link.before = func(octet byte) {
				if octet&subscribes != 0 {
					open = true
					if err := stream.Responses().Send(wire.Subscribe("")); err != nil {
						t.Error(err)
					}
				}
				if octet&closesRequests != 0 {
					noRequests = true
					stream.Requests().Close()
				}
				if octet&closesResponses != 0 {
					noResponses = true
					stream.Responses().Close()
				}
				nonce := strconv.Itoa(link.n - 1)
				if octet&hasRequest != 0 && !noRequests {
					wantRequests = append(wantRequests, nonce)
				}
				switch {
				case octet&hasResponse == 0:
				case open && !noResponses:
					wantResponses = append(wantResponses, nonce)
				default:
					wantDeclined = append(wantDeclined, nonce)
				}
			}
			var running sync.WaitGroup
			var requests, responses []string
			running.Go(func() {
				requests = drain(func() (string, error) {
					m, err := stream.Requests().Recv(ctx)
					return m.GetResponseNonce(), err
				})
			})
			running.Go(func() {
				responses = drain(func() (string, error) {
					m, err := stream.Responses().Recv()
					return m.GetNonce(), err
				})
			})
			running.Go(stream.Write)
			running.Go(stream.Read)
			running.Wait()
			if !slices.Equal(requests, wantRequests) || !slices.Equal(responses, wantResponses) {
				t.Errorf("requests %v and responses %v, expected %v and %v", requests, responses, wantRequests, wantResponses)
			}
			if !slices.Equal(link.sent, wantDeclined) {
				t.Errorf("declined are %v, expected %v", link.sent, wantDeclined)
			}
		})
	})
}
