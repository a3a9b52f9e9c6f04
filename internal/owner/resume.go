package owner

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
)

// openTimeout is how long a consumer that resumes may take for its initial request. Its
// subscription keeps an earlier version alive until then.
const openTimeout = time.Minute

// errNoRequest ends a resumed stream on which no initial request comes.
var errNoRequest = status.Error(codes.Unavailable, "the stream was resumed, but its initial request did not come within a minute")

// tryResume lets the consumer go on with what it holds, if the header of its stream has digests of
// that, and if a part of it need not be sent. A consumer of v1alpha1 is sent everything, because the
// digests are those of the messages of v1alpha2.
func (s *streamSession) tryResume(ctx context.Context) {
	values := metadata.ValueFromIncomingContext(ctx, wire.ResumeHeader)
	if len(values) != 1 || s.version != wire.V1Alpha2 {
		return
	}
	theirs, err := resume.ParseDigests(values[0])
	if err != nil {
		s.log.Debug("consumer cannot resume: its digests cannot be read", "error", err)
		return
	}
	s.resumed = s.subscription.Resume(s.server.config.MaxMessage, theirs)
	if s.resumed == nil {
		return
	}
	for _, name := range s.resumed.Withheld {
		s.withholdService(name, tooLarge)
	}
	s.catalog.resumed.Add(1)
	s.catalog.spared.Add(uint64(max(0, s.resumed.Spared)))
	s.clearHeldRefusals()
}

// awaitRequest waits for the initial request and returns it.
func (s *streamSession) awaitRequest(ctx context.Context, opened <-chan wire.Request) (wire.Request, error) {
	var overdue <-chan time.Time
	if s.resumed != nil {
		timer := time.NewTimer(openTimeout)
		defer timer.Stop()
		overdue = timer.C
	}
	select {
	case first := <-opened:
		return first, nil
	case <-overdue:
		return wire.Request{}, errNoRequest
	case <-ctx.Done():
		return wire.Request{}, context.Cause(ctx)
	}
}

// startSubscription records that the consumer has subscribed, and waits until it may be sent the
// catalog.
func (s *streamSession) startSubscription(ctx context.Context) error {
	s.subscribed = true
	s.subscription.MarkAsked()
	if s.resumed == nil {
		s.log.Info("consumer subscribed")
	} else {
		s.log.Info("consumer subscribed", "held", s.resumed.Spared)
		if audit := s.server.config.Audit; audit != nil {
			audit.Info("services held", "catalog", s.catalog.name, "consumer", s.consumer, "held", s.resumed.Spared)
		}
		s.resumed = nil // it is not needed any more
	}
	return s.awaitSlot(ctx, s.subscription.UnsentCount())
}

// clearHeldRefusals takes back the consumer's refusals of services that it has resumed with. The
// consumer may have refused a version that was not the last one.
func (s *streamSession) clearHeldRefusals() {
	for _, service := range s.catalog.registry.RefusedServices(s.consumer) {
		if _, withheld := s.withheld[service]; !withheld && s.subscription.HoldsService(service) {
			s.clearRefusal(service)
		}
	}
}
