package trie

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"testing"
)

// content is what a map holds: the place of each value, by name.
func content(t *testing.T, m *Map[int]) map[string]*int {
	t.Helper()
	all := make(map[string]*int)
	for item := range m.All() {
		if all[item.Name] != nil {
			t.Fatalf("%s is there twice", item.Name)
		}
		all[item.Name] = &item.Value
	}
	return all
}

func name(i int) string { return fmt.Sprintf("%d.example.", i) }

// version is what a map held when it was published.
type version struct {
	published Map[int]
	want      map[string]*int
}

// check compares the version with what it was, and looks up the first n names.
func (v *version) check(t *testing.T, n int) {
	t.Helper()
	if got := content(t, &v.published); !maps.Equal(v.want, got) {
		t.Fatalf("a version changed: it holds %d names, want %d", len(got), len(v.want))
	}
	for i := range n {
		if got := v.published.Get(name(i)); got != v.want[name(i)] {
			t.Fatalf("%s is at %p, want %p", name(i), got, v.want[name(i)])
		}
	}
}

// compare compares what differs from a later version with what does, and stops at each difference.
func (v *version) compare(t *testing.T, later *version) {
	t.Helper()
	left := make(map[string]bool)
	for _, all := range []map[string]*int{v.want, later.want} {
		for name := range all {
			if v.want[name] != later.want[name] {
				left[name] = true
			}
		}
	}
	n := 0
	for was, is := range v.published.Differences(&later.published) {
		item := cmp.Or(was, is)
		if !left[item.Name] || was != nil && &was.Value != v.want[item.Name] || is != nil && &is.Value != later.want[item.Name] || was == is {
			t.Fatalf("%s differs: %v, %v", item.Name, was, is)
		}
		delete(left, item.Name)
		n++
	}
	if len(left) > 0 {
		t.Fatalf("%v are not told to differ", left)
	}
	for stop := range min(n, 50) {
		for range v.published.Differences(&later.published) {
			if stop--; stop < 0 {
				break
			}
		}
	}
}

// model is a writer beside a built-in map that says what it must hold.
type model struct {
	*Writer[int]

	want map[string]*int
}

func newModel() *model { return &model{NewWriter[int](), make(map[string]*int)} }

// change sets or deletes one name.
func (m *model) change(t *testing.T, i int, remove bool) {
	t.Helper()
	if remove {
		m.Delete(name(i))
		delete(m.want, name(i))
	} else {
		item := &Item[int]{name(i), i}
		m.Set(item)
		m.want[name(i)] = &item.Value
	}
	if got := m.Get(name(i)); got != m.want[name(i)] {
		t.Fatalf("%s is at %p before it is published, want %p", name(i), got, m.want[name(i)])
	}
}

func (m *model) publish(t *testing.T) version {
	t.Helper()
	v := version{m.Publish(), maps.Clone(m.want)}
	if len(m.pending) != 0 {
		t.Fatalf("the writer still has %d changes", len(m.pending))
	}
	return v
}

// TestVersionsNeverChange makes random changes, a few or many at a time, and
// checks at the end that every version holds what it held when it was published.
func TestVersionsNeverChange(t *testing.T) {
	const names = 1000
	r := rand.New(rand.NewPCG(1, 2))
	m := newModel()
	var versions []version
	for range 100 {
		for range 1 + r.IntN(20)*r.IntN(20) {
			m.change(t, r.IntN(names), r.IntN(3) == 0)
		}
		versions = append(versions, m.publish(t))
	}
	for i := range versions {
		versions[i].check(t, names)
		versions[i].compare(t, &versions[min(i+1+i%7, len(versions)-1)])
	}
}

// FuzzVersions takes two bytes for a change: what to do, and the name.
func FuzzVersions(f *testing.F) {
	f.Add([]byte("\x00a\x00b\xff\xff\x01a\x00a\xff\xff"))
	many := make([]byte, 0, 4*256)
	for i := range 256 {
		many = append(many, 0, byte(i))
	}
	for i := range 256 {
		many = append(many, 1, byte(i), 2, 0)
	}
	f.Add(many)
	f.Fuzz(func(t *testing.T, changes []byte) {
		m := newModel()
		var versions []version
		for ; len(changes) > 1; changes = changes[2:] {
			switch changes[0] % 4 {
			case 0:
				m.change(t, int(changes[1]), false)
			case 1:
				m.change(t, int(changes[1]), true)
			default:
				if len(versions) < 64 { // each is checked whole
					versions = append(versions, m.publish(t))
				}
			}
		}
		versions = append(versions, m.publish(t))
		for i := range versions {
			versions[i].check(t, 256)
			versions[i].compare(t, &versions[len(versions)-1])
		}
	})
}

// TestManyNamesOfOneHash has more names with one hash than a list holds
// otherwise: the trie must not branch for ever.
func TestManyNamesOfOneHash(t *testing.T) {
	m := NewWriter[int]().Publish()
	hash := m.hashName(name(0))
	want := make(map[string]*int)
	for i := range 3 * maxLeaves {
		item := &Item[int]{name(i), i}
		m.root = m.root.withChanges([]itemChange[int]{{hash, item.Name, item}}, 0)
		want[item.Name] = &item.Value
	}
	if got := m.Get(name(0)); got != want[name(0)] {
		t.Errorf("%s is at %p, want %p", name(0), got, want[name(0)])
	}
	for i := range maxLeaves {
		m.root = m.root.withChanges([]itemChange[int]{{hash: hash, name: name(2 * i)}}, 0)
		delete(want, name(2*i))
	}
	if got := content(t, &m); !maps.Equal(want, got) {
		t.Errorf("the map holds %d names, want %d", len(got), len(want))
	}
}

// shape checks that a slot and all below it are as lookups need them: each hash
// where its bits, four at a time, lead, and no list longer than 32 unless all bits
// have led to it. It returns the number of branches.
func shape(t *testing.T, s *hashSlot[int], prefix uint64, bits int) (branches int) {
	t.Helper()
	if s.kids == nil {
		if bits > 64 || bits < 64 && len(s.leaves) > 32 {
			t.Fatalf("a list of %d names after %d bits", len(s.leaves), bits)
		}
		for _, l := range s.leaves {
			if bits > 0 && l.hash>>(64-bits) != prefix {
				t.Fatalf("the hash %x is below %x, after %d bits", l.hash, prefix, bits)
			}
		}
		return 0
	}
	if len(s.kids) != 16 || len(s.leaves) > 0 {
		t.Fatalf("a branch of %d slots with %d names", len(s.kids), len(s.leaves))
	}
	for i := range s.kids {
		branches += shape(t, &s.kids[i], prefix<<4|uint64(i), bits+4)
	}
	return branches + 1
}

// TestShape checks that 32 names are one list and the 33rd makes it a branch,
// and that names that come one by one find the same places as all at once.
func TestShape(t *testing.T) {
	m := newModel()
	grow := func(size, step int) int {
		for n := len(m.want); n < size; {
			for range step {
				m.change(t, n, false)
				n++
			}
			m.Publish()
		}
		return shape(t, &m.published.root, 0, 0)
	}
	if n := grow(32, 1); n != 0 {
		t.Errorf("32 names have %d branches", n)
	}
	if n := grow(33, 1); n != 1 {
		t.Errorf("33 names have %d branches, want 1", n)
	}
	oneByOne := grow(4000, 1)
	whole := splitLeaves(leavesOf(&m.published), 0)
	if atOnce := shape(t, &whole, 0, 0); atOnce != oneByOne {
		t.Errorf("%d branches one by one, %d at once", oneByOne, atOnce)
	}
	if oneByOne < 1+16 {
		t.Errorf("4000 names have %d branches", oneByOne)
	}
}

// TestShapeOfSimilarHashes has hashes that differ in their last bits, and in none.
func TestShapeOfSimilarHashes(t *testing.T) {
	for _, mask := range []uint64{0, 15} {
		leaves := make([]hashedItem[int], 100)
		for i := range leaves {
			leaves[i] = hashedItem[int]{0xfedcba9876543210 | uint64(i)&mask, &Item[int]{name(i), i}}
		}
		s := splitLeaves(leaves, 0)
		if n := shape(t, &s, 0, 0); n != 16 {
			t.Errorf("%d branches for hashes that differ in %x, want 16", n, mask)
		}
	}
}

func leavesOf(m *Map[int]) (leaves []hashedItem[int]) {
	for item := range m.All() {
		leaves = append(leaves, hashedItem[int]{m.hashName(item.Name), item})
	}
	return leaves
}

// TestAllStopsEarly breaks out of the iteration at every item, in lists that are
// two branches deep.
func TestAllStopsEarly(t *testing.T) {
	const size = 2 * maxLeaves * fan
	m := newModel()
	for i := range size {
		m.change(t, i, false)
	}
	published := m.Publish()
	if n := shape(t, &published.root, 0, 0); n < 2 {
		t.Fatalf("%d branches", n)
	}
	for stop := 1; stop <= size; stop++ {
		n := 0
		for range published.All() {
			if n++; n == stop {
				break
			}
		}
		if n != stop {
			t.Fatalf("%d items, want %d", n, stop)
		}
	}
}

// BenchmarkGet and BenchmarkUpdate show that costs depend little on the size.
func BenchmarkGet(b *testing.B) {
	for _, size := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			_, m, names := filled(size)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if m.Get(names[i%size]) == nil {
					b.Fatal("a name is missing")
				}
			}
		})
	}
}

// BenchmarkUpdate publishes a version for each change.
func BenchmarkUpdate(b *testing.B) {
	for _, size := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			w, _, names := filled(size)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.Set(&Item[int]{names[i%size], i})
				w.Publish()
			}
		})
	}
}

// filled returns a writer, its version, and its names in random order.
func filled(size int) (*Writer[int], Map[int], []string) {
	w, names := NewWriter[int](), make([]string, size)
	for i, p := range rand.New(rand.NewPCG(3, 4)).Perm(size) {
		names[i] = name(p)
		w.Set(&Item[int]{names[i], p})
	}
	m := w.Publish()
	runtime.GC()
	return w, m, names
}
