package journal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store/storetest"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// childPath is the environment variable by which the test binary becomes the owner that
// is killed. It has the path of the journal.
const childPath = "JOURNAL_OF_A_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		os.Exit(child(path))
	}
	os.Exit(m.Run())
}

// told hands the first state on.
type told chan []store.Versioned

func (w told) State(nodes []store.Versioned, _ bool)   { w <- nodes }
func (w told) Changed([]store.Versioned, []store.Gone) {}
func (w told) Away(error)                              {}
func (w told) Left(string, int64)                      {}
func childNode(number int, description string) *node.Node {
	return testNode(&testing.T{}, number, description)
}

// child changes the nodes of a journal at random, and prints what has been committed: a
// line for each batch, with number and version of each node, and whether it is there. It
// writes the file anew now and then.
func child(path string) int {
	s := New(Config{Path: path})
	first := make(told, 1)
	go s.Run(context.Background(), first)
	versions := map[node.Key]int64{}
	for _, n := range <-first {
		versions[n.Node.Key] = n.Version
	}
	for {
		var changes []store.Change
		for number := range 50 {
			if rand.IntN(3) > 0 {
				continue
			}
			n := childNode(number, strings.Repeat("x", rand.IntN(200)))
			c := store.Change{Key: n.Key, Node: n, Before: versions[n.Key]}
			if c.Before != 0 && rand.IntN(3) == 0 {
				c.Node = nil
			}
			changes = append(changes, c)
		}
		outcomes, err := s.Commit(context.Background(), changes)
		if err != nil {
			return 2
		}
		var line strings.Builder
		for i, c := range changes {
			versions[c.Key] = outcomes[i].Version
			if c.Node == nil {
				versions[c.Key] = 0
			}
			fmt.Fprintf(&line, " %s %d %t", numberOf(c.Key), outcomes[i].Version, c.Node != nil)
		}
		if _, err := os.Stdout.WriteString(line.String() + "\n"); err != nil {
			return 3
		}
		if rand.IntN(20) == 0 {
			_ = s.compact()
		}
	}
}

// TestKilled kills owners while they commit. What they had committed is in the file.
func TestKilled(t *testing.T) {
	program := must.Get(os.Executable())(t)
	path := filepath.Join(t.TempDir(), "nodes")
	committed, last, batches := map[string]printed{}, int64(0), 0
	for round := range 10 {
		owner := exec.CommandContext(t.Context(), program)
		owner.Env = append(os.Environ(), childPath+"="+path)
		output := must.Get(owner.StdoutPipe())(t)
		must.Do(t, owner.Start())
		lines := bufio.NewScanner(output)
		killAfter := 20 + rand.IntN(100)
		for count := 0; lines.Scan(); count++ {
			if count == killAfter {
				must.Do(t, owner.Process.Kill())
			}
			fields := strings.Fields(lines.Text())
			for i := 0; i+2 < len(fields); i += 3 {
				version := must.Get(strconv.ParseInt(fields[i+1], 10, 64))(t)
				committed[fields[i]] = printed{version, fields[i+2] == "true"}
				last = max(last, version)
			}
			batches++
		}
		if err := owner.Wait(); err == nil || owner.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("round %d: the owner was not killed: %v", round, err)
		}
		data := must.Get(os.ReadFile(path))(t)
		c := contentsOf(t, data)
		if c.damaged {
			t.Errorf("round %d: %s", round, c.lost)
		}
		// Its last batch may be in the file without having been printed.
		for number, p := range committed {
			n := must.Get(strconv.Atoi(number))(t)
			e, there := c.entries[testNode(t, n, "").Key]
			asPrinted := there == p.there && (!there || e.version == p.version)
			changedSince := c.version > last && (!there || e.version > last)
			if !asPrinted && !changedSince {
				t.Errorf("round %d: %+v was committed of node %s, and %d, %t is in the file", round, p, number, e.version, there)
			}
		}
		clear(committed)
		for _, e := range c.entries {
			committed[numberOf(e.node.Key)] = printed{e.version, true}
		}
		last = c.version
	}
	if batches < 200 {
		t.Errorf("only %d batches were committed", batches)
	}
}

// printed is what a child has printed of a node.
type printed struct {
	version int64
	there   bool
}

// numberOf returns the number of a node of a child.
func numberOf(key node.Key) string {
	_, last, _ := strings.Cut(key.URI.String(), "https://10.0.0.")
	number, _, _ := strings.Cut(last, ":")
	return number
}

// TestFullDisk has a disk that is full while nodes are committed, and one that is full at
// the start.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("SKIPPED: a full disk is a tmpfs, which needs root: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	}()
	filler := filepath.Join(disk, "filler")
	fill := func(t *testing.T, most int) {
		t.Helper()
		err := os.WriteFile(filler, make([]byte, most), 0o600)
		if err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	for name, atStart := range map[string]bool{"while it runs": false, "at the start": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := Config{Path: filepath.Join(disk, strings.ReplaceAll(name, " ", "-"))}
				if atStart {
					fill(t, 2<<20)
				} else {
					fill(t, 700<<10)
				}
				r := started(t, c, state{map[string]int64{}, false})
				want, full := map[string]int64{}, 0
				for i := range 2000 {
					changes := []store.Change{storetest.Put(testNode(t, 2*i, strings.Repeat("x", 200)), 0), storetest.Put(testNode(t, 2*i+1, strings.Repeat("y", 200)), 0)}
					outcomes, err := r.Commit(t.Context(), changes)
					switch {
					case err == nil:
						for j, change := range changes {
							want[textOf(change.Node)] = outcomes[j].Version
						}
					case !errors.Is(err, syscall.ENOSPC):
						t.Fatal(err)
					default:
						full++
						if full == 3 {
							must.Do(t, os.Remove(filler))
						}
						time.Sleep(10 * time.Second)
					}
					if full >= 3 && len(want) > 1200 { // there is room for a second file
						break
					}
				}
				time.Sleep(3 * time.Minute)
				r.stop()
				if full < 3 || len(want) < 100 {
					t.Errorf("%d commits failed, and there are %d nodes", full, len(want))
				}
				reread := started(t, c, state{want, true})
				if diff := cmp.Diff(len(want), len(reread.entries)); diff != "" {
					t.Error(diff)
				}
				reread.stop()
				for _, suffix := range []string{"", lockSuffix} {
					if err := os.Remove(c.Path + suffix); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}
