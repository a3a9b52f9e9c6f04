package indexbench

import (
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/immutable"
	"github.com/cilium/statedb/part"
	iradix "github.com/hashicorp/go-immutable-radix/v2"
	"github.com/tidwall/btree"

	"github.com/hamlet-federation/coredns-federation/federation/zone/trie"
)

// node stands for what a zone keeps for a name. A lookup in the benchmarks reads
// its value, as an answer does.
type node = trie.Item[int]

// version is one immutable version of a zone's index. Only the last version is
// changed.
type version interface {
	get(name string) *int // the value of the node
	set(name string, n *node) version
	delete(name string) version
	all() iter.Seq2[string, *node]
}

type candidate struct {
	name  string
	key   func(string) string // the form of a name that this candidate stores
	build func(names []string, nodes []*node) version
}

var candidates = []candidate{
	{"builtin", forward, buildBuiltin},
	{"trie", forward, buildTrie},
	{"immutable", forward, buildHAMT},
	{"btree", forward, buildBTree},
	{"btree-reversed", reversed, buildBTree},
	{"iradix", forward, buildRadix},
	{"iradix-reversed", reversed, buildRadix},
	{"part", forward, buildPart},
	{"part-reversed", reversed, buildPart},
}

func forward(name string) string { return name }

// reversed puts the labels of an absolute name in the order of the tree, as an
// ordered index would to keep a zone together: "a.b.example." is "example.b.a.".
func reversed(name string) string {
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	slices.Reverse(labels)
	return strings.Join(labels, ".") + "."
}

// value returns the value of a node, if there is one.
func value(n *node) *int {
	if n == nil {
		return nil
	}
	return &n.Value
}

// builtin is the baseline of a lookup: what CoreDNS's hosts plugin keeps. It has
// no cheap versions: every change clones the map.
type builtin map[string]*node

func buildBuiltin(names []string, nodes []*node) version {
	m := make(builtin)
	for i, name := range names {
		m[name] = nodes[i]
	}
	return m
}

func (m builtin) get(name string) *int { return value(m[name]) }

func (m builtin) set(name string, n *node) version {
	m = maps.Clone(m)
	m[name] = n
	return m
}

func (m builtin) delete(name string) version {
	m = maps.Clone(m)
	delete(m, name)
	return m
}

func (m builtin) all() iter.Seq2[string, *node] { return maps.All(m) }

// own is the trie that the zone uses, with its writer: every change is published.
type own struct {
	writer    *trie.Writer[int]
	published trie.Map[int]
}

func buildTrie(_ []string, nodes []*node) version {
	w := trie.NewWriter[int]()
	for _, n := range nodes {
		w.Set(n)
	}
	return own{w, w.Publish()}
}

func (o own) get(name string) *int { return o.published.Get(name) }

func (o own) set(_ string, n *node) version {
	o.writer.Set(n)
	return own{o.writer, o.writer.Publish()}
}

func (o own) delete(name string) version {
	o.writer.Delete(name)
	return own{o.writer, o.writer.Publish()}
}

func (o own) all() iter.Seq2[string, *node] {
	return func(yield func(string, *node) bool) {
		for n := range o.published.All() {
			if !yield(n.Name, n) {
				return
			}
		}
	}
}

// hamt is immutable.Map, a hash array mapped trie. The library's own string
// hasher is a loop over the bytes; maphash uses the processor's AES rounds and a
// random seed, which a peer that chooses the names cannot aim at.
type hamt struct{ m *immutable.Map[string, *node] }

type hasher struct{ seed maphash.Seed }

func (h hasher) Hash(key string) uint32 { return uint32(maphash.String(h.seed, key)) }
func (hasher) Equal(a, b string) bool   { return a == b }

func buildHAMT(names []string, nodes []*node) version {
	b := immutable.NewMapBuilder[string, *node](hasher{maphash.MakeSeed()})
	for i, name := range names {
		b.Set(name, nodes[i])
	}
	return hamt{b.Map()}
}

func (h hamt) get(name string) *int {
	n, _ := h.m.Get(name)
	return value(n)
}

func (h hamt) set(name string, n *node) version { return hamt{h.m.Set(name, n)} }
func (h hamt) delete(name string) version       { return hamt{h.m.Delete(name)} }

func (h hamt) all() iter.Seq2[string, *node] {
	return func(yield func(string, *node) bool) {
		for it := h.m.Iterator(); !it.Done(); {
			if name, n, _ := it.Next(); !yield(name, n) {
				return
			}
		}
	}
}

// tree is btree.Map, a B-tree whose copies share nodes until one is written.
type tree struct{ m *btree.Map[string, *node] }

func buildBTree(names []string, nodes []*node) version {
	m := new(btree.Map[string, *node])
	for i, name := range names {
		m.Set(name, nodes[i])
	}
	return tree{m}
}

func (t tree) get(name string) *int {
	n, _ := t.m.Get(name)
	return value(n)
}

func (t tree) set(name string, n *node) version {
	m := t.m.Copy()
	m.Set(name, n)
	return tree{m}
}

func (t tree) delete(name string) version {
	m := t.m.Copy()
	m.Delete(name)
	return tree{m}
}

func (t tree) all() iter.Seq2[string, *node] { return t.m.Scan }

// radix is iradix.Tree, an ordered radix tree over bytes.
type radix struct{ t *iradix.Tree[*node] }

func buildRadix(names []string, nodes []*node) version {
	txn := iradix.New[*node]().Txn()
	for i, name := range names {
		txn.Insert([]byte(name), nodes[i])
	}
	return radix{txn.Commit()}
}

func (r radix) get(name string) *int {
	n, _ := r.t.Get([]byte(name))
	return value(n)
}

func (r radix) set(name string, n *node) version {
	t, _, _ := r.t.Insert([]byte(name), n)
	return radix{t}
}

func (r radix) delete(name string) version {
	t, _, _ := r.t.Delete([]byte(name))
	return radix{t}
}

func (r radix) all() iter.Seq2[string, *node] {
	return func(yield func(string, *node) bool) {
		r.t.Root().Walk(func(k []byte, n *node) bool { return !yield(string(k), n) })
	}
}

// art is part.Tree, an adaptive radix tree over bytes, with one watch channel
// instead of one for each of its nodes: the zone watches nothing.
type art struct{ t *part.Tree[*node] }

func buildPart(names []string, nodes []*node) version {
	txn := part.New[*node](part.RootOnlyWatch).Txn()
	for i, name := range names {
		txn.Insert([]byte(name), nodes[i])
	}
	return art{txn.Commit()}
}

func (a art) get(name string) *int {
	n, _, _ := a.t.Get([]byte(name))
	return value(n)
}

func (a art) set(name string, n *node) version {
	_, _, t := a.t.Insert([]byte(name), n)
	return art{t}
}

func (a art) delete(name string) version {
	_, _, t := a.t.Delete([]byte(name))
	return art{t}
}

func (a art) all() iter.Seq2[string, *node] {
	return func(yield func(string, *node) bool) {
		for it := a.t.Iterator(); ; {
			name, n, ok := it.Next()
			if !ok || !yield(string(name), n) {
				return
			}
		}
	}
}

var sizes = []int{1_000, 100_000, 1_000_000}

// names returns n names as owners publish them, in random order. Those of the
// odd numbers are the misses of those of the even ones.
func names(n, odd int) []string {
	names := make([]string, n)
	for i, p := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		names[i] = fmt.Sprintf("svc-%06d.ns%d.fed.example.", 2*p+odd, p%100)
	}
	return names
}

// queries returns the keys of names in another random order and in one run of
// memory, so that a lookup does not pay for the memory of the question: a
// server has just read it from the network.
func queries(c candidate, names []string) []string {
	var text strings.Builder
	ends := make([]int, len(names))
	for i, p := range rand.New(rand.NewPCG(3, 4)).Perm(len(names)) {
		text.WriteString(c.key(names[p]))
		ends[i] = text.Len()
	}
	keys, start, all := make([]string, len(names)), 0, text.String()
	for i, end := range ends {
		keys[i], start = all[start:end], end
	}
	return keys
}

// each runs f for every size and candidate. Keys and nodes are allocated before,
// so that what a build adds to the heap is the index.
func each(b *testing.B, f func(b *testing.B, c candidate, keys []string, nodes []*node)) {
	for _, size := range sizes {
		names := names(size, 0)
		for _, c := range candidates {
			keys, nodes := make([]string, size), make([]*node, size)
			for i, name := range names {
				keys[i] = c.key(name)
				nodes[i] = &node{Name: keys[i], Value: i}
			}
			b.Run(fmt.Sprintf("n=%d/%s", size, c.name), func(b *testing.B) { f(b, c, keys, nodes) })
		}
	}
}

func BenchmarkGet(b *testing.B) {
	each(b, func(b *testing.B, c candidate, keys []string, nodes []*node) {
		var zone atomic.Pointer[version]
		v := c.build(keys, nodes)
		zone.Store(&v)
		hits, misses := queries(c, names(len(keys), 0)), queries(c, names(len(keys), 1))
		for _, q := range []struct {
			name string
			keys []string
		}{{"hit", hits}, {"miss", misses}} {
			b.Run(q.name, func(b *testing.B) {
				runtime.GC()
				found, sum, i := 0, 0, 0
				for b.Loop() {
					if n := (*zone.Load()).get(q.keys[i]); n != nil {
						found++
						sum += *n
					}
					if i++; i == len(q.keys) {
						i = 0
					}
				}
				if want := map[bool]int{true: b.N}[q.name == "hit"]; found != want {
					b.Fatalf("found %d of %d, want %d", found, b.N, want)
				}
			})
		}
	})
}

// BenchmarkUpdate replaces the node of one name and publishes the version.
func BenchmarkUpdate(b *testing.B) {
	each(b, func(b *testing.B, c candidate, keys []string, nodes []*node) {
		var zone atomic.Pointer[version]
		v := c.build(keys, nodes)
		zone.Store(&v)
		order := rand.New(rand.NewPCG(3, 4)).Perm(len(keys))
		runtime.GC()
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			next := (*zone.Load()).set(keys[order[i]], nodes[order[i]])
			zone.Store(&next)
			if i++; i == len(order) {
				i = 0
			}
		}
	})
}

// BenchmarkBuild fills an empty index. gc-ms is how long a full collection takes
// with the index in memory.
func BenchmarkBuild(b *testing.B) {
	each(b, func(b *testing.B, c candidate, keys []string, nodes []*node) {
		var v version
		for b.Loop() {
			v = c.build(keys, nodes)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(keys)), "ns/key")
		b.StopTimer()

		v = nil
		before := heap()
		v = c.build(keys, nodes)
		b.ReportMetric(float64(heap()-before)/float64(len(keys)), "heap-B/key")
		start := time.Now()
		runtime.GC()
		b.ReportMetric(float64(time.Since(start).Microseconds())/1000, "gc-ms")
		runtime.KeepAlive(v)
	})
}

func BenchmarkIterate(b *testing.B) {
	each(b, func(b *testing.B, c candidate, keys []string, nodes []*node) {
		v := c.build(keys, nodes)
		runtime.GC()
		for b.Loop() {
			count := 0
			for range v.all() {
				count++
			}
			if count != len(keys) {
				b.Fatalf("iterated over %d names, want %d", count, len(keys))
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(keys)), "ns/key")
	})
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
