package test

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// logLevels are the methods of a slog.Logger that write a line, with the words that
// docs/symptoms.md has for their levels.
var logLevels = map[string]string{"Debug": "debug", "Info": "info", "Warn": "warning", "Error": "error"}

// otherLevels are methods of loggers that this repository does not use, as their messages
// or levels could not be found.
var otherLevels = []string{
	"DebugContext", "InfoContext", "WarnContext", "ErrorContext", "Log", "LogAttrs", // of slog
	"Debugf", "Infof", "Warning", "Warningf", "Fatal", "Fatalf", // of CoreDNS
}

// logged is what the code logs.
type logged struct {
	lines map[string]bool // "level: message"
	keys  map[string]bool
	wrong []string // calls that may log what is not found
}

// logger reports whether an expression is called as a logger is in this repository: by its
// name, or as what With returns. The types are not looked at, as that takes a build; so a
// call that may be one of a logger with another name is wrong.
func logger(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return slices.Contains([]string{"log", "logger", "audit"}, x.Name)
	case *ast.SelectorExpr:
		return slices.Contains([]string{"log", "logger", "Logger"}, x.Sel.Name)
	case *ast.CallExpr:
		if with, ok := x.Fun.(*ast.SelectorExpr); ok {
			return with.Sel.Name == "With"
		}
		made, ok := x.Fun.(*ast.Ident)
		return ok && made.Name == "newLogger"
	}
	return false
}

// check notes what may be a call of a logger that call does not find.
func (l *logged) check(file *source, called map[*ast.SelectorExpr]*ast.CallExpr, method *ast.SelectorExpr) {
	_, writes := logLevels[method.Sel.Name]
	switch {
	case !writes && !slices.Contains(otherLevels, method.Sel.Name):
		return
	case file.imports(method.X) == "log/slog": // the default logger
	case file.imports(method.X) != "":
		return
	case called[method] == nil: // a method that is a value; Error may be a field
		if !logger(method.X) {
			return
		}
	case len(called[method].Args) == 0, writes && logger(method.X): // Error of an error
		return
	}
	l.wrong = append(l.wrong, fmt.Sprintf("%s:%d: not known to be a call of a logger, and not known to be none", file.path, file.line(method.Pos())))
}

// imports returns the path of the package that an expression names, or nothing.
func (s *source) imports(x ast.Expr) string {
	name, ok := x.(*ast.Ident)
	if !ok {
		return ""
	}
	for _, i := range s.Imports {
		of, _ := text(i.Path)
		if i.Name != nil && i.Name.Name == name.Name || i.Name == nil && path.Base(of) == name.Name {
			return of
		}
	}
	return ""
}

// read adds what the functions of a package log.
func (l *logged) read(files []*source) {
	for _, file := range files {
		for _, declaration := range file.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok || function.Body == nil || function.Recv != nil && function.Name.Name == "Handle" { // of a slog.Handler
				continue
			}
			called := make(map[*ast.SelectorExpr]*ast.CallExpr)
			ast.Inspect(function.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if method, ok := call.Fun.(*ast.SelectorExpr); ok {
						called[method] = call
					}
					l.call(files, file, function, call)
				}
				if method, ok := n.(*ast.SelectorExpr); ok {
					l.check(file, called, method)
				}
				if list, ok := n.(*ast.CompositeLit); ok { // attributes := []any{"key", value}
					l.list(list)
				}
				return true
			})
		}
	}
}

func (l *logged) call(files []*source, file *source, function *ast.FuncDecl, call *ast.CallExpr) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if name, isFunction := call.Fun.(*ast.Ident); isFunction && name.Name == "append" && len(call.Args) == 3 {
		if key, ok := text(call.Args[1]); ok && lists(call.Args[0]) {
			l.keys[key] = true
		}
		return
	}
	if ok && method.Sel.Name == "use" && len(call.Args) == 3 { // which hands attributes on
		if key, ok := text(call.Args[1]); ok {
			l.keys[key] = true
		}
	}
	if ok && len(call.Args) > 0 && file.imports(method.X) == "log/slog" {
		l.slog(file, method.Sel.Name, call)
		return
	}
	if !ok || len(call.Args) == 0 || !logger(method.X) {
		return
	}
	arguments := call.Args
	if level, writes := logLevels[method.Sel.Name]; writes {
		messages := messages(files, function, arguments[0])
		for _, message := range messages {
			l.lines[level+": "+message] = true
		}
		if len(messages) == 0 {
			l.literal(file, call)
		}
		arguments = arguments[1:]
	} else if method.Sel.Name != "With" {
		return
	}
	for i := 0; i < len(arguments); i += 2 {
		if key, ok := text(arguments[i]); ok {
			l.keys[key] = true
		}
	}
}

// slog takes a call of a function of log/slog: one that makes a line, or an attribute.
func (l *logged) slog(file *source, function string, call *ast.CallExpr) {
	switch function {
	case "NewRecord":
		if message, ok := text(call.Args[2]); ok {
			l.lines["of the line: "+message] = true // its level is that of another one
		} else {
			l.literal(file, call)
		}
	case "String", "Int", "Any", "Bool", "Duration", "Time":
		if key, ok := text(call.Args[0]); ok {
			l.keys[key] = true
		}
	}
}

// literal notes that the message of a call cannot be told.
func (l *logged) literal(file *source, call *ast.CallExpr) {
	l.wrong = append(l.wrong, fmt.Sprintf("%s:%d: the message is no literal: let it be one, and what differs be attributes", file.path, file.line(call.Pos())))
}

// lists reports whether attributes of a line are collected in a variable.
func lists(x ast.Expr) bool {
	name, ok := x.(*ast.Ident)
	return ok && (name.Name == "attributes" || name.Name == "origin")
}

func (l *logged) list(list *ast.CompositeLit) {
	of, ok := list.Type.(*ast.ArrayType)
	if !ok || len(list.Elts)%2 != 0 {
		return
	}
	if element, ok := of.Elt.(*ast.Ident); !ok || element.Name != "any" {
		return
	}
	for i := 0; i < len(list.Elts); i += 2 {
		if key, ok := text(list.Elts[i]); ok && regexp.MustCompile(`^[a-z_]+$`).MatchString(key) {
			l.keys[key] = true
		}
	}
}

// text returns the value of a literal.
func text(x ast.Expr) (string, bool) {
	literal, ok := x.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	value, err := strconv.Unquote(literal.Value)
	return value, err == nil
}

// messages returns the literals that an argument may be: it is one, a variable of the
// function that is set to literals only, or a parameter that every caller in the package
// gives as a literal.
func messages(files []*source, function *ast.FuncDecl, x ast.Expr) []string {
	if message, ok := text(x); ok {
		return []string{message}
	}
	name, ok := x.(*ast.Ident)
	if !ok {
		return nil
	}
	var found []string
	constant := true
	add := func(x ast.Expr) {
		message, ok := text(x)
		constant = constant && ok
		found = append(found, message)
	}
	ast.Inspect(function.Body, func(n ast.Node) bool {
		if set, ok := n.(*ast.AssignStmt); ok {
			for i, left := range set.Lhs {
				if to, ok := left.(*ast.Ident); ok && to.Name == name.Name && len(set.Rhs) == len(set.Lhs) {
					add(set.Rhs[i])
				}
			}
		}
		return true
	})
	index := parameter(function, name.Name)
	if index >= 0 {
		for _, file := range files {
			ast.Inspect(file.File, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) <= index {
					return true
				}
				if method, ok := call.Fun.(*ast.SelectorExpr); ok && method.Sel.Name == function.Name.Name {
					add(call.Args[index])
				}
				return true
			})
		}
	}
	if !constant {
		return nil
	}
	return found
}

// parameter returns the place of a parameter, or -1.
func parameter(function *ast.FuncDecl, name string) int {
	i := 0
	for _, field := range function.Type.Params.List {
		for _, of := range field.Names {
			if of.Name == name {
				return i
			}
			i++
		}
	}
	return -1
}

// TestDocumentedLogs compares the log lines of docs/symptoms.md, their levels, and the
// keys, with those of the code, in both directions.
func TestDocumentedLogs(t *testing.T) {
	code := &logged{lines: make(map[string]bool), keys: make(map[string]bool)}
	packages := make(map[string][]*source)
	for _, folder := range []string{"federation", "internal", "plugin", "cmd"} {
		must.Do(t, fs.WalkDir(os.DirFS(".."), folder, func(name string, _ fs.DirEntry, err error) error {
			if err != nil || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return err
			}
			content, err := os.ReadFile("../" + name)
			if err != nil {
				return err
			}
			file, err := parse(name, content)
			if err == nil {
				packages[path.Dir(name)] = append(packages[path.Dir(name)], file)
			}
			return err
		}))
	}
	for _, folder := range slices.Sorted(maps.Keys(packages)) {
		if !strings.HasSuffix(folder, "test") {
			code.read(packages[folder])
		}
	}
	for _, call := range code.wrong {
		t.Error(call)
	}
	if len(code.lines) < 100 || len(code.keys) < 50 {
		t.Errorf("only %d lines and %d keys were found", len(code.lines), len(code.keys))
	}

	documented := &logged{lines: make(map[string]bool), keys: make(map[string]bool)}
	_, section, _ := strings.Cut(documentAt(t, "docs/symptoms.md").prose, "\n## Log lines\n")
	section, _, _ = strings.Cut(section, "\n## ")
	level := ""
	for _, row := range regexp.MustCompile("(?m)^(?:\\*\\*(debug|info|warning|error|of the line)\\*\\*|\\* `([^`]+)`.*)$").FindAllStringSubmatch(section, -1) {
		if row[1] != "" {
			level = row[1]
		} else {
			documented.lines[level+": "+row[2]] = true
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| ((?:`[a-z_]+`(?:, )?)+) \\| [^|]+\\|$").FindAllStringSubmatch(section, -1) {
		for _, key := range regexp.MustCompile("[a-z_]+").FindAllString(row[1], -1) {
			documented.keys[key] = true
		}
	}
	if diff := gocmp.Diff(code.lines, documented.lines); diff != "" {
		t.Errorf("lines (-code +docs/symptoms.md):\n%s", diff)
	}
	if diff := gocmp.Diff(code.keys, documented.keys); diff != "" {
		t.Errorf("keys (-code +docs/symptoms.md):\n%s", diff)
	}
}

// TestExplainedNames looks up in docs/symptoms.md, docs/operating.md and the README of federationctl
// the log lines and metrics that explanations send a reader to.
func TestExplainedNames(t *testing.T) {
	files := must.Get(os.ReadDir("../federation/status"))(t)
	prose := documentAt(t, "docs/symptoms.md").prose + documentAt(t, "docs/operating.md").prose + documentAt(t, "cmd/federationctl/README.md").prose
	found := 0
	for _, entry := range files {
		if path.Ext(entry.Name()) != ".go" || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		content := must.Get(os.ReadFile("../federation/status/" + entry.Name()))(t)
		for _, line := range regexp.MustCompile(`log: \\"([^\\"]+)\\"`).FindAllStringSubmatch(string(content), -1) {
			if found++; !strings.Contains(prose, "* `"+line[1]+"`") {
				t.Errorf("%s: docs/symptoms.md has no log line %q", entry.Name(), line[1])
			}
		}
		for _, metric := range regexp.MustCompile(`\b(?:coredns_federation|federation_owner)_[a-z_]+`).FindAllString(string(content), -1) {
			if found++; !strings.Contains(prose, "`"+metric) {
				t.Errorf("%s: no document has the metric %s", entry.Name(), metric)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d log lines and metrics were found", found)
	}
}
