package paging_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/status/paging"
)

// world is a catalog that takes a while to be read.
type world struct {
	lists    paging.Lists[string, int]
	n        int
	version  int
	takes    time.Duration
	mu       sync.Mutex
	scans    int
	scanning int
}

func (w *world) read(key string) []paging.Entry[int] {
	return w.lists.Of(key, []any{w.version}, w.n, func(add func(string, int)) {
		w.mu.Lock()
		w.scans++
		if w.scanning++; w.scanning > 1 {
			panic("two scans at once")
		}
		w.mu.Unlock()
		time.Sleep(w.takes)
		for _, i := range rand.Perm(w.n) {
			add(fmt.Sprintf("s%07d", i), w.version)
		}
		w.mu.Lock()
		w.scanning--
		w.mu.Unlock()
	})
}

func (w *world) check(t *testing.T, version, scans int) {
	t.Helper()
	if all := w.read("a"); len(all) != w.n || all[0].Value != version || w.scans != scans {
		t.Errorf("%d of version %d after %d scans, expected %d of version %d after %d", len(all), all[0].Value, w.scans, w.n, version, scans)
	}
}

// TestVersions reads a catalog that changes: a short list is never old, and a long one only
// in proportion to what it took to make it.
func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		short := &world{n: 9_999, takes: 100 * time.Millisecond}
		short.check(t, 0, 1)
		short.check(t, 0, 1)
		short.version++
		short.check(t, 1, 2)

		long := &world{n: 10_000, takes: 100 * time.Millisecond}
		long.check(t, 0, 1)
		long.version++
		time.Sleep(2*time.Second - 1)
		long.check(t, 0, 1)
		time.Sleep(time.Nanosecond)
		long.check(t, 1, 2)

		long.takes, long.version = time.Second, 2
		time.Sleep(2 * time.Second)
		long.check(t, 2, 3)
		long.version++
		time.Sleep(5*time.Second - 1)
		long.check(t, 2, 3)
		time.Sleep(time.Nanosecond)
		long.check(t, 3, 4)
	})
}

// TestForgotten keeps a list for as long as it is read.
func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{n: 10}
		for range 10 {
			w.check(t, 0, 1)
			time.Sleep(paging.Keep - 1)
		}
		w.check(t, 0, 1)
		time.Sleep(paging.Keep)
		synctest.Wait()
		w.check(t, 0, 2)
	})
}

// TestShared has many read at once what nobody has read before.
func TestShared(t *testing.T) {
	w := &world{n: 2000}
	var readers sync.WaitGroup
	for i := range 50 {
		readers.Go(func() { w.read([]string{"a", "b"}[i%2]) })
	}
	readers.Wait()
	if w.scans != 2 {
		t.Errorf("%d scans", w.scans)
	}
}

// TestOrder compares the order, and pages, with those of sorted strings.
func TestOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 100 {
		var names []string
		for range n {
			name := "begin"[:random.IntN(6)]
			for range random.IntN(12) {
				name += string("\x00a\xff"[random.IntN(3)])
			}
			names = append(names, name, name)
		}
		var lists paging.Lists[int, string]
		all := lists.Of(0, nil, 0, func(add func(string, string)) {
			for _, name := range names {
				add(name, name)
			}
		})
		slices.Sort(names)
		names = slices.Compact(names)
		var got []string
		for i := range all {
			got = append(got, all[i].Value)
		}
		if !slices.Equal(got, names) {
			t.Fatalf("%q is not %q", got, names)
		}
		for i := range names {
			page, more := paging.Page(all, names[i], 3)
			if rest := len(names) - i - 1; len(page) != min(rest, 3) || more != (rest > 3) || len(page) > 0 && page[0].Name != names[i+1] {
				t.Fatalf("after %q there is %v, %v", names[i], page, more)
			}
		}
	}
}
