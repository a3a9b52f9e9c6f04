package loopback

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestBlocks has two processes, as it were, each with every port of its block.
func TestBlocks(t *testing.T) {
	seen := make(map[string]bool)
	for range 2 {
		b := take()
		if b.guard == nil {
			t.Skip("other processes have all blocks")
		}
		t.Cleanup(func() { _ = b.guard.Close() })
		for range blockSize / 2 {
			address := must.Get(b.freeAddress())(t)
			if seen[address] {
				t.Errorf("%s was returned before", address)
			}
			seen[address] = true
		}
	}
}
