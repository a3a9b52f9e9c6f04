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

// flagsOf returns arguments of go test without packages, and without which tests to run.
func flagsOf(args []string) (flags []string) {
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-run":
			i++
		case strings.HasPrefix(arg, "-"):
			flags = append(flags, arg)
		case i > 0 && slices.Contains([]string{"-timeout", "-p", "-parallel"}, args[i-1]):
			flags = append(flags, arg)
		}
	}
	return flags
}
