package faultowner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
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

// What is written here again is not taken from the library on purpose.
const (
	resourceURL = "type.googleapis.com/federation.types.v1alpha2.FederatedService"
	endHeader   = "federation-catalog-end"
	endMarked   = "marked"
)

// Config is an owner.
type Config struct {
	Script Script

	// Credentials of the owner; nil speaks plain text.
	Credentials credentials.TransportCredentials

	// Pings is the interval at which an owner takes pings. 0 takes any. A
	// consumer that pings more often is told too_many_pings.
	Pings time.Duration

	// Event is told what happens: "stream 1", "ack 1 NONCE", "nack 1 NONCE TEXT",
	// "end 1", with the number of the stream. It may be nil, and is called from
	// several goroutines.
	Event func(string)
}

// Owner is an owner that follows a script.
type Owner struct {
	config Config
	steps  chan struct{} // lets one await go on

	mu          sync.Mutex
	streams     int
	open        int
	connections map[*conn]struct{}
	answers     []Answer
}

// Answer is what a consumer said of a response.
type Answer struct {
	Stream  int // from 1
	Nonce   string
	Refusal string // "" is an acknowledgement
}

// maxAnswers bounds what is remembered.
const maxAnswers = 100_000

// New returns an owner, which does nothing before Serve.
func New(config Config) *Owner {
	if config.Credentials == nil {
		config.Credentials = insecure.NewCredentials()
	}
	return &Owner{config: config, steps: make(chan struct{}), connections: make(map[*conn]struct{})}
}

// Serve accepts consumers until ctx ends, and returns nil then. The connections
// end without a word. It closes the listener.
func (o *Owner) Serve(ctx context.Context, listener net.Listener) error {
	enforcement := keepalive.EnforcementPolicy{MinTime: o.config.Pings, PermitWithoutStream: true}
	if o.config.Pings == 0 {
		enforcement.MinTime = time.Nanosecond // 0 would be the default of gRPC, 5 min
	}
	server := grpc.NewServer(
		grpc.Creds(tracked{o.config.Credentials, o}),
		grpc.KeepaliveEnforcementPolicy(enforcement),
		grpc.MaxRecvMsgSize(1<<20),
		grpc.WaitForHandlers(true),
	)
	rdpb.RegisterDiscoveryServiceServer(server, service{owner: o})
	var stopped sync.WaitGroup
	stop := make(chan struct{})
	stopped.Go(func() {
		select {
		case <-ctx.Done():
		case <-stop:
		}
		o.Reset()
		server.Stop()
	})
	err := server.Serve(listener)
	close(stop)
	stopped.Wait()
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it ended because it was told to
	}
	return err
}

// Go lets the script go on where it awaits that, and waits until it comes there.
func (o *Owner) Go(ctx context.Context) error {
	select {
	case o.steps <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reset ends all connections, as a crash does.
func (o *Owner) Reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.connections {
		c.reset()
	}
}

// Streams returns how many streams there were, and how many are open.
func (o *Owner) Streams() (all, open int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.streams, o.open
}

// Answers returns what consumers have said so far.
func (o *Owner) Answers() []Answer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]Answer(nil), o.answers...)
}

func (o *Owner) eventf(format string, args ...any) {
	if o.config.Event != nil {
		o.config.Event(fmt.Sprintf(format, args...))
	}
}

// tracked are credentials that keep the connections below TLS at hand.
type tracked struct {
	credentials.TransportCredentials
	owner *Owner
}

func (t tracked) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c := &conn{Conn: raw}
	t.owner.mu.Lock()
	t.owner.connections[c] = struct{}{}
	t.owner.mu.Unlock()
	c.closed = sync.OnceFunc(func() {
		t.owner.mu.Lock()
		defer t.owner.mu.Unlock()
		delete(t.owner.connections, c)
	})
	above, info, err := t.TransportCredentials.ServerHandshake(c)
	if err != nil {
		c.closed()
		return nil, nil, err
	}
	return above, trackedInfo{info, c}, nil
}

func (t tracked) Clone() credentials.TransportCredentials {
	return tracked{t.TransportCredentials.Clone(), t.owner}
}

type trackedInfo struct {
	credentials.AuthInfo
	conn *conn
}

// conn is a connection that can end in the middle of something.
type conn struct {
	net.Conn
	closed func()
	armed  atomic.Bool // the next write is cut
}

func (c *conn) Write(p []byte) (int, error) {
	if !c.armed.Load() {
		return c.Conn.Write(p)
	}
	n, _ := c.Conn.Write(p[:len(p)/2])
	_ = c.Conn.Close() // what was written still arrives
	return n, net.ErrClosed
}

func (c *conn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// reset ends the connection without a word of TLS or HTTP/2.
func (c *conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // RST instead of FIN
	}
	_ = c.Conn.Close()
}

// service speaks the protocol.
type service struct {
	rdpb.UnimplementedDiscoveryServiceServer
	owner *Owner
}

// EstablishStream follows the script for this stream.
func (s service) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	o := s.owner
	o.mu.Lock()
	o.streams++
	o.open++
	t := &talk{owner: o, stream: stream, number: o.streams, nonces: "counted", context: "right"}
	o.mu.Unlock()
	o.eventf("stream %d", t.number)
	defer func() {
		o.mu.Lock()
		o.open--
		o.mu.Unlock()
		o.eventf("end %d", t.number)
	}()
	var session Session
	if n := len(o.config.Script); n > 0 {
		session = o.config.Script[min(t.number, n)-1]
	}
	// Some owners end the stream before they have read anything.
	if len(session) == 0 || session[0].Verb != "status" {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		t.session = request.GetRequest().GetContext()
	}
	for _, step := range session {
		if done, err := t.do(step); done || err != nil {
			return err
		}
	}
	return t.hang()
}

// talk is one stream.
type talk struct {
	owner   *Owner
	stream  rdpb.DiscoveryService_EstablishStreamServer
	number  int
	session string // the consumer's context
	sent    int

	nonces, context string // how responses look
}

// do carries out a step. It tells whether the stream is over.
func (t *talk) do(step Step) (done bool, err error) {
	switch step.Verb {
	case "upsert":
		return false, t.exchange(t.upsert(step.Name, step.FQDN, step.Address))
	case "delete":
		return false, t.exchange(&rdpb.StreamResponse{Operation: rdpb.StreamResponse_DELETE, ResourceId: step.Name})
	case "end":
		return false, t.exchange(&rdpb.StreamResponse{})
	case "services":
		return false, t.ahead(step.N-step.From, func(i int) *rdpb.StreamResponse {
			i += step.From
			name := "s" + strconv.Itoa(i)
			return t.upsert(name, name+"."+step.FQDN, fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255))
		})
	case "operation":
		response := t.upsert(step.Name, step.FQDN, step.Address)
		response.Operation = rdpb.StreamResponse_Operation(step.N)
		return false, t.exchange(response)
	case "foreign":
		response := t.upsert(step.Name, step.FQDN, step.Address)
		response.Resource.TypeUrl = "type.googleapis.com/google.protobuf.Struct"
		return false, t.exchange(response)
	case "truncated":
		response := t.upsert(step.Name, step.FQDN, step.Address)
		response.Resource.Value = response.Resource.Value[:len(response.Resource.Value)/2]
		return false, t.exchange(response)
	case "resend":
		for err == nil {
			err = t.exchange(t.upsert(step.Name, step.FQDN, step.Address))
		}
		return false, err
	case "flood":
		return false, t.ahead(step.N, func(int) *rdpb.StreamResponse {
			return t.upsert(step.Name, step.FQDN, step.Address)
		})
	case "announce":
		return false, t.stream.SetHeader(metadata.Pairs(endHeader, endMarked))
	case "header":
		return false, t.stream.SendHeader(nil)
	case "nonce":
		t.nonces = step.Word
	case "context":
		t.context = step.Word
	case "await":
		select {
		case <-t.owner.steps:
		case <-t.stream.Context().Done():
			return true, t.stream.Context().Err()
		}
	case "wait":
		timer := time.NewTimer(step.Wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-t.stream.Context().Done():
			return true, t.stream.Context().Err()
		}
	case "hang":
		return true, t.hang()
	case "status":
		if step.Code == codes.OK {
			return true, nil
		}
		return true, status.Error(step.Code, "as the script says")
	case "cut":
		t.conn().armed.Store(true)
	case "reset":
		t.conn().reset()
		return true, t.hang()
	}
	return false, nil
}

// hang waits until the consumer goes.
func (t *talk) hang() error {
	<-t.stream.Context().Done()
	return t.stream.Context().Err()
}

// conn is the connection below the stream.
func (t *talk) conn() *conn {
	p, _ := peer.FromContext(t.stream.Context())
	return p.AuthInfo.(trackedInfo).conn //nolint:forcetypeassert // the credentials are ours
}

// upsert is a good service.
func (t *talk) upsert(name, fqdn, address string) *rdpb.StreamResponse {
	value, _ := proto.Marshal(&typespb.FederatedService{ // of valid strings, so it cannot fail
		Name: name, Fqdn: fqdn,
		Endpoints: []*typespb.FederatedService_Endpoint{{Address: address, Port: 443}},
		Instances: []*typespb.FederatedService_Instance{{Id: "v1", Protocol: "HTTPS"}},
	})
	return &rdpb.StreamResponse{
		Operation: rdpb.StreamResponse_UPSERT, ResourceId: name,
		Resource: &anypb.Any{TypeUrl: resourceURL, Value: value},
	}
}

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
	return t.stream.Send(&rdpb.BidirectionalStream{Response: response})
}

// exchange sends a response and waits for its answer.
func (t *talk) exchange(response *rdpb.StreamResponse) error {
	if err := t.send(response); err != nil {
		return err
	}
	return t.receive(response.GetNonce())
}

// receive takes the answer to the response with the nonce.
func (t *talk) receive(nonce string) error {
	message, err := t.stream.Recv()
	if err != nil {
		return err
	}
	request := message.GetRequest()
	if request.GetResponseNonce() != nonce || request.GetStatus() == nil || request.GetContext() != t.session {
		err := fmt.Errorf("stream %d: %v is no answer to the response with the nonce %q", t.number, message, nonce)
		t.owner.eventf("wrong %v", err)
		return err
	}
	answer := Answer{Stream: t.number, Nonce: nonce, Refusal: request.GetStatus().GetMessage()}
	t.owner.mu.Lock()
	if len(t.owner.answers) < maxAnswers {
		t.owner.answers = append(t.owner.answers, answer)
	}
	t.owner.mu.Unlock()
	if answer.Refusal == "" {
		t.owner.eventf("ack %d %s", t.number, nonce)
	} else {
		t.owner.eventf("nack %d %s %s", t.number, nonce, answer.Refusal)
	}
	return nil
}

// ahead sends n responses as fast as the connection takes them. Something has to
// read the answers meanwhile, or the connection is full of them.
func (t *talk) ahead(n int, response func(i int) *rdpb.StreamResponse) error {
	nonces := make(chan string, 1024)
	var reader sync.WaitGroup
	var failed error
	reader.Go(func() {
		for nonce := range nonces {
			if failed == nil {
				failed = t.receive(nonce)
			}
		}
	})
	var err error
	for i := 0; i < n && err == nil; i++ {
		r := response(i)
		if err = t.send(r); err == nil {
			nonces <- r.GetNonce()
		}
	}
	close(nonces)
	reader.Wait() // the end of the stream ends it, too
	return errors.Join(err, failed)
}
