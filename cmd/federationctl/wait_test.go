package main

import (
	"strings"
	"testing"
)

// TestWaitInVain waits for a server that nobody runs: the exit code says that it was in vain,
// and the error what the server said last.
func TestWaitInVain(t *testing.T) {
	code, stdout, stderr := ctl(t, "wait", "a.example.", "txt", "--dns", "127.0.0.1:1", "--timeout", "20ms")
	if code != 1 || stdout != "" || !strings.HasPrefix(stderr, "federationctl: a.example: waited 20ms for answer, and 127.0.0.1:1 says: ") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d, standard output %q, standard error %q", code, stdout, stderr)
	}
}
