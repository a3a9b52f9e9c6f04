package loopback

import (
	"net"
	"os"
	"os/exec"
	"sync"
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

// TestForks listens on free addresses while programs start: what forks has copies of the
// descriptors of this process for a moment.
func TestForks(t *testing.T) {
	program := must.Get(os.Executable())(t)
	ended := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
					if err := exec.Command(program, "-test.list=^$").Run(); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range 2_000 {
		address := Address(t)
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Error(err)
			break
		}
		_ = listener.Close()
	}
	close(ended)
	wg.Wait()
}
