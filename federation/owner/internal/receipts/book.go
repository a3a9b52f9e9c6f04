// Package receipts remembers what the consumers of an owner may still hold that have no
// stream any more.
//
// A consumer says on its stream for how long it answers what it holds after the stream is
// lost. A [Book] has an entry for each copy of a catalog whose stream was lost, until that time
// is over. With a file it also has the copies that have a stream: after a restart each of
// them counts as lost at the restart, which is later than it was.
package receipts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
)

// maxLost bounds the copies of which a Book knows that they are lost, to some 30 megabytes.
const maxLost = 1 << 16

// lockPatience is how long another process may have the file.
const lockPatience = 5 * time.Second

// brokenSuffix is that of a file that could not be written: what it lacks nobody knows.
const brokenSuffix = ".broken"

// Copy is a copy of a catalog, which a consumer has.
type Copy struct {
	Catalog  string          `json:"catalog,omitempty"` // the server name
	Consumer string          `json:"consumer"`          // its identity, as it is shown
	IDs      []federation.ID `json:"-"`                 // all of its identities; none where they are not known

	// Receipt is what the consumer has said; without a Holder it has said nothing, and all such
	// copies of a consumer are one.
	Receipt receipt.Receipt `json:"receipt,omitzero"`
	Unknown string          `json:"unknown,omitempty"` // why nobody knows how long it is held; for a relay

	Lost time.Time `json:"lost,omitzero"` // when its last stream ended; zero while there is one

	// Of a registry the consumer had this version at that time, on its last stream. A file does
	// not have them: the versions of another process are others.
	Of      any       `json:"-"`
	Version uint64    `json:"-"`
	At      time.Time `json:"-"`
}

// record is a copy in the file.
type record struct {
	Copy

	IDs []string `json:"ids,omitempty"`
}

func (c *Copy) marshal() ([]byte, error) {
	r := record{Copy: *c}
	for _, id := range c.IDs {
		r.IDs = append(r.IDs, id.String())
	}
	return json.Marshal(r) //nolint:musttag // it is for this package alone
}

func unmarshal(value []byte) (*Copy, error) {
	var r record
	if err := json.Unmarshal(value, &r); err != nil { //nolint:musttag // as above
		return nil, err
	}
	c := r.Copy
	for _, text := range r.IDs {
		id, err := federation.ParseID(text)
		if err != nil { // then anything may have been told to it
			c.IDs = nil
			break
		}
		c.IDs = append(c.IDs, id)
	}
	return &c, nil
}

// Key tells copies apart. It names the consumer, so that none can speak for another one.
func (c *Copy) Key() string { return c.Catalog + " " + c.Consumer + " " + c.Receipt.Holder }

// Silent is why nothing is known of a copy of which the consumer says nothing.
const Silent = "it does not say how long it answers what it holds"

// Until returns when a copy that is lost is answered by nobody any more. It reports false
// where that is never, or is not known: then why is set.
func (c *Copy) Until() (until time.Time, why string, ok bool) {
	if why = c.Unclear(); why != "" || c.Receipt.Hold < 0 {
		return until, why, false
	}
	return c.Lost.Add(c.Receipt.Hold + c.Receipt.TTL), "", true
}

// Unclear says why nobody knows how long a copy is held that is lost, or "".
func (c *Copy) Unclear() string {
	if c.Receipt.Holder == "" {
		return Silent
	}
	return c.Unknown
}

// Book is what is remembered. Its methods are safe for concurrent use.
type Book struct {
	path    string
	failed  func(error) // is told once why the file is not written any more
	writing sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	db     *bbolt.DB  // nil without a file
	queue  []change   // that are to be written, in this order
	writes bool       // whether somebody writes them
	lost   map[string]*Copy
	more   time.Time // until when copies count that there was no room for
	beyond string    // why there are copies of which nothing is known, or ""

	longest map[string]time.Duration // that a copy was ever held; by catalog, negative for ever
}

// change is one of the file: a copy, or that there is none any more.
type change struct {
	key   string
	value []byte        // nil: none
	done  chan struct{} // closed when it is on the disk, or cannot be; nil: nobody waits
}

var bucket = []byte("copies")

// New returns a book that is not kept in a file: of the copies before it nothing is known.
func New() *Book {
	return &Book{lost: make(map[string]*Copy), longest: make(map[string]time.Duration), beyond: "consumers that were lost before this owner started are not remembered; name a file with receipts"}
}

// Open returns the book in the file, which is made where there is none: then it begins with
// the first consumer ever. When the file cannot be written later, failed is told, once; the
// file gets another name, so that no later owner believes it.
func Open(path string, failed func(error)) (*Book, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockPatience})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		err = errors.New("another process has it open")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	b := &Book{db: db, path: path, failed: failed, lost: make(map[string]*Copy), longest: make(map[string]time.Duration)}
	if _, err := os.Lstat(path + brokenSuffix); !errors.Is(err, fs.ErrNotExist) {
		b.beyond = "an owner before could not write " + path + "; remove " + path + brokenSuffix + " when no consumer of then is left"
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := db.Update(b.read); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), db.Close())
	}
	for _, c := range b.lost {
		b.put(c) // of those that had a stream, the file does not know that it is lost
	}
	return b, nil
}

// read takes the copies of the file, and removes those that are over. The caller holds mu.
func (b *Book) read(tx *bbolt.Tx) error {
	in, err := tx.CreateBucketIfNotExists(bucket)
	if err != nil {
		return err
	}
	now := time.Now()
	var over [][]byte
	err = in.ForEach(func(key, value []byte) error {
		c, err := unmarshal(value)
		if err != nil {
			return fmt.Errorf("%q: %w", key, err)
		}
		if c.Lost.IsZero() || c.Lost.After(now) {
			c.Lost = now
		}
		b.note(c)
		if until, _, ok := c.Until(); ok && until.Before(now) {
			over = append(over, key)
			return nil
		}
		b.lose(c)
		return nil
	})
	for _, key := range over {
		err = errors.Join(err, in.Delete(key))
	}
	return err
}

// Close closes the file, when all is written. The book goes on without it.
func (b *Book) Close() error {
	b.writing.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.db == nil {
		return nil
	}
	err := b.db.Close()
	b.db = nil
	return err
}

// Opened notes that a copy has a stream. When it returns, that is on the disk.
func (b *Book) Opened(c *Copy) {
	b.mu.Lock()
	delete(b.lost, c.Key())
	done := b.put(c)
	b.mu.Unlock()
	<-done
}

// Changed notes what a consumer says of a copy that has a stream. When it returns, that is on the
// disk: so a consumer cannot say more than the disk can take.
func (b *Book) Changed(c *Copy) {
	b.mu.Lock()
	done := b.put(c)
	b.mu.Unlock()
	<-done
}

// Lost notes that a copy has no stream any more.
func (b *Book) Lost(c *Copy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lose(c)
	b.put(c)
}

// lose adds a copy to those that are lost, if there is room. The caller holds mu.
func (b *Book) lose(c *Copy) {
	if len(b.lost) == maxLost {
		b.forget(c.Lost)
	}
	if _, known := b.lost[c.Key()]; known || len(b.lost) < maxLost {
		b.lost[c.Key()] = c
		return
	}
	until, _, ok := c.Until()
	switch {
	case !ok:
		b.beyond = fmt.Sprintf("more consumers were lost than are remembered: %d", maxLost)
	case until.After(b.more):
		b.more = until
	}
}

// put has a copy written. The channel is closed when it is. The caller holds mu.
func (b *Book) put(c *Copy) <-chan struct{} {
	done := make(chan struct{})
	b.note(c)
	value, err := c.marshal()
	if err != nil {
		b.beyond = err.Error()
		close(done)
		return done
	}
	b.write(change{c.Key(), value, done})
	return done
}

// write has a change written after those before it. The caller holds mu.
func (b *Book) write(c change) {
	if b.db == nil {
		if c.done != nil {
			close(c.done)
		}
		return
	}
	b.queue = append(b.queue, c)
	if !b.writes {
		b.writes = true
		b.writing.Go(b.writeAll)
	}
}

// writeAll writes what there is to write, all that has come meanwhile at once.
func (b *Book) writeAll() {
	for {
		b.mu.Lock()
		changes, db := b.queue, b.db
		if b.queue = nil; len(changes) == 0 {
			b.writes = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		err := db.Update(func(tx *bbolt.Tx) error {
			in := tx.Bucket(bucket)
			for _, c := range changes {
				var err error
				if c.value == nil {
					err = in.Delete([]byte(c.key))
				} else {
					err = in.Put([]byte(c.key), c.value)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.fail(err)
		}
		for _, c := range changes {
			if c.done != nil {
				close(c.done)
			}
		}
	}
}

// fail notes that the file cannot be written.
func (b *Book) fail(err error) {
	b.mu.Lock()
	first := b.beyond == ""
	if first {
		b.beyond = "the file of the receipts cannot be written: " + err.Error()
	}
	b.mu.Unlock()
	if first {
		b.failed(errors.Join(err, os.Rename(b.path, b.path+brokenSuffix)))
	}
}

// note notes for how long a copy is held. The caller holds mu.
func (b *Book) note(c *Copy) {
	if c.Receipt.Holder == "" {
		return
	}
	switch longest := b.longest[c.Catalog]; {
	case c.Receipt.Hold < 0:
		b.longest[c.Catalog] = receipt.Forever
	case longest >= 0:
		b.longest[c.Catalog] = max(longest, c.Receipt.Hold+c.Receipt.TTL)
	}
}

// Longest returns for how long at most a copy of a catalog was ever held that the book knows,
// after it was lost: negative for ever, 0 where there was none.
func (b *Book) Longest(catalog string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.longest[catalog]
}

// Remembered is what a Book knows at one time.
type Remembered struct {
	Lost   []*Copy   // which do not change
	More   time.Time // until when others may hold something that there was no room for; zero without any
	Beyond string    // why there are copies of which nothing is known; "" where there are none
}

// Remembered returns what may still be held at a time, and forgets what is not.
func (b *Book) Remembered(now time.Time) Remembered {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(now)
	r := Remembered{Beyond: b.beyond}
	if b.more.After(now) {
		r.More = b.more
	}
	for _, c := range b.lost {
		r.Lost = append(r.Lost, c)
	}
	return r
}

// forget forgets what nobody holds any more. The caller holds mu.
func (b *Book) forget(now time.Time) {
	for key, c := range b.lost {
		if until, _, ok := c.Until(); ok && !until.After(now) {
			delete(b.lost, key)
			b.write(change{key: key})
		}
	}
}
