package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// listOf writes a list of accepted survivors and returns its name.
func listOf(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "accepted.txt")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// runModule runs the command in testdata/module, with all mutants, and returns its
// report without the times.
func runModule(t *testing.T, list string, change func(*options)) (string, error) {
	t.Helper()
	o := options{dir: "testdata/module", workers: 2, goal: 50, patience: 3 * time.Second, accepted: listOf(t, list), packages: []string{"./clamp"}}
	if change != nil {
		change(&o)
	}
	var out strings.Builder
	err := run(t.Context(), o, &out)
	var report []string
	for line := range strings.Lines(out.String()) {
		if before, _, ok := strings.Cut(line, " mutants in all, "); ok {
			line = before + " mutants in all\n"
		}
		report = append(report, line)
	}
	return strings.Join(report, ""), err
}

// TestRun has mutants that a test kills, and some that survive: of the function that
// no test calls, and of a comparison that makes no difference.
func TestRun(t *testing.T) {
	const equal = "clamp Clamp\n\t- if n > limit {\n\t+ if n >= limit {\n\tThe limit is returned either way.\n"
	report, err := runModule(t, equal, nil)
	if err != nil {
		t.Error(err)
	}
	want := []string{
		"clamp.go:13: survived\nclamp Double\n\t- func Double(n int) int { return n + n }\n\t+ func Double(n int) int { return n - n }\n",
		"clamp.go:13: survived\nclamp Double\n\t- func Double(n int) int { return n + n }\n\t+ func Double(n int) int { return 0 }\n",
		"clamp: 57.1 %: 4 of 7 mutants killed, 1 accepted and 2 other survivors, 7 mutants in all\n",
	}
	for _, text := range want {
		if !strings.Contains(report, text) {
			t.Errorf("the report lacks\n%s", text)
		}
	}
	if n := strings.Count(report, "survived"); n != 2 || t.Failed() {
		t.Errorf("%d survivors in\n%s", n, report)
	}
}

// TestRunHanging has mutants that do not end.
func TestRunHanging(t *testing.T) {
	report, err := runModule(t, "", func(o *options) { o.packages = []string{"./count"} })
	if err != nil || !strings.Contains(report, "count: 100.0 %: 7 of 7 mutants killed") {
		t.Errorf("error %v after\n%s", err, report)
	}
}

func TestRunBelowGoal(t *testing.T) {
	if report, err := runModule(t, "", func(o *options) { o.goal = 90 }); !errors.Is(err, errBelowGoal) {
		t.Errorf("error %v after\n%s", err, report)
	}
}

func TestRunAcceptedButKilled(t *testing.T) {
	report, err := runModule(t, "clamp Clamp\n\t- if n > limit {\n\t+ if n <= limit {\n\tA mistake.\n", nil)
	if err != nil || !strings.Contains(report, "clamp.go:6: accepted, but killed\nclamp Clamp\n") {
		t.Errorf("error %v after\n%s", err, report)
	}
}

func TestRunFailingTests(t *testing.T) {
	_, err := runModule(t, "", func(o *options) { o.packages = []string{"./broken"} })
	if err == nil || !strings.Contains(err.Error(), "broken: the tests fail without a mutant") || !strings.Contains(err.Error(), "One is not 2") {
		t.Error(err)
	}
}

// TestRunSample tries the same mutants for a seed, and ends when its time is over.
func TestRunSample(t *testing.T) {
	one := func(o *options) { o.sample, o.goal, o.verbose, o.seed = 1, 0, true, 3 }
	first, err := runModule(t, "", one)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := runModule(t, "", one); err != nil || again != first {
		t.Errorf("error %v, another sample (-first +second):\n%s", err, cmp.Diff(first, again))
	}
	late, err := runModule(t, "", func(o *options) { o.limit, o.goal = time.Nanosecond, 0 })
	if err != nil || !strings.HasSuffix(late, "clamp: the time was over before the sample was\n") {
		t.Errorf("error %v after\n%s", err, late)
	}
}

// TestRunOnly tries the mutants of one function.
func TestRunOnly(t *testing.T) {
	report, err := runModule(t, "", func(o *options) { o.only, o.goal = regexp.MustCompile(`clamp Double`), 0 })
	if err != nil || !strings.Contains(report, "clamp: 0.0 %: 0 of 2 mutants killed, 0 accepted and 2 other survivors, 2 mutants in all") {
		t.Errorf("error %v after\n%s", err, report)
	}
}

// TestRunWith has a part whose faults only the tests of the package above it see.
func TestRunWith(t *testing.T) {
	for _, tt := range []struct {
		with []string
		want string
	}{
		{nil, "whole/part: 0.0 %: 0 of 3 mutants killed"},
		{[]string{"clamp", "who"}, "whole/part: 0.0 %: 0 of 3 mutants killed"},
		{[]string{"clamp", "whole"}, "whole/part: 100.0 %: 3 of 3 mutants killed"},
	} {
		report, err := runModule(t, "", func(o *options) { o.packages, o.with, o.goal = []string{"./whole/part"}, tt.with, 0 })
		if err != nil || !strings.Contains(report, tt.want) {
			t.Errorf("with %v: error %v after\n%s", tt.with, err, report)
		}
	}
}

func TestAccepted(t *testing.T) {
	const entry = "clamp Clamp\n\t- if n > limit {\n\t+ if n >= limit {\n"
	for _, tt := range []struct{ name, text, want string }{
		{"entry", "# A comment.\n\n" + entry + "\tThe limit is\n\treturned.\n\n" + "other F\n\t- x\n\t+ y\n\tNever seen.\n", ""},
		{"no reason", entry, "no reason is given for\n" + entry},
		{"twice", entry + "\tA.\n" + entry + "\tB.\n", "stands there twice:\n" + entry},
		{"no mutant any more", "clamp Clamp\n\t- if n > max {\n\t+ if n >= max {\n\tA.\n", "accepted, but no mutant any more:\nclamp Clamp\n\t- if n > max {\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list, err := readAccepted(listOf(t, tt.text))
			if err == nil {
				var pkgs []*pkg
				if pkgs, err = load(t.Context(), "testdata/module", []string{"./clamp"}, nil); err != nil {
					t.Fatal(err)
				}
				err = list.match(pkgs)
			}
			if tt.want == "" {
				if diff := cmp.Diff(map[string]string(list), map[string]string{entry: "The limit is returned.", "other F\n\t- x\n\t+ y\n": "Never seen."}); err != nil || diff != "" {
					t.Errorf("error %v, entries (-got +want):\n%s", err, diff)
				}
			} else if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
