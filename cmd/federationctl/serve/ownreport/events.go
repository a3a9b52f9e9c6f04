package ownreport

import (
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/recent"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// recentEvents are what has happened lately in one catalog. It is safe for concurrent use.
type recentEvents struct {
	mu      sync.Mutex // guards the fields below
	memory  recent.Memory
	changes recent.Rate
}

var _ source.Observer = (*recentEvents)(nil)

// Changed implements source.Observer.
func (j *recentEvents) Changed(services int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.changes.Count(services, time.Now())
}

// Withdrawn implements source.Observer.
func (j *recentEvents) Withdrawn(s *wire.Encoded, cause string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.memory.Gone(status.Gone{At: time.Now().UTC(), Service: s.Name(), FQDN: s.FQDN(), Cause: cause})
}

// Refused implements source.Observer.
func (j *recentEvents) Refused(r registry.Refusal, fqdn string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.Rule == "" {
		j.memory.Accepted(r.Consumer, r.Service)
		return
	}
	j.memory.Refused(status.Refusal{
		At: time.Now().UTC(), Service: r.Service, FQDN: fqdn, Consumer: r.Consumer, Field: r.Field, Rule: r.Rule,
	})
}

// read returns all of it, newest first.
func (j *recentEvents) read(now time.Time) (refusals []status.Refusal, gone []status.Gone, changes status.Rate) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.memory.AllRefusals(), j.memory.AllGone(), j.changes.Report(now)
}
