package relay

import (
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
)

// maxRefused bounds the refused services that are counted.
const maxRefused = 10_000

// streamRefusals counts the services of the open stream that were refused, by reason. The observer
// of the mirror adds them, and a newer version or a new stream removes them. MaxRefused bounds
// them: a refusal beyond is not counted, because a peer could fill the memory with names.
type streamRefusals struct {
	generation uint64                       // of the stream
	reasons    map[string]federation.Reason // by the name of the service
	counts     map[string]int               // of the reasons
}

func newStreamRefusals() streamRefusals {
	return streamRefusals{reasons: make(map[string]federation.Reason), counts: make(map[string]int)}
}

// forgetEarlier removes the refusals of an earlier stream.
func (r *streamRefusals) forgetEarlier(generation uint64) {
	if r.generation != generation {
		r.generation = generation
		clear(r.reasons)
		clear(r.counts)
	}
}

// countRefusal counts a refused service, unless its name cannot be read.
func (r *streamRefusals) countRefusal(invalid *federation.InvalidError) {
	r.forgetService(invalid.Service)
	if invalid.Service != "" && len(r.reasons) < maxRefused {
		r.reasons[invalid.Service] = invalid.Reason
		r.counts[string(invalid.Reason)]++
	}
}

// forgetService removes the refusal of a service, because the owner has another version of it or
// none.
func (r *streamRefusals) forgetService(service string) {
	if reason, ok := r.reasons[service]; ok {
		delete(r.reasons, service)
		if r.counts[string(reason)]--; r.counts[string(reason)] == 0 {
			delete(r.counts, string(reason))
		}
	}
}

// refusalObserver counts refused services for the source.
type refusalObserver struct {
	consumer.NoObserver

	source *Source
}

// Refused implements consumer.Observer.
func (o refusalObserver) Refused(reason *federation.InvalidError) {
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused.countRefusal(reason)
	s.part.SetRefused(s.refused.counts)
}
