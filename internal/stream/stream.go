package stream

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// ownerStream is an open stream with the owner, in any version of the API. One goroutine receives,
// and another one answers.
type ownerStream struct {
	// ClientStream has the header, which may be waited for beside answer, and the trailer of a stream that
	// has ended. Its CloseSend tells the owner that the subscription is over, after the last answer.
	grpc.ClientStream

	// receive waits for the next response, and returns it with its size in bytes.
	// Its error is the end of the stream; a response that must be refused is none.
	receive func() (Update, int, error)
	// answer sends an ACK of the response with the nonce, or a NACK with the text
	// of the refusal. It waits for room to send.
	answer func(nonce string, refusal *federation.InvalidError) error
}

// ownerResponse is a response in any version of the API.
type ownerResponse interface {
	GetNonce() string
	GetResource() *anypb.Any
}

// newUpdate returns the update that has just come in a response, and its size in bytes.
func newUpdate[A ownerResponse](m A, decode func(A) (wire.Event, error)) (u Update, size int) {
	u = Update{Received: time.Now(), nonce: m.GetNonce()}
	var err error
	u.Event, err = decode(m)
	if invalid, ok := errors.AsType[*federation.InvalidError](err); ok {
		u.Name, u.Invalid = invalid.Service, invalid
	}
	return u, len(u.nonce) + len(m.GetResource().GetValue())
}

// ownerDialect is what differs between the versions of the API on one stream, with requests Q and
// responses A.
type ownerDialect[Q any, A ownerResponse] struct {
	send    func(Q) error
	receive func() (A, error)
	decode  func(A) (wire.Event, error)
	answer  func(nonce string, refusal *federation.InvalidError) Q
}

// subscribe sends the first request on the stream, and returns the stream.
func (d ownerDialect[Q, A]) subscribe(on grpc.ClientStream, first Q) (*ownerStream, error) {
	return &ownerStream{
		ClientStream: on,
		receive: func() (Update, int, error) {
			m, err := d.receive()
			if err != nil {
				return Update{}, 0, err
			}
			u, size := newUpdate(m, d.decode)
			return u, size, nil
		},
		answer: func(nonce string, refusal *federation.InvalidError) error {
			return sendError(d.send(d.answer(nonce, refusal)))
		},
	}, sendError(d.send(first))
}

// sendError returns the error of a Send, or nil where the owner has ended the stream: the next
// receive returns what the owner sent before, and then the reason.
func sendError(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// openStream returns a stream of the configured version, on which it has subscribed.
func (c *Consumer) openStream(ctx context.Context, conn *grpc.ClientConn) (*ownerStream, error) {
	if c.config.Version == wire.V1Alpha1 {
		return openV1Alpha1(ctx, conn)
	}
	return openV1Alpha2(ctx, conn)
}

func openV1Alpha2(ctx context.Context, conn *grpc.ClientConn) (*ownerStream, error) {
	client, err := rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx)
	if err != nil {
		return nil, err
	}
	session := rand.Text() // Hamlet: a fresh context for each session, which the owner echoes
	return ownerDialect[*rdpb.StreamRequest, *rdpb.StreamResponse]{
		send: func(m *rdpb.StreamRequest) error { return client.Send(&rdpb.BidirectionalStream{Request: m}) },
		// The owner may ask for services of this side as well, and there are none.
		receive: func() (*rdpb.StreamResponse, error) {
			m, err := client.Recv()
			for err == nil && m.GetResponse() == nil && m.GetRequest() != nil {
				m, err = client.Recv()
			}
			return m.GetResponse(), err
		},
		decode: func(m *rdpb.StreamResponse) (wire.Event, error) {
			if got := m.GetContext(); got != "" && got != session {
				return wire.Event{}, &federation.InvalidError{
					Service: m.GetResourceId(),
					Field:   "context",
					Reason:  federation.ReasonUndecodable,
					Rule:    safetext.Quote(got) + " is not the context of this session",
				}
			}
			return wire.Decode(m)
		},
		answer: func(nonce string, refusal *federation.InvalidError) *rdpb.StreamRequest {
			return wire.Answer(nonce, session, refusal)
		},
	}.subscribe(client, wire.Subscribe(session))
}

func openV1Alpha1(ctx context.Context, conn *grpc.ClientConn) (*ownerStream, error) {
	client, err := rdpb1.NewDiscoveryServiceClient(conn).EstablishStream(ctx)
	if err != nil {
		return nil, err
	}
	return ownerDialect[*rdpb1.StreamRequest, *rdpb1.StreamResponse]{
		client.Send, client.Recv, wire.DecodeV1Alpha1, wire.AnswerV1Alpha1,
	}.subscribe(client, wire.SubscribeV1Alpha1())
}
