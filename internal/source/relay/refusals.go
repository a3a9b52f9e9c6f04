package relay

import (
	"maps"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/source"
)

// maxRefused bounds the refused services that are counted.
const maxRefused = 10_000

// streamRefusals are the services that the open stream has brought and that were refused.
type streamRefusals struct {
	generation uint64                       // of the stream
	reasons    map[string]federation.Reason // by the name of the service
	counts     map[string]int               // of the reasons
	told       map[string]int               // what the part was told last
}

func newStreamRefusals() streamRefusals {
	return streamRefusals{reasons: make(map[string]federation.Reason), counts: make(map[string]int)}
}

// forgetEarlier forgets what an earlier stream has brought.
func (r *streamRefusals) forgetEarlier(generation uint64) {
	if r.generation != generation {
		r.generation = generation
		clear(r.reasons)
		clear(r.counts)
	}
}

// countRefusal notes that a service was refused. One whose name cannot be read is not counted.
func (r *streamRefusals) countRefusal(invalid *federation.InvalidError) {
	r.forgetService(invalid.Service)
	if invalid.Service != "" && len(r.reasons) < maxRefused {
		r.reasons[invalid.Service] = invalid.Reason
		r.counts[string(invalid.Reason)]++
	}
}

// forgetService notes that the owner has another version of the service, or none.
func (r *streamRefusals) forgetService(service string) {
	if reason, ok := r.reasons[service]; ok {
		delete(r.reasons, service)
		if r.counts[string(reason)]--; r.counts[string(reason)] == 0 {
			delete(r.counts, string(reason))
		}
	}
}

// reportCounts tells the part how many there are, if it does not know.
func (r *streamRefusals) reportCounts(part source.Part) {
	if !maps.Equal(r.counts, r.told) {
		r.told = maps.Clone(r.counts)
		part.SetRefused(r.told)
	}
}

// refusalObserver counts what is refused.
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
	s.refused.reportCounts(s.part)
}
