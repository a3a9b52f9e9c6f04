package owner

import (
	"fmt"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// message is an update in the terms of a version of the API.
type message struct {
	bytes int // of its resource, which is nearly all of it
	send  func(nonce, context string) error
}

// express returns what the consumer is told of an update, and false when that is
// nothing. What the version of the API cannot say, or only in a message that
// consumers do not take, must not end the stream: it would end again whenever the
// consumer came back. Such a service is withheld, and one that the consumer has
// in an earlier form is withdrawn, as what the consumer has is no longer so.
func (s *session) express(u update) (update, message, bool) {
	_, unsaid := s.withheld[u.Name]
	u.told = u.told && !unsaid
	m, err := s.prepare(u)
	if most := s.server.config.MaxMessage; err == nil && m.bytes+envelopeBytes > most {
		err = fmt.Errorf("it takes %d bytes, and a message has no more than %d", m.bytes, most)
	}
	if u.Operation != federation.Upsert {
		delete(s.withheld, u.Name)
		// Nothing of these can fail but the encoding of a name, which is checked.
		return u, m, err == nil && (u.told || u.Operation == federation.End)
	}
	if err == nil {
		delete(s.withheld, u.Name)
		return u, m, true
	}
	if s.withheld == nil {
		s.withheld = make(map[string]struct{})
	}
	s.withheld[u.Name] = struct{}{}
	if s.server.withheld.add(s.version.String(), u.Name, err.Error()) {
		s.server.log.Warn("service cannot be expressed in a version of the API; consumers of that version do not get it",
			"version", s.version, "service", u.Name, "reason", err)
	}
	if !u.told {
		return u, message{}, false
	}
	u.Event, u.published = federation.Event{Operation: federation.Delete, Name: u.Name}, nil
	m, err = s.prepare(u)
	return u, m, err == nil
}
