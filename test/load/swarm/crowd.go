package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
)

// perAddress is how many consumers share an address: the limits of the owner count by
// address.
const perAddress = 500

// crowd is a number of consumers of one owner.
type crowd struct {
	owner     string // its address
	book      *book
	consumers []*consumer
	resume    atomic.Bool   // they send digests of what they hold
	shaking   chan struct{} // holds a value for each handshake
	prime     bool          // all but the first begin with what the first one holds

	mu       sync.Mutex
	failures map[string]int
	arrivals []time.Time // of changes, after the catalog was complete
	first    []uint16    // what the first consumer holds
}

// newCrowd returns n consumers, which are of the classes in turn.
func newCrowd(owner string, classes []*tls.Config, n, number, atOnce int, prime bool) *crowd {
	c := &crowd{owner: owner, book: newBook(), prime: prime, shaking: make(chan struct{}, atOnce), failures: make(map[string]int)}
	c.resume.Store(true)
	for i := range n {
		at := number*n + i
		local := net.IPv4(127, 0, byte(1+at/perAddress/250), byte(1+at/perAddress%250))
		c.consumers = append(c.consumers, &consumer{crowd: c, tls: classes[i%len(classes)], local: local})
	}
	return c
}

// run runs the consumers until ctx ends.
func (c *crowd) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for i, member := range c.consumers {
		running.Go(func() { member.run(ctx) })
		for i == 0 && c.prime && !member.complete.Load() && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

// addresses are what differs in errors that are the same.
var addresses = regexp.MustCompile(`[0-9.]+:[0-9]+`)

// failed counts why a stream has ended.
func (c *crowd) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := addresses.ReplaceAllString(err.Error(), "")
	if refused, ok := errors.AsType[*statusError](err); ok && refused.retry > 0 {
		text = "turned away with a RetryInfo"
	}
	if len(c.failures) > 50 {
		text = "others"
	}
	c.failures[text]++
}

func (c *crowd) seen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrivals = append(c.arrivals, time.Now())
}

func (c *crowd) completed(by *consumer) {
	if c.prime && by == c.consumers[0] {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.first = slices.Clone(by.held)
	}
}

func (c *crowd) primed() []uint16 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.first)
}

// status is what a crowd says of itself.
type status struct {
	Complete int            `json:"complete"` // consumers that have had the end marker of their stream
	Resumed  int            `json:"resumed"`  // of whom the owner has accepted the digests
	Services int64          `json:"services"` // that those hold which are complete, added up
	Kinds    int            `json:"kinds"`    // of catalogs that those hold: 1 where all hold the same
	Bytes    int64          `json:"bytes"`    // received since reset, TLS included
	Arrivals []int64        `json:"arrivals"` // of changes since reset, in nanoseconds of Unix time
	Failures map[string]int `json:"failures"` // since reset, by their text
}

func (c *crowd) status() status {
	var s status
	kinds := make(map[uint64]bool)
	for _, member := range c.consumers {
		s.Bytes += member.received.Load()
		if member.complete.Load() {
			s.Complete++
			s.Services += member.services.Load()
			kinds[member.print.Load()] = true
			if member.resumed.Load() {
				s.Resumed++
			}
		}
	}
	s.Kinds = len(kinds)
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Failures = maps.Clone(c.failures)
	for _, at := range c.arrivals {
		s.Arrivals = append(s.Arrivals, at.UnixNano())
	}
	return s
}

// reset begins to count anew.
func (c *crowd) reset() {
	for _, member := range c.consumers {
		member.received.Store(0)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrivals = nil
	clear(c.failures)
}

// book has every version of every service that some consumer has been sent: what
// a consumer holds is two bytes for each service then.
type book struct {
	mu       sync.RWMutex
	names    []string
	leaves   []int // of the names
	indexes  map[string]int
	values   [][][]byte // by index and version-1
	versions map[string]place
	known    map[[sha256.Size]byte]resume.Digests // by what is held
}

type place struct {
	index   int
	version uint16
}

func newBook() *book {
	return &book{indexes: make(map[string]int), versions: make(map[string]place), known: make(map[[sha256.Size]byte]resume.Digests)}
}

// swept returns which of the first n services a stream announces anew that resumes with
// that selection: all where it does not resume.
func (b *book) swept(s resume.Selection, n int) []bool {
	swept := make([]bool, n)
	b.mu.RLock()
	defer b.mu.RUnlock()
	for i := range swept {
		swept[i] = s.Of() == 0 || s.HasLeaf(b.leaves[i])
	}
	return swept
}

func (b *book) index(name string) (int, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	i, ok := b.indexes[name]
	return i, ok
}

// note returns where the book has the service of that name with that resource.
func (b *book) note(name, value []byte) (index int, version uint16) {
	b.mu.RLock()
	at, known := b.versions[string(value)]
	b.mu.RUnlock()
	if known {
		return at.index, at.version
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if at, known := b.versions[string(value)]; known {
		return at.index, at.version
	}
	i, known := b.indexes[string(name)]
	if !known {
		i = len(b.names)
		b.indexes[string(name)] = i
		b.names, b.leaves, b.values = append(b.names, string(name)), append(b.leaves, resume.Leaf(string(name))), append(b.values, nil)
	}
	b.values[i] = append(b.values[i], slices.Clone(value))
	at = place{i, uint16(len(b.values[i]))}
	b.versions[string(value)] = at
	return at.index, at.version
}

// digests returns those of what is held, or nil if that is nothing.
func (b *book) digests(held []uint16) resume.Digests {
	key := sha256.New()
	_ = binary.Write(key, binary.LittleEndian, held)
	sum := [sha256.Size]byte(key.Sum(nil))
	b.mu.Lock()
	defer b.mu.Unlock()
	if d, known := b.known[sum]; known {
		return d
	}
	var s resume.Sum
	for i, version := range held {
		if version > 0 {
			s.Add(b.names[i], b.values[i][version-1])
		}
	}
	if s.Len() == 0 {
		return nil
	}
	if len(b.known) > 1000 {
		clear(b.known)
	}
	b.known[sum] = s.Digests().Fold(resume.Buckets(s.Len()))
	return b.known[sum]
}
