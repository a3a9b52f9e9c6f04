package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// mostAgain is how many tests are run again at most: where more fail, something is wrong.
const mostAgain = 3

// again runs the tests that failed in a module once more, if they may pass, and returns the exit
// code, which was code before.
func again(r *report, dir string, args []string, code int) int {
	failed := r.failed()
	if r.hopeless || len(failed) == 0 || len(failed) > mostAgain {
		return code
	}
	var names, packages []string
	for _, id := range failed {
		fmt.Fprintf(r.out, "%s of %s is run again\n", id.name, id.pkg)
		names, packages = append(names, regexp.QuoteMeta(id.name)), append(packages, id.pkg)
		delete(r.results, id)
	}
	flags := append(flagsOf(args), "-count=1", "-run", "^("+strings.Join(names, "|")+")$")
	if code := goTest(r, dir, append(flags, slices.Compact(packages)...)); code != 0 {
		return code
	}
	for _, id := range failed {
		if r.results[id] != "pass" {
			return code
		}
	}
	r.second = append(r.second, failed...)
	return 0
}

// detectorCrash is how a program ends in which the race detector has crashed. A fault of Go code
// is a panic, and reads otherwise.
var detectorCrash = regexp.MustCompile(`(?m)^(SIGSEGV: segmentation violation$|.*ThreadSanitizer:? CHECK failed)`)

// againOnOne runs the packages again in which the race detector has crashed, and returns the
// exit code. It does so because Go 1.26 lets two threads use the detector's context of a bubble
// of synctest at once: one receives from a timer that is due, the other runs further timers of the
// bubble (golang/go#78156). With one processor there is no other thread.
func againOnOne(r *report, dir string, args []string) int {
	packages := r.died
	for _, pkg := range packages {
		fmt.Fprintf(r.out, "the race detector crashed in %s, which is run again on one processor\n", pkg)
	}
	code := goTest(r, dir, slices.Concat(flagsOf(args), []string{"-count=1", "-cpu=1"}, packages))
	r.died = nil // once is enough
	if code == 0 && (r.hopeless || len(r.failed()) > 0) {
		code = 1 // of another package
	}
	return code
}

// flagsOf returns arguments of go test without packages.
func flagsOf(args []string) (flags []string) {
	for i, arg := range args {
		if strings.HasPrefix(arg, "-") || i > 0 && slices.Contains([]string{"-run", "-timeout", "-p", "-parallel"}, args[i-1]) {
			flags = append(flags, arg)
		}
	}
	return flags
}
