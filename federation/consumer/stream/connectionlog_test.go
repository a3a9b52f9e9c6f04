package stream

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
)

// TestJournalOfAccepted has an owner connect from one port after the other, and each stream
// end at once: that is one line, and takes no more memory with every stream.
func TestJournalOfAccepted(t *testing.T) {
	var log strings.Builder
	j := newConnectionLog(slog.New(slog.NewTextHandler(&log, nil)))
	j.accepts = true
	for port := range 1000 {
		j.ended(fmt.Sprintf("192.0.2.1:%d", port), classify(io.EOF), false)
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 || len(j.ends) != 1 || len(j.slowEnds) != 1 {
		t.Errorf("%d lines, and %d and %d ends are remembered, want 1 of each:\n%s", lines, len(j.ends), len(j.slowEnds), log.String())
	}
}
