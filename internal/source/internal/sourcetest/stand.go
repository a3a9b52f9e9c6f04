// Package sourcetest notes what a source tells its part, in a bubble of testing/synctest.
package sourcetest

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Recorder is a source.Part that notes what it is told. Its fields are for tests whose bubble waits.
type Recorder struct {
	Services map[string]*wire.EncodedService // nil before Replace
	Updates  int                             // calls of Replace and Update
	Away     error
	Times    int // that it went away
	Refused  map[string]int

	mu   sync.Mutex // guards the others
	show func(*federation.Service) string
}

// Replace implements source.Part.
func (r *Recorder) Replace(services []*wire.EncodedService) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Services = make(map[string]*wire.EncodedService)
	for _, s := range services {
		r.Services[s.Name()] = s
	}
	r.Updates++
}

// Update implements source.Part.
func (r *Recorder) Update(changed []*wire.EncodedService, gone []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range changed {
		r.Services[s.Name()] = s
	}
	for _, name := range gone {
		delete(r.Services, name)
	}
	r.Updates++
}

// SetAway implements source.Part.
func (r *Recorder) SetAway(reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if reason != nil && r.Away == nil {
		r.Times++
	}
	r.Away = reason
}

// AwayReason returns why the source is away, or nil.
func (r *Recorder) AwayReason() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Away
}

// SetPath implements source.Part.
func (*Recorder) SetPath(wire.OwnerPath) error { return nil }

// SetRefused implements source.Part.
func (r *Recorder) SetRefused(entries map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Refused = maps.Clone(entries)
}

// String returns the services without the first label of their names, each with what is shown of it,
// in order.
func (r *Recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Services == nil {
		return "silent"
	}
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(r.Services)) {
		_, short, _ := strings.Cut(name, "/")
		texts = append(texts, short+": "+r.show(r.Services[name].Service()))
	}
	return strings.Join(texts, ", ")
}

// Stand is a part in a bubble, whose time counts from when the stand was made.
type Stand struct {
	Part *Recorder

	since time.Time
}

// NewStand returns a stand whose part shows that of each service.
func NewStand(show func(*federation.Service) string) *Stand {
	return &Stand{&Recorder{show: show}, time.Now()}
}

// At lets the time pass until so much of it has since the start.
func (s *Stand) At(d time.Duration) {
	time.Sleep(time.Until(s.since.Add(d)))
	synctest.Wait()
}

// Want checks what is published.
func (s *Stand) Want(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	if got := s.Part.String(); got != want {
		t.Errorf("after %v:\ngot  %s\nwant %s", time.Since(s.since), got, want)
	}
}

// WantAway checks why the source is said to be away, by a part of it; empty for not at all.
func (s *Stand) WantAway(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	if got := s.Part.AwayReason(); want == "" && got != nil || want != "" && (got == nil || !strings.Contains(got.Error(), want)) {
		t.Errorf("after %v: away: %v, want %q", time.Since(s.since), got, want)
	}
}
