// Package paging keeps what a catalog has in the order of its names, for as long as
// somebody reads it in pages.
//
// An index that every update would have to keep in order is not worth its time: pages are
// read by people, now and then. So the first of them sorts all, and the others find it done.
//
// Only packages of this module import it: it is not a stable API.
package paging

import (
	"encoding/binary"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// Entry is what a list has of one service.
type Entry[T any] struct {
	Name  string
	Value T

	key uint64 // orders as the octets of the name after those that all names begin with
}

const (
	// Keep is how long a list is kept after it was read last.
	Keep = 10 * time.Second

	// A list of at least long entries serves, though the catalog has changed meanwhile,
	// share times as long as it took to make it, but no longer than mostOld. So however
	// many read a catalog that changes all the time, they take a twentieth of a processor.
	long    = 10_000
	share   = 20
	mostOld = 5 * time.Second

	// breath is how many entries are looked at before others may use the processor.
	breath = 256
)

// Lists are the lists of several catalogs, by the key of each. One list at a time is made:
// who wants another one, or the same, waits. It is safe for concurrent use. The zero value
// is empty.
type Lists[K comparable, T any] struct {
	making sync.Mutex // held while a list is made

	mu  sync.Mutex // guards the field below, and is held for moments
	all map[K]*list[T]
}

// list is never changed but for the timer.
type list[T any] struct {
	entries []Entry[T]
	version []any
	until   time.Time // when it is too old for another version
	forget  *time.Timer
}

// Of returns the entries of a catalog, sorted by name, each name once, whichever
// scan added of several. Nobody may change them. Version is what the catalog is, as
// comparable values: a list of another version is returned only where it is long and was
// made lately, 5 s ago at most and mostly much less. Scan adds all entries, and is not
// called by two goroutines at once; size is about how many there are.
func (l *Lists[K, T]) Of(key K, version []any, size int, scan func(add func(name string, value T))) []Entry[T] {
	if entries, ok := l.kept(key, version); ok {
		return entries
	}
	l.making.Lock()
	defer l.making.Unlock()
	if entries, ok := l.kept(key, version); ok {
		return entries // somebody else has made it meanwhile
	}
	begin := time.Now()
	entries := make([]Entry[T], 0, size)
	scan(func(name string, value T) {
		if entries = append(entries, Entry[T]{Name: name, Value: value}); len(entries)%breath == 0 {
			runtime.Gosched()
		}
	})
	entries = sorted(entries)
	made := &list[T]{entries: entries, version: version}
	if now := time.Now(); len(entries) >= long {
		made.until = now.Add(min(share*now.Sub(begin), mostOld))
	}
	l.keep(key, made)
	return entries
}

// kept returns the list of a catalog, if there is one that will do.
func (l *Lists[K, T]) kept(key K, version []any) ([]Entry[T], bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.all[key]
	if of == nil || !slices.Equal(of.version, version) && !time.Now().Before(of.until) {
		return nil, false
	}
	of.forget.Reset(Keep)
	return of.entries, true
}

func (l *Lists[K, T]) keep(key K, made *list[T]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before := l.all[key]; before != nil {
		before.forget.Stop()
	}
	if l.all == nil {
		l.all = make(map[K]*list[T])
	}
	l.all[key] = made
	made.forget = time.AfterFunc(Keep, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.all[key] == made {
			delete(l.all, key)
		}
	})
}

// Page returns up to limit entries from the first on whose name comes after a name, and
// whether there are more.
func Page[T any](entries []Entry[T], after string, limit int) (page []Entry[T], more bool) {
	first := sort.Search(len(entries), func(i int) bool { return entries[i].Name > after })
	rest := entries[first:]
	return rest[:min(len(rest), limit)], len(rest) > limit
}

// sorted sorts the entries, and leaves one of each name.
func sorted[T any](entries []Entry[T]) []Entry[T] {
	if len(entries) == 0 {
		return nil
	}
	// Names have much in common at their beginning. The eight octets after that tell most
	// of them apart, without a look at the memory of each name again and again.
	common := entries[0].Name
	for i := range entries {
		n := 0
		for n < min(len(common), len(entries[i].Name)) && common[n] == entries[i].Name[n] {
			n++
		}
		common = common[:n]
	}
	for i := range entries {
		var octets [8]byte
		copy(octets[:], entries[i].Name[len(common):])
		entries[i].key = binary.BigEndian.Uint64(octets[:])
	}
	compared := 0
	slices.SortFunc(entries, func(x, y Entry[T]) int {
		if compared++; compared%(16*breath) == 0 {
			runtime.Gosched()
		}
		if x.key != y.key {
			if x.key < y.key {
				return -1
			}
			return 1
		}
		return strings.Compare(x.Name, y.Name)
	})
	return slices.CompactFunc(entries, func(x, y Entry[T]) bool { return x.key == y.key && x.Name == y.Name })
}
