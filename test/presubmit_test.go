// Package test holds the tests that need more than one package.
package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/hamlet-federation/coredns-federation/"

// The rules of this file are those that no linter can express. Which packages from
// elsewhere are kept out of which folders, and which functions are not called where,
// is in .golangci.yml, at depguard and forbidigo.

// allowed is the line of packages. Data flows from left to right, and so no
// package imports one to its right:
//
//	proto -> wire -> consumer|owner -> catalog -> zone -> agent -> plugin|cmd
//
// It lists the packages of this module that the files of a folder may import, and
// every folder must be in it. A name that ends in a slash stands for everything
// below it. Tests and the folder test may import anything.
var allowed = map[string][]string{
	"proto/":                              {"proto/"},
	"federation":                          nil,
	"internal/loglimit":                   nil,
	"internal/telemetry":                  nil,
	"internal/file":                       nil,
	"federation/mtls":                     {"federation", "internal/file", "internal/file"},
	"federation/wire/packed":              {"federation"},
	"federation/wire":                     {"federation", "federation/wire/packed", "proto/"},
	"federation/wire/resume":              nil,
	"federation/policy/pattern":           {"federation", "federation/mtls"},
	"federation/policy/pattern/capture":   {"federation", "federation/mtls", "federation/policy/pattern"},
	"federation/policy":                   {"federation", "federation/mtls", "federation/policy/pattern", "federation/wire"},
	"federation/policy/policytest":        {"federation", "federation/mtls", "federation/policy"},
	"federation/owner/internal/turnstile": nil,
	"federation/owner/gate":               {"federation", "internal/loglimit", "federation/mtls", "federation/owner/internal/turnstile"},
	"federation/wire/duplex":              {"federation/wire", "proto/resourcediscovery/"},
	"federation/owner": {
		"federation", "federation/wire/duplex", "federation/owner/gate", "internal/loglimit", "federation/mtls", "federation/policy", "federation/wire/resume",
		"federation/owner/internal/turnstile", "federation/wire", "proto/resourcediscovery/",
	},
	"federation/provider":                        {"federation", "internal/loglimit", "proto/registration/"},
	"federation/source":                          {"federation", "internal/loglimit", "federation/owner", "federation/wire"},
	"internal/problem":                           nil,
	"federation/source/file/internal/simpleyaml": nil,
	"federation/source/file/internal/catalogentry": {
		"federation", "internal/problem", "federation/source/file/internal/simpleyaml", "federation/wire", "internal/problem", "proto/types/",
	},
	"federation/source/file/catalogfile": {
		"federation", "federation/source/file/internal/catalogentry", "internal/problem", "federation/source/file/internal/simpleyaml", "federation/wire", "internal/problem",
	},
	"federation/mtls/allowfile": {"internal/file", "federation/mtls", "internal/problem"},
	"federation/source/file": {
		"federation/source/file/catalogfile", "internal/file", "internal/problem", "federation/source", "federation/wire",
	},
	"federation/source/kubernetes/export": {
		"federation", "federation/policy/pattern",
	},
	"federation/source/kubernetes/internal/feedback": {"federation/source/kubernetes/export"},
	"federation/source/kubernetes": {
		"federation/owner", "federation/source", "federation/source/kubernetes/export", "federation/source/kubernetes/internal/feedback",
		"federation/wire",
	},
	"federation/source/registration/node":              {"federation", "federation/mtls", "proto/registration/"},
	"federation/source/registration/store":             {"federation/source/registration/node"},
	"federation/source/registration/internal/deadline": nil,
	"federation/source/registration/store/memory":      {"federation/source/registration/node", "federation/source/registration/store"},
	"federation/source/registration/internal/table": {
		"federation", "federation/mtls", "federation/source/registration/internal/deadline", "federation/source/registration/node",
		"federation/source/registration/rules", "federation/source/registration/store", "federation/wire",
	},
	"federation/source/registration": {
		"federation", "internal/loglimit", "federation/mtls", "federation/source", "federation/source/registration/node",
		"federation/source/registration/rules", "federation/source/registration/store", "federation/source/registration/store/memory",
		"federation/source/registration/internal/table", "federation/wire", "proto/registration/",
	},
	"federation/source/registration/rules": {
		"federation", "federation/mtls", "federation/policy/pattern", "federation/policy/pattern/capture", "internal/problem",
		"federation/source/registration/node", "internal/problem",
	},
	"federation/source/registration/store/journal": {
		"federation", "internal/file", "federation/source/registration/node", "federation/source/registration/store",
	},
	"federation/source/registration/store/storetest": {
		"federation", "federation/mtls", "federation/source/registration/node", "federation/source/registration/store", "test/await",
	},
	"federation/source/registration/store/etcd": {
		"federation", "internal/loglimit", "federation/mtls", "internal/file", "federation/source/registration/node", "federation/source/registration/store",
	},
	"federation/source/nsm/internal/endpoint": {"federation", "federation/mtls", "federation/wire"},
	"federation/source/nsm": {
		"federation", "internal/loglimit", "federation/source", "federation/source/nsm/internal/endpoint", "federation/wire",
	},
	"federation/source/relay": {
		"federation", "federation/consumer/catalog", "federation/consumer", "federation/source", "federation/wire",
	},
	"cmd/federationctl/config": {
		"federation", "federation/source/file/catalogfile", "federation/mtls", "federation/owner", "federation/policy/pattern", "federation/policy",
		"internal/problem", "federation/source", "federation/status/page", "federation/wire", "internal/problem",
	},
	"federation/consumer/catalog/leftout": {"federation/wire/resume"},
	"federation/consumer/catalog":         {"federation", "federation/consumer/catalog/leftout", "federation/wire/packed", "federation/wire/resume"},
	"federation/dns/zone/internal/trie":   nil,
	"federation/dns/zone/domain":          {"federation"},
	"federation/dns/zone/record":          nil,
	"federation/dns/zone/internal/subtree": {
		"federation", "federation/dns/zone/domain", "federation/dns/zone/record",
	},
	"federation/dns/zone/internal/precedence": {
		"federation", "federation/wire/packed", "federation/dns/zone/domain", "federation/dns/zone/internal/subtree", "federation/dns/zone/internal/trie",
	},
	"federation/dns/zone/internal/reach":   {"federation/dns/zone/domain", "federation/dns/zone/internal/precedence"},
	"federation/dns/zone/internal/history": nil,
	"federation/dns/zone": {
		"federation", "federation/wire/packed", "federation/dns/zone/domain", "federation/dns/zone/record", "federation/dns/zone/internal/subtree",
		"federation/dns/zone/internal/precedence", "federation/dns/zone/internal/reach", "federation/dns/zone/internal/history",
	},
	"federation/dns/zone/reply": {
		"federation/dns/zone", "federation/dns/zone/domain", "federation/dns/zone/record",
	},
	"federation/consumer/snapshot": {
		"federation", "federation/wire/packed", "internal/file", "federation/wire", "proto/snapshot/",
	},
	"federation/consumer/stream": {
		"federation", "federation/wire/duplex", "internal/loglimit", "federation/mtls", "federation/wire/resume", "federation/wire", "proto/resourcediscovery/",
	},
	"federation/consumer": {
		"federation", "internal/loglimit", "federation/mtls", "federation/wire", "federation/consumer/stream", "federation/consumer/catalog", "federation/consumer/catalog/leftout",
		"federation/wire/packed", "internal/file", "federation/wire/resume", "federation/consumer/snapshot",
	},
	"federation/dns/agent": {
		"federation", "federation/dns/agent/pages", "federation/dns/agent/why", "internal/loglimit", "federation/mtls", "federation/wire", "federation/consumer/stream", "federation/consumer/catalog",
		"federation/policy/pattern", "federation/consumer", "federation/wire/packed", "federation/status", "federation/consumer/history", "federation/dns/zone",
	},
	"federation/status/recent":    {"federation/status"},
	"federation/status/listing":   nil,
	"federation/consumer/history": {"federation", "federation/consumer/catalog", "federation/consumer", "federation/status/recent", "federation/status"},
	"federation/dns/agent/pages":  {"federation/status/listing", "federation/wire/packed", "federation/status", "federation/dns/zone"},
	"federation/dns/agent/why":    {"federation", "federation/policy/pattern", "federation/status", "federation/consumer/history", "federation/dns/zone", "federation/dns/zone/domain"},
	"federation/status":           {"federation", "internal/problem", "federation/wire"},
	"federation/status/page":      {"federation", "federation/owner/gate", "internal/loglimit", "federation/mtls", "internal/problem", "federation/status"},
	"federation/dns/hostname":     nil,
	"plugin/corefile": {
		"federation", "federation/policy/pattern", "federation/mtls", "federation/policy/pattern", "federation/status/page", "federation/wire", "federation/dns/zone",
		"federation/dns/agent",
	},
	"plugin/loopback": nil,
	"plugin/status":   {"federation/dns/agent", "federation/status", "internal/telemetry", "federation/status/page", "plugin/corefile"},
	"plugin": {
		"federation", "federation/wire", "federation/dns/hostname", "federation/dns/zone", "federation/dns/zone/reply", "federation/dns/agent", "federation/status",
		"internal/telemetry", "internal/telemetry", "plugin/corefile", "plugin/loopback", "plugin/status",
	},
	"cmd/coredns/":       {"cmd/coredns/", "internal/telemetry", "plugin"},
	"cmd/federationctl/": {"cmd/federationctl/", "federation", "federation/", "proto/registration/", "proto/types/"},
	"deploy/image":       nil, // a module of its own
	"deploy/package":     nil, // likewise
}

// limit is how large a package may be: its lines of code, without comments, blank
// lines, tests and generated files, and its exported functions, types and variables.
type limit struct{ lines, names int }

// usual is the limit of every package that is not in larger. A package that
// outgrows it has come to hold a second noun: split it.
var usual = limit{800, 15}

// exception is the limit of one package.
type exception struct {
	limit

	reason string
}

// larger are the packages that may be larger, by folder, each with the reason. Their
// numbers are the size of today, with little room to grow; what shrinks gets a
// smaller one, or leaves the list.
var larger = map[string]exception{
	"federation":                                    {limit{600, 33}, "the nouns that every package shares: many small types, each with its parser and its rules"},
	"federation/dns/agent":                          {limit{950, 15}, "what turns mirrors into zones and reports, with what it compiles beside the one writer, and what several blocks want of one owner"},
	"federation/consumer/catalog":                   {limit{1070, 15}, "one state machine: imports, admission, limits, retention, renewal, resumed streams, the guard and why a service is gone work on the same records"},
	"federation/source/file/catalogfile":            {limit{830, 15}, "one file in three forms, whole or as a stream"},
	"federation/consumer/stream":                    {limit{1660, 17}, "one subscription, with what two versions of the protocol, both kinds of owner, short-lived certificates, resumed streams, streams that the owner opens and their spans need"},
	"federation/consumer":                           {limit{1110, 15}, "one owner's catalog with all that keeps it: subscription, what of it is told to the owner, clocks, spans, and a file read in parts"},
	"federation/mtls":                               {limit{1300, 19}, "one Source: its certificates, from files or an agent, and the connections that it judges by them, for gRPC and for HTTPS, with an authority to try it"},
	"federation/owner":                              {limit{2790, 17}, "one server of several catalogs, which may be unavailable, for two versions of the protocol, both roles, consumers that resume or come all at once, and classes of them that are told different things, each with its account"},
	"cmd/federationctl/config":                      {limit{1620, 18}, "every key of one file, from listen to four kinds of sources, relays and exports, with what finds all mistakes in it and what is probably not meant"},
	"federation/provider":                           {limit{1045, 15}, "one program's registration: its nodes, the stream that they share, what is said on it, and the addresses in turn, all of it on the same state"},
	"federation/source":                             {limit{1416, 16}, "the rules of every source, all of them about the same parts and their list, and what is looked up in these, and all of it is read without holding up changes"},
	"federation/source/registration":                {limit{1060, 15}, "one source with its server: streams of providers, lists, what commits and what publishes"},
	"federation/source/registration/internal/table": {limit{1400, 19}, "one state machine: providers, store, deadlines and rules work on the same entries, and a store may lose them"},
	"federation/source/kubernetes":                  {limit{1800, 15}, "one cluster: client, watches, what is known of it, and what is published of that"},
	"federation/source/kubernetes/export": {
		limit{1560, 18}, "everything by which a Service can be reached, read from nine kinds of objects, and what of them is kept and told",
	},
	"federation/source/registration/store/journal": {
		limit{850, 15}, "one file: its records, what reads them after damage, what writes it anew, and how old what it holds is",
	},
	"federation/source/registration/store/etcd": {
		limit{1010, 15}, "one client of one etcd: its connection, the leases, transactions, list and watch, each of which has to live with members that hang",
	},
	"federation/status":       {limit{1230, 33}, "every noun that a report has, as JSON: the types are the contract; and the one wording of each"},
	"federation/status/page":  {limit{1132, 15}, "one server with its bounds, and two forms of what it serves: JSON, and the page that judges the same reports"},
	"federation/wire":         {limit{1020, 27}, "the whole border: two versions of the protocol in both directions, what is encoded once for all, and the path of it"},
	"federation/dns/zone":     {limit{1360, 18}, "build, look-up, walk, differences and explanation of one zone; what can be read alone is in packages below it"},
	"plugin":                  {limit{1015, 15}, "one plugin of CoreDNS: its server blocks, how they answer, and why, which runs the very same code"},
	"cmd/federationctl/serve": {limit{1380, 15}, "one owner as its configuration says: what a change keeps, replaces and leaves to a restart, for catalogs, five kinds of sources, their ports, rules and stores"},
	"cmd/federationctl":       {limit{2180, 15}, "thirteen commands, one of them with commands of its own: their flags, their help and their output; what they do is in packages below"},
}

// The reasons of the rules for statements.
const (
	goReason    = "goroutines are started only in agent, mirror, consumer, gate, owner, source, provider, statuspage and cmd, and at one place each in hostname, plugin and plugin/status, by whoever awaits them"
	sleepReason = "nothing can end a sleep early; in a test use testing/synctest, or wait for a condition"
	longReason  = "ServeDNS fits one screen"
)

const longestServeDNS = 60 // lines

// source is one file of Go.
type source struct {
	path string // from the root of the module, with slashes
	test bool   // its name, or its place in the folder test, says so
	fset *token.FileSet
	*ast.File
}

func parse(name string, text any) (*source, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, err
	}
	s := &source{path: name, fset: fset, File: file}
	s.test = strings.HasSuffix(name, "_test.go") || s.in("test")
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
	}
}

// matches reports whether list has name, or an entry with a slash that it is below.
func matches(list []string, name string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		return entry == name || strings.HasSuffix(entry, "/") && strings.HasPrefix(name, entry)
	})
}

func (s *source) checkFunction(function *ast.FuncDecl, report func(ast.Node, string)) {
	var (
		setup = s.path == "plugin/setup.go"
		// A transfer.Transferer fills a channel behind the back of its caller,
		// the plugin transfer, which drains it to the end.
		transfers = s.path == "plugin/chain.go" && function.Name.Name == "Transfer"
		// The port of the status outlives the configuration that opened it.
		serves = s.path == "plugin/status/status.go" && function.Name.Name == "serve"
		// A look-up that many queries wait for outlives the one that began it.
		// The resolver bounds how many there are, and waits for them at its end.
		looksUp = s.path == "federation/dns/hostname/resolver.go" && function.Name.Name == "start"
		starts  = s.test || setup || transfers || serves || looksUp ||
			s.in("federation/dns/agent", "federation/consumer", "federation/consumer/stream", "federation/owner/gate", "federation/owner", "federation/source", "federation/provider", "federation/status/page", "cmd")
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
		case name == "time.Sleep" && !sleeps:
			report(call, sleepReason)
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

// size returns what the file adds to its package.
func (s *source) size(text []byte) (l limit) {
	if s.test || ast.IsGenerated(s.File) {
		return l
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
		l.lines += last - max(first-1, counted)
		counted = last
	}
	for _, decl := range s.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			l.names += exported(decl.Recv == nil, decl.Name)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					l.names += exported(true, spec.Name)
				case *ast.ValueSpec:
					l.names += exported(decl.Tok == token.VAR, spec.Names...)
				}
			}
		}
	}
	return l
}

// exported returns how many names are exported, if they count.
func exported(count bool, names ...*ast.Ident) (n int) {
	for _, name := range names {
		if count && name.IsExported() {
			n++
		}
	}
	return n
}

// outgrown returns which packages are larger than they may be, and which numbers of
// larger are not needed.
func outgrown(sizes map[string]limit, larger map[string]exception) (found []string) {
	for _, folder := range slices.Sorted(maps.Keys(sizes)) {
		size, most := sizes[folder], usual
		if l, ok := larger[folder]; ok {
			most = l.limit
			if size.lines <= usual.lines && size.names <= usual.names {
				found = append(found, folder+": is no larger than others any more; remove it from larger")
			}
		}
		if size.lines > most.lines {
			found = append(found, fmt.Sprintf("%s: has %d lines of code, and may have %d: split it", folder, size.lines, most.lines))
		}
		if size.names > most.names {
			found = append(found, fmt.Sprintf("%s: exports %d names, and may export %d", folder, size.names, most.names))
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(larger)) {
		if _, ok := sizes[folder]; !ok {
			found = append(found, folder+": is gone; remove it from larger")
		}
	}
	return found
}

func TestPresubmit(t *testing.T) {
	root := os.DirFS("..")
	sizes := make(map[string]limit)
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "bin" || name == "run" || entry.Name() == "testdata" || entry.Name() == "node_modules" || len(name) > 1 && strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case entry.IsDir() && slices.Contains([]string{"util", "utils", "common", "helpers", "misc", "pkg"}, entry.Name()):
			t.Errorf("%s: a package is named after the noun that it holds", name)
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
		for _, broken := range s.check() {
			t.Error(broken)
		}
		if !s.test {
			folder, size := path.Dir(name), s.size(text)
			sizes[folder] = limit{sizes[folder].lines + size.lines, sizes[folder].names + size.names}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(sizes) == 0 {
		t.Fatal("found no Go file: the test must run in its folder")
	}
	for _, broken := range outgrown(sizes, larger) {
		t.Error(broken)
	}
}

// Every rule finds what breaks it, and nothing else.
func TestPresubmitRules(t *testing.T) {
	for _, tc := range []struct {
		name, path, text string
		want             []string
	}{
		{
			"import from the right", "federation/wire/decode.go",
			"package wire\nimport (\n_ \"github.com/hamlet-federation/coredns-federation/federation\"\n_ \"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog\"\n)",
			[]string{"federation/wire/decode.go:4: federation/consumer/catalog is not to the left of federation/wire in the line of packages"},
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

func TestPresubmitSizes(t *testing.T) {
	for _, tc := range []struct {
		name, path, text string
		want             limit
	}{
		{"empty", "federation/a.go", "package federation", limit{1, 0}},
		{"comments and blank lines", "federation/a.go", "// Package federation.\npackage federation // it is\n\n/*\n\n*/\nvar a = 1 /*\n*/\n", limit{2, 0}},
		{"tokens of several lines", "federation/a.go", "package federation\n\nvar a = `\n\n` + `\n`\nvar b, c = 1,\n2", limit{7, 0}},
		{
			"exported names", "federation/a.go",
			"package federation\nfunc F() {}\nfunc f() {}\nfunc (T) M() {}\ntype T int\ntype (\nU int\nu int\n)\nvar V, v, W int\nconst C = 1",
			limit{11, 5},
		},
		{"test", "federation/a_test.go", "package federation\nfunc F() {}", limit{}},
		{"generated", "proto/a.go", "// Code generated by hand. DO NOT EDIT.\npackage proto\nfunc F() {}", limit{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := parse(tc.path, tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.size([]byte(tc.text)); got != tc.want {
				t.Errorf("size is %v, want %v", got, tc.want)
			}
		})
	}
}

func TestPresubmitOutgrown(t *testing.T) {
	larger := map[string]exception{
		"wire":  {limit{1000, 20}, "as large as it may be"},
		"zone":  {limit{1000, 20}, "larger"},
		"owner": {limit{1000, 20}, "small again"},
		"agent": {limit{1000, 20}, "gone"},
	}
	sizes := map[string]limit{
		"small": usual, "long": {usual.lines + 1, 0}, "wide": {0, usual.names + 1},
		"wire": {1000, 20}, "zone": {1001, 21}, "owner": usual,
	}
	want := []string{
		"long: has 801 lines of code, and may have 800: split it",
		"owner: is no larger than others any more; remove it from larger",
		"wide: exports 16 names, and may export 15",
		"zone: has 1001 lines of code, and may have 1000: split it",
		"zone: exports 21 names, and may export 20",
		"agent: is gone; remove it from larger",
	}
	if diff := cmp.Diff(want, outgrown(sizes, larger)); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}
