package owner

import (
	"github.com/hamlet-federation/coredns-federation/federation"
)

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
func (s *session) express(u update) (update, message, bool) {
	_, withheld := s.withheld[u.Name]
	u.told = u.told && !withheld
	m, err := s.prepare(u)
	if err == nil {
		err = checkSize(m.bytes, s.server.config.MaxMessage)
	}
	if u.Operation != federation.Upsert {
		delete(s.withheld, u.Name)
		// A deletion and the end of the catalog always have a message: the name is
		// that of a valid service.
		return u, m, err == nil && (u.told || u.Operation == federation.End)
	}
	if err == nil {
		delete(s.withheld, u.Name)
		return u, m, true
	}
	s.withhold(u.Name)
	if s.catalog.withheld.add(s.version.String(), u.Name, err.Error()) {
		s.catalog.log.Warn("service cannot be expressed in a version of the API; consumers of that version do not get it",
			"version", s.version, "service", u.Name, "error", err)
	}
	if !u.told {
		return u, message{}, false
	}
	u.Event, u.encoded = federation.Event{Operation: federation.Delete, Name: u.Name}, nil
	u.reason = "the version of the API cannot express it"
	m, err = s.prepare(u)
	return u, m, err == nil
}

// withhold notes that the consumer does not have the service.
func (s *session) withhold(name string) {
	if s.withheld == nil {
		s.withheld = make(map[string]struct{})
	}
	s.withheld[name] = struct{}{}
}
