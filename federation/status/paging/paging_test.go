package paging_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/paging"
)

// entry is a service of a version.
type entry struct {
	name    string
	version int
}

func (e entry) Name() string { return e.name }

func (e entry) Service() *federation.Service { return &federation.Service{Name: e.name} }

func (e entry) Report() (status.Service, error) {
	return status.Service{Name: e.name, FQDN: fmt.Sprint(e.version)}, nil
}

// world is a catalog that takes a while to be read.
type world struct {
	lists    paging.Lists[entry]
	n        int
	version  int
	takes    time.Duration
	mu       sync.Mutex
	scans    int
	scanning int
}

func (w *world) read(name string) (services []status.Service) {
	for s, err := range w.lists.Services(paging.Catalog[entry]{Name: name, Version: []any{w.version}, Size: w.n, All: w.all}) {
		if err != nil {
			panic(err)
		}
		services = append(services, s)
	}
	return services
}

func (w *world) all(yield func(entry) bool) {
	w.mu.Lock()
	w.scans++
	if w.scanning++; w.scanning > 1 {
		panic("two scans at once")
	}
	w.mu.Unlock()
	time.Sleep(w.takes)
	for _, i := range rand.Perm(w.n) {
		yield(entry{fmt.Sprintf("s%07d", i), w.version})
	}
	w.mu.Lock()
	w.scanning--
	w.mu.Unlock()
}

func (w *world) check(t *testing.T, version, scans int) {
	t.Helper()
	if all := w.read("a"); len(all) != w.n || all[0].FQDN != fmt.Sprint(version) || w.scans != scans {
		t.Errorf("%d of version %s after %d scans, expected %d of version %d after %d", len(all), all[0].FQDN, w.scans, w.n, version, scans)
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

// TestSearch reads the services that match in pages, for as long as the reader stays.
func TestSearch(t *testing.T) {
	w := &world{n: 1000}
	catalog := paging.Catalog[entry]{Size: w.n, All: w.all}
	q, pages := status.Query{Match: "S00003", Limit: 40}, []int{}
	for {
		page, err := w.lists.Page(t.Context(), catalog, q)
		if err != nil || page.Total != w.n {
			t.Fatalf("%+v, %v", page, err)
		}
		pages = append(pages, len(page.Services))
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	if !slices.Equal(pages, []int{40, 40, 20}) {
		t.Errorf("pages of %d services", pages)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if page, err := w.lists.Page(gone, catalog, status.Query{Match: "x", Limit: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", page, err)
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
		var lists paging.Lists[entry]
		catalog := paging.Catalog[entry]{All: func(yield func(entry) bool) {
			for _, name := range names {
				yield(entry{name: name})
			}
		}}
		var got []string
		for s, err := range lists.Services(catalog) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, s.Name)
		}
		names = slices.Compact(slices.Sorted(slices.Values(names)))
		if !slices.Equal(got, names) {
			t.Fatalf("%q is not %q", got, names)
		}
		for i := range names {
			page, err := lists.Page(t.Context(), catalog, status.Query{After: names[i], Limit: 3})
			rest := names[i+1:]
			if first := rest[:min(len(rest), 3)]; err != nil || len(page.Services) != len(first) || page.Total != len(names) ||
				(page.Next != "") != (len(rest) > 3) || len(first) > 0 && page.Services[0].Name != first[0] || page.Next != "" && page.Next != first[2] {
				t.Fatalf("after %q there is %+v, %v", names[i], page, err)
			}
		}
	}
}
