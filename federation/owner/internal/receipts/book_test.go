package receipts

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// copyOf returns a copy that is held for so many seconds, and its answers for one more.
func copyOf(holder string, hold int) *Copy {
	id := must.Value(federation.ParseID("c.example"))
	return &Copy{
		Catalog: "catalog.example", Consumer: id.String(), IDs: []federation.ID{id},
		Receipt: receipt.Receipt{Holder: holder, TTL: time.Second, Hold: time.Duration(hold) * time.Second},
	}
}

// lose has a book lose a copy now.
func lose(b *Book, c *Copy) {
	lost := *c
	lost.Lost = time.Now()
	b.Lost(&lost)
}

// holders returns who is remembered, and for how much longer.
func holders(b *Book) string {
	var all []string
	for _, c := range b.Remembered(time.Now()).Lost {
		until, why, ok := c.Until()
		text := c.Receipt.Holder + " for ever"
		if ok {
			text = fmt.Sprintf("%s %v", c.Receipt.Holder, time.Until(until).Round(time.Millisecond))
		} else if why != "" {
			text = c.Receipt.Holder + ": " + why
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func want(t *testing.T, b *Book, want string) {
	t.Helper()
	if got := holders(b); got != want {
		t.Errorf("remembered is %q, expected %q", got, want)
	}
}

func open(t *testing.T, path string) *Book {
	t.Helper()
	return must.Get(Open(path, func(err error) { t.Errorf("the file cannot be written: %v", err) }))(t)
}

func TestBook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "receipts")
		b := open(t, path)
		if r := b.Remembered(time.Now()); r.Beyond != "" || !r.More.IsZero() {
			t.Errorf("a new file lacks something: %+v", r)
		}
		short, long, ever := copyOf("short", 9), copyOf("long", 99), copyOf("ever", 1)
		ever.Receipt.Hold = receipt.Forever
		told := copyOf("told", 5)
		silent := &Copy{Consumer: "silent"}
		for _, c := range []*Copy{short, long, ever, told, silent} {
			b.Opened(c)
		}
		want(t, b, "")
		told.Receipt.Hold = 50 * time.Second
		b.Changed(told)
		for _, c := range []*Copy{short, long, ever, silent} {
			lose(b, c)
		}
		want(t, b, ": "+Silent+", ever for ever, long 1m40s, short 10s")
		time.Sleep(5 * time.Second)
		b.Opened(long)
		want(t, b, ": "+Silent+", ever for ever, short 5s")
		lose(b, long)
		time.Sleep(5 * time.Second)
		want(t, b, ": "+Silent+", ever for ever, long 1m35s")
		must.Do(t, b.Close())

		// Those that had a stream are lost now.
		b = open(t, path)
		want(t, b, ": "+Silent+", ever for ever, long 1m35s, told 51s")
		for _, c := range b.Remembered(time.Now()).Lost {
			if c.Receipt.Holder == "long" {
				if diff := cmp.Diff(long.IDs, c.IDs, cmp.Comparer(func(a, b federation.ID) bool { return a == b })); diff != "" || c.Key() != long.Key() {
					t.Errorf("it is another one: %+v", c)
				}
			}
		}
		must.Do(t, b.Close())
		time.Sleep(time.Hour)
		b = open(t, path)
		want(t, b, ": "+Silent+", ever for ever")
		must.Do(t, b.Close())
		b.Remembered(time.Now()) // nothing is written any more
		lose(b, short)
	})
}

// TestBookWithoutFile remembers what it knows, and says that there is more.
func TestBookWithoutFile(t *testing.T) {
	t.Parallel()
	b := New()
	b.Opened(copyOf("a", 9))
	lose(b, copyOf("a", 9))
	if r := b.Remembered(time.Now()); len(r.Lost) != 1 || !strings.Contains(r.Beyond, "name a file") {
		t.Errorf("%+v", r)
	}
	must.Do(t, b.Close())
}

// TestCrash opens what the file is at some moment, among random events: it has every copy that may
// be held, for as long at least.
func TestCrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		random := rand.New(rand.NewPCG(1, 1))
		path := filepath.Join(dir, "0")
		b := open(t, path)
		held := make(map[string]time.Time) // until when; far away while there is a stream
		streams := make(map[string]*Copy)
		var events sync.WaitGroup
		for i := range 400 {
			holder := fmt.Sprint("h", random.IntN(5))
			switch c := streams[holder]; {
			case random.IntN(8) == 0:
				left := must.Get(os.ReadFile(path))(t)
				events.Wait()
				must.Do(t, b.Close())
				path = filepath.Join(dir, fmt.Sprint(i))
				must.Do(t, os.WriteFile(path, left, 0o600))
				b = open(t, path)
				for holder, c := range streams {
					held[holder] = time.Now().Add(c.Receipt.Hold + c.Receipt.TTL)
				}
				clear(streams)
				known := make(map[string]time.Time)
				for _, c := range b.Remembered(time.Now()).Lost {
					known[c.Receipt.Holder], _, _ = c.Until()
				}
				for holder, until := range held {
					if until.After(time.Now()) && known[holder].Before(until.Truncate(0)) {
						t.Fatalf("event %d: %s is held until %v, and known until %v", i, holder, until, known[holder])
					}
				}
			case c == nil:
				c = copyOf(holder, 1+random.IntN(30))
				b.Opened(c)
				streams[holder] = c
			case random.IntN(3) == 0:
				more := *c
				more.Receipt.Hold += time.Duration(random.IntN(9)) * time.Second
				b.Changed(&more)
				synctest.Wait()
				streams[holder] = &more
			default:
				lose(b, c)
				held[holder] = time.Now().Add(c.Receipt.Hold + c.Receipt.TTL)
				delete(streams, holder)
				if random.IntN(2) == 0 { // and comes back at once
					c = copyOf(holder, 40)
					b.Opened(c)
					streams[holder] = c
				}
			}
			time.Sleep(time.Duration(random.IntN(3)) * time.Second)
		}
		must.Do(t, b.Close())
	})
}

// TestMoreThanAreRemembered loses one copy more than there is room for.
func TestMoreThanAreRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New()
		b.beyond = ""
		for i := range maxLost {
			lose(b, copyOf(fmt.Sprint(i), 10))
		}
		lose(b, copyOf("0", 20)) // which is known
		if r := b.Remembered(time.Now()); len(r.Lost) != maxLost || !r.More.IsZero() || r.Beyond != "" {
			t.Errorf("%d are remembered, %v, %q", len(r.Lost), r.More, r.Beyond)
		}
		lose(b, copyOf("more", 30))
		lose(b, copyOf("less", 3))
		if r := b.Remembered(time.Now()); len(r.Lost) != maxLost || time.Until(r.More) != 31*time.Second {
			t.Errorf("%d are remembered, and others for %v", len(r.Lost), time.Until(r.More))
		}
		ever := copyOf("ever", 0)
		ever.Receipt.Hold = receipt.Forever
		lose(b, ever)
		if r := b.Remembered(time.Now()); r.Beyond == "" {
			t.Error("nobody says that one is not remembered that is held for ever")
		}
		time.Sleep(12 * time.Second)
		lose(b, copyOf("room", 1))
		if r := b.Remembered(time.Now()); len(r.Lost) != 2 {
			t.Errorf("%d are remembered", len(r.Lost))
		}
		time.Sleep(time.Minute)
		if r := b.Remembered(time.Now()); len(r.Lost) != 0 || !r.More.IsZero() {
			t.Errorf("%+v", r)
		}
	})
}

// TestFileCannotBeWritten has a file fail, as on a disk that is full: no later book believes it.
func TestFileCannotBeWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "receipts")
	failures := 0
	b := must.Get(Open(path, func(error) { failures++ }))(t)
	b.Opened(copyOf("a", 9))
	must.Do(t, b.db.Close())
	b.Opened(copyOf("b", 9))
	b.Opened(copyOf("c", 9))
	if r := b.Remembered(time.Now()); !strings.HasPrefix(r.Beyond, "the file of the receipts cannot be written: ") || failures != 1 {
		t.Errorf("%d failures are told, and %q", failures, r.Beyond)
	}
	for range 2 {
		b = open(t, path)
		if r := b.Remembered(time.Now()); !strings.Contains(r.Beyond, path+".broken") {
			t.Errorf("the next one says %q", r.Beyond)
		}
		must.Do(t, b.Close())
	}
	must.Do(t, os.Remove(path+".broken"))
	b = open(t, path)
	if r := b.Remembered(time.Now()); r.Beyond != "" {
		t.Errorf("the last one says %q", r.Beyond)
	}
	must.Do(t, b.Close())
}

func TestOpenFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "receipts")
		b := open(t, path)
		if _, err := Open(path, nil); err == nil || err.Error() != path+": another process has it open" {
			t.Errorf("the error is %v", err)
		}
		must.Do(t, b.Close())
		must.Do(t, os.WriteFile(path, []byte(strings.Repeat("no book", 10_000)), 0o600))
		if _, err := Open(path, nil); err == nil || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("the error is %v", err)
		}
		if _, err := Open(filepath.Join(dir, "none", "receipts"), nil); err == nil {
			t.Error("there is no folder, and no error")
		}
	})
}
