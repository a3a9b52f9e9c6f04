package owner

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// session is the life of one stream, whatever the version of the API.
type session struct {
	dialect

	server   *Server
	cancel   context.CancelCauseFunc // ends it
	ids      []mtls.ID               // of the consumer's certificate
	consumer string                  // who it is, as it may be shown
	log      *slog.Logger            // which knows the consumer
	window   *window

	subscribed bool // owned by run
}

// run serves the stream until it ends, and returns its status.
func (s *session) run(ctx context.Context) error {
	opened := make(chan wire.Request, 1)
	// The reader cannot be awaited here: only the end of the handler ends a
	// blocked receive. Server.Serve waits for it.
	s.server.readers.Go(func() { s.cancel(s.read(opened)) })
	err := s.write(ctx, opened)
	if ctx.Err() != nil {
		err = context.Cause(ctx) // why a send failed, if one did
	}
	switch {
	case errors.Is(err, io.EOF): // the consumer has ended it on purpose
		err = nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		err = status.FromContextError(err).Err()
	}
	if s.subscribed {
		s.log.Info("consumer gone", "code", status.Code(err))
	}
	return err
}

// write sends the catalog and then its changes, each when the window has room.
func (s *session) write(ctx context.Context, opened <-chan wire.Request) error {
	var first wire.Request
	select {
	case first = <-opened:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.log.Info("consumer subscribed")
	s.subscribed = true
	subscription := s.server.config.Registry.Subscribe()
	defer subscription.Close()
	var updates []update
	for {
		// Room comes before the events: what waits in the registry is coalesced.
		room, err := s.window.wait(ctx)
		if err != nil {
			return err
		}
		if updates, err = subscription.next(ctx, updates[:0], room); err != nil {
			return err
		}
		for _, u := range updates {
			if s.express != nil {
				var ok bool
				if u, ok = s.express(u); !ok {
					continue
				}
			}
			if err := s.send(u, s.window.add(u), first.Context); err != nil {
				return err
			}
		}
		clear(updates) // which lets go of the services
	}
}

// read takes the initial request and then the acknowledgements, until the
// stream ends or the consumer breaks the rules.
func (s *session) read(opened chan<- wire.Request) error {
	first, err := s.receive()
	if err != nil {
		return err
	}
	if !first.Initial {
		return status.Error(codes.InvalidArgument, "the first request of a stream must have neither response_nonce nor status")
	}
	opened <- first
	for {
		request, err := s.receive()
		if err != nil {
			return err
		}
		answered, ok := s.window.acknowledge(request.Nonce)
		if !ok {
			return status.Errorf(codes.InvalidArgument, "response_nonce %s is not that of an unacknowledged response",
				federation.Quote(request.Nonce))
		}
		s.acknowledged(answered, request.Refusal)
	}
}

// acknowledged takes note of what the consumer says of a response. A service
// that it refuses is not sent again until it changes: it would be refused again.
func (s *session) acknowledged(answered flight, refusal string) {
	switch {
	case refusal != "":
		// Our own consumers begin with the service. What is shown is bounded, and
		// the rule at the end of the text is what matters.
		rule := strings.TrimPrefix(refusal, "service "+federation.Quote(answered.name)+": ")
		s.server.countRefusal(rule)
		if s.server.refusals.add(s.consumer, answered.name, refusal) {
			s.log.Warn("consumer refuses a service; it is sent again when it changes",
				"operation", answered.operation, "service", answered.name, "refusal", federation.Quote(rule))
		}
	case answered.operation == federation.End:
		s.log.Info("consumer has the whole catalog")
		fallthrough
	default:
		s.server.acknowledged.Add(1)
		s.server.refusals.remove(s.consumer, answered.name)
	}
}

// maxRefusals bounds the refusals that are remembered.
const maxRefusals = 4096

// refusals remembers which refusals have been logged: a consumer repeats them
// each time that it downloads the catalog. The zero value is ready.
type refusals struct {
	mu     sync.Mutex
	logged map[refused]string // the last text, guarded by mu
}

type refused struct{ consumer, service string }

// add tells whether the refusal is not the last one of that consumer and
// service.
func (r *refusals) add(consumer, service, refusal string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := refused{consumer, service}
	last, known := r.logged[key]
	if known && last == refusal {
		return false
	}
	if r.logged == nil {
		r.logged = make(map[refused]string)
	}
	if !known && len(r.logged) >= maxRefusals {
		for other := range r.logged { // any one: it may be logged twice
			delete(r.logged, other)
			break
		}
	}
	r.logged[key] = refusal
	return true
}

// reset forgets everything.
func (r *refusals) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.logged)
}

// remove forgets what the consumer said of the service, which it accepts now.
func (r *refusals) remove(consumer, service string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.logged, refused{consumer, service})
}
