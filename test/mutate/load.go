package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// pkg is a package with its mutants.
type pkg struct {
	path    string  // import path
	name    string  // path below the module, as the report shows it
	suites  []suite // the tests that a mutant must survive, in this order
	fset    *token.FileSet
	sources []source
	imports types.Importer
	mutants []mutant
}

// suite is the tests of one package.
type suite struct{ path, dir string }

// source is one file of a package, without tests.
type source struct {
	path string // absolute
	text []byte
	file *ast.File
}

// load reads the packages that the patterns name, and makes their mutants. With is
// that of the options.
func load(ctx context.Context, dir string, patterns, with []string) ([]*pkg, error) {
	type listed struct { // go list writes the names in upper case, which makes no difference
		ImportPath string   `json:"importPath"`
		Dir        string   `json:"dir"`
		Export     string   `json:"export"`
		GoFiles    []string `json:"goFiles"`
		DepOnly    bool     `json:"depOnly"`
		Module     *struct {
			Path string `json:"path"`
			Dir  string `json:"dir"`
		} `json:"module"`
	}
	args := append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly,Module"}, patterns...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	data, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := make(map[string]string)
	var roots []listed
	for decoder := json.NewDecoder(bytes.NewReader(data)); ; {
		var l listed
		if err := decoder.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[l.ImportPath] = l.Export
		if !l.DepOnly {
			roots = append(roots, l)
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	pkgs := make([]*pkg, len(roots))
	for i, l := range roots {
		p := &pkg{path: l.ImportPath, name: l.ImportPath, suites: []suite{{l.ImportPath, l.Dir}}, fset: fset, imports: imports}
		if l.Module != nil {
			p.name = strings.TrimPrefix(l.ImportPath, l.Module.Path+"/")
			for _, above := range with {
				if strings.HasPrefix(p.name, above+"/") {
					p.suites = append(p.suites, suite{l.Module.Path + "/" + above, filepath.Join(l.Module.Dir, above)})
				}
			}
		}
		for _, name := range l.GoFiles {
			path := filepath.Join(l.Dir, name)
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			p.sources = append(p.sources, source{path: path, text: text, file: file})
		}
		if err := p.mutate(); err != nil {
			return nil, err
		}
		pkgs[i] = p
	}
	return pkgs, nil
}

// mutate makes all mutants of the package.
func (p *pkg) mutate() error {
	info := &types.Info{Types: make(map[ast.Expr]types.TypeAndValue), Uses: make(map[*ast.Ident]types.Object)}
	if err := p.check(p.files(), info); err != nil {
		return err
	}
	for i, s := range p.sources {
		if !ast.IsGenerated(s.file) {
			p.mutants = append(p.mutants, mutantsOf(p.fset, i, s, info)...)
		}
	}
	return nil
}

func (p *pkg) files() []*ast.File {
	files := make([]*ast.File, len(p.sources))
	for i, s := range p.sources {
		files[i] = s.file
	}
	return files
}

func (p *pkg) check(files []*ast.File, info *types.Info) error {
	_, err := (&types.Config{Importer: p.imports}).Check(p.path, p.fset, files, info)
	return err
}

// compiles reports whether the compiler accepts a mutant, without running it.
func (p *pkg) compiles(m mutant) bool {
	s := p.sources[m.source]
	file, err := parser.ParseFile(p.fset, s.path, m.apply(s.text), parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	files := slices.Clone(p.files())
	files[m.source] = file
	return p.check(files, nil) == nil
}
