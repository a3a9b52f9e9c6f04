// Package matrix holds answers against what owners really said: every way in
// which an owner can misbehave, from every state that it may have been in before,
// with and without another replica, and beside another owner, who must not notice.
//
// The cells of the matrix are made from lists, and what is not a dimension (how
// many services, how long the retention, whether a reload or a restart comes in
// between) is drawn from a seed. Each cell has a bubble of simulated time of its
// own, in which the real agent, its consumers, catalogs and zones, talk with owners
// over connections in memory with mutual TLS. Names that live, names that lived and
// names that never did are asked for all the time, and an oracle says what may be
// answered.
//
// A run in a test is bounded; `make soak` goes on with other seeds for as long as
// one likes.
package matrix

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/faultowner"
)

var (
	seedFlag = flag.Uint64("seed", 1, "what the parameters of the cells are drawn from")
	allFlag  = flag.Bool("all", false, "run all cells, not a part in which every pair of values comes together")
	soakFlag = flag.Duration("soak", 0, "run all cells, with one seed after the other, for this long")
)

// The dimensions beside faultowner.Behaviours.
var (
	states  = []string{"none", "persisted", "synced", "stale"}
	others  = []string{"alone", "healthy", "hung", "too"} // the other replica
	besides = []string{"apart", "shared"}                 // the neighbour's zone
)

// cell is one of the matrix.
type cell struct {
	behaviour            faultowner.Behaviour
	state, other, beside string
	seed                 uint64
}

func (c cell) String() string {
	return strings.Join([]string{c.behaviour.Name, c.state, c.other, c.beside}, "/")
}

func (c cell) random() *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(c.String()))
	return rand.New(rand.NewPCG(c.seed, h.Sum64()))
}

// cells returns the matrix, or an eighth of it in which each value of a dimension
// meets each value of every other one, as in a Latin square.
func cells(seed uint64, all bool) (list []cell) {
	turn := int(seed % uint64(len(others)))
	for i, b := range faultowner.Behaviours {
		for j, state := range states {
			for k, other := range others {
				for l, beside := range besides {
					square := k == (i+j+turn)%len(others) && l == (i/len(others)+j)%len(besides)
					if all || square && (!race || j == (i+turn)%len(states)) {
						list = append(list, cell{b, state, other, beside, seed})
					}
				}
			}
		}
	}
	return list
}

// TestMatrix runs cells. A failure names the cell and the seed, and how to run it
// again. What is drawn is the same then; the delays between attempts are not, as
// they are random in the consumer, so a rare failure may need -count.
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

// matrix is the cells at work.
type matrix struct {
	figures

	passports *passports
	file      string // in which a process keeps the catalog, one after the other
}

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

// soak runs all cells in random order, again and again with the next seed, and
// reports on standard error how far it is.
func (m *matrix) soak(t *testing.T, seed uint64, long time.Duration) {
	t.Helper()
	end := time.Now().Add(long)
	said := time.Now()
	for ; time.Now().Before(end); seed++ {
		list := cells(seed, true)
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for _, c := range list {
			m.run(t, c)
			done := !time.Now().Before(end)
			if done || time.Since(said) > time.Minute {
				said = time.Now()
				fmt.Fprintf(os.Stderr, "seed %d: %v\n", seed, &m.figures)
			}
			if done {
				return
			}
		}
	}
}

// inMemory returns a folder for the files of the test, in memory where there is
// one: each save waits for the disk.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "matrix-") //nolint:usetesting // which knows no place in memory
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// figures say what was done.
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
