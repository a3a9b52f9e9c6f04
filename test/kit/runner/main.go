// Command runner runs go test in one module after the other, and prints what it prints.
// Two things are added at the end, which "ok" hides: how many tests were skipped, and
// why; and which promises were broken. A test waits for longer than what is promised,
// because machines are busy, but it says how long it took (package await): where the
// median of a promise over the whole run is above it, the run has failed.
//
//	runner [-modules DIR,DIR] [--] ARGUMENTS of go test
//	runner -never FILE
//
// With RUNNER_LOG=FILE in the environment, what became of each test is appended to it. With
// RUNNER_AGAIN=1, as in CI, a few tests that fail are run once more by themselves: of some seven
// thousand, one that fails once in ten thousand runs would fail every other CI. They are named at
// the end. A data race, a panic and what does not compile have no second chance. A package in which
// the race detector itself crashes always has one.
// With -never, the tests in such a file are listed that were skipped in every run.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	modules := flag.String("modules", ".", "the folders of the modules, with commas")
	never := flag.String("never", "", "list the tests that were skipped in every run of this `file`")
	flag.Parse()
	if *never != "" {
		text, err := os.ReadFile(*never)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Fprint(os.Stdout, neverRun(string(text)))
		return
	}
	os.Exit(run(os.Stdout, strings.Split(*modules, ","), flag.Args(), os.Getenv("RUNNER_LOG"), os.Getenv("RUNNER_AGAIN") != ""))
}

// run runs the tests of all modules, a few that fail twice if second says so, and returns the first
// exit code that is not 0.
func run(out io.Writer, modules, args []string, log string, second bool) (code int) {
	r := newReport(out, slices.Contains(args, "-v"))
	for _, dir := range modules {
		failed := goTest(r, dir, args)
		if len(r.died) > 0 {
			failed = againOnOne(r, dir, args)
		}
		if failed != 0 && second {
			failed = again(r, dir, args, failed)
		}
		if failed != 0 && code == 0 {
			code = failed
		}
	}
	if log != "" {
		if err := r.log(log); err != nil {
			fmt.Fprintln(out, err)
			code = max(code, 1)
		}
	}
	fmt.Fprint(out, r.skips())
	for _, id := range r.second {
		fmt.Fprintf(out, "%s of %s failed, and passed when it was run again\n", id.name, id.pkg)
	}
	if broken := brokenPromises(r.took); broken != "" {
		fmt.Fprint(out, broken)
		code = max(code, 1)
	}
	return code
}

// goTest runs go test in a folder, and returns its exit code.
func goTest(r *report, dir string, args []string) int {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	events, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(r.out, err)
		return 1
	}
	for lines := bufio.NewReader(events); ; {
		line, err := lines.ReadString('\n')
		if line != "" {
			r.read(line)
		}
		if err != nil {
			break
		}
	}
	err = cmd.Wait()
	r.end()
	if err != nil {
		fmt.Fprintln(r.out, "FAIL")
		return max(cmd.ProcessState.ExitCode(), 1)
	}
	return 0
}

// read takes a line of go test -json. One that is no event is printed.
func (r *report) read(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		fmt.Fprint(r.out, line)
		return
	}
	r.add(&e)
}
