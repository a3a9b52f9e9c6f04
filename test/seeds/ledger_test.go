// Package seeds holds the project to what its source documents and its design card ask
// for. Its ledger has a row for each of these promises, with the test that shows it: so a
// test may be moved, renamed or merged, but a promise does not get lost with a test.
package seeds

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const (
	root       = "../.."
	fewestRows = 45
)

// row is one promise of the ledger.
type row struct {
	promise string
	folder  string // of the test, from the root of the module
	test    string // name of the function
	skipped string // why make test may skip it, or ""
}

// parseLedger returns the rows of a ledger, or an error that names the line.
func parseLedger(text string) ([]row, error) {
	var rows []row
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, " | ")
		if len(fields) < 3 || len(fields) > 4 {
			return nil, fmt.Errorf("ledger.txt:%d: %d fields, want 'promise | folder | test [| why it may be skipped]'", i+1, len(fields))
		}
		r := row{promise: fields[0], folder: fields[1], test: fields[2]}
		if len(fields) == 4 {
			r.skipped = fields[3]
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// problem says why the test of a row does not show its promise, or "". It sees whether the test
// skips itself, and not whether something does that it calls: the end of make test tells.
func (r row) problem(files fs.FS) string {
	name := r.folder + "." + r.test
	sources, err := fs.Glob(files, r.folder+"/*_test.go")
	if err != nil {
		return err.Error()
	}
	for _, source := range sources {
		text, err := fs.ReadFile(files, source)
		if err != nil {
			return err.Error()
		}
		_, body, found := strings.Cut(string(text), "\nfunc "+r.test+"(t *testing.T) {")
		if !found {
			continue
		}
		body, _, _ = strings.Cut(body, "\n}\n")
		switch skips := strings.Contains(body, "t.Skip"); {
		case skips && r.skipped == "":
			return name + " may be skipped: say why in the fourth field of its row, or name another test"
		case !skips && r.skipped != "":
			return name + " is never skipped: take away the fourth field of its row"
		}
		return ""
	}
	return name + " does not exist: name the test in ledger.txt that shows this now"
}

// TestLedger finds the test of each row, and that it is not skipped without a reason.
func TestLedger(t *testing.T) {
	rows := must.Get(parseLedger(string(must.Get(os.ReadFile("ledger.txt"))(t))))(t)
	if len(rows) < fewestRows {
		t.Errorf("the ledger has %d rows, want %d at least: a promise was lost", len(rows), fewestRows)
	}
	for _, r := range rows {
		if problem := r.problem(os.DirFS(root)); problem != "" {
			t.Errorf("%s\n%s", r.promise, problem)
		}
	}
}

// TestLedgerNoticesLoss has rows and tests that do not fit.
func TestLedgerNoticesLoss(t *testing.T) {
	files := fstest.MapFS{"a/a_test.go": {Data: []byte("package a\nfunc TestRuns(t *testing.T) {\n}\nfunc TestSkipped(t *testing.T) {\n\tt.Skip()\n}\n")}}
	for line, want := range map[string]string{
		"p | a | TestRuns":              "",
		"p | a | TestRuns | because":    "a.TestRuns is never skipped",
		"p | a | TestGone":              "a.TestGone does not exist",
		"p | c | TestRuns":              "c.TestRuns does not exist",
		"p | a | TestSkipped":           "a.TestSkipped may be skipped",
		"p | a | TestSkipped | because": "",
	} {
		got := must.Get(parseLedger(line))(t)[0].problem(files)
		if (want == "") != (got == "") || !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// TestPackages looks for the packages that the card names among the requirements that code of
// this module imports: to go mod tidy any other one is indirect.
func TestPackages(t *testing.T) {
	requirements := strings.Split(string(must.Get(os.ReadFile(filepath.Join(root, "go.mod")))(t)), "\n")
	for _, of := range []string{
		"github.com/coredns/coredns", "github.com/miekg/dns", "github.com/coredns/caddy", "google.golang.org/grpc", "google.golang.org/protobuf",
	} {
		if !slices.ContainsFunc(requirements, func(line string) bool {
			return strings.HasPrefix(line, "\t"+of+" v") && !strings.HasSuffix(line, "// indirect")
		}) {
			t.Errorf("go.mod does not require %s for this module itself", of)
		}
	}
}

// TestFolders looks for the folders that the card names.
func TestFolders(t *testing.T) {
	for _, folder := range []string{"plugin", "federation", "proto", "corefile-examples", "test"} {
		if info, err := os.Stat(filepath.Join(root, folder)); err != nil || !info.IsDir() {
			t.Errorf("%s is not a folder: %v", folder, err)
		}
	}
}
