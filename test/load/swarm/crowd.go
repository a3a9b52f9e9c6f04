package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
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

// newCrowd returns n consumers, which have the credentials in turn.
func newCrowd(owner string, classes []credentials.TransportCredentials, n, atOnce int, prime bool) *crowd {
	c := &crowd{owner: owner, book: newBook(), prime: prime, shaking: make(chan struct{}, atOnce), failures: make(map[string]int)}
	c.resume.Store(true)
	for i := range n {
		local := net.IPv4(127, 0, byte(1+i/perAddress/250), byte(1+i/perAddress%250))
		c.consumers = append(c.consumers, &consumer{crowd: c, credentials: classes[i%len(classes)], local: local})
	}
	return c
}

// clientCredentials are those of a consumer. Who the owner is does not matter here, and to verify
// it would cost the machine that it shares with the owner.
func clientCredentials(files mtls.Files) (credentials.TransportCredentials, error) {
	certificate, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}), err
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

// failed counts why a stream has ended.
func (c *crowd) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures[fmt.Sprintf("%v, with a RetryInfo: %t", status.Code(err), retryOf(err) > 0)]++
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

// report is what a crowd says of itself.
type report struct {
	complete int            // consumers that have had the end marker of their stream
	resumed  int            // of whom the owner has accepted the digests
	services int64          // that those hold which are complete, added up
	kinds    int            // of catalogs that those hold: 1 where all hold the same
	bytes    int64          // received since reset, TLS included
	arrivals []time.Time    // of changes since reset
	failures map[string]int // since reset, by what they were
}

func (c *crowd) report() report {
	var r report
	kinds := make(map[uint64]bool)
	for _, member := range c.consumers {
		r.bytes += member.received.Load()
		if member.complete.Load() {
			r.complete++
			r.services += member.services.Load()
			kinds[member.print.Load()] = true
			if member.resumed.Load() {
				r.resumed++
			}
		}
	}
	r.kinds = len(kinds)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.failures, r.arrivals = maps.Clone(c.failures), slices.Clone(c.arrivals)
	return r
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
	versions map[string]position
	known    map[uint64]resume.Digests // by the print of what is held
}

type position struct {
	index   int
	version uint16
}

func newBook() *book {
	return &book{indexes: make(map[string]int), versions: make(map[string]position), known: make(map[uint64]resume.Digests)}
}

// swept returns which of the first n services a stream announces anew that resumes with
// that selection: all where it does not resume.
func (b *book) swept(s resume.BucketSelection, n int) []bool {
	swept := make([]bool, n)
	b.mu.RLock()
	defer b.mu.RUnlock()
	for i := range swept {
		swept[i] = s.TotalBuckets() == 0 || s.HasLeaf(b.leaves[i])
	}
	return swept
}

// index returns that of a service which a consumer holds.
func (b *book) index(name string) int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.indexes[name]
}

// note returns where the book has the service of that name with that resource.
func (b *book) note(name string, value []byte) (index int, version uint16) {
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
	i, known := b.indexes[name]
	if !known {
		i = len(b.names)
		b.indexes[name] = i
		b.names, b.leaves, b.values = append(b.names, name), append(b.leaves, resume.LeafOf(name)), append(b.values, nil)
	}
	b.values[i] = append(b.values[i], value)
	at = position{i, uint16(len(b.values[i]))}
	b.versions[string(value)] = at
	return at.index, at.version
}

// digests returns those of what is held, which has the print of a consumer, or nil if that is nothing.
func (b *book) digests(held []uint16, of uint64) resume.Digests {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d, known := b.known[of]; known {
		return d
	}
	var s resume.CatalogSum
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
	b.known[of] = s.Digests().FoldTo(resume.BucketCount(s.Len()))
	return b.known[of]
}
