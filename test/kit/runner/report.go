package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// event is one of go test -json: see go doc test2json.
type event struct {
	Action  string `json:"action"`
	Package string `json:"package"`
	Test    string `json:"test"`
	Output  string `json:"output"`
	Key     string `json:"key"` // of an attribute
	Value   string `json:"value"`
}

// test names a test, or with no name what a package says outside of its tests.
type test struct{ pkg, name string }

// report collects what became of tests.
type report struct {
	out     io.Writer
	verbose bool

	output   map[string]map[string]string // of packages that run, by test
	order    map[string][]string          // the tests of each, as they began
	results  map[test]string              // "pass", "fail" or "skip"
	reasons  map[test]string              // of tests that were skipped
	causes   map[test]string              // of tests that failed, for themselves or for a part of theirs
	took     []took
	hopeless bool     // something failed that is no test, or needs no second run to be a fault
	second   []test   // that failed, and passed when they were run again
	died     []string // packages in which the race detector crashed
}

func newReport(out io.Writer, verbose bool) *report {
	return &report{
		out: out, verbose: verbose, output: make(map[string]map[string]string), order: make(map[string][]string),
		results: make(map[test]string), reasons: make(map[test]string), causes: make(map[test]string),
	}
}

func (r *report) add(e *event) {
	id := test{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		if r.verbose {
			fmt.Fprint(r.out, e.Output)
		}
		if r.output[id.pkg] == nil {
			r.output[id.pkg] = make(map[string]string)
		}
		if _, ok := r.output[id.pkg][id.name]; !ok {
			r.order[id.pkg] = append(r.order[id.pkg], id.name)
		}
		r.output[id.pkg][id.name] += e.Output
	case "attr":
		if t, ok := parseTook(e); ok {
			r.took = append(r.took, t)
		}
	case "pass", "fail", "skip":
		if id.name == "" {
			r.finish(id.pkg, e.Action == "fail")
			return
		}
		r.results[id] = e.Action
		switch text := said.FindAllStringSubmatch(r.output[id.pkg][id.name], -1); {
		case e.Action == "skip" && text == nil:
			r.reasons[id] = "no reason is given"
		case e.Action == "skip":
			r.reasons[id] = text[len(text)-1][1] // the last that it has logged
		case e.Action == "fail" && text != nil:
			root, _, _ := strings.Cut(id.name, "/")
			id = test{id.pkg, root}
			r.causes[id] = cmp.Or(r.causes[id], text[0][1])
		}
	}
}

// finish prints what go test prints of a package without -v: one line or, where it has
// failed, what tests say that have not ended well.
func (r *report) finish(pkg string, failed bool) {
	said := r.output[pkg]
	if failed {
		r.judge(pkg)
	}
	if !r.verbose && failed {
		for _, name := range r.order[pkg] {
			if result := r.results[test{pkg, name}]; name != "" && result != "pass" && result != "skip" {
				fmt.Fprint(r.out, plain(said[name], strings.Count(name, "/")))
			}
		}
	}
	for line := range strings.Lines(said[""]) {
		if !r.verbose && (failed && line != "PASS\n" || strings.HasPrefix(line, "ok  ") || strings.HasPrefix(line, "?   ")) {
			fmt.Fprint(r.out, line)
		}
	}
	delete(r.output, pkg)
	delete(r.order, pkg)
}

// fault is in the output of a program that is wrong, however its tests end.
var fault = regexp.MustCompile(`(?m)^\s*(WARNING: DATA RACE|panic: |fatal error: )`)

// judge notes of a package that failed whether to run it again: where only the race detector crashed,
// and, without a note, where nothing but tests failed.
func (r *report) judge(pkg string) {
	died, failed, unended := false, false, false
	for _, name := range r.order[pkg] {
		said, result := r.output[pkg][name], r.results[test{pkg, name}]
		if fault.MatchString(said) {
			r.hopeless = true
			return
		}
		died = died || detectorCrash.MatchString(said)
		failed = failed || result == "fail"
		unended = unended || name != "" && result == ""
	}
	switch {
	case died && !failed:
		r.died = append(r.died, pkg)
	case !failed || unended:
		r.hopeless = true
	}
}

// failed returns the tests that failed, without their parts.
func (r *report) failed() (all []test) {
	for id, result := range r.results {
		if result == "fail" && !strings.Contains(id.name, "/") {
			all = append(all, id)
		}
	}
	slices.SortFunc(all, func(a, b test) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name)) })
	return all
}

// end prints what is left of packages that have not ended.
func (r *report) end() {
	for _, pkg := range slices.Sorted(maps.Keys(r.output)) {
		r.finish(pkg, true)
	}
}

// plain turns what a test prints with -v into what it prints without: the result first,
// no word of its beginning, and parts of a test indented.
func plain(text string, depth int) string {
	var first, rest strings.Builder
	indent := strings.Repeat("    ", depth)
	for line := range strings.Lines(text) {
		switch trimmed := strings.TrimLeft(line, " "); {
		case strings.HasPrefix(trimmed, "=== "):
		case strings.HasPrefix(trimmed, "--- "):
			first.WriteString(indent + line)
		default:
			rest.WriteString(indent + line)
		}
	}
	return first.String() + rest.String()
}

var said = regexp.MustCompile(`(?m)^\s+\S+\.go:\d+: (.*)$`)

// skips says how many tests were skipped, and why.
func (r *report) skips() string {
	if len(r.reasons) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d tests were skipped:\n", len(r.reasons), len(r.results))
	why := make(map[string]int)
	for _, reason := range r.reasons {
		why[reason]++
	}
	for _, reason := range slices.SortedFunc(maps.Keys(why), func(a, b string) int {
		if why[a] != why[b] {
			return why[b] - why[a]
		}
		return strings.Compare(a, b)
	}) {
		fmt.Fprintf(&b, "%6d  %s\n", why[reason], reason)
	}
	return b.String()
}

// log appends what became of each test: the result, the package, the test and, of one
// that was skipped or failed, the reason.
func (r *report) log(path string) error {
	var b strings.Builder
	for id, result := range r.results {
		fmt.Fprintf(&b, "%s\t%s\t%s\t%s\n", result, id.pkg, id.name, cmp.Or(r.reasons[id], r.causes[id]))
	}
	for _, id := range r.second {
		fmt.Fprintf(&b, "second\t%s\t%s\t%s\n", id.pkg, id.name, r.causes[id])
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := file.WriteString(b.String()); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

// neverRun lists the tests in what log has written that no run has run.
func neverRun(text string) string {
	var b strings.Builder
	skipped, ran := make(map[test]string), make(map[test]bool)
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 4)
		if len(fields) != 4 {
			continue
		}
		id := test{fields[1], fields[2]}
		if fields[0] == "skip" {
			skipped[id] = fields[3]
		} else {
			ran[id] = true
		}
	}
	maps.DeleteFunc(skipped, func(id test, _ string) bool { return ran[id] })
	fmt.Fprintf(&b, "%d tests were run by none of these:\n", len(skipped))
	var lines []string
	for id, reason := range skipped {
		lines = append(lines, fmt.Sprintf("  %s %s: %s\n", id.pkg, id.name, reason))
	}
	slices.Sort(lines)
	return b.String() + strings.Join(lines, "")
}
