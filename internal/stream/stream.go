package stream

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// ownerStream is an open stream with the owner, in any version of the API. One goroutine receives,
// and another one answers.
type ownerStream interface {
	// receiveResponse waits for the next response, and returns it with its size in bytes.
	// Its error is the end of the stream; a response that must be refused is none.
	receiveResponse() (Update, int, error)

	// answerResponse sends an ACK of the response with the nonce, or a NACK with the text
	// of the refusal. It waits for room to send.
	answerResponse(nonce string, refusal *federation.InvalidError) error

	// Header returns what the owner announced. It waits for the header, and may be called beside
	// answerResponse.
	Header() (metadata.MD, error)

	// Trailer returns what the owner said at the end of the stream, which has ended.
	Trailer() metadata.MD

	// CloseSend tells the owner that the subscription is over. It does not wait for anything, and
	// is called after the last answer.
	CloseSend() error
}

// newUpdate returns an update, and its size. The event and the error are those of Decode for the
// resource.
func newUpdate(at time.Time, nonce string, resource []byte, event wire.Event, err error) (Update, int, error) {
	u := Update{Event: event, Received: at, nonce: nonce}
	if invalid, ok := errors.AsType[*federation.InvalidError](err); ok {
		u.Name, u.Invalid = invalid.Service, invalid
	}
	return u, len(nonce) + len(resource), nil
}

// openStream returns a stream of the configured version, on which it has subscribed.
func (c *Consumer) openStream(ctx context.Context, conn *grpc.ClientConn) (ownerStream, error) {
	if c.config.Version == wire.V1Alpha1 {
		return openV1Alpha1(ctx, conn)
	}
	return openV1Alpha2(ctx, conn)
}

// sendError returns the error of a Send, or nil where the owner has ended the stream: the next
// receiveResponse returns what the owner sent before, and then the reason.
func sendError(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

type streamV1Alpha2 struct {
	oneRole

	session string // the context of the session
}

func openV1Alpha2(ctx context.Context, conn *grpc.ClientConn) (ownerStream, error) {
	client, err := rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx)
	if err != nil {
		return nil, err
	}
	// Hamlet: a fresh context for each session, which the owner echoes.
	s := &streamV1Alpha2{oneRole{client}, rand.Text()}
	return s, sendError(s.Send(wire.Subscribe(s.session)))
}

func (s *streamV1Alpha2) receiveResponse() (Update, int, error) {
	m, err := s.Recv()
	if err != nil {
		return Update{}, 0, err
	}
	at := time.Now()
	event, err := s.decodeResponse(m)
	return newUpdate(at, m.GetNonce(), m.GetResource().GetValue(), event, err)
}

// decodeResponse returns the event of a response of this session.
func (s *streamV1Alpha2) decodeResponse(m *rdpb.StreamResponse) (wire.Event, error) {
	if got := m.GetContext(); got != "" && got != s.session {
		return wire.Event{}, &federation.InvalidError{
			Service: m.GetResourceId(),
			Field:   "context",
			Reason:  federation.ReasonUndecodable,
			Rule:    safetext.Quote(got) + " is not the context of this session",
		}
	}
	return wire.Decode(m)
}

func (s *streamV1Alpha2) answerResponse(nonce string, refusal *federation.InvalidError) error {
	if refusal != nil {
		return sendError(s.Send(wire.Nack(nonce, s.session, refusal)))
	}
	return sendError(s.Send(wire.Ack(nonce, s.session)))
}

// oneRole is the half of a two-way stream on which this side subscribes. On the other half nothing
// is published.
type oneRole struct {
	rdpb.DiscoveryService_EstablishStreamClient
}

// Recv returns the next response. It passes over messages in which the owner asks for services of
// this side, because there are none.
func (l oneRole) Recv() (*rdpb.StreamResponse, error) {
	m, err := l.DiscoveryService_EstablishStreamClient.Recv()
	for err == nil && m.GetResponse() == nil && m.GetRequest() != nil {
		m, err = l.DiscoveryService_EstablishStreamClient.Recv()
	}
	return m.GetResponse(), err
}

func (l oneRole) Send(request *rdpb.StreamRequest) error {
	return l.DiscoveryService_EstablishStreamClient.Send(&rdpb.BidirectionalStream{Request: request})
}

type streamV1Alpha1 struct {
	rdpb1.DiscoveryService_EstablishStreamClient
}

func openV1Alpha1(ctx context.Context, conn *grpc.ClientConn) (ownerStream, error) {
	client, err := rdpb1.NewDiscoveryServiceClient(conn).EstablishStream(ctx)
	if err != nil {
		return nil, err
	}
	return &streamV1Alpha1{client}, sendError(client.Send(wire.SubscribeV1Alpha1()))
}

func (s *streamV1Alpha1) receiveResponse() (Update, int, error) {
	m, err := s.Recv()
	if err != nil {
		return Update{}, 0, err
	}
	at := time.Now()
	event, err := wire.DecodeV1Alpha1(m)
	return newUpdate(at, m.GetNonce(), m.GetResource().GetValue(), event, err)
}

func (s *streamV1Alpha1) answerResponse(nonce string, refusal *federation.InvalidError) error {
	if refusal != nil {
		return sendError(s.Send(wire.NackV1Alpha1(nonce, refusal)))
	}
	return sendError(s.Send(wire.AckV1Alpha1(nonce)))
}
