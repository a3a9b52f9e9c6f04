package faultowner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// These repeat constants of the library on purpose: a mistake there must not go
// unnoticed here.
const (
	resourceURL = "type.googleapis.com/federation.types.v1alpha2.FederatedService"
	endHeader   = "federation-catalog-end"
	endMarked   = "marked"
)

// Config configures an Owner.
type Config struct {
	Script Script

	// Credentials of the owner; nil speaks plain text.
	Credentials credentials.TransportCredentials

	// Fact is called for each thing that happens on a stream, so that a test can
	// compare answers with what the owner really published. It may be nil. It is
	// called from several goroutines. A response is sent only after the call for
	// Sending has returned.
	Fact func(Fact)

	// Event is called with one line for each thing that happens: "stream 1",
	// "ack 1 NONCE", "nack 1 NONCE TEXT", "wrong TEXT" (an answer that does not fit
	// its response) and "end 1", with the number of the stream. It may be nil. It is
	// called from several goroutines.
	Event func(string)
}

// Owner is an owner that follows a script.
type Owner struct {
	config  Config
	running sync.WaitGroup // what Serve waits for

	mu          sync.Mutex // guards the fields below
	streams     int        // sessions begun
	open        int        // streams
	connections map[*conn]struct{}
}

// What is the kind of a Fact.
type What uint8

// The kinds of Facts, in the order in which they happen on a stream.
const (
	Opened   What = iota // the consumer has subscribed
	Sending              // a response is about to be sent
	Answered             // a response was answered
	Ended                // nothing more is sent or received
)

// Fact is something that happened on one stream.
type Fact struct {
	What     What
	Stream   int                  // from 1
	Marked   bool                 // the header announces the end of the catalog
	Response *rdpb.StreamResponse // of Sending and Answered
	Refusal  string               // of Answered; "" is an acknowledgement
	Code     codes.Code           // of Ended
}

// New returns an owner. It does nothing until Serve is called.
func New(config Config) *Owner {
	if config.Credentials == nil {
		config.Credentials = insecure.NewCredentials()
	}
	return &Owner{config: config, connections: make(map[*conn]struct{})}
}

// Serve accepts consumers until ctx ends, and then returns nil. It closes the
// listener and resets all connections.
func (o *Owner) Serve(ctx context.Context, listener net.Listener) error {
	// Any pings are allowed: 0 would be the default of gRPC, 5 minutes.
	enforcement := keepalive.EnforcementPolicy{MinTime: time.Nanosecond, PermitWithoutStream: true}
	server := grpc.NewServer(
		grpc.Creds(tracked{o.config.Credentials, o}),
		grpc.KeepaliveEnforcementPolicy(enforcement),
		grpc.MaxRecvMsgSize(1<<20),
		grpc.WaitForHandlers(true),
	)
	rdpb.RegisterDiscoveryServiceServer(server, service{owner: o})
	stop := make(chan struct{})
	o.running.Go(func() {
		select {
		case <-ctx.Done():
		case <-stop:
		}
		o.Reset()
		server.Stop()
	})
	err := server.Serve(&entrance{Listener: listener, owner: o, ctx: ctx})
	close(stop)
	o.running.Wait()
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it ended because it was told to
	}
	return err
}

// Reset ends all connections without a message of TLS or HTTP/2, as a crash does.
func (o *Owner) Reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.connections {
		c.reset()
	}
}

// Streams returns the number of streams so far, and of those that are open.
func (o *Owner) Streams() (all, open int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.streams, o.open
}

func (o *Owner) fact(f Fact) {
	if o.config.Fact != nil {
		o.config.Fact(f)
	}
}

func (o *Owner) eventf(format string, args ...any) {
	if o.config.Event != nil {
		o.config.Event(fmt.Sprintf(format, args...))
	}
}

// track adds a connection to those that Reset ends, until it is closed.
func (o *Owner) track(raw net.Conn) *conn {
	c := &conn{Conn: raw}
	o.mu.Lock()
	o.connections[c] = struct{}{}
	o.mu.Unlock()
	c.closed = sync.OnceFunc(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.connections, c)
	})
	return c
}

// tracked are credentials that track the connections below TLS.
type tracked struct {
	credentials.TransportCredentials
	owner *Owner
}

// ServerHandshake implements credentials.TransportCredentials.
func (t tracked) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c := t.owner.track(raw)
	above, info, err := t.TransportCredentials.ServerHandshake(c)
	if err != nil {
		c.closed()
		return nil, nil, err
	}
	return above, trackedInfo{info, c}, nil
}

// Clone implements credentials.TransportCredentials.
func (t tracked) Clone() credentials.TransportCredentials {
	return tracked{t.TransportCredentials.Clone(), t.owner}
}

// trackedInfo passes the connection below TLS to the handler of a stream.
type trackedInfo struct {
	credentials.AuthInfo
	conn *conn
}

// conn is a connection that can be cut in the middle of a write.
type conn struct {
	net.Conn
	closed func()      // is called when it is closed; may be called again
	armed  atomic.Bool // the next write is cut
}

// Write implements net.Conn. Where the connection is armed, it writes half of p and
// closes the connection.
func (c *conn) Write(p []byte) (int, error) {
	if !c.armed.Load() {
		return c.Conn.Write(p)
	}
	n, _ := c.Conn.Write(p[:len(p)/2])
	_ = c.Conn.Close() // what was written still arrives
	return n, net.ErrClosed
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// reset ends the connection without a message of TLS or HTTP/2.
func (c *conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // RST instead of FIN
	}
	_ = c.Conn.Close()
}

// service is the gRPC service.
type service struct {
	rdpb.UnimplementedDiscoveryServiceServer
	owner *Owner
}

// EstablishStream follows the script for this stream.
func (s service) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	p, _ := peer.FromContext(stream.Context())
	t, session := s.owner.talk(stream.Context())
	t.stream, t.conn = stream, p.AuthInfo.(trackedInfo).conn //nolint:forcetypeassert // the credentials are ours
	t.began()
	// An owner that ends the stream at once does so before it has read anything.
	if len(session) == 0 || session[0].Verb != "status" {
		if err := t.subscribed(); err != nil {
			return t.ended(err)
		}
	}
	return t.ended(t.follow(session))
}

// talk carries out one session: on a stream of gRPC, or on a connection that may
// never have one.
type talk struct {
	owner   *Owner
	ctx     context.Context //nolint:containedctx // ends with the stream or connection
	conn    *conn           // below TLS
	stream  stream          // nil while there is none
	number  int             // of the session, from 1
	session string          // the consumer's context
	sent    int             // responses with a counted nonce
	open    bool            // the stream is counted in Owner.open
	told    bool            // the Fact Ended was told

	marked          bool   // the header announces the end of the catalog
	nonces, context string // the words of the steps nonce and context
}

// stream is the part of a gRPC stream that a script needs.
type stream interface {
	Send(message *rdpb.BidirectionalStream) error
	Recv() (*rdpb.BidirectionalStream, error)
	SetHeader(header metadata.MD) error
	SendHeader(header metadata.MD) error
}

// talk begins the next session of the script, and returns it.
func (o *Owner) talk(ctx context.Context) (*talk, Session) {
	o.mu.Lock()
	defer o.mu.Unlock()
	session := o.upcoming()
	o.streams++
	return &talk{owner: o, ctx: ctx, number: o.streams, nonces: "counted", context: "right"}, session
}

// upcoming returns the next session. The caller holds the lock.
func (o *Owner) upcoming() Session {
	if n := len(o.config.Script); n > 0 {
		return o.config.Script[min(o.streams, n-1)]
	}
	return nil
}

// began counts a new stream.
func (t *talk) began() {
	t.open = true
	t.owner.mu.Lock()
	t.owner.open++
	t.owner.mu.Unlock()
	t.owner.eventf("stream %d", t.number)
}

// subscribed receives the consumer's first message.
func (t *talk) subscribed() error {
	request, err := t.stream.Recv()
	if err != nil {
		return err
	}
	t.session = request.GetRequest().GetContext()
	t.owner.fact(Fact{What: Opened, Stream: t.number})
	return nil
}

// over tells the Fact Ended. Only the first call does.
func (t *talk) over(code codes.Code) {
	if !t.told {
		t.told = true
		t.owner.fact(Fact{What: Ended, Stream: t.number, Code: code})
	}
}

// ended counts the end of a stream, and returns err, the reason for it.
func (t *talk) ended(err error) error {
	t.over(status.Code(err))
	if t.open {
		t.owner.mu.Lock()
		t.owner.open--
		t.owner.mu.Unlock()
		t.owner.eventf("end %d", t.number)
	}
	return err
}

// follow carries out the steps of the session, and then hangs.
func (t *talk) follow(session Session) error {
	for _, step := range session {
		if done, err := t.do(step); done || err != nil {
			return err
		}
	}
	return t.hang()
}

// do carries out a step. It reports whether the stream is over.
func (t *talk) do(step Step) (done bool, err error) {
	switch step.Verb {
	case "upsert":
		return false, t.exchange(t.upsert(step.Name, step.FQDN, step.Address))
	case "operation", "foreign", "truncated", "named", "oversized":
		return false, t.exchange(t.broken(step))
	case "delete":
		return false, t.exchange(&rdpb.StreamResponse{Operation: rdpb.StreamResponse_DELETE, ResourceId: step.Name})
	case "end":
		return false, t.exchange(&rdpb.StreamResponse{})
	case "services":
		return false, t.ahead(step.N-step.From, func(i int) *rdpb.StreamResponse { return t.numbered(step.From+i, step.FQDN) })
	case "flood":
		return false, t.ahead(step.N, func(int) *rdpb.StreamResponse { return t.upsert(step.Name, step.FQDN, step.Address) })
	case "slowly":
		return false, t.slowly(step.From, step.N, step.Wait, func(i int) *rdpb.StreamResponse { return t.numbered(i, step.FQDN) })
	case "heartbeats":
		return false, t.slowly(0, math.MaxInt, step.Wait, func(int) *rdpb.StreamResponse { return new(rdpb.StreamResponse) })
	case "updates":
		return false, t.slowly(1, math.MaxInt, step.Wait, func(i int) *rdpb.StreamResponse {
			return t.upsert(step.Name, step.FQDN, fmt.Sprintf("10.255.0.%d", i&255))
		})
	case "resend":
		return false, t.slowly(0, math.MaxInt, 0, func(int) *rdpb.StreamResponse { return t.upsert(step.Name, step.FQDN, step.Address) })
	case "announce":
		t.marked = true
		return false, t.stream.SetHeader(metadata.Pairs(endHeader, endMarked))
	case "header":
		return false, t.stream.SendHeader(nil)
	case "nonce":
		t.nonces = step.Word
	case "context":
		t.context = step.Word
	case "wait":
		return false, t.wait(step.Wait)
	case "hang":
		return true, t.hang()
	case "status":
		if step.Code != codes.OK {
			err = status.Error(step.Code, "as the script says")
		}
		if f, ok := t.stream.(*frames); ok {
			t.over(step.Code)
			return true, f.finish(err)
		}
		return true, err
	case "cut":
		t.conn.armed.Store(true)
	case "reset":
		t.over(codes.Unavailable)
		t.conn.reset()
		return true, t.hang()
	default:
		return t.below(step)
	}
	return false, nil
}

// broken returns the response with a good service of which the step has changed something.
func (t *talk) broken(step Step) *rdpb.StreamResponse {
	response := t.upsert(step.Name, step.FQDN, step.Address)
	switch step.Verb {
	case "operation":
		response.Operation = rdpb.StreamResponse_Operation(step.N)
	case "foreign":
		response.Resource.TypeUrl = "type.googleapis.com/google.protobuf.Struct"
	case "truncated":
		response.Resource.Value = response.Resource.Value[:len(response.Resource.Value)-1]
	case "named":
		response.ResourceId = step.ID
	case "oversized":
		return t.described(step.Name, step.FQDN, step.Address, strings.Repeat("x", step.N))
	}
	return response
}

// slowly sends responses one after the other, and waits for the answer and a time behind each.
func (t *talk) slowly(from, to int, pause time.Duration, response func(i int) *rdpb.StreamResponse) error {
	for i := from; i < to; i++ {
		if err := t.exchange(response(i)); err != nil {
			return err
		}
		if err := t.wait(pause); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for d, or until the stream ends.
func (t *talk) wait(d time.Duration) error {
	if d == 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-t.ctx.Done():
		return t.ctx.Err()
	}
}

// hang waits until the stream ends.
func (t *talk) hang() error {
	<-t.ctx.Done()
	return t.ctx.Err()
}

// numbered returns the response with the i-th of many good services.
func (t *talk) numbered(i int, zone string) *rdpb.StreamResponse {
	name := "s" + strconv.Itoa(i)
	return t.upsert(name, name+"."+zone, fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255))
}

// upsert returns the response with a good service.
func (t *talk) upsert(name, fqdn, address string) *rdpb.StreamResponse {
	return t.described(name, fqdn, address, "")
}

// described is upsert with a description.
func (t *talk) described(name, fqdn, address, description string) *rdpb.StreamResponse {
	value, _ := proto.Marshal(&typespb.FederatedService{ // of valid strings, so it cannot fail
		Name: name, Fqdn: fqdn, Description: description,
		Endpoints: []*typespb.FederatedService_Endpoint{{Address: address, Port: 443}},
		Instances: []*typespb.FederatedService_Instance{{Id: "v1", Protocol: "HTTPS"}},
	})
	return &rdpb.StreamResponse{
		Operation: rdpb.StreamResponse_UPSERT, ResourceId: name, Resource: &anypb.Any{TypeUrl: resourceURL, Value: value},
	}
}

// send completes a response with nonce and context, and sends it.
func (t *talk) send(response *rdpb.StreamResponse) error {
	response.ResourceUrl = resourceURL
	switch t.nonces {
	case "counted":
		t.sent++
		response.Nonce = strconv.Itoa(t.sent)
	case "same":
		response.Nonce = "same"
	}
	switch t.context {
	case "right":
		response.Context = t.session
	case "wrong":
		response.Context = "of another session"
	}
	if t.conn.armed.Load() {
		t.over(codes.Unavailable)
	} else {
		t.owner.fact(Fact{What: Sending, Stream: t.number, Marked: t.marked, Response: response})
	}
	return t.stream.Send(&rdpb.BidirectionalStream{Response: response})
}

// exchange sends a response and waits for the answer.
func (t *talk) exchange(response *rdpb.StreamResponse) error {
	if err := t.send(response); err != nil {
		return err
	}
	return t.receive(response)
}

// receive receives the answer to a response, and checks that it belongs to it.
func (t *talk) receive(response *rdpb.StreamResponse) error {
	message, err := t.stream.Recv()
	if err != nil {
		return err
	}
	request, nonce := message.GetRequest(), response.GetNonce()
	if request.GetResponseNonce() != nonce || request.GetStatus() == nil || request.GetContext() != t.session {
		err := fmt.Errorf("stream %d: %v is no answer to the response with the nonce %q", t.number, message, nonce)
		t.owner.eventf("wrong %v", err)
		return err
	}
	refusal := request.GetStatus().GetMessage()
	t.owner.fact(Fact{What: Answered, Stream: t.number, Marked: t.marked, Response: response, Refusal: refusal})
	if refusal == "" {
		t.owner.eventf("ack %d %s", t.number, nonce)
	} else {
		t.owner.eventf("nack %d %s %s", t.number, nonce, refusal)
	}
	return nil
}

// ahead sends n responses as fast as the connection takes them. A goroutine receives
// the answers meanwhile, so that they do not fill the connection.
func (t *talk) ahead(n int, response func(i int) *rdpb.StreamResponse) error {
	sent := make(chan *rdpb.StreamResponse, 1024)
	var reader sync.WaitGroup
	var failed error
	reader.Go(func() {
		for response := range sent {
			if failed == nil {
				failed = t.receive(response)
			}
		}
	})
	var err error
	for i := 0; i < n && err == nil; i++ {
		r := response(i)
		if err = t.send(r); err == nil {
			sent <- r
		}
	}
	close(sent)
	reader.Wait() // it also ends with the stream
	return errors.Join(err, failed)
}
