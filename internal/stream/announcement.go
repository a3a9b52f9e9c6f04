package stream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
)

// wholeFor is for how long a consumer asks for the whole catalog at an address where asking for a
// part did not work. An owner that is repaired resumes streams after that time, and one that is not
// costs one attempt in that time.
const wholeFor = time.Hour

// streamHeader is what the header of a stream says.
type streamHeader struct {
	Announcement

	header  bool  // the stream has a header
	accepts error // why the header cannot be right about the part of the catalog that it promises; or nil
}

// resumeError ends a stream whose header does not say which part of the catalog the stream brings.
type resumeError struct {
	reason string
	asked  bool // this side has asked for a part
}

func (e *resumeError) Error() string {
	return fmt.Sprintf("the owner's header %s: %s", wire.ResumeHeader, e.reason)
}

// UnwantedError is the error of Sink.AcceptHeader for a stream that this side does not want. No
// other stream is opened soon.
type UnwantedError struct{ Reason error }

// Error returns the text of the reason.
func (e UnwantedError) Error() string { return e.Reason.Error() }

// Unwrap returns the reason.
func (e UnwantedError) Unwrap() error { return e.Reason }

// awaitHeader waits for the header, and returns what the owner announces in it to a
// consumer that has sent the digests.
func awaitHeader(stream *ownerStream, asked resume.Digests) streamHeader {
	header, err := stream.Header()
	if err != nil || header == nil {
		return streamHeader{}
	}
	a := streamHeader{header: true}
	a.Marked = slices.Contains(header.Get(wire.CatalogEndHeader), wire.CatalogEndMarked)
	// RFC 9110 section 5.3: several fields are one list.
	a.Path, a.PathErr = wire.ParsePath(strings.Join(header.Get(wire.PathHeader), ","))
	says := strings.Join(header.Get(wire.ResumeHeader), ",")
	if !resume.IsAccepted(says) {
		return a // the whole catalog
	}
	refuse := func(reason string) streamHeader {
		a.accepts = &resumeError{reason, len(asked) > 0}
		return a
	}
	if len(asked) == 0 {
		return refuse("it accepts digests, but this consumer sent none")
	}
	if !a.Marked {
		return refuse("it accepts digests on a stream without an end marker")
	}
	if a.Whole, err = resume.ParseSelection(says, len(asked)); err != nil {
		return refuse(err.Error())
	}
	a.Resumed = true
	return a
}

// digestsFor returns the digests to send to the owner at the address, or nil to ask for the whole
// catalog.
func (c *Consumer) digestsFor(ctx context.Context, address string) resume.Digests {
	if until, ok := c.whole[address]; ok {
		if time.Now().Before(until) {
			return nil
		}
		delete(c.whole, address)
	}
	return c.config.Sink.HeldDigests(ctx)
}

// passHeader passes the header of the stream to the Sink. An error ends the stream before any of
// its updates is applied.
func (c *Consumer) passHeader(ctx context.Context, with *conversation) error {
	select {
	case <-with.known:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := c.checkHeader(ctx, with); err != nil {
		return err
	}
	c.connectionLog.logPath(with.address, with.announced.PathErr)
	if err := c.config.Sink.AcceptHeader(ctx, with.announced.Announcement); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("header: %w", err)
	}
	return nil
}

// checkHeader returns why the stream is of no use after its header, or nil if the stream may be of
// use. A stream without a header has ended. The digests may have been too much for the owner or for
// a proxy before it, because they are a header of up to 11 kB.
func (c *Consumer) checkHeader(ctx context.Context, with *conversation) error {
	err := with.announced.accepts
	wrong := err != nil
	if !wrong && !with.announced.header {
		select {
		case <-with.inbox.ended:
			err = with.inbox.err
		case <-ctx.Done():
			return ctx.Err()
		}
		if s, ok := status.FromError(err); ok {
			wrong = slices.Contains([]codes.Code{codes.Internal, codes.Unknown, codes.ResourceExhausted}, s.Code())
		}
	}
	if wrong && len(with.asked) > 0 {
		c.whole[with.address] = time.Now().Add(wholeFor)
	}
	return err
}
