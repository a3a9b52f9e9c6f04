package owner

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// era is a time in which a registry is available without a break. The streams and
// subscriptions of an era end with it.
type era struct {
	ctx context.Context         //nolint:containedctx // its end is that of the era, and its cause says why
	end context.CancelCauseFunc // called with the registry locked

	next chan struct{} // closed when another era has taken its place
}

func newEra() era {
	ctx, end := context.WithCancelCause(context.Background())
	return era{ctx, end, make(chan struct{})}
}

// over reports whether the era has ended.
func (e era) over() bool { return e.ctx.Err() != nil }

// reason returns the status with which the streams of the era end, or nil before.
func (e era) reason() error { return context.Cause(e.ctx) }

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
	if r.era.over() {
		close(r.era.next)
		r.era = newEra() // available, or unavailable for another reason
	}
	if reason == "" {
		return
	}
	// The era ends with the registry locked, and take looks at it in the same lock.
	// So no subscription is told of anything that changes from here on.
	r.era.end(errUnavailable)
	clear(r.classes)
}

// current returns the era of now, which may have ended.
func (r *Registry) current() era {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.era
}

// available waits until the registry is available, and returns the era of then. When ctx
// ends before, it returns the era of now.
func (r *Registry) available(ctx context.Context) era {
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
