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
}

func newEra() era {
	ctx, end := context.WithCancelCause(context.Background())
	return era{ctx, end}
}

// over reports whether the era has ended.
func (e era) over() bool { return e.ctx.Err() != nil }

// reason returns the status with which the streams of the era end, or nil before.
func (e era) reason() error { return context.Cause(e.ctx) }

// SetUnavailable says why the catalog cannot be told as a whole just now, or with ""
// that it can be. A new registry is available.
//
// While there is a reason, every stream of the registry ends with the code Unavailable
// and the reason: consumers keep the catalog that they have, and come back. What the
// registry holds may change meanwhile, and no consumer is told of it. Streams that
// are open end even if the reason is gone at once.
func (r *Registry) SetUnavailable(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if reason == "" {
		if r.era.over() {
			r.era = newEra()
		}
		return
	}
	if r.era.over() { // for another reason, maybe
		r.era = newEra()
	}
	// The end is in the lock, and so is the look of take: nobody is told of anything
	// that changes after this.
	r.era.end(status.Error(codes.Unavailable, "the catalog is unavailable: "+reason))
	clear(r.subscriptions)
}

// current returns the era of now, which may have ended.
func (r *Registry) current() era {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.era
}
