package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// maxMemory is how much address space a test may take, in kB, as a mutant may
// allocate without end.
const maxMemory = 6 << 20

// outcome is what became of a mutant.
type outcome uint8

const (
	killed outcome = iota
	survived
	broken // does not compile, which go/types has not seen; not counted
)

func (o outcome) String() string { return [...]string{"killed", "survived", "does not compile"}[o] }

// result is what became of the mutants of one package.
type result struct {
	pkg      *pkg
	tried    []trial
	untried  bool // the time was over before the sample was
	duration time.Duration
}

// trial is a mutant and what became of it.
type trial struct {
	mutant  mutant
	outcome outcome
}

// try tries a sample of the mutants of a package until the deadline, if there is one.
func try(ctx context.Context, o options, p *pkg, work string, deadline time.Time, out io.Writer) (result, error) {
	start := time.Now()
	t := &tester{pkg: p, dir: work, patience: o.patience}
	if err := t.baseline(ctx); err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := result{pkg: p}
	var mu sync.Mutex // guards r.tried
	var workers sync.WaitGroup
	queue := make(chan mutant)
	for worker := range max(o.workers, 1) {
		workers.Go(func() {
			for m := range queue {
				outcome, err := t.run(ctx, worker, m)
				if err != nil {
					cancel(err)
				}
				mu.Lock()
				r.tried = append(r.tried, trial{m, outcome})
				if o.verbose {
					fmt.Fprintf(out, "%s: %s %s %s\n%s", m.position, p.name, m.function, outcome, m.diff)
				}
				mu.Unlock()
			}
		})
	}
	n := 0
	for _, m := range p.sample(o.seed) {
		if o.sample > 0 && n == o.sample || ctx.Err() != nil {
			break
		}
		if !deadline.IsZero() && time.Now().After(deadline) {
			r.untried = true
			break
		}
		if p.compiles(m) {
			queue <- m
			n++
		}
	}
	close(queue)
	workers.Wait()
	r.duration = time.Since(start)
	return r, context.Cause(ctx)
}

// tester runs the suites of a package against its mutants.
type tester struct {
	pkg      *pkg
	dir      string // for temporary files
	patience time.Duration
	timeouts []time.Duration // of each suite
}

// baseline runs the tests without a fault. They must pass, and how long they take
// bounds how long they may take with one.
func (t *tester) baseline(ctx context.Context) error {
	binary := filepath.Join(t.dir, "baseline.test")
	for _, s := range t.pkg.suites {
		if text, err := s.build(ctx, binary, ""); err != nil {
			return fmt.Errorf("%s: %w\n%s", s.path, err, text)
		}
		start := time.Now()
		if text, err := s.test(ctx, binary, 10*time.Minute); err != nil {
			return fmt.Errorf("%s: the tests fail without a mutant: %w\n%s", s.path, err, text)
		}
		t.timeouts = append(t.timeouts, t.patience+3*time.Since(start))
	}
	return nil
}

// run returns what becomes of one mutant.
func (t *tester) run(ctx context.Context, worker int, m mutant) (outcome, error) {
	source := t.pkg.sources[m.source]
	name := func(suffix string) string { return filepath.Join(t.dir, strconv.Itoa(worker)+suffix) }
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {source.path: name(".go")}})
	if err != nil {
		return broken, err
	}
	if err := errors.Join(os.WriteFile(name(".go"), m.apply(source.text), 0o600), os.WriteFile(name(".json"), overlay, 0o600)); err != nil {
		return broken, err
	}
	for i, s := range t.pkg.suites {
		if _, err := s.build(ctx, name(".test"), name(".json")); err != nil {
			return broken, context.Cause(ctx)
		}
		if _, err := s.test(ctx, name(".test"), t.timeouts[i]); err != nil {
			return killed, context.Cause(ctx)
		}
	}
	return survived, nil
}

// build compiles the tests, with an overlay if one is given.
func (s suite) build(ctx context.Context, binary, overlay string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-s -w", "-o", binary, "-overlay", overlay, s.path)
	cmd.Dir = s.dir
	return cmd.CombinedOutput()
}

// test runs compiled tests, with little priority and bounded memory.
func (s suite) test(ctx context.Context, binary string, timeout time.Duration) ([]byte, error) {
	// The binary ends itself with a list of its goroutines; the context is for
	// one that cannot.
	ctx, cancel := context.WithTimeout(ctx, timeout+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", `ulimit -v "$1"; shift; exec nice "$@"`, "sh", strconv.Itoa(maxMemory),
		binary, "-test.short", "-test.failfast", "-test.timeout", timeout.String())
	cmd.Dir = s.dir
	cmd.WaitDelay = time.Second // for a process that a test has started and left behind
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	return output.Bytes(), err
}

// counts returns how many mutants were killed, and how many counted.
func (r *result) counts() (killedCount, counted int) {
	for _, t := range r.tried {
		switch t.outcome {
		case killed:
			killedCount++
			counted++
		case survived:
			counted++
		case broken:
		}
	}
	return killedCount, counted
}

// score returns the percentage of the counted mutants that were killed.
func (r *result) score() float64 {
	killed, counted := r.counts()
	if counted == 0 {
		return 100
	}
	return 100 * float64(killed) / float64(counted)
}

// print writes the survivors and the score.
func (r *result) print(out io.Writer, list accepted) {
	unknown := 0
	for _, t := range r.tried {
		key := t.mutant.key(r.pkg.name)
		reason, ok := list[key]
		switch {
		case t.outcome == survived && !ok:
			unknown++
			fmt.Fprintf(out, "%s: survived\n%s", t.mutant.position, key)
		case t.outcome == killed && ok:
			fmt.Fprintf(out, "%s: accepted, but killed\n%s\t%s\n", t.mutant.position, key, reason)
		}
	}
	killed, counted := r.counts()
	fmt.Fprintf(out, "%s: %.1f %%: %d of %d mutants killed, %d accepted and %d other survivors, %d mutants in all, %s\n",
		r.pkg.name, r.score(), killed, counted, counted-killed-unknown, unknown, len(r.pkg.mutants), r.duration.Round(time.Second))
	if r.untried {
		fmt.Fprintf(out, "%s: the time was over before the sample was\n", r.pkg.name)
	}
}
