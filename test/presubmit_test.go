// Package test holds the tests that need more than one package.
package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/hamlet-federation/coredns-federation/"

// allowed is the line of packages. Data flows from left to right, and so no
// package imports one to its right:
//
//	proto -> wire -> consumer|owner -> catalog -> zone -> agent -> plugin|cmd
//
// It says which packages of this module the files of a folder import. A name
// that ends in a slash stands for all that is below it. Tests, and the folder
// test, import what they like.
var allowed = map[string][]string{
	"proto/":                 {"proto/"},
	"federation":             nil,
	"federation/loglimit":    nil,
	"federation/regularfile": nil,
	"federation/filewatch":   nil,
	"federation/mtls":        {"federation", "federation/filewatch", "federation/regularfile"},
	"federation/wire":        {"federation", "proto/"},
	"federation/owner": {
		"federation", "federation/loglimit", "federation/mtls", "federation/wire", "proto/resourcediscovery/",
	},
	"federation/problem":   nil,
	"federation/yamlvalue": {"federation", "federation/problem"},
	"federation/catalogentry": {
		"federation", "federation/problem", "federation/wire", "federation/yamlvalue", "proto/types/",
	},
	"federation/catalogfile": {
		"federation", "federation/catalogentry", "federation/problem", "federation/wire", "federation/yamlvalue",
	},
	"federation/ownerfile": {
		"federation/catalogfile", "federation/filewatch", "federation/mtls", "federation/owner", "federation/problem",
		"federation/regularfile", "federation/wire",
	},
	"federation/catalog": {"federation"},
	"federation/zone":    {"federation"},
	"federation/snapshot": {
		"federation", "federation/regularfile", "federation/wire", "proto/snapshot/",
	},
	"federation/consumer": {
		"federation", "federation/loglimit", "federation/mtls", "federation/wire", "proto/resourcediscovery/",
	},
	"federation/mirror": {
		"federation", "federation/loglimit", "federation/mtls", "federation/wire", "federation/consumer", "federation/catalog",
		"federation/regularfile", "federation/snapshot",
	},
	"federation/agent": {
		"federation", "federation/loglimit", "federation/mtls", "federation/wire", "federation/consumer", "federation/catalog",
		"federation/mirror", "federation/zone",
	},
	"federation/hostname": nil,
	"plugin/corefile":     {"federation", "federation/mtls", "federation/wire", "federation/zone", "federation/agent"},
	"plugin": {
		"federation", "federation/wire", "federation/hostname", "federation/zone", "federation/agent", "plugin/corefile",
	},
	"cmd/coredns/":       {"cmd/coredns/", "plugin"},
	"cmd/federationctl/": {"cmd/federationctl/", "federation", "federation/", "proto/types/"},
}

// kept are the packages from elsewhere that some folders keep out.
var kept = []struct {
	imports []string // a name that ends in a slash stands for all that is below it
	out     func(*source) bool
	reason  string
}{
	{
		[]string{"github.com/coredns/"},
		func(s *source) bool { return !s.in("plugin", "cmd/coredns") },
		"only the plugin and its build know CoreDNS",
	},
	{
		[]string{"google.golang.org/grpc", "google.golang.org/grpc/", "google.golang.org/protobuf/"},
		func(s *source) bool { return pure(s) || s.in("plugin") },
		"messages and streams end at the consumer",
	},
	{
		[]string{"github.com/prometheus/"},
		func(s *source) bool { return s.path != "plugin/metrics.go" && s.path != "cmd/federationctl/metrics.go" },
		"metrics stand in metrics.go of plugin and cmd/federationctl; the library has an Observer and Stats",
	},
	{
		[]string{"context", "log", "log/slog", "net", "os", "sync", "sync/atomic"},
		pure,
		"catalog and zone are pure: events and time go in, values come out",
	},
	{
		[]string{"sync"},
		func(s *source) bool { return s.path == "plugin/handler.go" },
		"a query takes no lock: it loads the zone once and answers wholly from it",
	},
}

// The reasons of the rules for statements.
const (
	goReason    = "goroutines are started only in agent, mirror, consumer, owner, mtls, cmd and plugin where CoreDNS wants it, by whoever awaits them"
	clockReason = "catalog and zone are pure: the time comes in as an argument"
	afterReason = "nothing can stop the timer of time.After and time.Tick; use time.NewTimer"
	sleepReason = "nothing can end a sleep early; in a test use testing/synctest, or wait for a condition"
	rootReason  = "a context comes in as the first parameter; only main, agent, plugin/setup.go and tests make one"
	longReason  = "ServeDNS fits one screen"
)

const longestServeDNS = 60 // lines

// clock is what reads or runs on the clock.
var clock = []string{
	"time.After", "time.AfterFunc", "time.NewTicker", "time.NewTimer", "time.Now", "time.Since", "time.Sleep", "time.Tick", "time.Until",
}

// source is one file of Go.
type source struct {
	path string // from the root of the module, with slashes
	test bool   // its name, or its place in the folder test, says so
	fset *token.FileSet
	*ast.File
}

func parse(name string, text any) (*source, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s := &source{path: name, fset: fset, File: file}
	s.test = strings.HasSuffix(name, "_test.go") || s.in("test")
	return s, nil
}

// in tells whether the file is in one of the folders or below it.
func (s *source) in(folders ...string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(s.path, folder+"/") })
}

func pure(s *source) bool { return s.in("federation/catalog", "federation/zone") }

// check returns which rules the file breaks, each with its line.
func (s *source) check() []string {
	var found []string
	report := func(node ast.Node, reason string) {
		found = append(found, fmt.Sprintf("%s:%d: %s", s.path, s.line(node.Pos()), reason))
	}
	if !s.test {
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
	folder := path.Dir(s.path)
	left, placed := allowed[folder]
	for parent := folder; !placed && parent != "."; parent = path.Dir(parent) {
		left, placed = allowed[parent+"/"]
	}
	if !placed {
		report(s.Name, "the folder has no place in the line of packages; give it one in allowed")
	}
	for _, spec := range s.Imports {
		name, _ := strconv.Unquote(spec.Path.Value) // a string: the parser has seen to it
		if own, ok := strings.CutPrefix(name, module); ok && placed && !matches(left, own) {
			report(spec, own+" is not to the left of "+folder+" in the line of packages")
		}
		for _, k := range kept {
			if k.out(s) && matches(k.imports, name) {
				report(spec, "import of "+name+": "+k.reason)
			}
		}
	}
}

// matches tells whether list has name, or an entry with a slash that it is below.
func matches(list []string, name string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		return entry == name || strings.HasSuffix(entry, "/") && strings.HasPrefix(name, entry)
	})
}

func (s *source) checkFunction(function *ast.FuncDecl, report func(ast.Node, string)) {
	var (
		setup = s.path == "plugin/setup.go"
		agent = s.in("federation/agent")
		// A transfer.Transferer fills a channel behind the back of its caller,
		// the plugin transfer, which drains it to the end.
		transfers = s.path == "plugin/chain.go" && function.Name.Name == "Transfer"
		// A look-up that many queries wait for outlives the one that began it.
		// The resolver bounds how many there are, and waits for them at its end.
		looksUp = s.path == "federation/hostname/resolver.go" && function.Name.Name == "start"
		starts  = s.test || setup || agent || transfers || looksUp || s.in("federation/consumer", "federation/mirror", "federation/owner", "cmd")
		// What the agent runs outlives the configuration that asked for it.
		roots  = s.test || setup || agent || looksUp || s.Name.Name == "main" && function.Name.Name == "main"
		timed  = !s.test && pure(s)
		sleeps = s.importsPath("testing/synctest") // where a sleep moves the clock of a bubble
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
		case timed && slices.Contains(clock, name):
			report(call, clockReason)
		case name == "time.Sleep" && !sleeps:
			report(call, sleepReason)
		case (name == "time.After" || name == "time.Tick") && !s.test:
			report(call, afterReason)
		case (name == "context.Background" || name == "context.TODO") && !roots:
			report(call, rootReason)
		}
		return true
	})
}

func (s *source) importsPath(name string) bool {
	return slices.ContainsFunc(s.Imports, func(spec *ast.ImportSpec) bool { return spec.Path.Value == strconv.Quote(name) })
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

func TestPresubmit(t *testing.T) {
	root := os.DirFS("..")
	files := 0
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "bin" || name == "run" || entry.Name() == "testdata" || len(name) > 1 && strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case entry.IsDir() && slices.Contains([]string{"util", "utils", "common", "helpers", "misc", "pkg"}, entry.Name()):
			t.Errorf("%s: one package is one noun, and this is none", name)
		case entry.IsDir() || path.Ext(name) != ".go":
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
		files++
		for _, broken := range s.check() {
			t.Error(broken)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files == 0 {
		t.Fatal("found no file of Go: the test must run in its folder")
	}
}

// Every rule bites, and only where it should.
func TestPresubmitRules(t *testing.T) {
	for _, tc := range []struct {
		name, path, text string
		want             []string
	}{
		{
			"import from the right", "federation/wire/decode.go",
			"package wire\nimport (\n_ \"github.com/hamlet-federation/coredns-federation/federation\"\n_ \"github.com/hamlet-federation/coredns-federation/federation/catalog\"\n)",
			[]string{"federation/wire/decode.go:4: federation/catalog is not to the left of federation/wire in the line of packages"},
		},
		{
			"import from the left, below a slash", "federation/wire/decode.go",
			"package wire\nimport _ \"github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2\"",
			nil,
		},
		{
			"folder without a place", "federation/cache/cache.go", "package cache",
			[]string{"federation/cache/cache.go:1: the folder has no place in the line of packages; give it one in allowed"},
		},
		{
			"folder below one that has a place", "proto/types/v1alpha1/types.pb.go", "package typesv1alpha1", nil,
		},
		{
			"test imports what it likes", "federation/wire/decode_test.go",
			"package wire\nimport _ \"github.com/hamlet-federation/coredns-federation/plugin\"",
			nil,
		},
		{
			"CoreDNS in the library", "federation/agent/agent.go", "package agent\nimport _ \"github.com/coredns/coredns/request\"",
			[]string{"federation/agent/agent.go:2: import of github.com/coredns/coredns/request: only the plugin and its build know CoreDNS"},
		},
		{
			"gRPC in the plugin", "plugin/setup.go", "package federationplugin\nimport _ \"google.golang.org/grpc\"",
			[]string{"plugin/setup.go:2: import of google.golang.org/grpc: messages and streams end at the consumer"},
		},
		{
			"metrics in the handler", "plugin/handler.go",
			"package federationplugin\nimport _ \"github.com/prometheus/client_golang/prometheus\"",
			[]string{"plugin/handler.go:2: import of github.com/prometheus/client_golang/prometheus: metrics stand in metrics.go of plugin and cmd/federationctl; the library has an Observer and Stats"},
		},
		{
			"lock in the handler", "plugin/handler.go", "package federationplugin\nimport (\n_ \"sync\"\n_ \"sync/atomic\"\n)",
			[]string{"plugin/handler.go:3: import of sync: a query takes no lock: it loads the zone once and answers wholly from it"},
		},
		{
			"logger in the zone", "federation/zone/zone.go", "package zone\nimport (\n_ \"log/slog\"\n_ \"net/netip\"\n)",
			[]string{"federation/zone/zone.go:3: import of log/slog: catalog and zone are pure: events and time go in, values come out"},
		},
		{
			"clock in the catalog", "federation/catalog/catalog.go", "package catalog\nvar _ = func() {}\nfunc f() {\ntime.Now()\n}",
			[]string{"federation/catalog/catalog.go:4: " + clockReason},
		},
		{
			"goroutines where nobody awaits them", "federation/wire/decode.go", "package wire\nfunc f() {\ngo f()\nwg.Go(f)\n}",
			[]string{"federation/wire/decode.go:3: " + goReason, "federation/wire/decode.go:4: " + goReason},
		},
		{"goroutines in their place", "plugin/setup.go", "package federationplugin\nfunc f() {\ngo f()\ns.wg.Go(f)\n}", nil},
		{
			"sleep on a real clock", "federation/owner/server_test.go", "package owner\nfunc TestA() {\ntime.Sleep(1)\n}",
			[]string{"federation/owner/server_test.go:3: " + sleepReason},
		},
		{
			"sleep in a bubble", "federation/owner/server_test.go",
			"package owner\nimport _ \"testing/synctest\"\nfunc TestA() {\ntime.Sleep(1)\n}",
			nil,
		},
		{
			"sleep in a program", "test/lookup/main.go", "package main\nfunc main() {\ntime.Sleep(1)\n}",
			[]string{"test/lookup/main.go:3: " + sleepReason},
		},
		{
			"timer that nothing stops", "federation/consumer/run.go", "package consumer\nfunc f() {\n<-time.After(1)\n}",
			[]string{"federation/consumer/run.go:3: " + afterReason},
		},
		{
			"context from nowhere", "federation/consumer/run.go", "package consumer\nfunc main() {\ncontext.Background()\ncontext.TODO()\n}",
			[]string{"federation/consumer/run.go:3: " + rootReason, "federation/consumer/run.go:4: " + rootReason},
		},
		{"context of main", "cmd/federationctl/main.go", "package main\nfunc main() { context.Background() }", nil},
		{
			"long handler", "plugin/handler.go", "package federationplugin\nfunc (h H) ServeDNS() {" + strings.Repeat("\n", 60) + "}",
			[]string{"plugin/handler.go:2: " + longReason},
		},
		{"short handler", "plugin/handler.go", "package federationplugin\nfunc (h H) ServeDNS() {" + strings.Repeat("\n", 59) + "}", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := parse(tc.path, tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, s.check()); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}
