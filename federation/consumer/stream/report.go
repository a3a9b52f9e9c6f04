package stream

import (
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
)

// Position is the last response of a stream that was answered. The zero value is none.
type Position struct {
	with  *conversation
	nonce string
}

// report is a report that waits to be sent.
type report struct {
	settled Position
	hold    time.Duration
	unknown string
}

// detection is how long it may take to notice that the stream is lost: the owner may know it
// before. Everything else that ends a stream is sooner.
func (c *Consumer) detection() time.Duration { return c.keepalive + keepaliveTimeout + detectionSlack }

// detectionSlack is how late timers may be.
const detectionSlack = 5 * time.Second

// receipt returns what the owner is told.
func (c *Consumer) receipt(leaving bool) receipt.Receipt {
	r := c.config.Receipt(leaving)
	r.Hold = c.noticed(r.Hold)
	return r
}

// noticed returns how long something is held after the owner has lost the stream that is held
// for so long after this side has.
func (c *Consumer) noticed(hold time.Duration) time.Duration {
	if hold < 0 {
		return receipt.Forever
	}
	return hold + c.detection()
}

// Position returns the last response that was answered.
func (c *Consumer) Position() Position {
	if p := c.position.Load(); p != nil {
		return *p
	}
	return Position{}
}

// Report has the owner told soon what Config.Receipt says now, and what others hold who follow
// this consumer: what was reported before and is not sent yet is not sent any more. They have
// settled all up to the position, if that is on the stream that is open. Unknown is that of a
// receipt.Report. An owner that does not take reports is told nothing.
func (c *Consumer) Report(settled Position, unknown string) {
	next := report{settled, c.config.Receipt(false).Hold, unknown}
	for {
		select {
		case c.reports <- next:
			return
		default:
		}
		select {
		case <-c.reports:
		default: // it was sent meanwhile
		}
	}
}

// report sends a report on a stream, if the owner takes any.
func (c *Consumer) report(with *conversation, r report) error {
	r.hold = c.noticed(r.hold)
	return with.report(r)
}

// part reports for the last time on a stream that is about to end on purpose: nobody has to notice
// its end. Of a relay, what it has reported goes on to be true.
func (c *Consumer) part(with *conversation) {
	if c.config.Receipt == nil {
		return
	}
	if r := c.config.Receipt(true); !r.Relay {
		_ = with.report(report{hold: r.Hold}) // else the owner goes on to believe what it was told
		return
	}
	select {
	case r := <-c.reports:
		_ = c.report(with, r)
	default:
	}
}

func (v *conversation) report(r report) error {
	select {
	case <-v.known:
	default:
		return nil
	}
	if !v.announced.reports {
		return nil
	}
	said := receipt.Report{Hold: r.hold, Unknown: r.unknown}
	if r.settled.with == v {
		said.Settled = r.settled.nonce
	}
	return v.stream.report(said)
}
