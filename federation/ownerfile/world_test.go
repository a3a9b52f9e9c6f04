package ownerfile

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/problem"
)

// lines renders problems as "3: what is wrong".
func lines(problems []problem.Problem) []string {
	var lines []string
	for _, p := range problems {
		lines = append(lines, fmt.Sprintf("%d: %s", p.Line, p))
	}
	return lines
}

// told renders an event as "upsert web 2", "delete web" or "end".
func told(e federation.Event) string {
	text := e.Operation.String()
	if e.Name != "" {
		text += " " + e.Name
	}
	if e.Service != nil {
		text += " " + e.Service.Description[len("version "):]
	}
	return text
}

// published returns the catalog of a registry, each service as told renders it.
func published(t *testing.T, r *owner.Registry) []string {
	t.Helper()
	s := r.Subscribe()
	defer s.Close()
	var services []string
	for {
		event, err := s.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if event.Operation == federation.End {
			return services
		}
		services = append(services, told(event))
	}
}

// logBuffer collects what is logged and lets a test wait for it.
type logBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer  // guarded by mu
	grown  chan struct{} // closed by the next Write; nil when nobody waits; guarded by mu
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.grown != nil {
		close(b.grown)
		b.grown = nil
	}
	return b.buffer.Write(p)
}

// await waits until text was logged; go test ends a test that waits for ever.
func (b *logBuffer) await(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !strings.Contains(b.buffer.String(), text) {
		if b.grown == nil {
			b.grown = make(chan struct{})
		}
		grown := b.grown
		b.mu.Unlock()
		<-grown
		b.mu.Lock()
	}
}

// count returns the number of lines that contain text.
func (b *logBuffer) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for line := range strings.Lines(b.buffer.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
