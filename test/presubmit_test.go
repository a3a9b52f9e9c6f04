// Package test holds the tests that need more than one package.
package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const module = "github.com/hamlet-federation/coredns-federation/"

// The rules of this file are those that no linter can express. Which packages from
// elsewhere are kept out of which folders, and which functions are not called where,
// is in .golangci.yml, at depguard and forbidigo.

// wings are the parts of the system, by folder, and the other wings that each may import. A wing
// is a folder with all that is below it, but for the wings that have a folder of their own in
// there. Data flows from left to right, and so no wing imports one to its right:
//
//	federation -> mtls|wire -> policy|catalog -> stream|registry|gate -> consumer|owner -> status -> dns|source|importer -> plugin|cmd
//
// Tests and the folder test may import anything. Within a wing Go itself keeps imports from
// going round.
var wings = map[string][]string{
	"federation":              nil,
	"internal":                {"federation"},
	"internal/limits":         nil,
	"internal/moment":         nil,
	"internal/safetext":       nil,
	"internal/wake":           nil,
	"proto":                   nil,
	"federation/mtls":         {"federation", "internal"},
	"federation/provider":     {"federation", "internal", "internal/connect", "proto"},
	"internal/connect":        {"federation/mtls"},
	"federation/consumer":     {"federation", "federation/mtls", "internal/catalog", "internal/consumer", "internal/wire"},
	"federation/owner":        {"federation", "internal/owner", "internal/registry"},
	"internal/allowfile":      {"federation", "federation/mtls", "internal"},
	"internal/wire":           {"federation", "proto"},
	"internal/policy":         {"federation", "internal/wire"},
	"internal/status":         {"federation", "federation/mtls", "internal", "internal/wire"},
	"internal/status/history": {"federation", "federation/mtls", "internal/catalog", "internal/consumer", "internal/status", "internal/stream", "internal/wire"},
	"internal/catalog":        {"federation", "internal", "internal/wire", "proto"},
	"internal/stream":         {"federation", "federation/mtls", "internal", "internal/catalog", "internal/connect", "internal/wire", "proto"},
	"internal/snapshot":       {"federation", "internal", "internal/catalog", "internal/wire", "proto"},
	"internal/consumer":       {"federation", "federation/mtls", "internal", "internal/catalog", "internal/snapshot", "internal/stream", "internal/wire"},
	"internal/registry":       {"federation", "internal/policy", "internal/wire"},
	"internal/gate":           {"federation", "federation/mtls", "internal"},
	"internal/mcs":            nil,
	"internal/owner":          {"federation", "federation/mtls", "internal", "internal/gate", "internal/registry", "internal/wire", "proto"},
	"internal/kube":           nil,
	"internal/dns": {
		"federation", "federation/mtls", "internal", "internal/catalog", "internal/consumer", "internal/policy", "internal/status",
		"internal/status/history", "internal/stream", "internal/wire",
	},
	"internal/source": {
		"federation", "federation/mtls", "internal", "internal/catalog", "internal/consumer", "internal/kube", "internal/mcs", "internal/policy",
		"internal/registry", "internal/wire", "proto",
	},
	"internal/importer": {
		"federation", "federation/mtls", "internal", "internal/catalog", "internal/consumer", "internal/dns", "internal/kube", "internal/mcs",
		"internal/policy", "internal/status", "internal/status/history", "internal/stream", "internal/wire",
	},
	"plugin": {
		"federation", "federation/mtls", "internal", "internal/dns", "internal/policy", "internal/status", "internal/wire", "plugin/corefile",
	},
	"plugin/corefile": {"federation", "federation/mtls", "internal", "internal/catalog", "internal/dns", "internal/policy", "internal/status", "internal/wire"},
	"cmd/coredns":     {"internal", "plugin"},
	"cmd/federationctl": {
		"federation", "federation/mtls", "federation/provider", "internal", "internal/allowfile", "internal/catalog", "internal/consumer", "internal/dns",
		"internal/gate", "internal/importer", "internal/kube", "internal/mcs", "internal/owner", "internal/policy", "internal/registry",
		"internal/source", "internal/status", "internal/status/history", "internal/stream", "internal/wire", "proto",
	},
	"deploy": nil, // a module of its own
}

// leaves are the wings below internal that any wing may import, federation too, as they import
// nothing but each other.
var leaves = []string{"internal/limits", "internal/moment", "internal/safetext", "internal/wake"}

// mostLines is how large all wings together may be: lines of code without comments, blank lines,
// tests and generated files. It is meant to fall. A commit that raises it says which feature
// needs that, or deletes as much elsewhere.
const mostLines = 42_276

// mostImportLines is how large what imports into Kubernetes may be, internal/importer and internal/mcs: each
// cluster that cannot change its DNS has to trust it.
const mostImportLines = 1_700

// wingOf returns the wing that a folder is of, or "".
func wingOf(folder string) string {
	for ; folder != "."; folder = path.Dir(folder) {
		if _, ok := wings[folder]; ok {
			return folder
		}
	}
	return ""
}

// mostEntries is how many folders a folder may have. What does not fit in a glance is not
// held in the head.
const mostEntries = 10

// The reasons of the rules for statements.
const (
	goReason    = "goroutines are started only in consumer, dns/agent, owner, source, importer, provider, status/page and cmd, and at one place each in hostname and three files of plugin, by whoever awaits them"
	sleepReason = "nothing can end a sleep early; in a test use testing/synctest, or wait for a condition"
	quoteReason = "it would be quoted twice; see safetext.Printable"
	longReason  = "ServeDNS fits one screen"
	layerReason = "a rule is tested in memory; what only processes show is tested in test, and with servers of others in test/suites"
)

// processes are what a test imports that starts processes.
var processes = []string{"os/exec", module + "test/kit/place", module + "test/peers/realserver"}

const longestServeDNS = 60 // lines

// source is one file of Go.
type source struct {
	path string // from the root of the module, with slashes
	test bool   // its name, or its place in the folder test, says so
	fset *token.FileSet
	*ast.File
}

func parse(name string, text any) (*source, error) { return parseInto(token.NewFileSet(), name, text) }

func parseInto(fset *token.FileSet, name string, text any) (*source, error) {
	file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, err
	}
	s := &source{path: name, fset: fset, File: file}
	s.test = strings.HasSuffix(name, "_test.go") || s.in("test") || strings.HasSuffix(file.Name.Name, "test") // storetest, say
	return s, nil
}

// in reports whether the file is in one of the folders or below it.
func (s *source) in(folders ...string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(s.path, folder+"/") })
}

// check returns which rules the file breaks, each with its line.
func (s *source) check() []string {
	var found []string
	report := func(node ast.Node, reason string) {
		found = append(found, fmt.Sprintf("%s:%d: %s", s.path, s.line(node.Pos()), reason))
	}
	if s.test {
		s.checkLayer(report)
	} else {
		s.checkImports(report)
	}
	for _, decl := range s.Decls {
		if function, ok := decl.(*ast.FuncDecl); ok && function.Body != nil {
			s.checkFunction(function, report)
		}
	}
	return found
}

func (s *source) line(pos token.Pos) int { return s.fset.Position(pos).Line }

func (s *source) checkImports(report func(ast.Node, string)) {
	of := wingOf(path.Dir(s.path))
	if of == "" {
		report(s.Name, "the folder is of no wing; give it one in wings")
		return
	}
	for _, spec := range s.Imports {
		name, _ := strconv.Unquote(spec.Path.Value) // a string: the parser has seen to it
		own, ok := strings.CutPrefix(name, module)
		checks := s.path == "cmd/federationctl/check.go" && own == "plugin/corefile" // which links CoreDNS
		if to := wingOf(own); ok && to != of && !slices.Contains(wings[of], to) && !slices.Contains(leaves, to) && !checks {
			report(spec, own+" is not to the left of "+of+" in the order of wings")
		}
	}
}

// checkLayer finds processes where rules are tested. Two sources are tested with the servers that they
// read, as nothing else says what those do, and a disk is full only in a namespace.
func (s *source) checkLayer(report func(ast.Node, string)) {
	if !s.in("federation", "plugin", "internal") ||
		s.in("internal/source/kubernetes", "internal/source/registration") || s.path == "internal/snapshot/path_test.go" {
		return
	}
	for _, spec := range s.Imports {
		if name, _ := strconv.Unquote(spec.Path.Value); slices.Contains(processes, name) {
			report(spec, layerReason)
		}
	}
}

func (s *source) checkFunction(function *ast.FuncDecl, report func(ast.Node, string)) {
	var (
		setup = s.path == "plugin/setup.go"
		// A transfer.Transferer fills a channel behind the back of its caller,
		// the plugin transfer, which drains it to the end.
		transfers = s.path == "plugin/chain.go" && function.Name.Name == "Transfer"
		// The port of the status outlives the configuration that opened it.
		serves = s.path == "plugin/status.go" && function.Name.Name == "servePort"
		// A look-up that many queries wait for outlives the one that began it.
		// The resolver bounds how many there are, and waits for them at its end.
		looksUp = s.path == "internal/dns/hostname/resolver.go" && function.Name.Name == "startLookup"
		starts  = s.test || setup || transfers || serves || looksUp ||
			s.in("internal/snapshot", "internal/consumer", "internal/dns/agent", "internal/gate", "internal/owner", "internal/registry", "internal/snapshot", "internal/source", "internal/stream", "internal/kube", "internal/importer", "federation/provider", "internal/status/page", "cmd")
		sleeps = s.importsPath("testing/synctest") || s.importsPath(module+"test/kit/network/simulation") // where a sleep moves the clock of a bubble
	)
	if function.Name.Name == "ServeDNS" && s.line(function.End())-s.line(function.Pos()) >= longestServeDNS {
		report(function, longReason)
	}
	ast.Inspect(function.Body, func(node ast.Node) bool {
		if _, ok := node.(*ast.GoStmt); ok && !starts {
			report(node, goReason)
		}
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch name := callee(call); {
		case strings.HasSuffix(name, ".Go") && !starts:
			report(call, goReason)
		case name == "time.Sleep" && !sleeps:
			report(call, sleepReason)
		case name == "safetext.Quote" && !s.test && len(call.Args) == 1 && isMessage(call.Args[0]):
			report(call, quoteReason)
		case levels[name[strings.LastIndexByte(name, '.')+1:]] && slices.ContainsFunc(call.Args, isQuoted):
			report(call, quoteReason)
		}
		return true
	})
}

func (s *source) importsPath(name string) bool {
	return slices.ContainsFunc(s.Imports, func(spec *ast.ImportSpec) bool { return spec.Path.Value == strconv.Quote(name) })
}

// levels are the methods of a logger.
var levels = map[string]bool{"Debug": true, "Info": true, "Warn": true, "Error": true, "With": true}

// isQuoted reports whether an expression is a call of safetext.Quote.
func isQuoted(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && callee(call) == "safetext.Quote"
}

// isMessage reports whether an expression is a whole message, of an error or a status.
func isMessage(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && (strings.HasSuffix(callee(call), ".Error") || strings.HasSuffix(callee(call), ".Message"))
}

// callee returns the name that a call is made by: package.Function, or .Method
// behind an expression.
func callee(call *ast.CallExpr) string {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if ident, ok := selector.X.(*ast.Ident); ok {
		return ident.Name + "." + selector.Sel.Name
	}
	return "." + selector.Sel.Name
}

// size returns how many lines of code the file has.
func (s *source) size(text []byte) (lines int) {
	if s.test || ast.IsGenerated(s.File) {
		return 0
	}
	file := token.NewFileSet().AddFile("", -1, len(text))
	var tokens scanner.Scanner
	tokens.Init(file, text, nil, 0) // skips comments
	counted := 0
	for pos, tok, literal := tokens.Scan(); tok != token.EOF; pos, tok, literal = tokens.Scan() {
		if tok == token.SEMICOLON && literal == "\n" {
			continue // the end of a line
		}
		first := file.Line(pos)
		last := first + strings.Count(literal, "\n")
		lines += last - max(first-1, counted)
		counted = last
	}
	return lines
}

// passedOver reports whether a folder has no code of the repository.
func passedOver(folder string) bool {
	base := path.Base(folder)
	return folder == "bin" || folder == "run" || base == "testdata" || base == "node_modules" || len(folder) > 1 && strings.HasPrefix(base, ".")
}

func TestPresubmit(t *testing.T) {
	root := os.DirFS("..")
	lines, imported, folders := 0, 0, make(map[string]int)
	must.Do(t, fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && passedOver(name):
			return fs.SkipDir
		case entry.IsDir() && slices.Contains([]string{"util", "utils", "common", "helpers", "misc", "pkg"}, entry.Name()):
			t.Errorf("%s: a package is named after the noun that it holds", name)
		case entry.IsDir():
			folders[path.Dir(name)]++
			return nil
		case path.Ext(name) != ".go":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		s, err := parse(name, text)
		if err != nil {
			return err
		}
		for _, broken := range s.check() {
			t.Error(broken)
		}
		if !s.test {
			n := s.size(text)
			if lines += n; strings.HasPrefix(name, "internal/importer/") || strings.HasPrefix(name, "internal/mcs/") {
				imported += n
			}
		}
		return nil
	}))
	if lines == 0 {
		t.Fatal("found no Go file: the test must run in its folder")
	}
	for folder, n := range folders {
		if n > mostEntries && folder != "corefile-examples" && folder != "internal" {
			t.Errorf("%s: has %d folders, and may have %d", folder, n, mostEntries)
		}
	}
	if lines > mostLines {
		t.Errorf("there are %d lines of production code, and may be %d: delete something, or say why they grow", lines, mostLines)
	}
	if imported > mostImportLines {
		t.Errorf("there are %d lines of production code in internal/importer and internal/mcs, and may be %d", imported, mostImportLines)
	}
}

// Every rule finds what breaks it. That it finds nothing else is shown by this repository.
func TestPresubmitRules(t *testing.T) {
	for _, tc := range []struct {
		name, path, text string
		want             []string
	}{
		{
			"import from the right", "internal/wire/decode.go",
			"package wire\nimport (\n_ \"github.com/hamlet-federation/coredns-federation/federation\"\n_ \"github.com/hamlet-federation/coredns-federation/internal/catalog\"\n)",
			[]string{"internal/wire/decode.go:4: internal/catalog is not to the left of internal/wire in the order of wings"},
		},
		{
			"Corefiles in another command than check", "cmd/federationctl/serve.go",
			"package main\nimport _ \"github.com/hamlet-federation/coredns-federation/plugin/corefile\"",
			[]string{"cmd/federationctl/serve.go:2: plugin/corefile is not to the left of cmd/federationctl in the order of wings"},
		},
		{
			"folder of no wing", "tools/cache/cache.go", "package cache",
			[]string{"tools/cache/cache.go:1: the folder is of no wing; give it one in wings"},
		},
		{
			"process where a rule is tested", "plugin/handler_test.go", "package federationplugin\nimport _ \"os/exec\"",
			[]string{"plugin/handler_test.go:2: " + layerReason},
		},
		{
			"goroutines where nobody awaits them", "internal/wire/decode.go", "package wire\nfunc f() {\ngo f()\nwg.Go(f)\n}",
			[]string{"internal/wire/decode.go:3: " + goReason, "internal/wire/decode.go:4: " + goReason},
		},
		{
			"sleep on a real clock", "internal/owner/server_test.go", "package owner\nfunc TestA() {\ntime.Sleep(1)\n}",
			[]string{"internal/owner/server_test.go:3: " + sleepReason},
		},
		{
			"sleep in a program", "test/kit/lookup/main.go", "package main\nfunc main() {\ntime.Sleep(1)\n}",
			[]string{"test/kit/lookup/main.go:3: " + sleepReason},
		},
		{
			"long handler", "plugin/handler.go", "package federationplugin\nfunc (h H) ServeDNS() {" + strings.Repeat("\n", 60) + "}",
			[]string{"plugin/handler.go:2: " + longReason},
		},
		{
			"quoted twice", "internal/wire/decode.go", "package wire\nfunc f() {\nlog.Warn(\"x\", \"error\", safetext.Quote(s))\nsafetext.Quote(err.Error())\nsafetext.Quote(name)\n}",
			[]string{"internal/wire/decode.go:3: " + quoteReason, "internal/wire/decode.go:4: " + quoteReason},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := must.Get(parse(tc.path, tc.text))(t)
			if diff := cmp.Diff(tc.want, s.check()); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPresubmitSizes(t *testing.T) {
	for _, tc := range []struct {
		name, path, text string
		want             int
	}{
		{"comments and blank lines", "federation/a.go", "// Package federation.\npackage federation // it is\n\n/*\n\n*/\nvar a = 1 /*\n*/\n", 2},
		{"tokens of several lines", "federation/a.go", "package federation\n\nvar a = `\n\n` + `\n`\nvar b, c = 1,\n2", 7},
		{"test", "federation/a_test.go", "package federation\nfunc F() {}", 0},
		{"generated", "proto/a.go", "// Code generated by hand. DO NOT EDIT.\npackage proto\nfunc F() {}", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := must.Get(parse(tc.path, tc.text))(t)
			if got := s.size([]byte(tc.text)); got != tc.want {
				t.Errorf("size is %d, want %d", got, tc.want)
			}
		})
	}
}
