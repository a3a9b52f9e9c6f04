package test

import (
	"go/ast"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// The most that names of a single word may be among those of functions and of types, in percent, and
// how many functions may have one unexported name. `take` and `note` say nothing to whoever reads a call.
const (
	mostPlainFunctions = 20
	mostPlainTypes     = 40
	mostOfOneName      = 6
)

// givenNames are those that Go itself gives.
var givenNames = []string{
	"New", "String", "Error", "Run", "Close", "main", "init", "Len", "Less",
	"Swap", "Push", "Pop", "Name", "Is", "Unwrap", "Read", "Write", "Do",
}

func TestNamesSayWhatTheyAre(t *testing.T) {
	root := os.DirFS("..")
	var functions, types []string
	count := make(map[string]int)
	must.Do(t, fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "test" || passedOver(name)):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		s, err := parse(name, text)
		if err != nil || s.test || ast.IsGenerated(s.File) {
			return err
		}
		for _, decl := range s.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if of := decl.Name.Name; !slices.Contains(givenNames, of) {
					functions = append(functions, of)
					if !ast.IsExported(of) {
						count[of]++
					}
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok {
						types = append(types, spec.Name.Name)
					}
				}
			}
		}
		return nil
	}))
	if percent := plainPercent(functions); percent > mostPlainFunctions {
		t.Errorf("%d %% of %d functions have a name of one word, and %d %% may: say what each does to what", percent, len(functions), mostPlainFunctions)
	}
	if percent := plainPercent(types); percent > mostPlainTypes {
		t.Errorf("%d %% of %d types have a name of one word, and %d %% may", percent, len(types), mostPlainTypes)
	}
	for name, n := range count {
		if n > mostOfOneName {
			t.Errorf("%d functions are called %s, and %d may be", n, name, mostOfOneName)
		}
	}
}

// plainPercent returns how many of the names are one word.
func plainPercent(names []string) int {
	plain := 0
	for _, name := range names {
		if !strings.ContainsFunc(name[1:], unicode.IsUpper) {
			plain++
		}
	}
	return 100 * plain / len(names)
}
