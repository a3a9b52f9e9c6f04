// Command mutate measures whether the tests of a package notice faults. It makes
// mutants of the package, each with one small fault, runs the tests against every
// one of them, and prints those that no test noticed: the survivors.
//
// It is hand-made because gremlins, the one kept tool for Go, drops no statements,
// takes no sample, and does not count a mutant that hangs as killed.
//
// The mutants are those of operators.go. One that does not compile is not counted.
// A mutant is killed when the tests of its package fail, do not end in time, or
// need too much memory. The source tree is not changed: the faults reach the
// compiler through go build -overlay.
//
// The parts of a package that are packages below it are tested together in its
// tests, too. -with names such packages: a mutant of a part that survives the tests
// of the part must survive theirs as well.
//
// Not every mutant is tried: -n bounds their number for each package. Which ones
// are tried depends on -seed and the text of the mutant, so a change in one
// function leaves the choice in the others as it is.
//
// Some mutants cannot be killed, because they do the same as the original or do
// not matter. accepted.txt lists them with the reason. They count as survivors in
// the score all the same. An entry that is no mutant any more is an error.
//
// The exit status is 1 when the score of a package is below -goal.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	dir      string // where the go command runs
	sample   int    // mutants of each package; 0 means all
	seed     uint64
	workers  int
	goal     float64 // percent of the mutants that must be killed
	accepted string  // file
	only     *regexp.Regexp
	with     []string // packages, below the module, whose tests also run against mutants of the packages below them
	limit    time.Duration
	patience time.Duration // how much longer than without a fault the tests may take, at least
	verbose  bool
	packages []string
}

var errBelowGoal = errors.New("the tests kill too few mutants")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	o := options{dir: ".", patience: 20 * time.Second}
	flag.IntVar(&o.sample, "n", 100, "how many mutants of each package to try; 0 means all")
	flag.Uint64Var(&o.seed, "seed", 1, "chooses the sample")
	flag.IntVar(&o.workers, "workers", min(2, runtime.NumCPU()), "how many mutants to try at a time")
	flag.Float64Var(&o.goal, "goal", 90, "lowest `percentage` of killed mutants in each package")
	flag.StringVar(&o.accepted, "accepted", "test/mutate/accepted.txt", "`file` with survivors and the reason for each")
	flag.DurationVar(&o.limit, "limit", 45*time.Minute, "ends the run early, with the mutants tried so far; each package has an equal share; 0 means no limit")
	flag.Func("run", "try only mutants for which the `regexp` matches the position, the function or the changed lines", func(text string) (err error) {
		o.only, err = regexp.Compile(text)
		return err
	})
	with := flag.String("with", "federation/zone", "run the tests of these `packages`, with commas between them, also against mutants of the packages below them")
	flag.BoolVar(&o.verbose, "v", false, "print what became of every mutant")
	flag.Parse()
	o.packages, o.with = flag.Args(), strings.Split(*with, ",")
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// run tries the mutants of all packages and prints a report to out.
func run(ctx context.Context, o options, out io.Writer) error {
	list, err := readAccepted(o.accepted)
	if err != nil {
		return err
	}
	pkgs, err := load(ctx, o.dir, o.packages, o.with)
	if err != nil {
		return err
	}
	if err := list.match(pkgs); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	below := false
	start := time.Now()
	for i, p := range pkgs {
		if o.only != nil {
			p.mutants = slices.DeleteFunc(p.mutants, func(m mutant) bool { return !o.only.MatchString(m.position + " " + m.key(p.name)) })
		}
		var deadline time.Time
		if o.limit > 0 {
			deadline = start.Add(o.limit * time.Duration(i+1) / time.Duration(len(pkgs)))
		}
		r, err := try(ctx, o, p, work, deadline, out)
		if err != nil {
			return err
		}
		r.print(out, list)
		below = below || r.score() < o.goal
	}
	if below {
		return fmt.Errorf("%w: the goal is %g %%", errBelowGoal, o.goal)
	}
	return nil
}
