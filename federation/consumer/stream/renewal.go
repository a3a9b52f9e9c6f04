package stream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

const (
	// minRenewal is the least time between two renewals.
	minRenewal = time.Second

	// maxRenewalSleep is how long no clock is looked at before a renewal: the one by
	// which certificates expire may be set.
	maxRenewalSleep = time.Hour

	// maxRenewalMessage bounds the messages of a renewal in bytes. None is expected.
	maxRenewalMessage = 1 << 10

	// maxToken bounds the token of a stream in bytes. Those of our owners have 26.
	maxToken = 256
)

// errRenewalAnswered fails a renewal whose owner took it for a subscription.
var errRenewalAnswered = errors.New("the owner answers a renewal with a message")

// renewal keeps the certificates of one stream current. TLS verifies a peer in the
// handshake only, so a connection ends when the certificate has expired that the peer
// has shown last (see package mtls). Before that, both sides show their newest
// certificates in the handshake of another connection, which is closed at once. The
// subscription goes on; it is Consumer.Refetch that begins another one.
type renewal struct {
	consumer *Consumer
	address  string        // of the replica, for which its certificate must be valid
	target   string        // that is dialed
	tokens   <-chan string // receives the token of the stream when it is known
	log      *slog.Logger

	// owned by run
	owner  mtls.Peer // on the connection of the stream
	token  string    // "" with an owner that asks for no renewal
	warned bool
}

// newRenewal returns the renewal for a stream on the connection that the log has
// seen, or nil if that connection does not end with a certificate.
func (c *Consumer) newRenewal(l *dialLog, tokens <-chan string) *renewal {
	shaken := l.shaken.Load()
	if shaken == nil {
		return nil
	}
	owner, _ := mtls.PeerOf(shaken.info)
	if owner.OwnUntil().IsZero() {
		return nil
	}
	r := &renewal{
		consumer: c, address: l.address, target: l.address, tokens: tokens, owner: owner,
		log: c.connectionLog.logger,
	}
	if c.direct { // a name may lead to several replicas, and one of them has the stream
		r.target = shaken.remote.String()
	}
	return r
}

// tokenOf waits for the header, and returns the token of the stream, or "".
func tokenOf(stream stream) string {
	header, err := stream.Header()
	if values := header.Get(wire.RenewalHeader); err == nil && len(values) > 0 && len(values[0]) <= maxToken {
		return values[0]
	}
	return ""
}

// run renews the certificates whenever that is due, until ctx ends, as it must when
// the stream does.
func (r *renewal) run(ctx context.Context) {
	due := r.due(0)
	var fixed <-chan struct{} // after a failure: closed when other credentials may help
	for {
		timer := time.NewTimer(min(time.Until(due), maxRenewalSleep))
		select {
		case <-timer.C:
		case <-fixed:
			due = time.Now()
		case r.token = <-r.tokens:
			due = r.due(0)
		case <-ctx.Done():
			return
		}
		switch {
		case r.expiry().IsZero():
			return
		case time.Until(due) > 0:
			continue
		}
		changed := r.consumer.config.Identity.Changed() // before the attempt, so that a change during it counts
		err := r.attempt(ctx)
		if ctx.Err() != nil || r.expiry().IsZero() {
			return
		}
		if fixed = nil; err != nil {
			fixed = changed
		}
		r.note(err)
		due = r.due(minRenewal)
	}
}

// expiry returns when the first of the certificates expires that were shown last, or
// zero when the connection of the stream is closed. An owner that asks for no renewal
// sees no other certificate of this side.
func (r *renewal) expiry() time.Time {
	own, owners := r.owner.OwnUntil(), r.owner.Until()
	if own.IsZero() || r.token != "" && own.Before(owners) {
		return own
	}
	return owners
}

// due returns when to renew next, but after that pause at least.
func (r *renewal) due(pause time.Duration) time.Time {
	now := time.Now().Round(0) // of the clock by which certificates expire
	return now.Add(renewalDelay(r.expiry().Sub(now), pause))
}

// renewalDelay returns half of the time that is left until a certificate expires, or
// half of what has passed since, and that pause at least; without a pause, one that has
// expired is renewed at once. Up to a quarter of it comes off at random: an owner shows one
// certificate to all of its consumers, and halves of the same time would bring these
// together.
func renewalDelay(left, pause time.Duration) time.Duration {
	if left <= 0 && pause == 0 {
		return 0
	}
	half := left.Abs() / 2
	return max(pause, half-rand.N(half/4+1)) //nolint:gosec // jitter is no secret
}

// attempt renews the certificates once.
func (r *renewal) attempt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	l := &dialLog{address: r.address, dial: func(ctx context.Context, _ string) (net.Conn, error) {
		return r.consumer.config.Dial(ctx, r.target)
	}}
	conn, err := r.consumer.connect(l)
	if err != nil {
		return err
	}
	defer conn.Close()
	if r.token == "" {
		err = greet(ctx, conn)
	} else {
		err = r.present(ctx, conn)
	}
	if err != nil {
		return l.explain(err)
	}
	by, _ := mtls.PeerOf(l.shaken.Load().info)
	return r.owner.Renew(by)
}

// greet waits for the handshake, in which the owner shows its certificate. No owner
// needs to know of renewals for that.
func greet(ctx context.Context, conn *grpc.ClientConn) error {
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if state == connectivity.TransientFailure {
			return status.Error(codes.Unavailable, "no connection")
		}
		if !conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
	return nil
}

// present shows the owner in which connection, and so by which certificate, the
// consumer of the stream has come. No subscription is sent, so none can come of it.
func (r *renewal) present(ctx context.Context, conn *grpc.ClientConn) error {
	service, method := &rdpb.DiscoveryService_ServiceDesc, rdpb.DiscoveryService_EstablishStream_FullMethodName
	if r.consumer.config.Version == wire.V1Alpha1 {
		service, method = &rdpb1.DiscoveryService_ServiceDesc, rdpb1.DiscoveryService_EstablishStream_FullMethodName
	}
	ctx = metadata.AppendToOutgoingContext(ctx, wire.RenewHeader, r.token)
	stream, err := conn.NewStream(ctx, &service.Streams[0], method, grpc.MaxCallRecvMsgSize(maxRenewalMessage))
	if err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	switch err := stream.RecvMsg(new(emptypb.Empty)); {
	case err == nil:
		return errRenewalAnswered
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// note logs how an attempt ended. That the stream is about to be lost is logged once.
func (r *renewal) note(err error) {
	expiry := r.expiry()
	attributes := []any{"address", r.address, "expires", expiry}
	if err == nil {
		r.warned = false
		r.log.Debug("certificates of the stream are renewed", attributes...)
		return
	}
	reason := classify(err)
	attributes = append(attributes, "error", reason.Error())
	if r.warned || time.Until(expiry) > 0 {
		r.log.Debug("certificates of the stream are not renewed, trying again", attributes...)
		return
	}
	r.warned = true
	if remedy := reason.Remedy(); remedy != "" {
		attributes = append(attributes, "remedy", remedy)
	}
	r.log.Warn("a certificate of the stream has expired and cannot be renewed; without another one the stream ends", attributes...)
}
