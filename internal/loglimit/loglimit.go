// Package loglimit bounds what a peer can make its other side log.
//
// A peer can cause a log line (a service that is not accepted, a lost stream, a
// certificate that is turned away) as often as it likes. The handler of this package
// passes on a number of lines of each kind in a minute, and then says how many it left
// out. It is our own because the samplers for log/slog do not count the dropped lines
// of each peer, and keep memory that peers can fill.
package loglimit

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"
)

const (
	// PerMinute is how many lines of one kind are logged in a minute. A line that
	// says how many were left out may come in addition.
	PerMinute = 10

	window = time.Minute

	// maxKinds bounds the kinds that are kept apart at any time. Beyond it, lines of
	// one level and message share a bound, whichever peers they are about.
	maxKinds = 4096
)

// NewLogger returns a logger that writes what next writes, but no more than PerMinute
// lines of one kind in a minute. Lines are of one kind when their level, their message
// and the attributes of With are the same. What names the peer belongs in With, and
// what may change from line to line does not. Without next nothing is logged. A logger
// that is already limited is returned as it is.
func NewLogger(next *slog.Logger) *slog.Logger {
	if next == nil {
		return slog.New(slog.DiscardHandler)
	}
	if _, limited := next.Handler().(*limitHandler); limited {
		return next
	}
	return slog.New(&limitHandler{Handler: next.Handler(), limits: &lineLimits{windows: make(map[lineKind]*kindCount)}})
}

// lineKind identifies the lines that share one bound.
type lineKind struct {
	peer    string // the attributes of With, as text
	level   slog.Level
	message string
}

// kindCount counts the lines of one kind in one window.
type kindCount struct {
	since   time.Time
	logged  int
	omitted int
}

// lineLimits counts lines by kind, for a handler and all handlers that were derived from it.
// Whoever logs a line changes the counts, under mu. There are maxKinds kinds at most: beyond that,
// lines of all peers share a bound, so that peers cannot fill memory. A line that is left out is
// counted and not kept.
type lineLimits struct {
	mu sync.Mutex // guards the fields below

	windows map[lineKind]*kindCount
	pruned  time.Time // when the kinds were pruned last
}

type limitHandler struct {
	slog.Handler

	limits *lineLimits
	peer   string
}

// Handle implements slog.Handler.
func (h *limitHandler) Handle(ctx context.Context, r slog.Record) error {
	if h.limits.allowLine(ctx, lineKind{h.peer, r.Level, r.Message}, h.Handler) {
		return h.Handler.Handle(ctx, r)
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (h *limitHandler) WithAttrs(attributes []slog.Attr) slog.Handler {
	var peer strings.Builder
	peer.WriteString(h.peer)
	for _, a := range attributes {
		peer.WriteString(" " + a.String())
	}
	return &limitHandler{h.Handler.WithAttrs(attributes), h.limits, peer.String()}
}

// WithGroup implements slog.Handler.
func (h *limitHandler) WithGroup(name string) slog.Handler {
	return &limitHandler{h.Handler.WithGroup(name), h.limits, h.peer + " " + name + "."}
}

// allowLine reports whether a line may be logged. The first line that may not starts a timer, at
// the end of which next logs how many were left out.
func (l *lineLimits) allowLine(ctx context.Context, k lineKind, next slog.Handler) bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.windows[k]
	if c == nil && len(l.windows) >= maxKinds && !l.pruneKinds(now) {
		k.peer = ""
		c = l.windows[k]
	}
	if c == nil || now.Sub(c.since) >= window {
		c = &kindCount{since: now}
		l.windows[k] = c
	}
	if c.logged < PerMinute {
		c.logged++
		return true
	}
	c.omitted++
	if c.omitted == 1 {
		// A timer, which nobody has to wait for, as it only writes one line.
		ctx = context.WithoutCancel(ctx)
		time.AfterFunc(window-now.Sub(c.since), func() { l.logOmitted(ctx, k, c, next) })
	}
	return false
}

// pruneKinds removes the kinds whose window is over, and reports whether there is room for another
// one. It looks at them once a second at most, because that takes time in proportion to their
// number.
func (l *lineLimits) pruneKinds(now time.Time) bool {
	if now.Sub(l.pruned) >= time.Second {
		l.pruned = now
		maps.DeleteFunc(l.windows, func(_ lineKind, c *kindCount) bool { return now.Sub(c.since) >= window })
	}
	return len(l.windows) < maxKinds
}

// logOmitted logs how many lines of a kind were left out.
func (l *lineLimits) logOmitted(ctx context.Context, k lineKind, c *kindCount, next slog.Handler) {
	l.mu.Lock()
	if l.windows[k] == c {
		delete(l.windows, k)
	}
	omitted := c.omitted
	l.mu.Unlock()
	r := slog.NewRecord(time.Now(), k.level, "more lines like this were left out", 0)
	r.AddAttrs(slog.String("line", k.message), slog.Int("count", omitted))
	_ = next.Handle(ctx, r)
}
