package registration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/internal/table"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// version is the version of the protocol that is spoken here.
const version = 1

// The limits of one provider.
const (
	maxMessage    = 64 << 10         // bytes of a message
	maxAnswers    = 256              // answers that may wait to be sent before reading stops
	maxAnswerText = 256 << 10        // bytes of these answers before reading stops
	openWithin    = 10 * time.Second // for the provider to send Open
	closeWithin   = 2 * time.Second  // for the provider to read what is left in the queue at the end
)

// A provider that is sent away comes back after a random time between these, so that not
// all come at once.
const (
	soonest = 500 * time.Millisecond
	latest  = 10 * time.Second
)

// providerSession is the stream of one provider. A reader passes its messages to the table, and a
// writer sends the answers from the queue, which whoever changes the table fills. The queue is
// bounded because reading stops while it is full: a provider that reads no answers stops only
// itself. A session keeps no nodes: those are in the table.
type providerSession struct {
	source *Source
	stream registrationv1.RegistrationService_RegisterServer
	log    *slog.Logger
	record *table.Stream
	moving <-chan struct{} // closed when the provider is to go to another owner
	opened chan struct{}   // closed when the provider has sent Open
	read   chan sessionEnd // holds how reading ended
	sent   chan error      // holds how writing ended
	wake   chan struct{}   // holds one value when the writer has something to do
	room   chan struct{}   // holds one value when the reader may go on

	mu     sync.Mutex                         // guards the fields below
	queue  []*registrationv1.RegisterResponse // nil in it: the end
	unsent int                                // messages in queue, and those that the writer is sending
	bytes  int                                // of these messages
}

// sessionEnd says how reading a stream ended.
type sessionEnd struct {
	err   error                 // of the stream; nil: the provider has closed its side
	close *registrationv1.Close // what the provider is sent
	code  codes.Code            // with close
}

// callerOf returns the identities of the peer that has opened the stream, and its address where
// that is known.
func callerOf(ctx context.Context) ([]federation.ID, netip.Addr, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, netip.Addr{}, status.Error(codes.Unauthenticated, "the connection has no peer")
	}
	var address netip.Addr
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		address = tcp.AddrPort().Addr().Unmap()
	}
	remote, _ := mtls.PeerOf(p.AuthInfo)
	ids := remote.IDs()
	if len(ids) == 0 {
		return nil, netip.Addr{}, status.Error(codes.Unauthenticated, "a client certificate with a SPIFFE ID or a DNS name is required")
	}
	return ids, address, nil
}

// endOf returns the status of a stream whose context has ended: the cause, where the context has
// one.
func endOf(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ctx.Err()) {
		return status.FromContextError(cause).Err()
	}
	return cause
}

// Register implements registrationv1.RegistrationServiceServer.
func (s *Source) Register(stream registrationv1.RegistrationService_RegisterServer) error {
	ctx := stream.Context()
	ids, address, err := callerOf(ctx)
	if err != nil {
		return err
	}
	select {
	case <-s.began:
	case <-ctx.Done():
		return endOf(ctx)
	}
	c := &providerSession{
		source: s, stream: stream, log: s.log.With("provider", ids[0], "address", address), opened: make(chan struct{}),
		read: make(chan sessionEnd, 1), sent: make(chan error, 1), wake: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
	if !s.openSession(c, ids, address) {
		_ = stream.Send(closeResponse("this owner ends")) // the status says it as well
		return status.Error(codes.Unavailable, "the owner is about to shut down")
	}
	defer s.sessions.Done()
	c.log.Info("provider connected")
	if err = c.serveStream(ctx); err != nil && ctx.Err() != nil {
		err = endOf(ctx)
	}
	s.closeSession(c)
	c.log.Info("provider gone", "code", status.Code(err))
	return err
}

// openSession adds the stream to the table, and reports false if the source has ended.
func (s *Source) openSession(c *providerSession, ids []federation.ID, address netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.sessions.Add(1)
	c.moving = s.moving
	c.record = s.table.OpenStream(ids, address, c.sendAnswer)
	return true
}

// closeSession removes the stream from the table.
func (s *Source) closeSession(c *providerSession) {
	s.mu.Lock()
	defer s.unlockAndPublish()
	s.table.CloseStream(c.record, time.Now())
}

// serveStream serves the stream until it ends, and returns its status. A blocked read or write ends
// when the handler has returned: the source waits for both.
func (c *providerSession) serveStream(ctx context.Context) error {
	c.queueMessages(&registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Open{Open: &registrationv1.Open{Version: version}}})
	c.source.sessions.Go(func() { c.read <- c.receiveMessages(ctx) })
	c.source.sessions.Go(func() { c.sent <- c.writeQueue(ctx) })
	silent := time.NewTimer(openWithin)
	defer silent.Stop()
	var end sessionEnd
	opened := c.opened
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-c.sent:
			return err
		case <-opened:
			silent.Stop()
			opened = nil
			continue
		case end = <-c.read:
			if end.err != nil {
				return end.err
			}
			if end.close == nil {
				return c.finishStream(ctx)
			}
		case <-silent.C:
			end = protocolViolation(codes.DeadlineExceeded, "there was no Open for %s", openWithin)
		case <-c.source.closing:
			end.close, end.code = closeResponse("this owner ends").GetClose(), codes.OK
		case <-c.moving:
			end.close, end.code = closeResponse("this owner cannot reach the store that owners share").GetClose(), codes.OK
		}
		return c.sendClose(ctx, end)
	}
}

// finishStream waits until everything that the provider has sent is done, and returns the status of
// the stream, on which the provider sends nothing more.
func (c *providerSession) finishStream(ctx context.Context) error {
	c.source.mu.Lock()
	c.source.table.FinishStream(c.record)
	c.source.mu.Unlock()
	select {
	case err := <-c.sent:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-c.source.closing:
		return nil
	}
}

// sendClose sends Close, if the provider reads it in time, and returns the status of the stream.
func (c *providerSession) sendClose(ctx context.Context, end sessionEnd) error {
	c.queueMessages(&registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Close{Close: end.close}}, nil)
	timer := time.NewTimer(closeWithin)
	defer timer.Stop()
	select {
	case <-c.sent:
	case <-ctx.Done():
	case <-timer.C:
	}
	if end.code == codes.OK {
		return nil
	}
	c.log.Warn("provider breaks the protocol", "error", end.close.GetText())
	return status.Error(end.code, end.close.GetText())
}

// closeResponse returns a Close that sends a provider to another owner, and says why.
func closeResponse(why string) *registrationv1.RegisterResponse {
	after := soonest + rand.N(latest-soonest) //nolint:gosec // no secret
	return &registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Close{Close: &registrationv1.Close{
		Reason: registrationv1.Close_PARTING_FRIENDS, Text: why, RetryAfter: durationpb.New(after),
	}}}
}

// protocolViolation returns the end of a stream on which the provider has broken the protocol.
func protocolViolation(code codes.Code, format string, args ...any) sessionEnd {
	return sessionEnd{code: code, close: &registrationv1.Close{
		Reason: registrationv1.Close_PANIC_AT_THE_DISCO, Text: fmt.Sprintf(format, args...),
	}}
}

// receiveMessages passes messages of the provider to the table until the provider sends Close or
// breaks the protocol, or the stream ends. It returns which of these it was.
func (c *providerSession) receiveMessages(ctx context.Context) sessionEnd {
	opened := false
	for {
		if !c.hasRoom(ctx) {
			return sessionEnd{err: ctx.Err()}
		}
		request, err := c.stream.Recv()
		if errors.Is(err, io.EOF) {
			return sessionEnd{}
		}
		if err != nil {
			return sessionEnd{err: err}
		}
		active := request.GetActive()
		if active != nil && opened && c.refreshActive(active) {
			continue
		}
		if size := proto.Size(request); size > maxMessage {
			return protocolViolation(codes.ResourceExhausted, "a message of %d bytes, the limit is %d", size, maxMessage)
		}
		open := request.GetOpen()
		switch {
		case !opened && open == nil:
			return protocolViolation(codes.InvalidArgument, "the first message must be Open")
		case opened && open != nil:
			return protocolViolation(codes.InvalidArgument, "Open was sent twice")
		case open != nil && open.GetVersion() != version:
			return sessionEnd{code: codes.FailedPrecondition, close: &registrationv1.Close{
				Reason: registrationv1.Close_VERSION_MISMATCH,
				Text:   fmt.Sprintf("this owner speaks version %d of the protocol, and not version %d", version, open.GetVersion()),
			}}
		case open != nil:
			opened = true
			close(c.opened)
		case active != nil:
			c.registerActive(active)
		case request.GetClear() != nil:
			c.clearNode(request.GetClear())
		case request.GetClose() != nil:
			return sessionEnd{}
		default:
			return protocolViolation(codes.InvalidArgument, "a message that version %d of the protocol does not have", version)
		}
	}
}

// hasRoom waits until the queue has room for the answer to another message. It reports false when
// ctx has ended.
func (c *providerSession) hasRoom(ctx context.Context) bool {
	for c.isFull() {
		select {
		case <-c.room:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (c *providerSession) isFull() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unsent >= maxAnswers || c.bytes >= maxAnswerText
}

// refreshActive renews the deadline of a node, if the Active changes nothing, and reports whether
// that is so.
func (c *providerSession) refreshActive(a *registrationv1.Active) bool {
	s := c.source
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.RefreshNode(c.record, a, time.Now())
}

// registerActive registers or changes the node of an Active.
func (c *providerSession) registerActive(a *registrationv1.Active) {
	s := c.source
	s.mu.Lock()
	refusal := s.table.Register(c.record, a, time.Now())
	s.unlockAndPublish()
	if refusal != nil {
		c.log.Warn("registration refused", "service", safetext.Printable(a.GetService()), "node", safetext.Printable(a.GetNode()),
			"rule", refusal.Rule, "reason", refusal.FullReason())
	}
}

// clearNode removes the node of a Clear.
func (c *providerSession) clearNode(m *registrationv1.Clear) {
	s := c.source
	s.mu.Lock()
	s.table.ClearNode(c.record, table.NodeText{Service: m.GetService(), Node: m.GetNode()})
	s.unlockAndPublish()
}

// sendAnswer puts an answer into the queue, or with nil the end. It is called with the mutex of the
// source held.
func (c *providerSession) sendAnswer(m *registrationv1.RegisterResponse) { c.queueMessages(m) }

// queueMessages puts messages into the queue and wakes the writer.
func (c *providerSession) queueMessages(messages ...*registrationv1.RegisterResponse) {
	c.mu.Lock()
	c.queue = append(c.queue, messages...)
	c.unsent += len(messages)
	for _, m := range messages {
		c.bytes += proto.Size(m)
	}
	c.mu.Unlock()
	wake.Up(c.wake)
}

// writeQueue sends the messages of the queue, until a send fails or the end is sent.
func (c *providerSession) writeQueue(ctx context.Context) error {
	for {
		select {
		case <-c.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		c.mu.Lock()
		batch := c.queue
		c.queue = nil
		c.mu.Unlock()
		for _, m := range batch {
			if m == nil {
				return nil
			}
			size := proto.Size(m)
			if granted := m.GetGranted(); granted != nil {
				fqdn, _ := federation.ParseFQDN(granted.GetService())                                    // the table has taken it
				granted.Waits = !c.source.config.Published(node.ServiceName(c.source.config.Name, fqdn)) // it was published before, if it can be
			}
			if err := c.stream.Send(m); err != nil {
				return err
			}
			c.mu.Lock()
			c.unsent--
			c.bytes -= size
			c.mu.Unlock()
			wake.Up(c.room)
		}
	}
}
