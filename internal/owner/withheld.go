package owner

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// withheldCause is why a consumer does not have a service that it may have.
type withheldCause uint8

const (
	leaving       withheldCause = iota // the policy hides the service now, and its deletion is about to come
	tooLarge                           // no message has room for it
	inexpressible                      // the version of the API cannot express it
	gaps
)

// encodedUpdate is an update as a message in a version of the API.
type encodedUpdate struct {
	bytes int // size of its resource, which is nearly all of the message
	send  func(nonce, context string) error
}

// expressUpdate returns the update that is to be sent and its message, and whether there is one.
//
// A service that the version of the API cannot express, or only in a message that is too large,
// must not end the stream: the stream would end again each time that the consumer came back. Such a
// service is withheld and logged. If the consumer has an earlier version of the service, that
// version is deleted, because it is no longer true.
//
// A consumer that has the whole catalog denies what it does not have. So the end of a catalog is
// not sent that the consumer's version of the API cannot express; see [streamSession.sendEnd].
func (s *streamSession) expressUpdate(u registry.Update) (registry.Update, encodedUpdate, bool) {
	_, withheld := s.withheld[u.Name]
	u.Told = u.Told && !withheld
	m, err := s.prepare(u)
	cause := inexpressible
	if most := s.server.config.MaxMessage; err == nil && !registry.FitsMessage(m.bytes, most) {
		cause, err = tooLarge, fmt.Errorf("it takes %d bytes, and a message has no more than %d", m.bytes, most)
	}
	if u.Operation != wire.Upsert {
		s.supplyService(u.Name)
		// All but a service always has a message: the name in a deletion is that of a
		// valid one.
		return u, m, err == nil && (u.Told || u.Operation != wire.Delete)
	}
	if err == nil {
		s.supplyService(u.Name)
		return u, m, true
	}
	s.withholdService(u.Name, cause)
	if !withheld {
		s.catalog.log.Warn("service cannot be expressed in a version of the API; consumers of that version do not get it",
			"version", s.version, "service", u.Name, "error", err)
	}
	if !u.Told {
		return u, encodedUpdate{}, false
	}
	u.Event, u.Encoded = wire.Event{Operation: wire.Delete, Name: u.Name}, nil
	u.Reason = "the version of the API cannot express it"
	m, err = s.prepare(u)
	return u, m, err == nil
}

// withholdService records that the consumer does not have the service, and why.
func (s *streamSession) withholdService(name string, why withheldCause) {
	if s.withheld == nil {
		s.withheld = make(map[string]withheldCause)
	}
	s.supplyService(name)
	s.withheld[name] = why
	s.missing[why].Add(1)
}

// supplyService records that the consumer has the service, or that the service is gone.
func (s *streamSession) supplyService(name string) {
	if why, ok := s.withheld[name]; ok {
		delete(s.withheld, name)
		s.missing[why].Add(-1)
	}
}

// errIncomplete ends the stream of a consumer that was sent the end of the catalog, when the
// catalog has come to contain a service that its version of the API cannot express.
var errIncomplete = status.Error(codes.Unavailable,
	"this version of the API cannot express a service of the catalog, so the catalog would not be complete")

// sendEnd sends the end of the catalog, which was taken before. It sends nothing while the version
// of the API cannot express a service, because the consumer would deny that this service exists.
// When there is such a service later, the stream ends, and the next stream has no end marker.
//
// A service that is too large for a message does not keep the end back, and neither does a service
// that the consumer refuses: whoever publishes one service beyond the bounds must not take the
// others away.
func (s *streamSession) sendEnd(context string) error {
	if s.missing[inexpressible].Load() > 0 {
		return nil
	}
	end := *s.end
	s.end, s.complete = nil, true
	return s.sendUpdate(end, context)
}
