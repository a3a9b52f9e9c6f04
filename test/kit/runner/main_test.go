package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// module writes a module with a file of each package, by path, and returns its folder.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example\n\ngo 1.26\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

// runIn runs go test in a module and returns what is printed, without times, and the exit
// code.
func runIn(t *testing.T, dir string, args ...string) (out string, code int) {
	t.Helper()
	var b strings.Builder
	code = run(&b, []string{dir}, append([]string{"-count=1"}, args...), "", false)
	return regexp.MustCompile(`\d+\.\d+s`).ReplaceAllString(b.String(), "0s"), code
}

const passes = `package a
import "testing"
func TestPasses(t *testing.T) { t.Log("says what nobody reads") }
func TestSkipped(t *testing.T) { t.Skip("there is no etcd") }
func TestParts(t *testing.T) {
	t.Run("one", func(t *testing.T) { t.Skip("there is no etcd") })
	t.Run("two", func(t *testing.T) { t.SkipNow() })
}
`

// What passes says nothing but ok, and then how much of it was skipped.
func TestPassing(t *testing.T) {
	got, code := runIn(t, module(t, map[string]string{"a/a_test.go": passes}), "./...")
	want := "ok  \texample/a\t0s\n3 of 5 tests were skipped:\n     2  there is no etcd\n     1  no reason is given\n"
	if diff := cmp.Diff(want, got); diff != "" || code != 0 {
		t.Errorf("exit code %d, output (-want +got):\n%s", code, diff)
	}
}

// What fails, panics or does not compile is printed as go test prints it, with its exit
// code; nothing is skipped, and so nothing is said of that.
func TestFailing(t *testing.T) {
	for name, text := range map[string]string{
		"fails": `package a
import "testing"
func TestPasses(t *testing.T) { t.Log("says what nobody reads") }
func TestFails(t *testing.T) {
	t.Log("before")
	t.Run("part", func(t *testing.T) { t.Error("wrong") })
}
`,
		"does not compile": "package a\nimport \"testing\"\nfunc TestFails(t *testing.T) { undefined() }\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := module(t, map[string]string{"a/a_test.go": text})
			got, code := runIn(t, dir, "./...")
			cmd := exec.Command("go", "test", "-count=1", "./...")
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatal("the module passes")
			}
			want := regexp.MustCompile(`\d+\.\d+s`).ReplaceAllString(string(out), "0s")
			if diff := cmp.Diff(want, got); diff != "" || code != cmd.ProcessState.ExitCode() {
				t.Errorf("exit code %d, output (-go test +runner):\n%s", code, diff)
			}
		})
	}
	const text = "package a\nimport \"testing\"\nfunc TestPanics(t *testing.T) { t.Log(\"before\"); panic(\"at the disco\") }\n"
	got, code := runIn(t, module(t, map[string]string{"a/a_test.go": text}), "./...")
	if code != 1 || !strings.Contains(got, "panic: at the disco") || !strings.Contains(got, "FAIL\texample/a") {
		t.Errorf("exit code %d, output\n%s", code, got)
	}
}

// One module that fails does not keep the others from running, and -v shows everything.
func TestModules(t *testing.T) {
	wrong := module(t, map[string]string{"a_test.go": "package a\nimport \"testing\"\nfunc TestFails(t *testing.T) { t.Fatal(1) }\n"})
	right := module(t, map[string]string{"a_test.go": passes})
	var out strings.Builder
	if code := run(&out, []string{wrong, right}, []string{"-count=1", "-v", "."}, "", false); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, want := range []string{"=== RUN   TestFails", "FAIL\texample", "says what nobody reads", "ok  \texample", "3 of 6 tests were skipped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, &out)
		}
	}
}

// What fails once is run again, and named, if that is asked for; what fails twice has failed, and so
// has what panics, races or does not compile, or too much at once.
func TestAgain(t *testing.T) {
	const once = `package a
import ("os"; "testing")
func TestPasses(t *testing.T) {}
func TestOnce(t *testing.T) {
	t.Run("part", func(t *testing.T) {
		if _, err := os.Stat("mark"); err != nil { os.WriteFile("mark", nil, 0o600); WHAT }
	})
}
`
	for name, tc := range map[string]struct {
		text  string
		again bool
		code  int
	}{
		"once":               {strings.ReplaceAll(once, "WHAT", `t.Fatal("wrong")`), true, 0},
		"once, not asked":    {strings.ReplaceAll(once, "WHAT", `t.Fatal("wrong")`), false, 1},
		"panics once":        {strings.ReplaceAll(once, "WHAT", `panic("wrong")`), true, 1},
		"says that it races": {strings.ReplaceAll(once, "WHAT", `println("WARNING: DATA RACE"); t.Fatal("wrong")`), true, 1},
		"always":             {strings.ReplaceAll(once, "if _, err := os.Stat(\"mark\"); err != nil { os.WriteFile(\"mark\", nil, 0o600); WHAT }", "t.Fatal(1)"), true, 1},
		"does not compile":   {"package a\nimport \"testing\"\nfunc TestFails(t *testing.T) { undefined() }\n", true, 1},
		"too many": {`package a
import "testing"
func fails(t *testing.T) { t.Fatal(1) }
func TestA(t *testing.T) { fails(t) }
func TestB(t *testing.T) { fails(t) }
func TestC(t *testing.T) { fails(t) }
func TestD(t *testing.T) { fails(t) }
`, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			dir := module(t, map[string]string{"a/a_test.go": tc.text})
			var out strings.Builder
			code := run(&out, []string{dir}, []string{"./...", "-count=1", "-timeout", "1m", "-run", "."}, log, tc.again)
			if (code != 0) != (tc.code != 0) {
				t.Errorf("exit code %d, output\n%s", code, &out)
			}
			text := string(must.Get(os.ReadFile(log))(t))
			for _, is := range []bool{
				strings.Contains(out.String(), "TestOnce of example/a failed, and passed when it was run again\n"),
				strings.Contains(text, "second\texample/a\tTestOnce\twrong\n"),
			} {
				if is != (tc.code == 0) {
					t.Errorf("output\n%s\nlog\n%s", &out, text)
				}
			}
			if n := strings.Count(out.String(), "is run again"); name == "too many" && n != 0 {
				t.Errorf("%d tests are run again", n)
			}
		})
	}
}

// A package in which the race detector crashed is run again on one processor, whoever asks, and
// passes or fails by what happens then. What fails beside that has failed.
func TestDetectorDied(t *testing.T) {
	const always = `println("FATAL: ThreadSanitizer CHECK failed: tsan_rtl.cpp:327"); os.Exit(66)`
	const crash = `if _, err := os.Stat("mark"); err != nil {
		os.WriteFile("mark", nil, 0o600)
		println("SIGSEGV: segmentation violation\nPC=0x436e30 m=4")
		os.Exit(2)
	}`
	for name, tc := range map[string]struct {
		first, then, other string
		code               int
	}{
		"once":                 {crash, `if runtime.GOMAXPROCS(0) != 1 { t.Error("processors") }`, ``, 0},
		"and fails":            {crash, `t.Error("wrong")`, ``, 1},
		"and another fails":    {crash, ``, `t.Error("wrong")`, 1},
		"and another races":    {crash, ``, `println("WARNING: DATA RACE"); os.Exit(66)`, 1},
		"always":               {``, always, ``, 1},
		"after a race":         {`println("WARNING: DATA RACE")` + "\n" + crash, ``, ``, 1},
		"a fault of Go's code": {strings.ReplaceAll(crash, "SIGSEGV:", "[signal SIGSEGV:"), ``, ``, 1},
	} {
		t.Run(name, func(t *testing.T) {
			const text = "package a\nimport (\"os\"; \"runtime\"; \"testing\")\nvar _, _ = os.Exit, runtime.GOMAXPROCS\nfunc TestIt(t *testing.T) {\n"
			dir := module(t, map[string]string{
				"a/a_test.go": text + tc.first + "\n" + tc.then + "\n}\n",
				"b/b_test.go": text + tc.other + "\n}\n",
			})
			if got, code := runIn(t, dir, "./..."); (code != 0) != (tc.code != 0) {
				t.Errorf("exit code %d, output\n%s", code, got)
			}
		})
	}

	wrong := module(t, map[string]string{"a_test.go": "package a\nimport (\"os\"; \"testing\")\nfunc TestIt(t *testing.T) { " + always + " }\n"})
	right := module(t, map[string]string{"a_test.go": passes})
	var out strings.Builder
	if code := run(&out, []string{wrong, right}, []string{"-count=1", "."}, "", false); code != 1 || strings.Count(out.String(), "run again") != 1 {
		t.Errorf("of two modules, exit code %d, output\n%s", code, &out)
	}
}

// Of several runs, only what none of them has run is listed.
func TestNever(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	dir := module(t, map[string]string{"a_test.go": `package a
import ("os"; "testing")
func TestPasses(t *testing.T) {}
func TestOnce(t *testing.T) { if os.Getenv("ONCE") == "" { t.Skip("not now") } }
func TestNever(t *testing.T) { t.Skip("there is no etcd") }
`})
	for _, once := range []string{"", "1"} {
		t.Setenv("ONCE", once)
		if code := run(new(strings.Builder), []string{dir}, []string{"-count=1", "."}, log, false); code != 0 {
			t.Fatalf("exit code %d", code)
		}
	}
	text := must.Get(os.ReadFile(log))(t)
	if got, want := neverRun(string(text)), "1 tests were run by none of these:\n  example TestNever: there is no etcd\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
