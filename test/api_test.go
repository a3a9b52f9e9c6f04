package test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// publicPackages are those that programs of others import. Everything that they export is
// a promise: the file testdata/api.txt shows each change of it in review.
var publicPackages = []string{
	"federation",
	"federation/consumer",
	"federation/mtls",
	"federation/owner",
	"federation/provider",
}

const (
	mostPublicPackages = 5
	mostPublicNames    = 88 // without methods and fields
	screen             = 60 // lines, which `go doc` of a public package fits

	// unstable stands in the comment of every other package that a program could import.
	unstable = "not a stable API"
)

const apiFile = "testdata/api.txt"

var updateAPI = flag.Bool("update-api", false, "write what is exported to "+apiFile)

// readPackages returns the packages below the root of the module that Go lets others
// import, by folder, but for those of tests and generated ones.
func readPackages(t *testing.T) map[string]*doc.Package {
	t.Helper()
	root := os.DirFS("..")
	fset := token.NewFileSet()
	files := make(map[string][]*ast.File)
	must.Do(t, fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (passedOver(name) || slices.Contains([]string{"test", "proto", "deploy", "internal"}, entry.Name())):
			return fs.SkipDir
		case path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") && path.Base(name) != "example_test.go":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		s, err := parseInto(fset, name, text)
		if err != nil || s.Name.Name == "main" || strings.HasSuffix(s.Name.Name, "test") && !strings.HasSuffix(s.Name.Name, "_test") {
			return err
		}
		files[path.Dir(name)] = append(files[path.Dir(name)], s.File)
		return nil
	}))
	packages := make(map[string]*doc.Package)
	for folder, files := range files {
		if !slices.ContainsFunc(files, func(f *ast.File) bool { return !strings.HasSuffix(f.Name.Name, "_test") }) {
			continue
		}
		p := must.Get(doc.NewFromFiles(fset, files, module+folder))(t)
		packages[folder] = p
	}
	return packages
}

// names returns what a package exports: an entry for each name, and how many of them stand
// at the top. Methods and fields follow the type that they are of.
func names(p *doc.Package) (entries []string, top int) {
	add := func(kind string, names ...string) {
		for _, name := range names {
			if token.IsExported(name) {
				entries = append(entries, kind+" "+name)
				top++
			}
		}
	}
	values := func(kind string, values []*doc.Value) {
		for _, v := range values {
			add(kind, v.Names...)
		}
	}
	functions := func(functions []*doc.Func) {
		for _, f := range functions {
			add("func", f.Name)
		}
	}
	values("const", p.Consts)
	values("var", p.Vars)
	functions(p.Funcs)
	for _, of := range p.Types {
		values("const", of.Consts)
		values("var", of.Vars)
		functions(of.Funcs)
		add("type", of.Name)
		for _, member := range members(of) {
			entries = append(entries, "     "+of.Name+"."+member)
		}
	}
	return entries, top
}

// members returns the exported fields and methods of a type.
func members(of *doc.Type) (all []string) {
	for _, m := range of.Methods {
		all = append(all, m.Name)
	}
	for _, spec := range of.Decl.Specs {
		s, ok := spec.(*ast.TypeSpec)
		if !ok || s.Name.Name != of.Name {
			continue
		}
		var fields *ast.FieldList
		switch x := s.Type.(type) {
		case *ast.StructType:
			fields = x.Fields
		case *ast.InterfaceType:
			fields = x.Methods
		default:
			continue
		}
		for _, field := range fields.List {
			for _, name := range field.Names {
				if name.IsExported() {
					all = append(all, name.Name)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// length returns how many lines `go doc` prints of a package.
func length(p *doc.Package) int {
	lines := 2 + strings.Count(p.Doc, "\n") + len(p.Consts) + len(p.Vars) + len(p.Funcs)
	for _, of := range p.Types {
		lines += 1 + len(of.Consts) + len(of.Vars) + len(of.Funcs)
	}
	return lines
}

// What is public is meant to be: it is in the list, small enough for a glance, and each
// package begins with an example. All else says that it may change.
func TestPublicFace(t *testing.T) {
	packages := readPackages(t)
	var (
		golden strings.Builder
		sum    int
	)
	for _, folder := range publicPackages {
		p := packages[folder]
		if p == nil {
			t.Errorf("%s: is no package that others could import", folder)
			continue
		}
		entries, top := names(p)
		sum += top
		fmt.Fprintf(&golden, "package %s\n", folder)
		for _, entry := range entries {
			fmt.Fprintf(&golden, "\t%s\n", entry)
		}
		if lines := length(p); lines > screen {
			t.Errorf("%s: `go doc` prints %d lines of it, more than the %d of a screen; say less, or at the type that it is about", folder, lines, screen)
		}
		if !slices.ContainsFunc(p.Examples, func(e *doc.Example) bool { return e.Output != "" }) {
			t.Errorf("%s: has no Example with output in example_test.go", folder)
		}
		if strings.Contains(p.Doc, unstable) {
			t.Errorf("%s: is public, and yet says that it is %s", folder, unstable)
		}
	}
	if len(publicPackages) > mostPublicPackages || sum > mostPublicNames {
		t.Errorf("%d packages with %d names are public, and there may be %d with %d", len(publicPackages), sum, mostPublicPackages, mostPublicNames)
	}
	for _, folder := range slices.Sorted(maps.Keys(packages)) {
		if !slices.Contains(publicPackages, folder) && !strings.Contains(strings.Join(strings.Fields(packages[folder].Doc), " "), unstable) {
			t.Errorf("%s: is neither public nor internal, and its comment does not say that it is %s", folder, unstable)
		}
	}
	if *updateAPI {
		must.Do(t, os.WriteFile(apiFile, []byte(golden.String()), 0o600))
	}
	want := must.Get(os.ReadFile(apiFile))(t)
	if diff := cmp.Diff(string(want), golden.String()); diff != "" {
		t.Errorf("what is exported has changed (-%s +now); if that is meant, run go test ./test -run TestPublicFace -update-api:\n%s", apiFile, diff)
	}
}
