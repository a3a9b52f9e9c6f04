package test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/rules"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// document is one Markdown file of the repository. What is read of it is what the
// documents here use, and no more: headings with #, fences of three backticks,
// links in line. A library for Markdown would be a dependency for one test.
type document struct {
	path   string   // from the root of the repository, with slashes
	prose  string   // without fenced blocks; lines stay where they were
	blocks []block  // the fenced ones
	titles []string // of the headings, in order
}

// block is a fenced block of a document.
type block struct {
	line     int
	language string
	text     string
}

var (
	heading = regexp.MustCompile(`^#{1,6} +(.*)$`)
	fence   = regexp.MustCompile("^ *```(.*)$")
	link    = regexp.MustCompile("\\[((?:`[^`]*`|[^\\[\\]`])*)\\]\\(([^()\\s]*)\\)")
	code    = regexp.MustCompile("`[^`]*`")

	// goFile is a link to a file of Go, shown by its path, and the names behind
	// it: [`a/b.go`](../a/b.go) `Type.Method`, `function`.
	goFile = regexp.MustCompile("\\[`([^`]*\\.go)`\\]\\(([^()\\s]*)\\)((?:,?\\s+`[A-Za-z_][A-Za-z0-9_.]*`)*)")

	// goName is a name that is a link to the file that declares it:
	// [`Type.Method`](../a/b.go).
	goName = regexp.MustCompile("\\[`([A-Za-z_][A-Za-z0-9_.]*)`\\]\\(([^()\\s]*\\.go)\\)")
)

func parseDocument(name, text string) (*document, error) {
	d := &document{path: name}
	lines := strings.Split(text, "\n")
	open := -1 // the line at which a fenced block begins
	for i, line := range lines {
		mark := fence.FindStringSubmatch(line)
		switch {
		case mark != nil && open < 0:
			open = i
			d.blocks = append(d.blocks, block{line: i + 1, language: strings.TrimSpace(mark[1])})
		case mark != nil:
			open = -1
		case open >= 0:
			d.blocks[len(d.blocks)-1].text += line + "\n"
		default:
			if title := heading.FindStringSubmatch(line); title != nil {
				d.titles = append(d.titles, title[1])
			}
			d.prose += line
		}
		d.prose += "\n"
	}
	if open >= 0 {
		return nil, fmt.Errorf("%s:%d: the block does not end", name, open+1)
	}
	return d, nil
}

// documents returns all Markdown files of the repository.
func documents(t testing.TB) []*document {
	t.Helper()
	root := os.DirFS("..")
	var all []*document
	must.Do(t, fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "bin" || name == "run" || entry.Name() == "testdata" || entry.Name() == "node_modules" || len(name) > 1 && strings.HasPrefix(name, ".")):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".md":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		d, err := parseDocument(name, string(text))
		if err == nil {
			all = append(all, d)
		}
		return err
	}))
	if len(all) < 8 {
		t.Fatalf("found %d documents: the test must run in its folder", len(all))
	}
	return all
}

// documentAt returns one of the documents.
func documentAt(t testing.TB, name string) *document {
	t.Helper()
	for _, d := range documents(t) {
		if d.path == name {
			return d
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}

// lineOf returns the number of the line at an offset of the prose.
func (d *document) lineOf(offset int) int { return 1 + strings.Count(d.prose[:offset], "\n") }

// anchors returns the fragments of the headings, as GitHub makes them: lower case,
// hyphens for spaces, no other punctuation, and -1, -2, ... where a title repeats.
func (d *document) anchors() []string {
	var anchors []string
	seen := make(map[string]int)
	for _, title := range d.titles {
		title = link.ReplaceAllString(title, "$1")
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', 'a' <= r && r <= 'z', '0' <= r && r <= '9', r > 0x7f:
				return r
			}
			return -1
		}, strings.ToLower(title))
		n := seen[anchor]
		if seen[anchor]++; n > 0 {
			anchor += "-" + strconv.Itoa(n)
		}
		anchors = append(anchors, anchor)
	}
	return anchors
}

// target returns the path of the file that a relative link leads to, from the
// root of the repository, and the fragment.
func (d *document) target(to string) (file, fragment string) {
	file, fragment, _ = strings.Cut(to, "#")
	if file == "" {
		return d.path, fragment
	}
	return path.Join(path.Dir(d.path), file), fragment
}

// TestDocumentLinks follows every relative link, to its file and its heading.
func TestDocumentLinks(t *testing.T) {
	all := documents(t)
	anchors := make(map[string][]string)
	for _, d := range all {
		anchors[d.path] = d.anchors()
	}
	for _, d := range all {
		for _, at := range link.FindAllStringSubmatchIndex(d.prose, -1) {
			if strings.Count(d.prose[:at[0]], "`")%2 == 1 {
				continue // code that looks like a link
			}
			to := d.prose[at[4]:at[5]]
			if strings.HasPrefix(to, "https://") {
				continue
			}
			where := fmt.Sprintf("%s:%d: link to %q", d.path, d.lineOf(at[0]), to)
			file, fragment := d.target(to)
			if _, err := fs.Stat(os.DirFS(".."), file); err != nil {
				t.Errorf("%s: %v", where, err)
			} else if fragment != "" && !slices.Contains(anchors[file], fragment) {
				t.Errorf("%s: %s has no such heading; it has %v", where, file, anchors[file])
			}
		}
	}
}

// TestDocumentsAreReachable follows links from the README: every other document is
// two of them away at most, where a folder stands for the README in it.
func TestDocumentsAreReachable(t *testing.T) {
	all := documents(t)
	hops := map[string]int{"README.md": 0}
	for hop := range 2 {
		for _, d := range all {
			if n, reached := hops[d.path]; !reached || n != hop {
				continue
			}
			for _, match := range link.FindAllStringSubmatch(d.prose, -1) {
				file, _ := d.target(match[2])
				for _, to := range []string{file, path.Join(file, "README.md")} {
					if _, known := hops[to]; !known {
						hops[to] = hop + 1
					}
				}
			}
		}
	}
	for _, d := range all {
		if _, reached := hops[d.path]; !reached {
			t.Errorf("no two links lead from README.md to %s", d.path)
		}
	}
}

// TestDocumentNames looks for every name that a document links to the file that
// declares it: functions, types, methods, fields, constants and variables.
func TestDocumentNames(t *testing.T) {
	declared := make(map[string]map[string]bool)
	check := func(where, file, name string) {
		if declared[file] == nil {
			names, err := declarations("../" + file)
			if err != nil {
				t.Errorf("%s: %v", where, err)
			}
			declared[file] = names
		}
		if declared[file] != nil && !declared[file][name] {
			t.Errorf("%s: %s does not declare %s", where, file, name)
		}
	}
	found := 0
	for _, d := range documents(t) {
		for _, at := range goFile.FindAllStringSubmatchIndex(d.prose, -1) {
			where := fmt.Sprintf("%s:%d", d.path, d.lineOf(at[0]))
			shown := d.prose[at[2]:at[3]]
			file, _ := d.target(d.prose[at[4]:at[5]])
			if shown != file {
				t.Errorf("%s: the link shows %s and leads to %s", where, shown, file)
			}
			for _, name := range code.FindAllString(d.prose[at[6]:at[7]], -1) {
				check(where, file, strings.Trim(name, "`"))
				found++
			}
		}
		for _, at := range goName.FindAllStringSubmatchIndex(d.prose, -1) {
			name := d.prose[at[2]:at[3]]
			if strings.HasSuffix(name, ".go") {
				continue // see goFile
			}
			file, _ := d.target(d.prose[at[4]:at[5]])
			check(fmt.Sprintf("%s:%d", d.path, d.lineOf(at[0])), file, name)
			found++
		}
	}
	if found < 60 {
		t.Errorf("only %d names were found", found)
	}
}

// declarations returns what a file of Go declares: F, T, T.Method, T.Field, C, V.
func declarations(file string) (map[string]bool, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for _, decl := range parsed.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name := decl.Name.Name
			if decl.Recv != nil {
				name = receiver(decl.Recv.List[0].Type) + "." + name
			}
			names[name] = true
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				declareSpec(names, spec)
			}
		}
	}
	return names, nil
}

func declareSpec(names map[string]bool, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			names[name.Name] = true
		}
	case *ast.TypeSpec:
		names[spec.Name.Name] = true
		var fields *ast.FieldList
		switch t := spec.Type.(type) {
		case *ast.StructType:
			fields = t.Fields
		case *ast.InterfaceType:
			fields = t.Methods
		default:
			return
		}
		for _, field := range fields.List {
			for _, name := range field.Names {
				names[spec.Name.Name+"."+name.Name] = true
			}
		}
	}
}

// receiver returns the name of the type of a receiver.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// walkStep is a step of a walk: a numbered line that begins with a file and its
// functions.
var walkStep = regexp.MustCompile("(?m)^\\d+\\. (\\[`[^`]*\\.go`\\].*)$")

// TestDocumentWalks checks that each walk of the architecture document has eight steps at
// most and goes one way: no function is come to twice, and each step names one.
func TestDocumentWalks(t *testing.T) {
	text := documentAt(t, "docs/architecture.md").prose
	for _, title := range []string{"The way of an update", "The way of a query", "The way of a service from an owner"} {
		_, section, ok := strings.Cut(text, "## "+title+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		steps := walkStep.FindAllStringSubmatch(section, -1)
		if !ok || len(steps) < 5 || len(steps) > 8 {
			t.Errorf("%q has %d steps", title, len(steps))
		}
		seen := make(map[string]bool)
		for _, step := range steps {
			match := goFile.FindStringSubmatch(step[1])
			if match == nil || match[3] == "" {
				t.Errorf("%q: no function in the step %s", title, step[1])
				continue
			}
			for _, name := range code.FindAllString(match[3], -1) {
				if seen[match[1]+name] {
					t.Errorf("%q goes back to %s %s", title, match[1], name)
				}
				seen[match[1]+name] = true
			}
		}
	}
}

// TestDocumentPackages checks that docs/architecture.md has every package of the library
// and of the plugin, and none that is gone.
func TestDocumentPackages(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `((?:federation|internal|plugin)[a-z0-9/]*)` \\| [^|]* \\|(.*)\\|$")
	var documented, packages []string
	for _, match := range row.FindAllStringSubmatch(documentAt(t, "docs/architecture.md").prose, -1) {
		if match[1] != "internal" && match[1] != "federation/dns" { // which are folders of packages
			documented = append(documented, match[1])
		}
		for _, name := range code.FindAllString(match[2], -1) {
			documented = append(documented, match[1]+"/"+strings.Trim(name, "`"))
		}
	}
	for _, wing := range []string{"federation", "internal", "plugin"} {
		must.Do(t, filepath.WalkDir("../"+wing, func(name string, entry fs.DirEntry, err error) error {
			if err == nil && filepath.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go") && !strings.Contains(name, "testdata") {
				packages = append(packages, strings.TrimPrefix(filepath.ToSlash(filepath.Dir(name)), "../"))
			}
			return err
		}))
	}
	slices.Sort(packages)
	packages = slices.Compact(packages)
	slices.Sort(documented)
	if diff := gocmp.Diff(packages, documented); diff != "" {
		t.Errorf("packages of docs/architecture.md (-there are +it has):\n%s", diff)
	}
}

// prompt is what stands before a command: $, or that of a machine, such as owner$.
var prompt = regexp.MustCompile(`^[a-z]*\$ `)

// languages are those that a fenced block may be in. Go is not among them: it
// belongs into the examples of a package, which are compiled and run.
var languages = []string{"console", "corefile", "ini", "sh", "text", "txt", "yaml"}

// TestDocumentBlocks checks that every fenced block says what it is in, and that
// commands in it, and in line, name what exists. What a Corefile says is checked by
// TestExamples, and the commands of federationctl's README are run by its tests.
func TestDocumentBlocks(t *testing.T) {
	t.Parallel()
	targets := makeTargets(t)
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			where := fmt.Sprintf("%s:%d", d.path, b.line)
			if !slices.Contains(languages, b.language) {
				t.Errorf("%s: the language of the block is %q, not one of %v", where, b.language, languages)
			}
			if b.language != "sh" && b.language != "console" {
				continue
			}
			text := strings.ReplaceAll(b.text, "\\\n", " ")
			for line := range strings.SplitSeq(text, "\n") {
				checkCommand(t, where, prompt.ReplaceAllString(line, ""), targets)
			}
		}
		for _, at := range code.FindAllStringIndex(d.prose, -1) {
			if command := strings.Trim(d.prose[at[0]:at[1]], "`"); strings.Contains(command, " ") {
				checkCommand(t, fmt.Sprintf("%s:%d", d.path, d.lineOf(at[0])), command, targets)
			}
		}
	}
}

// checkCommand checks the words of a command that can be looked up.
func checkCommand(t *testing.T, where, command string, targets []string) {
	t.Helper()
	command, _, _ = strings.Cut(command, " #")
	words := strings.Fields(command)
	if len(words) == 0 {
		return
	}
	switch words[0] {
	case "make":
		for _, word := range words[1:] {
			if !strings.Contains(word, "=") && !slices.Contains(targets, word) {
				t.Errorf("%s: there is no `make %s`", where, word)
			}
		}
	case "go":
		for _, word := range words[1:] {
			if !strings.HasPrefix(word, "./") {
				continue
			}
			if _, err := os.Stat("../" + strings.TrimSuffix(word, "...")); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		}
	case "federationctl", "bin/federationctl":
		if len(words) > 1 {
			checkFlags(t, where, words[1:])
		}
	}
}

// checkFlags checks a command of federationctl, and its flags.
func checkFlags(t *testing.T, where string, words []string) {
	t.Helper()
	if strings.ToUpper(words[0]) == words[0] {
		return // COMMAND, which stands for any
	}
	command := words[0]
	if len(words) > 1 && (command == "policy" || command == "pki" && (words[1] == "init" || words[1] == "issue")) {
		command += " " + words[1]
	}
	help, err := helpOf(command)
	if err != nil {
		t.Errorf("%s: federationctl %s: %v", where, command, err)
		return
	}
	for _, word := range words[1:] {
		flag, _, _ := strings.Cut(strings.TrimRight(word, ".,;"), "=")
		if flag == "|" {
			return
		}
		if strings.HasPrefix(flag, "--") && !slices.Contains(strings.Fields(help), flag) {
			t.Errorf("%s: federationctl %s has no flag %s", where, words[0], flag)
		}
	}
}

var helps = make(map[string]string)

// helpOf returns what a command of federationctl says of itself.
func helpOf(command string) (string, error) {
	if helps[command] == "" {
		program, err := federationctl()
		if err != nil {
			return "", err
		}
		out, err := exec.Command(program, append(strings.Fields(command), "--help")...).CombinedOutput()
		if err != nil {
			return "", err
		}
		if !strings.Contains(string(out), "federationctl "+command) {
			return "", errors.New("there is no such command")
		}
		helps[command] = string(out)
	}
	return helps[command], nil
}

// makeTargets returns the targets that `make` lists.
func makeTargets(t *testing.T) []string {
	t.Helper()
	makefile := must.Get(os.ReadFile("../Makefile"))(t)
	var targets []string
	for _, match := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):.*## `).FindAllStringSubmatch(string(makefile), -1) {
		targets = append(targets, match[1])
	}
	if len(targets) == 0 {
		t.Fatal("the Makefile has no targets with a caption")
	}
	return targets
}

// TestDocumentedMetrics compares the metrics that are documented with those that
// are declared, in both directions and for both programs.
func TestDocumentedMetrics(t *testing.T) {
	for _, program := range []struct {
		source, document string
		prefix           string // of the name
		name             *regexp.Regexp
	}{
		{
			"plugin/metrics.go", "docs/operating.md", "coredns_federation_",
			regexp.MustCompile(`(?:counter|gauge|histogram)\(\s*"([a-z_]+)"|Name: "([a-z_]+)"|Directive, "([a-z_]+)"\)`),
		},
		{
			"cmd/federationctl/serve/metrics/metrics.go", "docs/operating.md", "federation_owner_",
			regexp.MustCompile(`\.(?:gauge|count)\("([a-z_]+)"`),
		},
	} {
		source := must.Get(os.ReadFile("../" + program.source))(t)
		declared := make(map[string]bool)
		for _, match := range program.name.FindAllStringSubmatch(string(source), -1) {
			declared[program.prefix+match[1]+strings.Join(match[2:], "")] = true
		}
		if len(declared) < 10 {
			t.Errorf("only %d metrics were found in %s", len(declared), program.source)
		}
		text := regexp.MustCompile(`\b` + program.prefix + `[a-z_]+`)
		for _, d := range documents(t) {
			named := make(map[string]bool)
			for _, name := range text.FindAllString(d.whole(), -1) {
				named[name] = true
				if !declared[name] {
					t.Errorf("%s has the metric %s, which %s does not declare", d.path, name, program.source)
				}
			}
			if d.path != program.document {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(declared)) {
				if !named[name] {
					t.Errorf("%s does not have the metric %s", d.path, name)
				}
			}
		}
	}
}

// whole returns the prose and the blocks.
func (d *document) whole() string {
	text := d.prose
	for _, b := range d.blocks {
		text += b.text
	}
	return text
}

// TestDocumentedValues checks that the values of the labels that have small sets are
// documented as the code has them.
func TestDocumentedValues(t *testing.T) {
	library, plugin := sources(t, "federation"), sources(t, "plugin")
	operating, symptoms := documentAt(t, "docs/operating.md").prose, documentAt(t, "docs/symptoms.md").prose
	section := func(text, from, to string) string {
		_, text, _ = strings.Cut(text, from)
		text, _, _ = strings.Cut(text, to)
		return text
	}
	reasons := regexp.MustCompile(`Reason[A-Za-z]+\s+Reason = "([a-z_]+)"`)
	faults := regexp.MustCompile(`= (?:subtree\.)?Fault\("([a-z_]+)"\)`)
	states := regexp.MustCompile(`"([a-z]+)"`)
	for _, of := range []struct {
		what, text, source string
		value              *regexp.Regexp
		least              int
	}{
		{"nacks_total in docs/operating.md", section(operating, "nacks_total{", "\n* "), library, reasons, 9},
		{"Conflicts in docs/symptoms.md", section(symptoms, "## Conflicts", "\n## "), library, faults, 6},
		{"owner_state in docs/operating.md", section(operating, "owner_state{", "\n* "), section(plugin, "var states =", "}"), states, 6},
		{"Owner states in docs/symptoms.md", section(symptoms, "## Owner states", "\n## "), section(plugin, "var states =", "}"), states, 6},
	} {
		values := of.value.FindAllStringSubmatch(of.source, -1)
		if len(values) < of.least {
			t.Errorf("%s: only %d values were found in the code", of.what, len(values))
		}
		for _, value := range values {
			if !strings.Contains(of.text, "`"+value[1]+"`") {
				t.Errorf("%s lacks %s", of.what, value[1])
			}
		}
	}
}

// sources returns the text of all files of Go below a folder, but for tests.
func sources(t *testing.T, folder string) string {
	t.Helper()
	var text strings.Builder
	root := os.DirFS("..")
	must.Do(t, fs.WalkDir(root, folder, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return err
		}
		content, err := fs.ReadFile(root, name)
		text.Write(content)
		return err
	}))
	return text.String()
}

// TestDocumentedRegistration compares the messages of registration, and the words by which
// it refuses, that docs/protocol.md has with those of the code.
func TestDocumentedRegistration(t *testing.T) {
	page := documentAt(t, "docs/protocol.md")
	documented := make(map[string]bool) // Message.field = number
	for _, b := range page.blocks {
		if !strings.HasPrefix(b.text, "RegisterRequest ") {
			continue
		}
		for _, message := range regexp.MustCompile(`(?m)^([A-Za-z]+) +(.*)$`).FindAllStringSubmatch(b.text, -1) {
			for _, field := range regexp.MustCompile(`([a-z_]+)=([0-9]+)`).FindAllStringSubmatch(message[2], -1) {
				documented[message[1]+"."+field[1]+" = "+field[2]] = true
			}
		}
	}
	declared := make(map[string]bool)
	messages := registrationv1.File_registration_v1_registration_proto.Messages()
	for i := range messages.Len() {
		m := messages.Get(i)
		if name := string(m.Name()); name == "Stored" || strings.HasPrefix(name, "List") {
			continue // no provider sees them
		}
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			declared[fmt.Sprintf("%s.%s = %d", m.Name(), f.Name(), f.Number())] = true
		}
	}
	if diff := gocmp.Diff(declared, documented); diff != "" {
		t.Errorf("messages (-declared +documented):\n%s", diff)
	}
	_, refusals, _ := strings.Cut(page.prose, "\n### Refusals\n")
	refusals, _, _ = strings.Cut(refusals, "\n### ")
	values := func(pattern, text string) []string {
		var found []string
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			found = append(found, match[1])
		}
		slices.Sort(found)
		return found
	}
	words := values(`(?m)^\t[A-Z][A-Za-z]+ += "([a-z-]+)"`, sources(t, "federation/source/registration/rules"))
	if diff := gocmp.Diff(words, values("(?m)^\\| `([a-z-]+)` \\|", refusals)); diff != "" {
		t.Errorf("refusals (-declared +documented):\n%s", diff)
	}
}

// TestDocumentedRules parses the rules of registration in the documents and the examples.
func TestDocumentedRules(t *testing.T) {
	texts := make(map[string]string)
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if b.language == "yaml" && regexp.MustCompile(`(?m)^rules:`).MatchString(b.text) {
				texts[fmt.Sprintf("%s:%d", d.path, b.line)] = b.text
			}
		}
	}
	example := func(name string) string {
		text := must.Get(os.ReadFile("../corefile-examples/registration/" + name))(t)
		return string(text)
	}
	texts["registrations.yaml of the example"] = example("registrations.yaml")
	if len(texts) < 3 {
		t.Errorf("only %d files of rules were found", len(texts))
	}
	for where, text := range texts {
		if _, problems := rules.Parse([]byte(text)); len(problems) > 0 {
			t.Errorf("%s: %v", where, problems)
		}
	}
}

// TestExampleOwners checks the configurations of owners among the examples.
func TestExampleOwners(t *testing.T) {
	names, err := filepath.Glob("../corefile-examples/*/owner.yaml")
	if err != nil || len(names) < 2 {
		t.Fatalf("only %d configurations were found: %v", len(names), err)
	}
	for _, name := range names {
		text := must.Get(os.ReadFile(name))(t)
		if _, problems, warnings := config.Check(text); len(problems)+len(warnings) > 0 {
			t.Errorf("%s has the problems %v and the warnings %v", name, problems, warnings)
		}
	}
}

// TestDocumentedProperties compares the properties that the README explains, and
// those in its syntax, with those that the parser takes.
func TestDocumentedProperties(t *testing.T) {
	_, properties, found := strings.Cut(sources(t, "plugin"), "switch property {\n")
	properties, _, _ = strings.Cut(properties, "\tdefault:\n")
	if !found {
		t.Fatal("the plugin has no switch over the properties")
	}
	readme := documentAt(t, "README.md")
	_, section, _ := strings.Cut(readme.prose, "\n## Syntax\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var syntax string
	for _, b := range readme.blocks {
		if strings.HasPrefix(b.text, "federation [ZONES...] {") {
			syntax = b.text
		}
	}
	names := func(pattern, text string) []string {
		var found []string
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			for name := range strings.SplitSeq(match[1], ",") {
				found = append(found, strings.Trim(name, " `\""))
			}
		}
		slices.Sort(found)
		return found
	}
	parsed := names(`(?m)^\tcase ("[a-z_]+"):$`, properties)
	_, suggested, _ := strings.Cut(sources(t, "plugin"), "var properties = []string{\n")
	suggested, _, _ = strings.Cut(suggested, "\n}")
	if diff := gocmp.Diff(parsed, names(`("[a-z_]+")`, suggested)); diff != "" {
		t.Errorf("properties that a mistake may have meant (-parser +list):\n%s", diff)
	}
	if diff := gocmp.Diff(parsed, names(`(?m)^    ([a-z_]+)`, syntax)); diff != "" {
		t.Errorf("properties in the syntax (-parser +README):\n%s", diff)
	}
	explained := names("(?m)^\\* (`[a-z_]+`(?:, `[a-z_]+`)*)", section)
	if diff := gocmp.Diff(parsed, explained); diff != "" {
		t.Errorf("properties that are explained (-parser +README):\n%s", diff)
	}
}

// manPage is the order of the sections of a CoreDNS plugin's README.
var manPage = []string{
	"Name", "Description", "Syntax", "Examples", "Metrics", "Ready", "Health", "Metadata", "Bugs", "See Also",
}

// TestManPage checks that the README of the plugin has the sections of one, in
// order.
func TestManPage(t *testing.T) {
	var found []string
	for _, title := range documentAt(t, "README.md").titles {
		if slices.Contains(manPage, title) {
			found = append(found, title)
		}
	}
	if diff := gocmp.Diff(manPage, found); diff != "" {
		t.Errorf("sections (-want +README):\n%s", diff)
	}
}

// The parser of documents finds what the tests above judge.
func TestParseDocument(t *testing.T) {
	d := must.Get(parseDocument("docs/a.md", "# A `b` c!\n\n[x\ny](../b.md#c) and [`f/g.go`](../f/g.go) `T.M`, `f`: z\n```sh\n# no title\n[no](link)\n```\n## A b c\n"))(t)
	if diff := gocmp.Diff([]string{"a-b-c", "a-b-c-1"}, d.anchors()); diff != "" {
		t.Errorf("anchors:\n%s", diff)
	}
	var links []string
	for _, match := range link.FindAllStringSubmatch(d.prose, -1) {
		file, fragment := d.target(match[2])
		links = append(links, file+"#"+fragment)
	}
	if diff := gocmp.Diff([]string{"b.md#c", "f/g.go#"}, links); diff != "" {
		t.Errorf("links:\n%s", diff)
	}
	match := goFile.FindStringSubmatch(d.prose)
	if diff := gocmp.Diff([]string{"`T.M`", "`f`"}, code.FindAllString(match[3], -1)); diff != "" {
		t.Errorf("names:\n%s", diff)
	}
	if len(d.blocks) != 1 || d.blocks[0].language != "sh" || d.blocks[0].line != 5 {
		t.Errorf("blocks are %+v", d.blocks)
	}
	if _, err := parseDocument("a.md", "```sh\n"); err == nil {
		t.Error("a block without an end is taken")
	}
}

// TestSupportedCoreDNS checks that docs/install.md lists the releases of CoreDNS that `make
// unmodified` builds: that of go.mod, and the newest of the two minor ones before it.
func TestSupportedCoreDNS(t *testing.T) {
	file := func(name string) string { return string(must.Get(os.ReadFile(filepath.Join("..", name)))(t)) }
	built := strings.Fields(regexp.MustCompile(`(?m)^COREDNS_RELEASES := (.*)$`).FindStringSubmatch(file("Makefile"))[1])
	var documented []string
	for _, row := range regexp.MustCompile(`(?m)^\| (v1\.[0-9.]+) \| (?:yes|no) \|$`).FindAllStringSubmatch(file("docs/install.md"), -1) {
		documented = append(documented, row[1])
	}
	if diff := gocmp.Diff(built, documented); diff != "" {
		t.Errorf("docs/install.md (-Makefile +page):\n%s", diff)
	}
	required := regexp.MustCompile(`github.com/coredns/coredns (v1\.([0-9]+)\.[0-9]+)\n`).FindStringSubmatch(file("go.mod"))
	newest := must.Get(strconv.Atoi(required[2]))(t)
	if len(built) != 3 || built[0] != required[1] {
		t.Errorf("COREDNS_RELEASES is %v: want three, and first %s, which go.mod has", built, required[1])
	}
	for i, version := range built {
		if minor := fmt.Sprintf("v1.%d.", newest-i); !strings.HasPrefix(version, minor) {
			t.Errorf("%s: want a release of %s*", version, minor)
		}
	}
}

// TestBinaryTellsItsModules does with a small program what SECURITY.md says about a binary.
func TestBinaryTellsItsModules(t *testing.T) {
	command := regexp.MustCompile("(?m)^go version -m ").FindString(documentAt(t, "SECURITY.md").whole())
	if command == "" {
		t.Fatal("SECURITY.md has no command to list the modules of a binary")
	}
	binary := filepath.Join(t.TempDir(), "lookup")
	run := func(args ...string) string {
		return string(must.Get(exec.CommandContext(t.Context(), args[0], args[1:]...).Output())(t))
	}
	run("go", "build", "-ldflags=-s -w", "-o", binary, "./kit/lookup") // as `make dist` builds
	listed := run(append(strings.Fields(command), binary)...)
	required := regexp.MustCompile(`github.com/miekg/dns (v\S+)\n`).FindStringSubmatch(string(must.Get(os.ReadFile("../go.mod"))(t)))
	if want := "\tdep\tgithub.com/miekg/dns\t" + required[1] + "\t"; !strings.Contains(listed, want) {
		t.Errorf("%s lacks %q:\n%s", command, want, listed)
	}
	if first, _, _ := strings.Cut(listed, "\n"); !strings.HasSuffix(first, ": "+runtime.Version()) {
		t.Errorf("%s begins with %q, without the version of Go", command, first)
	}
}
