package owner

import (
	"strconv"
	"testing"
)

// TestMemoryIsBounded adds more texts than a memory holds.
func TestMemoryIsBounded(t *testing.T) {
	var m memory
	const most = 65_536
	for i := range most + 1000 {
		if name := strconv.Itoa(i); !m.add("consumer", name, "rule") || m.add("consumer", name, "rule") {
			t.Fatalf("refusal %d is not told once", i)
		}
	}
	if len(m.last) != most {
		t.Errorf("%d refusals are remembered, expected %d", len(m.last), most)
	}
	// What is known takes no room of another.
	m.add("consumer", strconv.Itoa(most+999), "another rule")
	if len(m.last) != most {
		t.Errorf("%d refusals are remembered after a known one, expected %d", len(m.last), most)
	}
}

func TestMemory(t *testing.T) {
	var m memory
	m.remove("a", "b") // nothing is known yet
	m.add("a", "b", "x")
	m.remove("a", "b")
	for i, step := range []struct {
		peer, service, text string
		want                bool
	}{
		{"a", "b", "x", true},
		{"a", "b", "x", false},
		{"a", "b", "y", true},
		{"a", "b", "x", true}, // only the last one is remembered
		{"ab", "", "x", true}, // is another peer
		{"a", "c", "x", true},
		{"a", "b", "x", false},
	} {
		if got := m.add(step.peer, step.service, step.text); got != step.want {
			t.Errorf("step %d: %+v is new: %v", i, step, got)
		}
	}
	m.remove("a", "b")
	if !m.add("a", "b", "x") || m.add("a", "c", "x") {
		t.Error("one is forgotten, and no other")
	}
	m.reset()
	if !m.add("a", "c", "x") {
		t.Error("all is forgotten")
	}
}
