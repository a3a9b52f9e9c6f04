// Package seeds holds the project to what its source documents and its design card ask
// for. Its ledger has a row for each of these promises, with the test that shows it: so a
// test may be moved, renamed or merged, but a promise does not get lost with a test.
package seeds

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const (
	root   = "../.."
	module = "github.com/hamlet-federation/coredns-federation/"

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

// callGraph has the functions of all test files and of the folder test: for each the
// functions of this module that it calls by name, and whether it skips a test itself.
// Functions are named folder.Name; methods are left out, for their names tell nothing.
type callGraph map[string]*function

type function struct {
	calls []string
	skips bool
}

// readCallGraph parses what make test may run.
func readCallGraph(t *testing.T) callGraph {
	t.Helper()
	graph, files := make(callGraph), os.DirFS(root)
	must.Do(t, fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		switch folder := path.Dir(name); {
		case err != nil:
			return err
		case entry.IsDir():
			if base := entry.Name(); base == "testdata" || name == "bin" || strings.HasPrefix(base, ".") && base != "." {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(name, "_test.go") && !(strings.HasPrefix(folder, "test/") && strings.HasSuffix(name, ".go")):
			return nil
		default:
			text, err := fs.ReadFile(files, name)
			if err != nil {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
			if err == nil {
				graph.add(folder, file)
			}
			return err
		}
	}))
	return graph
}

// add takes the functions of one file.
func (g callGraph) add(folder string, file *ast.File) {
	imports := make(map[string]string) // folder by the name of a package
	for _, spec := range file.Imports {
		if of, ok := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module); ok {
			name := path.Base(of)
			if spec.Name != nil {
				name = spec.Name.Name
			}
			imports[name] = of
		}
	}
	for _, declaration := range file.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if !ok || f.Recv != nil {
			continue
		}
		found := new(function)
		ast.Inspect(f, func(node ast.Node) bool {
			// A function that is only named may be called as well.
			switch x := node.(type) {
			case *ast.Ident:
				found.calls = append(found.calls, folder+"."+x.Name)
			case *ast.SelectorExpr:
				of, _ := x.X.(*ast.Ident)
				if of == nil {
					break
				}
				if other, ok := imports[of.Name]; ok {
					found.calls = append(found.calls, other+"."+x.Sel.Name)
				}
				if slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, x.Sel.Name) {
					found.skips = true
				}
			}
			return true
		})
		g[folder+"."+f.Name.Name] = found
	}
}

// skipper returns the first function that the named one reaches and that skips, or "".
func (g callGraph) skipper(name string) string {
	seen := map[string]bool{name: true}
	for queue := []string{name}; len(queue) > 0; queue = queue[1:] {
		f := g[queue[0]]
		if f == nil {
			continue
		}
		if f.skips {
			return queue[0]
		}
		for _, call := range f.calls {
			if !seen[call] {
				seen[call] = true
				queue = append(queue, call)
			}
		}
	}
	return ""
}

// TestLedger finds the test of each row, and that it is not skipped without a reason.
func TestLedger(t *testing.T) {
	rows := must.Get(parseLedger(string(must.Get(os.ReadFile("ledger.txt"))(t))))(t)
	if len(rows) < fewestRows {
		t.Errorf("the ledger has %d rows, want %d at least: a promise was lost", len(rows), fewestRows)
	}
	graph := readCallGraph(t)
	for _, r := range rows {
		t.Run(r.test, func(t *testing.T) {
			if problem := r.problem(graph); problem != "" {
				t.Errorf("%s\n%s", r.promise, problem)
			}
		})
	}
}

// problem says why the test of a row does not show its promise, or "".
func (r row) problem(graph callGraph) string {
	name := r.folder + "." + r.test
	skipper := graph.skipper(name)
	switch {
	case graph[name] == nil || !strings.HasPrefix(r.test, "Test"):
		return name + " does not exist: name the test in ledger.txt that shows this now"
	case skipper != "" && r.skipped == "":
		return name + " may be skipped, by " + skipper + ": say why in the fourth field of its row, or name another test"
	case skipper == "" && r.skipped != "":
		return name + " is never skipped: take away the fourth field of its row"
	}
	return ""
}

// TestLedgerNoticesLoss has ledgers and tests that do not fit.
func TestLedgerNoticesLoss(t *testing.T) {
	graph := make(callGraph)
	for folder, source := range map[string]string{
		"a": `package a
			import "` + module + `test/b"
			func TestRuns(t *testing.T) {}
			func TestSkipped(t *testing.T) { t.Run("x", func(t *testing.T) { t.Skip() }) }
			func TestSkippedElsewhere(t *testing.T) { helper(t) }
			func helper(t *testing.T) { b.Needs(t) }`,
		"test/b": `package b
			func Needs(t testing.TB) { t.Skipf("not here") }`,
	} {
		graph.add(folder, must.Get(parser.ParseFile(token.NewFileSet(), folder, source, parser.SkipObjectResolution))(t))
	}
	for line, want := range map[string]string{
		"p | a | TestRuns":                     "",
		"p | a | TestRuns | because":           "a.TestRuns is never skipped",
		"p | a | TestGone":                     "a.TestGone does not exist",
		"p | c | TestRuns":                     "c.TestRuns does not exist",
		"p | a | helper":                       "a.helper does not exist",
		"p | a | TestSkipped":                  "a.TestSkipped may be skipped, by a.TestSkipped",
		"p | a | TestSkipped | because":        "",
		"p | a | TestSkippedElsewhere":         "a.TestSkippedElsewhere may be skipped, by test/b.Needs",
		"p | a":                                "ledger.txt:1: 2 fields",
		"p | a | TestRuns | because | because": "ledger.txt:1: 5 fields",
	} {
		rows, err := parseLedger(line)
		var got string
		if err != nil {
			got = err.Error()
		} else {
			got = rows[0].problem(graph)
		}
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
