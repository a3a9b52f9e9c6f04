package owner

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
)

// gap is why a consumer does not have a service that is in its view.
type gap uint8

const (
	leaving       gap = iota // its deletion is about to come
	tooLarge                 // no message has room for it
	inexpressible            // the version of the API cannot express it
	gaps
)

// gapOf returns what an error of a message stands for.
func gapOf(err error) gap {
	if _, ok := errors.AsType[registry.TooLargeError](err); ok {
		return tooLarge
	}
	return inexpressible
}

// message is an update in a version of the API.
type message struct {
	bytes int // size of its resource, which is nearly all of the message
	send  func(nonce, context string) error
}

// express returns the message for an update with what it says, and whether there is
// one to send.
//
// A service that the version of the API cannot express, or only in a message that is
// too large, must not end the stream: the stream would end again each time that the
// consumer came back. Such a service is withheld and logged. If the consumer has an
// earlier version of it, that one is deleted, because it is no longer true.
//
// A consumer that has the whole catalog denies what it does not have. So it is not told
// the end of one that its version of the API cannot express; see [session.finish].
func (s *session) express(u registry.Update) (registry.Update, message, bool) {
	_, withheld := s.withheld[u.Name]
	u.Told = u.Told && !withheld
	m, err := s.prepare(u)
	if err == nil {
		err = s.form().Check(m.bytes)
	}
	if u.Operation != federation.Upsert {
		s.supply(u.Name)
		// All but a service always has a message: the name in a deletion is that of a
		// valid one.
		return u, m, err == nil && (u.Told || u.Operation != federation.Delete)
	}
	if err == nil {
		s.supply(u.Name)
		return u, m, true
	}
	s.withhold(u.Name, gapOf(err))
	if !withheld {
		s.catalog.log.Warn("service cannot be expressed in a version of the API; consumers of that version do not get it",
			"version", s.version, "service", u.Name, "error", err)
	}
	if !u.Told {
		return u, message{}, false
	}
	u.Event, u.Encoded = federation.Event{Operation: federation.Delete, Name: u.Name}, nil
	u.Reason = "the version of the API cannot express it"
	m, err = s.prepare(u)
	return u, m, err == nil
}

// form is how the consumer is sent services.
func (s *session) form() registry.Form {
	return registry.Form{Version: s.version, MaxMessage: s.server.config.MaxMessage}
}

// withhold notes that the consumer does not have the service.
func (s *session) withhold(name string, why gap) {
	if s.withheld == nil {
		s.withheld = make(map[string]gap)
	}
	s.supply(name)
	s.withheld[name] = why
	s.missing[why].Add(1)
}

// supply notes that the consumer has the service, or that there is none.
func (s *session) supply(name string) {
	if why, ok := s.withheld[name]; ok {
		delete(s.withheld, name)
		s.missing[why].Add(-1)
	}
}

// errIncomplete ends a stream of a consumer that has the whole catalog when that is so
// no more.
var errIncomplete = status.Error(codes.Unavailable,
	"the catalog has a service that cannot be told in this version of the API; until it can, the catalog is not complete")

// finish tells the consumer the end of the catalog, which has been taken. It does not
// while the version of the API cannot express a service: the consumer would deny that
// there is one. When that is so later, the stream ends, and on the next one there is no
// end.
//
// What is too large for a message is no reason, as what a consumer refuses is none: who
// publishes a service that is beyond the bounds must not take the others away.
func (s *session) finish(context string) error {
	if s.missing[inexpressible].Load() > 0 {
		return nil
	}
	end := *s.end
	s.end, s.complete = nil, true
	return s.say(end, context)
}
