package owner

import (
	"context"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
)

// pause tells the consumer that the registry is unavailable.
func (s *session) pause(u registry.Update, context string) error {
	s.end, s.complete = nil, false
	return s.say(u, context)
}

// goOn tells the consumer that the registry is available, or by which path its services come
// now. What the header of a stream says that opens while the registry is available, the consumer
// of one that has waited is told here.
func (s *session) goOn(ctx context.Context, u registry.Update, context string) error {
	if !s.subscribed {
		s.resume(ctx)
		if s.resumed != nil {
			u.Header.Resume = s.resumed.Selection.Header()
		}
		if err := s.start(ctx); err != nil {
			return err
		}
	}
	return s.say(u, context)
}
