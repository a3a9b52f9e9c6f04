// Package matrix compares answers with what owners really published: for every way
// in which an owner can behave, in every state that it may have been in before, with
// and without another replica, and beside another owner, which must not be affected.
//
// The cells of the matrix are the combinations of these dimensions. What is not a
// dimension is drawn from a seed: the number of services, the retention, whether a
// reload or a restart comes in between, and more. Each cell runs in a bubble of
// simulated time of its own, in which the real agent, with its consumers, catalogs
// and zones, is connected to owners in memory and with mutual TLS. Names that exist,
// names that existed and names that never did are looked up all the time, and an
// oracle says which answers are allowed.
//
// A run in a test is bounded. `make soak` runs the matrix with one seed after the
// other, for as long as it is told.
package matrix

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/race"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

var (
	seedFlag = flag.Uint64("seed", 1, "what the parameters of the cells are drawn from")
	allFlag  = flag.Bool("all", false, "run all cells, not only the part that has every pair of values")
	soakFlag = flag.Duration("soak", 0, "run all cells, with one seed after the other, for this long")
)

// ownFiles is a behaviour of the consumer's side: the owner is good, and the consumer's own
// certificate, key or CA file cannot be used.
const ownFiles = "own-files"

// The dimensions.
var (
	behaviours = append(slices.Clip(faultowner.Behaviours), faultowner.Behaviour{Name: ownFiles, Text: "announce\nWHOLE\nend"})

	states  = []string{"none", "persisted", "synced", "stale"}
	others  = []string{"alone", "healthy", "hung", "too"} // the other replica; too: it misbehaves as well
	besides = []string{"apart", "shared", "joined"}       // the neighbour's zone is another one, or the same; joined: they share names
)

// cell is one combination of values, with a seed for the rest.
type cell struct {
	behaviour            faultowner.Behaviour
	state, other, beside string
	seed                 uint64
}

func (c cell) String() string {
	return strings.Join([]string{c.behaviour.Name, c.state, c.other, c.beside}, "/")
}

// random returns the source of what the cell draws, which depends on nothing else.
func (c cell) random() *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(c.String()))
	return rand.New(rand.NewPCG(c.seed, h.Sum64()))
}

// cells returns the whole matrix, or a twelfth of it in which each value of a
// dimension meets each value of every other one, as in a Latin square. The race
// detector makes everything ten times slower, so it gets a quarter of that.
func cells(seed uint64, all bool) (list []cell) {
	turn := int(seed % uint64(len(others)))
	for i, b := range behaviours {
		for j, state := range states {
			for k, other := range others {
				for l, beside := range besides {
					square := k == (i+j+turn)%len(others) && l == (i/len(others)+j)%len(besides)
					if all || square && (!race.Enabled || j == (i+turn)%len(states)) {
						list = append(list, cell{b, state, other, beside, seed})
					}
				}
			}
		}
	}
	return list
}

// TestCells checks that the part of the matrix that TestMatrix runs has each pair of
// values of two dimensions.
func TestCells(t *testing.T) {
	pairs := func(list []cell) map[[2]string]bool {
		found := make(map[[2]string]bool)
		for _, c := range list {
			values := []string{"behaviour " + c.behaviour.Name, "state " + c.state, "other " + c.other, "beside " + c.beside}
			for i, a := range values {
				for _, b := range values[i+1:] {
					found[[2]string{a, b}] = true
				}
			}
		}
		return found
	}
	whole := cells(1, true)
	if want := len(behaviours) * len(states) * len(others) * len(besides); len(whole) != want {
		t.Errorf("the matrix has %d cells, want %d", len(whole), want)
	}
	if race.Enabled {
		t.Skip("a smaller part is run with the race detector")
	}
	for seed := range uint64(8) {
		part := cells(seed, false)
		if want := len(whole) / len(others) / len(besides); len(part) != want {
			t.Errorf("seed %d: a part has %d cells, want %d", seed, len(part), want)
		}
		found := pairs(part)
		for pair := range pairs(whole) {
			if !found[pair] {
				t.Errorf("seed %d: no cell has %s and %s", seed, pair[0], pair[1])
			}
		}
	}
}

// TestMatrix runs cells. A failure names the cell and the seed, and the command that
// runs it again. What is drawn is then the same, except for the random delays between
// the attempts of the consumer; so a rare failure may need -count.
func TestMatrix(t *testing.T) {
	m := &matrix{passports: mint(t, t.TempDir()), file: filepath.Join(inMemory(t), "catalog")}
	if *soakFlag > 0 {
		m.soak(t, *seedFlag, *soakFlag)
	} else {
		for _, c := range cells(*seedFlag, *allFlag) {
			m.run(t, c)
		}
	}
	t.Log(&m.figures)
}

// matrix runs cells.
type matrix struct {
	figures

	passports *passports
	file      string // of the property persist; the cells use it one after the other
}

// run runs a cell in a bubble of its own.
func (m *matrix) run(t *testing.T, c cell) {
	t.Helper()
	t.Run(c.String(), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRun(t, c, m.passports, m.file)
			r.run()
			m.add(r.figures)
		})
	})
}

// soak runs all cells in random order, over and over with the next seed, for the
// given time. It reports its progress on standard error once a minute.
func (m *matrix) soak(t *testing.T, seed uint64, d time.Duration) {
	t.Helper()
	end := time.Now().Add(d)
	reported := time.Now()
	for ; time.Now().Before(end); seed++ {
		list := cells(seed, true)
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for _, c := range list {
			m.run(t, c)
			done := !time.Now().Before(end)
			if done || time.Since(reported) > time.Minute {
				reported = time.Now()
				fmt.Fprintf(os.Stderr, "seed %d: %v\n", seed, &m.figures)
			}
			if done {
				return
			}
		}
	}
}

// inMemory returns a folder for the files of the test, in memory where that exists:
// each save waits until the file is on the disk.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "matrix-") //nolint:usetesting // t.TempDir may be on a disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// figures count what was done.
type figures struct {
	cells, looks, streams, messages, wrong int
	simulated                              time.Duration
}

func (f *figures) add(g figures) {
	f.cells += g.cells
	f.looks += g.looks
	f.streams += g.streams
	f.messages += g.messages
	f.wrong += g.wrong
	f.simulated += g.simulated
}

func (f *figures) String() string {
	return fmt.Sprintf("%d cells, %v of simulated time, %d connections, %d messages, %d look-ups, %d wrong",
		f.cells, f.simulated.Round(time.Second), f.streams, f.messages, f.looks, f.wrong)
}
