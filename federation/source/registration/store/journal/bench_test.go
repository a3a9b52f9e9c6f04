package journal

import (
	"fmt"
	"os"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store/storetest"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// BenchmarkCommit changes nodes, so many in one commit; an operation is one node.
func BenchmarkCommit(b *testing.B) {
	for _, batch := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			c := Config{Path: b.TempDir() + "/nodes"}
			r := run(b, c)
			<-r.states
			changes := make([]store.Change, batch)
			for i := range changes {
				changes[i] = storetest.Put(testNode(b, i, "a node of a benchmark"), 0)
			}
			b.ReportAllocs()
			for i := 0; i < b.N; i += batch {
				outcomes := must.Get(r.Commit(b.Context(), changes))(b)
				for j := range outcomes {
					changes[j].Before = outcomes[j].Version
				}
			}
			b.StopTimer()
			r.stop()
		})
	}
}

// BenchmarkLoad reads a file with 100,000 nodes.
func BenchmarkLoad(b *testing.B) {
	const count = 100_000
	path := b.TempDir() + "/nodes"
	data := []byte(magic)
	for i := range count {
		data = entry{node: testNode(b, i, "a node of a benchmark"), version: int64(i + 1)}.append(data)
	}
	must.Do(b, os.WriteFile(path, data, 0o600))
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		var c contents
		c.read(must.Get(os.ReadFile(path))(b))
		if len(c.entries) != count || c.lost != "" {
			b.Fatal(len(c.entries), c.lost)
		}
	}
}
