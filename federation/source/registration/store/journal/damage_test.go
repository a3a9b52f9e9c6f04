package journal

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store/storetest"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// sample is a file, and what is in it up to the end of each record.
type sample struct {
	data   []byte
	ends   []int
	states []map[string]int64
}

// testMark is the mark of a file that an owner of this boot has written.
func testMark(ended bool) mark { return mark{File: "test", At: time.Now(), Boot: boot(), Ended: ended} }

// newSample returns a file in which nodes are put, changed and deleted. An owner has
// closed it.
func newSample(t testing.TB) sample {
	t.Helper()
	s := sample{}
	state := map[string]int64{}
	add := func(data []byte) {
		s.data, s.ends, s.states = data, append(s.ends, len(data)), append(s.states, maps.Clone(state))
	}
	add([]byte(magic))
	add(testMark(false).append(s.data, 0))
	nodes := []*node.Node{testNode(t, 1, "a"), testNode(t, 2, ""), testNode(t, 1, "b"), testNode(t, 3, "c")}
	for i, n := range nodes {
		version := int64(i + 1)
		if i > 0 && n.Key == nodes[0].Key {
			delete(state, textOf(nodes[0]))
		}
		state[textOf(n)] = version
		add(entry{node: n, version: version}.append(s.data))
	}
	delete(state, textOf(nodes[1]))
	add(appendRecord(s.data, gone, 5, []byte(nodes[1].Text())))
	add(testMark(true).append(s.data, 5))
	return s
}

// before returns how many records end at the place in the file or before, and whether one does
// there.
func (s sample) before(place int) (records int, whole bool) {
	return slices.BinarySearch(s.ends, place)
}

// contentsOf returns what is read from a file with the data.
func contentsOf(t testing.TB, data []byte) *contents {
	t.Helper()
	c := &contents{}
	c.read(data)
	return c
}

func (c *contents) versions() map[string]int64 {
	s := Store{entries: c.entries}
	return versions(s.versioned())
}

// reopened checks what a store makes of a file: the nodes, whether it is complete, and
// whether a file is set aside. It checks that nothing of that is lost when the store goes on.
func reopened(t *testing.T, data []byte, want state, damaged bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := configIn(t)
		must.Do(t, os.WriteFile(c.Path, data, 0o644))
		found := contentsOf(t, data)
		must.Do(t, os.WriteFile(c.Path+lockSuffix, mark{File: found.last.File}.append(nil, found.version), 0o600))
		r := started(t, c, want)
		n := testNode(t, 99, "new")
		want.nodes[textOf(n)] = storetest.Commit(t, r, storetest.Put(n, 0))[0]
		time.Sleep(5 * time.Minute)
		r.stop()
		started(t, c, state{want.nodes, true}).stop()
		aside, err := os.ReadFile(c.Path + damagedSuffix)
		if damaged != (err == nil) || damaged && !bytes.Equal(aside, data) {
			t.Errorf("set aside: %d bytes, %v", len(aside), err)
		}
		files, err := filepath.Glob(c.Path + "*")
		if usual := 2; err != nil || len(files) != usual && !damaged || len(files) != usual+1 && damaged {
			t.Errorf("the files are %q, %v", files, err)
		}
	})
}

func TestWhole(t *testing.T) {
	s := newSample(t)
	reopened(t, s.data, state{s.states[len(s.states)-1], true}, false)
}

// TestTorn has a file that ends anywhere.
func TestTorn(t *testing.T) {
	s := newSample(t)
	for length := range s.data {
		records, whole := s.before(length)
		want := state{map[string]int64{}, whole}
		if whole {
			records++
		}
		if records > 0 {
			want.nodes = maps.Clone(s.states[records-1])
		}
		c := contentsOf(t, s.data[:length])
		if diff := cmp.Diff(want.nodes, c.versions()); diff != "" || (c.lost == "") != whole || c.damaged == whole {
			t.Errorf("%d bytes, -want +got:\n%s%q, %t", length, diff, c.lost, c.damaged)
		}
		if length%16 == 0 || whole {
			// A file whose last stamp is not that of an end says on which boot it was written:
			// on this one. One without any says nothing.
			want.complete = want.complete && records > 1
			reopened(t, s.data[:length], want, !whole)
		}
	}
}

// TestFlippedBits has a file with each of its bits flipped: what is before is read.
func TestFlippedBits(t *testing.T) {
	s := newSample(t)
	for bit := range 8 * len(s.data) {
		data := bytes.Clone(s.data)
		data[bit/8] ^= 1 << (bit % 8)
		want := map[string]int64{}
		if records, whole := s.before(bit / 8); whole {
			want = maps.Clone(s.states[records])
		} else if records > 0 {
			want = maps.Clone(s.states[records-1])
		}
		c := contentsOf(t, data)
		if diff := cmp.Diff(want, c.versions()); diff != "" || c.lost == "" || !c.damaged {
			t.Errorf("bit %d, lost %q, damaged %t, -want +got:\n%s", bit, c.lost, c.damaged, diff)
		}
		if bit%333 == 0 {
			reopened(t, data, state{want, false}, true)
		}
	}
}

// TestDamage has files with what no owner writes.
func TestDamage(t *testing.T) {
	s := newSample(t)
	last := s.states[len(s.states)-1]
	behind := func(k kind, data string) []byte { return appendRecord(bytes.Clone(s.data), k, 7, []byte(data)) }
	for name, tt := range map[string]struct {
		data []byte
		want map[string]int64
	}{
		"empty":         {nil, nil},
		"text":          {[]byte(strings.Repeat("services:\n", 100)), nil},
		"zeros":         {make([]byte, 1<<20), nil},
		"zeros last":    {append(bytes.Clone(s.data), make([]byte, 100_000)...), last},
		"unknown kind":  {behind('x', ""), last},
		"no service":    {behind(gone, "-/tcp://192.0.2.1:80"), last},
		"no URI":        {behind(gone, "a.example"), last},
		"no node":       {behind(put, "12345678"), last},
		"short node":    {behind(put, "1234567"), last},
		"no stamp":      {behind(stamp, ""), last},
		"too long":      {behind(put, strings.Repeat("x", mostPayload)), last},
		"other version": {append([]byte("federation-journal 1\n"), s.data[s.ends[0]:]...), nil},
		"twice":         {append(bytes.Clone(s.data), s.data...), last},
	} {
		t.Run(name, func(t *testing.T) {
			want := state{map[string]int64{}, false}
			maps.Copy(want.nodes, tt.want)
			reopened(t, tt.data, want, true)
		})
	}
}

// TestOtherBoot has a file that was not closed before the machine failed.
func TestOtherBoot(t *testing.T) {
	if boot() == "" {
		t.Skip("this system does not tell its boots apart")
	}
	s := newSample(t)
	last := s.states[len(s.states)-1]
	for _, tt := range []struct {
		ended    bool
		boot     string
		complete bool
	}{{false, boot(), true}, {false, "other", false}, {true, "other", true}} {
		m := testMark(tt.ended)
		m.Boot = tt.boot
		reopened(t, m.append(bytes.Clone(s.data), 5), state{maps.Clone(last), tt.complete}, false)
	}
}

// TestSetAsideOnce damages a file twice.
func TestSetAsideOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := configIn(t)
		for i := range 3 {
			must.Do(t, os.WriteFile(c.Path, fmt.Append(nil, "damage ", i), 0o600))
			started(t, c, state{map[string]int64{}, false}).stop()
		}
		aside, err := os.ReadFile(c.Path + damagedSuffix)
		if files, _ := filepath.Glob(c.Path + "*"); err != nil || string(aside) != "damage 2" || len(files) != 3 {
			t.Errorf("%q, %v, %q", aside, err, files)
		}
	})
}

// FuzzRead reads files that are damaged in any way.
func FuzzRead(f *testing.F) {
	s := newSample(f)
	f.Add(s.data, 0, byte(0))
	f.Add(s.data[:100], 50, byte(1))
	f.Add(append(bytes.Clone(s.data), s.data...), 300, byte('x'))
	f.Fuzz(func(t *testing.T, data []byte, at int, b byte) {
		if at >= 0 && at < len(data) {
			data = bytes.Clone(data)
			data[at] ^= b
		}
		c := contentsOf(t, data)
		if c.damaged != (c.lost != "") {
			t.Errorf("damaged %t, lost %q", c.damaged, c.lost)
		}
		// Written anew it says the same.
		again := []byte(magic)
		for key, e := range c.entries {
			if key != e.node.Key || e.node.Validate() != nil {
				t.Errorf("%v is %v", key, e.node)
			}
			again = e.append(again)
		}
		repeated := contentsOf(t, again)
		if diff := cmp.Diff(c.versions(), repeated.versions()); diff != "" || repeated.lost != "" {
			t.Errorf("written anew, %q:\n%s", repeated.lost, diff)
		}
	})
}
