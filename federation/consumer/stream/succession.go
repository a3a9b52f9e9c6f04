package stream

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

const (
	// minPause is the least time between two attempts to replace a stream.
	minPause = time.Second

	// maxSleep is how long no clock is looked at before a stream is replaced: the one by
	// which certificates expire may be set.
	maxSleep = time.Hour

	// lastCall is how long before a certificate expires a stream is replaced whose owner sends
	// the whole catalog again, or up to twice as long.
	lastCall = time.Minute

	// headerTimeout is how long the header of a stream is waited for that is to take the
	// place of another. What comes on that one has to wait meanwhile.
	headerTimeout = 5 * time.Second
)

// The reasons why a stream is not replaced.
var (
	errSame       = errors.New("neither side has a newer certificate")
	errIncomplete = errors.New("the catalog is not complete yet")
	errNoHeader   = status.Errorf(codes.DeadlineExceeded, "the owner has not accepted another stream within %v", headerTimeout)
	errEnded      = errors.New("the stream has ended")
)

// successor is a connection for a stream that is to take the place of the open one.
type successor struct {
	*connection

	result chan error // receives why the stream is not there, or nil
}

// prepare has another stream take the place of this one, until that has happened or ctx
// ends, as it must when the stream does: for Refetch, and before one of the certificates
// expires.
//
// TLS verifies a peer in the handshake only, so a connection ends when the certificate has
// expired that the peer has shown (see package mtls). Before that, another connection is
// opened with the newest certificates of both sides. If they are newer, a stream begins
// there. The open one goes on until that has the whole catalog.
func (c *Consumer) prepare(ctx context.Context, with *conversation) {
	<-with.known
	due := c.due(with)
	var fixed <-chan struct{} // after a failure: closed when other credentials may help
	warned := false
	for {
		wanted := false
		select {
		case <-time.NewTimer(min(time.Until(due), maxSleep)).C:
			if time.Until(due) > 0 {
				continue
			}
		case <-fixed:
		case <-c.refetch:
			wanted = true
		case <-ctx.Done():
			return
		}
		changed := c.config.Identity.Changed() // before the attempt, so that a change during it counts
		err := c.replace(ctx, with, wanted)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && !wanted:
			c.connectionLog.logger.Debug("stream is replaced by one with newer certificates", "address", with.address)
			return
		case err == nil:
			return
		case wanted:
			with.cancel(err) // nothing else brings what was refused
			return
		}
		warned = c.unreplaced(with, err, warned)
		fixed, due = changed, c.due(with)
	}
}

// due returns when to replace the stream for the sake of certificates.
func (c *Consumer) due(with *conversation) time.Time {
	now, left := time.Now().Round(0), forever // of the clock by which certificates expire
	if expiry := with.connection.expires(); !expiry.IsZero() {
		left = expiry.Sub(now)
	}
	// An owner that marks the end of its catalog resumes mostly, and the stream says whether
	// it does if it was asked. What this side publishes on the stream is sent whole.
	a := &with.announced
	resumes := a.Resumed || a.Marked && len(with.asked) == 0
	return now.Add(replacementDelay(left, resumes))
}

// replacementDelay returns half of the time that is left until a certificate expires, or
// half of what has passed since, and minPause at least. Up to a quarter of it comes off at
// random: an owner shows one certificate to all of its consumers, and halves of the same
// time would bring these together. Where the owner does not resume, the delay lasts until
// the certificate is about to expire.
func replacementDelay(left time.Duration, resumes bool) time.Duration {
	half := left.Abs() / 2
	delay := half - rand.N(half/4+1) //nolint:gosec // jitter
	if !resumes {
		delay = max(delay, left-lastCall-rand.N(lastCall)) //nolint:gosec // jitter
	}
	return max(delay, minPause)
}

// replace opens a connection, and has converse open a stream on it that takes the place of
// this one. Unless it is wanted anyway, that takes a newer certificate, and a complete
// catalog: nobody resumes a part of one.
func (c *Consumer) replace(ctx context.Context, with *conversation, wanted bool) error {
	if !wanted && !c.config.Sink.Complete() {
		return errIncomplete
	}
	conn, err := c.connect(with.address)
	if err != nil {
		return err
	}
	if err := conn.greet(ctx); err != nil {
		conn.Close()
		return conn.explain(err)
	}
	if !wanted && !conn.expires().After(with.connection.expires()) {
		conn.Close()
		return errSame
	}
	s := &successor{conn, make(chan error, 1)}
	select {
	case with.successors <- s:
		return <-s.result
	case <-ctx.Done():
		conn.Close()
		return ctx.Err()
	}
}

// greet waits for the handshake, in which both sides show their certificates.
func (c *connection) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	c.Connect()
	for state := c.GetState(); state != connectivity.Ready; state = c.GetState() {
		if state == connectivity.TransientFailure {
			return status.Error(codes.Unavailable, "no connection")
		}
		if !c.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
	return nil
}

// succeed opens a stream on the connection, and returns it when its owner has accepted it.
// What comes on the open one meanwhile is not applied: it would not be in the digests.
func (c *Consumer) succeed(ctx context.Context, with *conversation, conn *connection) (*conversation, error) {
	c.config.Observer.Attempted()
	next, err := c.begin(ctx, conn, with.patience)
	if err != nil {
		return nil, err
	}
	limit := time.NewTimer(headerTimeout)
	defer limit.Stop()
	select {
	case <-next.known:
		if err = c.check(ctx, next); err == nil && next.announced.Waits {
			err = errUnavailable // as this stream says as well
		}
	case <-with.inbox.ended:
		err = errEnded
	case <-limit.C:
		err = errNoHeader
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		next.end()
		return nil, conn.explain(err)
	}
	next.before, next.heard = with, with.heard
	return next, nil
}

// complete ends the stream in whose place this one has come.
func (v *conversation) complete() {
	if before := v.before; before != nil {
		v.before = nil
		v.beside.Go(func() {
			before.leave()
			before.end()
		})
	}
}

// unreplaced logs why a stream is not replaced. That it is about to be lost is logged once:
// it reports whether it has been.
func (c *Consumer) unreplaced(with *conversation, err error, warned bool) bool {
	expiry, reason := with.connection.expires(), classify(err)
	attributes := []any{"address", with.address, "expires", expiry, "error", reason.Error()}
	if warned || time.Until(expiry) >= 0 {
		c.connectionLog.logger.Debug("stream with newer certificates failed, trying again", attributes...)
		return warned
	}
	if remedy := reason.Remedy(); remedy != "" {
		attributes = append(attributes, "remedy", remedy)
	}
	c.connectionLog.logger.Warn("a certificate of the stream has expired and cannot be renewed; without another one the stream ends", attributes...)
	return true
}
