package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/hamlet-federation/coredns-federation/internal/connect"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// version is the version of the protocol.
const version = 1

const (
	minKeepalive        = 10 * time.Second // gRPC's own floor for the pings of a client
	minKeepaliveTimeout = 3 * time.Second  // for the answer to a ping

	// Whatever the ttl, a dead owner is noticed well within the convergence period, because
	// other owners keep its nodes no longer.
	maxKeepalive        = 30 * time.Second
	maxKeepaliveTimeout = 10 * time.Second
)

// registrationStream is one stream to an owner. A reader applies the answers of the owner, and
// exchangeMessages sends; all that is known of nodes is in their entries, which outlive the stream.
type registrationStream struct {
	address  string
	stream   registrationv1.RegistrationService_RegisterClient
	cancel   context.CancelCauseFunc
	patience time.Duration // with an owner that does not read, or has sent nothing yet
	failed   chan error    // receives the end of the stream, once

	// guarded by Provider.mu
	opened bool      // the owner has sent its Open
	useful bool      // something was granted or refused
	heard  time.Time // when the owner has sent something last
	next   time.Time // when dueMessages is called again
}

// holdStream runs one stream, from the connection to its end, and keeps everything registered on
// it. It reports whether the owner has answered, and why the stream ended: nil when everything is
// cleared.
func (p *Provider) holdStream(ctx context.Context, o *ownerTarget) (useful bool, err error) {
	ttl := p.shortestTTL()
	s := &registrationStream{address: o.address, patience: max(ttl/2, p.patience, minInterval), failed: make(chan error, 1)}
	attempt := &connect.Attempt{Address: o.address, Dial: p.config.Dial}
	defer func() {
		err = explainError(err, attempt)
		p.loseStream(s, err)
	}()
	conn, err := p.newConnection(ttl, attempt)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, s.cancel = context.WithCancelCause(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer s.cancel(nil)

	opening := time.AfterFunc(s.patience, func() { s.cancel(errSilent) })
	defer opening.Stop()
	s.stream, err = registrationv1.NewRegistrationServiceClient(conn).Register(ctx)
	if err != nil {
		return false, s.endCause(ctx, err)
	}
	reading.Go(func() { s.failed <- p.readResponses(s, opening) })
	err = s.sendMessages(&registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Open{Open: &registrationv1.Open{Version: version}}})
	if err == nil {
		err = p.exchangeMessages(ctx, s)
	}
	if _, ok := errors.AsType[*versionError](err); ok {
		s.sendClose(&registrationv1.Close{Reason: registrationv1.Close_VERSION_MISMATCH, Text: fmt.Sprintf("this program speaks version %d", version)})
		s.awaitEnd()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return s.useful, s.endCause(ctx, err)
}

// newConnection returns a connection for one stream.
func (p *Provider) newConnection(ttl time.Duration, attempt *connect.Attempt) (*grpc.ClientConn, error) {
	return attempt.NewClient(p.config.Identity.Credentials(attempt.Address), max(ttl/2, p.patience, minInterval), maxMessage,
		// Where the ttl is short, an Active without an answer shows earlier than a ping that the
		// connection is dead.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:    min(max(ttl/3, minKeepalive), maxKeepalive),
			Timeout: min(max(ttl/6, minKeepaliveTimeout), maxKeepaliveTimeout),
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
}

// exchangeMessages sends the messages that are due, until the stream ends or everything is cleared.
func (p *Provider) exchangeMessages(ctx context.Context, s *registrationStream) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		messages, next, err := p.dueMessages(s, time.Now())
		if err != nil {
			return err
		}
		if err := s.sendMessages(messages...); err != nil {
			return err
		}
		if p.isLeaving() && !p.hasUntold(s) {
			return p.endStream(ctx, s)
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-p.wake:
		case <-p.leaving:
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// endStream ends the stream, on which all nodes were cleared, and waits until the owner has
// withdrawn them.
func (p *Provider) endStream(ctx context.Context, s *registrationStream) error {
	s.sendClose(&registrationv1.Close{Reason: registrationv1.Close_PARTING_FRIENDS})
	var err error
	select {
	case err = <-s.failed:
	case <-ctx.Done():
		return ctx.Err()
	}
	if closed, ok := errors.AsType[*closeError](err); ok && closed.reason == registrationv1.Close_PARTING_FRIENDS && closed.retryAfter == 0 {
		err = io.EOF // the owner answers the Close with one of its own
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.cleared, func(_ nodeKey, o *clearedNode) bool { return o.stream == s })
	return nil
}

// sendMessages sends messages, each of which the owner has to read in time. If the owner has ended
// the stream, that is no error: readResponses returns why.
func (s *registrationStream) sendMessages(messages ...*registrationv1.RegisterRequest) error {
	if len(messages) == 0 {
		return nil
	}
	deadline := time.AfterFunc(s.patience, func() { s.cancel(errSilent) })
	defer deadline.Stop()
	for _, m := range messages {
		if err := s.stream.Send(m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		deadline.Reset(s.patience)
	}
	return nil
}

// sendClose sends the last message.
func (s *registrationStream) sendClose(m *registrationv1.Close) {
	_ = s.sendMessages(&registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Close{Close: m}}) // what is wrong with the stream, readResponses tells
	_ = s.stream.CloseSend()
}

// closeWithin bounds how long an owner may take to read a Close that ends the stream.
const closeWithin = 2 * time.Second

// awaitEnd waits until the owner has ended the stream, which nobody else reads any more. To cancel
// the stream could drop what was sent last.
func (s *registrationStream) awaitEnd() {
	timer := time.AfterFunc(closeWithin, func() { s.cancel(nil) })
	defer timer.Stop()
	for {
		if _, err := s.stream.Recv(); err != nil {
			return
		}
	}
}

// endCause returns why the stream has ended: err, unless this side has cancelled the stream.
func (s *registrationStream) endCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errSilent) {
		return cause
	}
	return err
}

// readResponses applies the messages of the owner until the stream ends, and returns why. It never
// waits for a send, because an owner that waits for its answers to be read may itself read nothing.
func (p *Provider) readResponses(s *registrationStream, opening *time.Timer) error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return err
		}
		opening.Stop()
		if err := p.applyResponse(s, m, time.Now()); err != nil {
			return err
		}
	}
}
