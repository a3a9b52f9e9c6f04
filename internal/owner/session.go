package owner

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// streamSession is one stream to a consumer, in any version of the API. Two goroutines work for it:
// one reads requests, and one, in writeUpdates, takes updates and sends them. Only the latter
// changes the fields that it owns. The window bounds the responses that are sent and not
// acknowledged; withheld may grow with the catalog. A session keeps no services: those that are not
// taken yet are in the registry, where a newer version replaces an older one.
type streamSession struct {
	apiDialect

	server       *Server
	catalog      *servedCatalog
	subscription *registry.Subscription
	cancel       context.CancelCauseFunc // ends the stream
	address      net.Addr                // of the consumer
	ids          []federation.ID         // of the consumer's certificate
	consumer     string                  // the consumer's identity, safe to show
	log          *slog.Logger            // which names the consumer in every line
	window       *sendWindow
	resumed      *registry.Resumption // until startSubscription; nil unless the consumer has resumed

	declined bool // whether a response of the consumer was declined; owned by readRequests

	// owned by writeUpdates
	subscribed bool
	release    func()                   // frees the slot of awaitSlot
	withheld   map[string]withheldCause // the services that the consumer does not get, by name
	end        *registry.Update         // the end of the catalog, which was taken and not sent yet
	complete   bool                     // whether the end of the catalog was sent

	// changed by writeUpdates

	missing [gaps]atomic.Int64 // services in withheld, by cause
	telling atomic.Bool        // whether updates may have been taken that are not in the window yet
}

// responseHeader returns what the owner announces on the stream.
func (s *streamSession) responseHeader() metadata.MD {
	header := metadata.Pairs(wire.CatalogEndHeader, wire.CatalogEndMarked, wire.PathHeader, s.catalog.registry.Path().Header())
	if s.resumed != nil {
		header.Set(wire.ResumeHeader, s.resumed.Selection.Header())
	}
	return header
}

// serveStream serves the stream until it ends, and returns its status.
func (s *streamSession) serveStream(ctx context.Context) error {
	opened := make(chan wire.Request, 1)
	// The reader cannot be awaited here, because a blocked receive ends only when
	// the handler returns.
	s.server.readers.Go(func() { s.cancel(s.readRequests(opened)) })
	err := s.writeUpdates(ctx, opened)
	if ctx.Err() != nil {
		err = context.Cause(ctx) // why a send failed, if one did
	}
	switch {
	case errors.Is(err, io.EOF): // the consumer closed the stream
		err = nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		err = status.FromContextError(err).Err()
	}
	if s.subscribed {
		s.log.Info("consumer gone", "code", status.Code(err))
	}
	return err
}

// writeUpdates sends the catalog and then its changes, each when the window has room, and returns
// why it stopped.
func (s *streamSession) writeUpdates(ctx context.Context, opened <-chan wire.Request) error {
	first, err := s.awaitRequest(ctx, opened)
	if err != nil {
		return err
	}
	subscription := s.subscription
	if err := s.startSubscription(ctx); err != nil {
		return err
	}
	defer s.release()
	var few [1]registry.Update // all that a consumer at rest needs
	updates := few[:0]
	for due := true; ctx.Err() == nil; due = due || s.owesEnd() {
		room := 0
		if due {
			room = s.window.freeRoom()
		}
		switch {
		case room == 0:
			select {
			case <-subscription.Wake():
				due = true
			case <-s.window.room:
			case <-ctx.Done():
			}
		case s.owesEnd():
			if err := s.sendEnd(first.Context); err != nil {
				return err
			}
		default:
			// Only as many updates are taken as there is room for: those that wait in the
			// registry are coalesced.
			s.telling.Store(true)
			due, updates = false, subscription.TakeUpdates(updates[:0], room)
			if err := s.sendUpdates(ctx, updates, first.Context); err != nil {
				return err
			}
			s.telling.Store(false)
			clear(updates) // keep no references to services
			if len(updates) < room {
				updates = few[:0]
			}
		}
	}
	return context.Cause(ctx)
}

// owesEnd reports whether the end of the catalog was taken before and can be sent now.
func (s *streamSession) owesEnd() bool { return s.end != nil && s.missing[inexpressible].Load() == 0 }

// sendUpdates sends the messages for the updates. A consumer that does not read can make that take
// any time. So services that the policy hides meanwhile are left out, and everything else once ctx
// has ended.
func (s *streamSession) sendUpdates(ctx context.Context, updates []registry.Update, context string) error {
	for i := range updates {
		u := &updates[i]
		if err := ctx.Err(); err != nil {
			return err
		}
		if !s.subscription.RefreshUpdate(u) {
			if !u.Told { // or its deletion is about to come
				s.withholdService(u.Name, leaving)
			}
			continue
		}
		var err error
		switch u.Operation {
		case wire.End:
			s.release()
			end := *u
			s.end = &end
			err = s.sendEnd(context)
		default:
			err = s.sendUpdate(*u, context)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sendUpdate sends the message for the update, if there is one.
func (s *streamSession) sendUpdate(u registry.Update, context string) error {
	u, m, ok := s.expressUpdate(u)
	switch {
	case s.complete && s.missing[inexpressible].Load() > 0:
		return errIncomplete
	case !ok:
		return nil
	}
	if err := m.send(s.window.addResponse(u), context); err != nil {
		return err
	}
	if audit := s.server.config.Audit; audit != nil {
		s.auditUpdate(audit, u)
	}
	return nil
}

// auditUpdate writes to the audit log that the consumer gets a service that it did not have, or
// loses one.
func (s *streamSession) auditUpdate(audit *slog.Logger, u registry.Update) {
	audit = audit.With("catalog", s.catalog.name, "consumer", s.consumer, "service", u.Name)
	switch {
	case u.Operation == wire.Upsert && !u.Told:
		audit.Info("service told", "fqdn", u.Encoded.FQDN(), "rule", u.Rule)
	case u.Operation == wire.Delete:
		audit.Info("service withdrawn", "reason", u.Reason)
	}
}

// readRequests passes the initial request on and then records acknowledgements, until the stream
// ends or the consumer breaks the rules. It returns why it stopped.
func (s *streamSession) readRequests(opened chan<- wire.Request) error {
	first, err := s.receiveRequest()
	if err != nil {
		return err
	}
	if !first.Initial {
		return status.Error(codes.InvalidArgument, "the first request of a stream must have neither response_nonce nor status")
	}
	opened <- first
	for {
		request, err := s.receiveRequest()
		if err != nil {
			return err
		}
		answered, ok := s.window.acknowledge(request.Nonce)
		if !ok {
			return status.Errorf(codes.InvalidArgument, "response_nonce %s is not that of an unacknowledged response",
				safetext.Quote(request.Nonce))
		}
		s.recordAnswer(answered, request.Refusal)
	}
}

// receiveRequest returns the next request of the consumer. A consumer that publishes services, too, gets
// one line in the log.
func (s *streamSession) receiveRequest() (wire.Request, error) {
	request, err := s.receive(func() {
		if !s.declined {
			s.declined = true
			s.log.Warn("consumer publishes services, too; this owner ignores them")
		}
	})
	if invalid, ok := errors.AsType[*federation.InvalidError](err); ok {
		err = status.Error(codes.InvalidArgument, invalid.Error())
	}
	return request, err
}

// recordAnswer records the answer of the consumer to a response. A refused service is not sent
// again until it changes, because it would be refused again.
func (s *streamSession) recordAnswer(answered sentResponse, refusal string) {
	switch {
	case refusal != "":
		// Our own consumers begin the text with the service. What is logged of it is
		// bounded, and the rule at its end is what matters.
		rule := strings.TrimPrefix(refusal, "service "+safetext.Quote(answered.name)+": ")
		s.countRefusal(blamedField(rule))
		rule = safetext.Printable(rule)
		if answered.operation != wire.Upsert || s.catalog.registry.NoteAnswer(registry.Refusal{Service: answered.name, Consumer: s.consumer, Rule: rule}) {
			s.log.Warn("consumer refuses a service; it is sent again when it changes",
				"operation", answered.operation, "service", answered.name, "error", rule)
		}
	case answered.operation == wire.End:
		s.log.Info("consumer has the whole catalog")
		s.clearUnseenRefusals()
		fallthrough
	default:
		s.catalog.acknowledged.Add(1)
		s.clearRefusal(answered.name)
	}
}

// countRefusal counts a refusal by the field that its rule blames.
func (s *streamSession) countRefusal(field string) {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.catalog.refused[field]++
}
