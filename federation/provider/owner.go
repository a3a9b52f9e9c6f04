package provider

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// The delays before an address is tried again. They double, and vary by half.
const (
	firstDelay = 500 * time.Millisecond
	maxDelay   = 30 * time.Second // or a quarter of the ttl, if that is less

	// Where somebody has to fix something before an attempt can succeed.
	firstSlowDelay = 10 * time.Second
	maxSlowDelay   = 5 * time.Minute

	// maxRetryAfter bounds for how long an owner can send a program away.
	maxRetryAfter = time.Hour

	// maxSpread bounds the delay before the next address is tried when an owner is
	// lost, as all of its programs lose it at the same moment.
	maxSpread = 500 * time.Millisecond

	// maxPatience bounds for how long an owner that has not answered yet may be silent.
	maxPatience = time.Minute
)

// ownerTarget is one of the addresses, and when it may be tried. Only Run uses it, and keeps one
// for each address.
type ownerTarget struct {
	address string

	after   time.Time // the address is not tried before that
	fixable bool      // new credentials may help, and make an attempt due
	quick   *backoff.ExponentialBackOff
	slow    *backoff.ExponentialBackOff
	logged  string // the kind of failure that was logged last; "" when the address was of use since
}

func newOwner(address string) *ownerTarget {
	o := &ownerTarget{address: address, quick: backoff.NewExponentialBackOff(), slow: backoff.NewExponentialBackOff()}
	o.quick.InitialInterval, o.quick.Multiplier = firstDelay, 2
	o.slow.InitialInterval, o.slow.Multiplier, o.slow.MaxInterval = firstSlowDelay, 2, maxSlowDelay
	return o
}

// allowRetry lets the owner be tried at once, if it is not tried because of the credentials.
func (o *ownerTarget) allowRetry() {
	if o.fixable {
		o.after, o.fixable = time.Time{}, false
		o.slow.Reset()
	}
}

// pickOwner returns the owner to try next, and the delay before that. It is the next in turn that
// may be tried now, or the one that may be tried first.
func (p *Provider) pickOwner(now time.Time) (*ownerTarget, time.Duration) {
	best := p.next
	for i := range p.owners {
		at := (p.next + i) % len(p.owners)
		if !p.owners[at].after.After(now) {
			best = at
			break
		}
		if p.owners[at].after.Before(p.owners[best].after) {
			best = at
		}
	}
	p.next = best
	o := p.owners[best]
	delay := max(o.after.Sub(now), p.spread)
	p.spread = 0
	return o, delay
}

// scheduleRetry sets when an owner is tried again after the end of a stream. Useful says that
// something was registered or refused on the stream.
func (p *Provider) scheduleRetry(o *ownerTarget, useful bool, err error) {
	now, ttl := time.Now(), p.shortestTTL()
	if useful {
		o.quick.Reset()
		o.slow.Reset()
		p.patience, p.silent = 0, 0
		p.spread = rand.N(min(ttl/20, maxSpread) + 1) //nolint:gosec // jitter is no secret
	} else if errors.Is(err, errSilent) {
		// Owners that are merely slow must not be given up again and again.
		if p.silent++; p.silent%len(p.owners) == 0 {
			p.patience = min(2*max(p.patience, ttl/2, minInterval), maxPatience)
		}
	}
	o.fixable = false
	closed, ok := errors.AsType[*closeError](err)
	switch {
	case ok && closed.retryAfter > 0:
		away := min(closed.retryAfter, maxRetryAfter)
		o.after = now.Add(away + rand.N(away/10+1)) //nolint:gosec // jitter is no secret
	case needsRepair(err):
		o.after, o.fixable = now.Add(o.slow.NextBackOff()), true
	default:
		o.quick.MaxInterval = min(max(ttl/4, firstDelay), maxDelay)
		o.after = now.Add(o.quick.NextBackOff())
	}
	p.logEnd(o, useful, err)
}

// logEnd logs the end of a stream. Of ends that follow each other and are of one kind, it logs the
// first.
func (p *Provider) logEnd(o *ownerTarget, useful bool, err error) {
	if useful {
		o.logged = ""
		p.config.Logger.Warn("owner is lost, registering again", "address", o.address, "error", err)
		return
	}
	if kind := kindOf(err); kind != o.logged {
		o.logged = kind
		p.config.Logger.Warn("not registered with owner, still trying", "address", o.address, "error", err)
	}
}

// needsRepair reports whether somebody has to fix something before another attempt can succeed.
func needsRepair(err error) bool {
	if closed, ok := errors.AsType[*closeError](err); ok {
		return closed.reason == registrationv1.Close_VERSION_MISMATCH
	}
	if _, ok := errors.AsType[*versionError](err); ok {
		return true
	}
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.InvalidArgument:
		return true
	default:
		return false
	}
}
