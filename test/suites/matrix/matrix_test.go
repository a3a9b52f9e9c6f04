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

	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

var (
	// The sample of this seed meets each rule of the oracle: one that is bent is noticed.
	seedFlag = flag.Uint64("seed", 17, "what the parameters of the cells are drawn from")
	allFlag  = flag.Bool("all", false, "run all cells, not only a sample")
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

// combinations is how many cells there are for each behaviour.
var combinations = len(states) * len(others) * len(besides)

// cells returns the whole matrix, or a sample that has each behaviour once. In that the other
// dimensions change from one behaviour to the next, so that each pair of their values meets, and from
// seed to seed, so that as many seeds as there are combinations have the whole matrix.
func cells(seed uint64, all bool) (list []cell) {
	for i, b := range behaviours {
		drawn := (i + int(seed%uint64(combinations))) % combinations
		for n := range combinations {
			if all || n == drawn { // 16 and 3 have no common divisor, so each n is another combination
				list = append(list, cell{b, states[n%len(states)], others[n/len(states)%len(others)], besides[n%len(besides)], seed})
			}
		}
	}
	return list
}

// TestCells checks that a sample has each pair of values of two dimensions but the behaviours, and that
// samples have the whole matrix together.
func TestCells(t *testing.T) {
	whole := make(map[string]bool)
	for seed := range uint64(combinations) {
		pairs := make(map[string]bool)
		for _, c := range cells(seed, false) {
			whole[c.String()] = true
			pairs[c.state+" "+c.other], pairs[c.other+" "+c.beside], pairs[c.state+" "+c.beside] = true, true, true
		}
		if want := len(states)*len(others) + len(others)*len(besides) + len(states)*len(besides); len(pairs) != want {
			t.Errorf("seed %d: %d pairs of values meet, want %d", seed, len(pairs), want)
		}
	}
	if want := len(behaviours) * combinations; len(whole) != want || len(cells(1, true)) != want {
		t.Errorf("the samples have %d cells together, the matrix %d, want %d", len(whole), len(cells(1, true)), want)
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
