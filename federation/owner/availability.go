package owner

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// availability is a time in which a registry is available without a break. The streams and
// subscriptions of an availability end with it.
type availability struct {
	ctx context.Context         //nolint:containedctx // its end is that of the availability, and its cause says why
	end context.CancelCauseFunc // called with the registry locked

	next chan struct{} // closed when another has taken its place
}

func newAvailability() availability {
	ctx, end := context.WithCancelCause(context.Background())
	return availability{ctx, end, make(chan struct{})}
}

// over reports whether the availability has ended.
func (e availability) over() bool { return e.ctx.Err() != nil }

// reason returns the status with which the streams of the availability end, or nil before.
func (e availability) reason() error { return context.Cause(e.ctx) }

// errUnavailable ends the streams of a registry that is not available. It does not say why:
// the reason names the sources of the owner, with their paths and addresses, and consumers
// are others.
var errUnavailable = status.Error(codes.Unavailable, "the catalog is not available just now; the owner's status page and log say why")

// SetUnavailable says why the catalog cannot be told as a whole just now, or with ""
// that it can be. A new registry is available.
//
// While there is a reason, every stream of the registry ends with the code Unavailable:
// consumers keep the catalog that they have, and come back. The reason is for Stats, and
// they are not told it. What the
// registry holds may change meanwhile, and no consumer is told of it. Streams that
// are open end even if the reason is gone at once.
//
// A stream that ends so may have got a part of the catalog, but then not its end
// marker, or all of it as it was before.
func (r *Registry) SetUnavailable(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unavailable = reason
	if r.availability.over() {
		close(r.availability.next)
		r.availability = newAvailability() // available, or unavailable for another reason
	}
	if reason == "" {
		return
	}
	// The availability ends with the registry locked, and take looks at it in the same lock.
	// So no subscription is told of anything that changes from here on.
	r.availability.end(errUnavailable)
	clear(r.classes)
}

// current returns the availability of now, which may have ended.
func (r *Registry) current() availability {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.availability
}

// available waits until the registry is available, and returns the availability of then. When ctx
// ends before, it returns the availability of now.
func (r *Registry) available(ctx context.Context) availability {
	for {
		e := r.current()
		if !e.over() || ctx.Err() != nil {
			return e
		}
		select {
		case <-e.next:
		case <-ctx.Done():
		}
	}
}
