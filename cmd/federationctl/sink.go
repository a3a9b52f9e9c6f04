package main

import (
	"context"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
)

// eventSink takes what an owner says one event at a time.
type eventSink interface {
	Opened(ctx context.Context) error
	Marked(ctx context.Context) error
	Refused(ctx context.Context, refusal *federation.InvalidError) error
	Apply(ctx context.Context, event federation.Event) error
	Lost(ctx context.Context, err error, parked bool)
}

// sink feeds an eventSink.
type sink struct{ eventSink }

// Apply implements consumer.Sink.
func (s sink) Apply(ctx context.Context, updates []consumer.Update) error {
	for i := range updates {
		u := &updates[i]
		var err error
		if u.Refusal != nil {
			err = s.Refused(ctx, u.Refusal)
		} else {
			err = s.eventSink.Apply(ctx, u.Event)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
