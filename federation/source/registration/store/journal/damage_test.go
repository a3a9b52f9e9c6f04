package journal

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// sample is a file, and what is in it up to the end of each record.
type sample struct {
	data   []byte
	ends   []int
	states []map[string]int64
}

var testMarker = marker{0x81, 'm', 'a', 'r', 'k', 'e', 'r', 0xf3}

// newSample returns a file in which nodes are put, changed and deleted. An owner has
// closed it.
func newSample(t testing.TB) sample {
	t.Helper()
	s := sample{data: testMarker.appendHeader(nil)}
	state := map[string]int64{}
	add := func(data []byte) {
		s.data, s.ends, s.states = data, append(s.ends, len(data)), append(s.states, maps.Clone(state))
	}
	add(s.data)
	owner := Store{}
	add(testMarker.append(s.data, stamp, 0, owner.stampOf(time.Now(), false)))
	nodes := []*node.Node{testNode(t, 1, "a"), testNode(t, 2, ""), testNode(t, 1, "b"), testNode(t, 3, "marker")}
	for i, n := range nodes {
		version := int64(i + 1)
		if i > 0 && n.Key == nodes[0].Key {
			delete(state, textOf(nodes[0]))
		}
		state[textOf(n)] = version
		add(testMarker.append(s.data, put, version, n.Append))
	}
	delete(state, textOf(nodes[1]))
	add(testMarker.append(s.data, gone, 5, func(b []byte) []byte { return appendKey(b, nodes[1].Key) }))
	add(testMarker.append(s.data, end, 5, owner.stampOf(time.Now(), false)))
	return s
}

func nothing(b []byte) []byte { return b }

// contentsOf returns what is read from a file with the data.
func contentsOf(t testing.TB, data []byte) *contents {
	t.Helper()
	c := &contents{entries: map[node.Key]entry{}}
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
		must.Do(t, os.WriteFile(c.Path+lockSuffix, found.marker.last(found.version), 0o600))
		r := started(t, c, want)
		n := testNode(t, 99, "new")
		want.nodes[textOf(n)] = r.commit(t, putOf(n, 0))[0]
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
	records := 0
	for length := range s.data {
		for length >= s.ends[records] && records < len(s.ends)-1 && length >= s.ends[records+1] {
			records++
		}
		want := state{map[string]int64{}, false}
		isHeader := length < s.ends[0]
		if !isHeader {
			want = state{maps.Clone(s.states[records]), length == s.ends[records]}
		}
		c := contentsOf(t, s.data[:length])
		if diff := cmp.Diff(want.nodes, c.versions()); diff != "" || (c.lost == "") != want.complete || c.damaged != isHeader {
			t.Errorf("%d bytes, -want +got:\n%s%q, %t", length, diff, c.lost, c.damaged)
		}
		if length%16 == 0 {
			// A file whose last stamp is not that of an end says on which boot it was written:
			// on this one.
			reopened(t, s.data[:length], want, isHeader)
		}
	}
}

// TestFlippedBits has a file with each of its bits flipped. One record is lost at most.
func TestFlippedBits(t *testing.T) {
	s := newSample(t)
	all := map[string]int64{}
	for _, state := range s.states {
		maps.Copy(all, state)
	}
	for bit := range 8 * len(s.data) {
		data := bytes.Clone(s.data)
		data[bit/8] ^= 1 << (bit % 8)
		c := contentsOf(t, data)
		got := c.versions()
		for text, version := range got {
			if all[text] != version {
				t.Errorf("bit %d: there is %q with version %d", bit, text, version)
			}
		}
		last := s.ends[len(s.ends)-2] // the record of the end is a torn one
		if len(got) < 1 || c.lost == "" || c.damaged != (bit/8 < last) || c.torn != (bit/8 >= last) {
			t.Errorf("bit %d: %v, lost %q, damaged %t, torn %t", bit, got, c.lost, c.damaged, c.torn)
		}
		if bit%333 == 0 {
			reopened(t, data, state{got, false}, c.damaged)
		}
	}
}

// TestDamage has files that are damaged in more than one place.
func TestDamage(t *testing.T) {
	s := newSample(t)
	last := s.states[len(s.states)-1]
	zeros := bytes.Clone(s.data)
	clear(zeros[:s.ends[1]])
	middle := bytes.Clone(s.data)
	clear(middle[s.ends[1]+9 : s.ends[2]+20]) // the first two nodes
	unknown := testMarker.append(bytes.Clone(s.data), 'x', 7, nothing)
	other := append([]byte("federation-journal 2\n"), testMarker[:]...)
	sum := checksum(other)
	other = append(other, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
	for name, tt := range map[string]struct {
		data    []byte
		want    map[string]int64
		damaged bool
	}{
		"empty":         {nil, nil, true},
		"text":          {[]byte(strings.Repeat("services:\n", 100)), nil, true},
		"zeros":         {make([]byte, 1<<20), nil, true},
		"zeros first":   {zeros, nil, true},
		"zeros last":    {append(bytes.Clone(s.data), make([]byte, 100_000)...), last, false},
		"middle":        {middle, last, true},
		"unknown kind":  {unknown, last, true},
		"no service":    {testMarker.append(bytes.Clone(s.data), gone, 7, func(b []byte) []byte { return append(b, "- tcp://192.0.2.1:80"...) }), last, true},
		"no URI":        {testMarker.append(bytes.Clone(s.data), gone, 7, func(b []byte) []byte { return append(b, "a.example"...) }), last, true},
		"no node":       {testMarker.append(bytes.Clone(s.data), put, 7, nothing), last, true},
		"short stamp":   {testMarker.append(bytes.Clone(s.data), stamp, 7, nothing), last, true},
		"other version": {append(other, s.data[s.ends[0]:]...), nil, true},
		"twice":         {append(bytes.Clone(s.data), s.data...), last, true},
	} {
		t.Run(name, func(t *testing.T) {
			want := state{map[string]int64{}, false}
			maps.Copy(want.nodes, tt.want)
			reopened(t, tt.data, want, tt.damaged)
		})
	}
}

// TestForgedRecord has a provider that knows the format, in a file that is damaged where
// its node begins. It does not know the marker.
func TestForgedRecord(t *testing.T) {
	s := newSample(t)
	other := marker{'g', 'u', 'e', 's', 's', 'e', 'd', '!'}
	forged := other.append(nil, put, 9, testNode(t, 50, "forged").Append)
	data := testMarker.append(bytes.Clone(s.data), put, 6, func(b []byte) []byte { return append(b, forged...) })
	data[s.ends[len(s.ends)-1]]++
	if got := contentsOf(t, data).versions(); got[textOf(testNode(t, 50, "forged"))] != 0 {
		t.Errorf("there is %v", got)
	}
}

// TestOtherBoot has a file that was not closed before the machine failed.
func TestOtherBoot(t *testing.T) {
	if boot() == "" {
		t.Skip("this system does not tell its boots apart")
	}
	s := newSample(t)
	stampOf := func(k kind, boot string) []byte {
		return testMarker.append(bytes.Clone(s.data), k, 5, func(b []byte) []byte {
			b = (&Store{}).stampOf(time.Now(), false)(b)
			return append(b[:bytes.LastIndexByte(b, 0)+1], boot...)
		})
	}
	last := s.states[len(s.states)-1]
	for _, tt := range []struct {
		kind     kind
		boot     string
		complete bool
	}{{stamp, boot(), true}, {stamp, "other", false}, {end, "other", true}} {
		reopened(t, stampOf(tt.kind, tt.boot), state{maps.Clone(last), tt.complete}, false)
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
		if c.whole < 0 || c.whole > int64(len(data)) || c.torn != (c.whole < int64(len(data))) && c.whole > 0 {
			t.Errorf("%d of %d bytes are whole, torn: %t", c.whole, len(data), c.torn)
		}
		if (c.damaged || c.torn) && c.lost == "" || c.lost != "" && !c.damaged && !c.torn {
			t.Errorf("damaged %t, torn %t, lost %q", c.damaged, c.torn, c.lost)
		}
		// Written anew it says the same.
		again := testMarker.appendHeader(nil)
		for key, e := range c.entries {
			if key != e.node.Key || e.node.Validate() != nil {
				t.Errorf("%v is %v", key, e.node)
			}
			again = testMarker.append(again, put, e.version, e.node.Append)
		}
		repeated := contentsOf(t, again)
		if diff := cmp.Diff(c.versions(), repeated.versions()); diff != "" || repeated.lost != "" {
			t.Errorf("written anew, %q:\n%s", repeated.lost, diff)
		}
	})
}
