package owner

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// renewals are the open streams whose consumers can renew their certificates, by the
// token that only the consumer of the stream has been told. It is guarded by the mutex
// of the server.
//
// TLS verifies a consumer in the handshake only, so its connection ends when the
// certificate has expired that it has shown last (see package mtls). Before that, the
// consumer shows a newer one in the handshake of another connection, where it names its
// stream by the token.
type renewals map[string]*session

var (
	errNoStream     = status.Error(codes.NotFound, "no stream of this owner has this token: it has ended, or is one of another replica")
	errNotForStream = status.Error(codes.PermissionDenied, "the certificate is not for the consumer that has the stream with this token")
)

// addLocked gives the session a token, if its connection ends with a certificate.
func (r renewals) addLocked(s *session) {
	if !s.peer.OwnUntil().IsZero() {
		s.token = rand.Text() // at least 128 bits
		r[s.token] = s
	}
}

// renewal returns the token of the stream that a new one is to renew, if the new one
// is a renewal at all.
func renewal(ctx context.Context) (token string, ok bool) {
	if values := metadata.ValueFromIncomingContext(ctx, wire.RenewHeader); len(values) > 0 {
		return values[0], true
	}
	return "", false
}

// renew lets the certificate of this connection vouch for the one of the stream with
// the token, and returns the status of the renewal: a stream that is never a
// subscription. Where it fails, nothing has changed for the stream with the token.
func (s *Server) renew(ctx context.Context, token string) error {
	p, _ := peer.FromContext(ctx)
	by, ok := mtls.PeerOf(p.AuthInfo)
	if !ok {
		return errNoCertificate
	}
	s.mu.Lock()
	renewed := s.renewals[token]
	_, may := s.mayLocked(by.IDs())
	served := renewed != nil && s.servesLocked(renewed)
	s.mu.Unlock()
	switch {
	case !may:
		return mayNot(by.IDs())
	case renewed == nil:
		return errNoStream
	case !served:
		return errReplaced
	}
	switch err := renewed.peer.Renew(by); {
	case errors.Is(err, net.ErrClosed):
		return errNoStream
	case err != nil:
		who := federation.Quote(fmt.Sprint(by.IDs()))
		if s.turnedAway.add(who, token, "") {
			s.log.With("identities", who).Warn("renewal of a certificate refused: it is not for the consumer that has the stream",
				"consumer", renewed.consumer, "address", p.Addr, "error", err)
		}
		return errNotForStream
	}
	renewed.log.Debug("consumer has renewed its certificate", "expires", by.Until())
	return nil
}
