package test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// document is one Markdown file of the repository. What is read of it is what the
// documents here use, and no more: headings with #, fences of three backticks,
// links in line. A library for Markdown would be a dependency for one test.
type document struct {
	path   string   // from the root of the repository, with slashes
	text   string   // the whole file
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
	d := &document{path: name, text: text}
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

// readDocuments reads all Markdown files of the repository.
var readDocuments = sync.OnceValues(func() (all []*document, err error) {
	root := os.DirFS("..")
	return all, fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && passedOver(name):
			return fs.SkipDir
		case path.Ext(name) != ".md":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		d, err := parseDocument(name, string(text))
		all = append(all, d)
		return err
	})
})

func documents(t testing.TB) []*document {
	t.Helper()
	all := must.Get(readDocuments())(t)
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

// TestDocumentNames looks for every name that a document links to the file that
// declares it: functions, types, methods, fields, constants and variables.
func TestDocumentNames(t *testing.T) {
	found := 0
	check := func(where, file, name string) {
		found++
		text := string(must.Get(os.ReadFile("../" + file))(t))
		of, member, isMember := strings.Cut(name, ".")
		declared := `(?m)^(func |type |var |const |\t)` + of + `\b`
		if isMember { // a method, or a field at the begin of a line
			declared = `(?m)^(func \((\w+ )?\*?` + of + `(\[.*?\])?\) |\t)` + member + `\b`
		}
		if !regexp.MustCompile(declared).MatchString(text) {
			t.Errorf("%s: %s does not declare %s", where, file, name)
		}
	}
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
			}
		}
		for _, at := range goName.FindAllStringSubmatchIndex(d.prose, -1) {
			if name := d.prose[at[2]:at[3]]; !strings.HasSuffix(name, ".go") { // see goFile
				file, _ := d.target(d.prose[at[4]:at[5]])
				check(fmt.Sprintf("%s:%d", d.path, d.lineOf(at[0])), file, name)
			}
		}
	}
	if found < 60 {
		t.Errorf("only %d names were found", found)
	}
}

// TestDocumentPackages checks that docs/architecture.md has every package of the library
// and of the plugin, and none that is gone.
func TestDocumentPackages(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `((?:federation|internal|plugin)[a-z0-9/]*)` \\| [^|]* \\|(.*)\\|$")
	var documented, packages []string
	for _, match := range row.FindAllStringSubmatch(documentAt(t, "docs/architecture.md").prose, -1) {
		if match[1] != "internal" && match[1] != "internal/dns" { // which are folders of packages
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
// TestExamples, and the commands of federationctl are checked where it is.
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
	}
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

var updateMetrics = flag.Bool("update-metrics", false, "write the metrics of all programs to docs/operating.md")

// TestDocumentedMetrics compares the metrics of docs/operating.md with those that are declared, which
// the programs show with the same words as HELP. No document names a metric that there is not.
func TestDocumentedMetrics(t *testing.T) {
	const page = "docs/operating.md"
	text := documentAt(t, page).text
	for _, program := range []struct{ source, prefix, label string }{
		{"plugin/metrics.go", "coredns_federation_", "owner"},
		{"cmd/federationctl/serve/metrics/metrics.go", "federation_owner_", "catalog"},
		{"cmd/federationctl/serve/metrics/import.go", "federation_import_", "owner"},
	} {
		declared := declaredMetrics(t, program.source, program.prefix, program.label)
		if len(declared) < 10 {
			t.Errorf("only %d metrics were found in %s", len(declared), program.source)
		}
		named := regexp.MustCompile(`\b` + program.prefix + `[a-z_]+`)
		for _, d := range documents(t) {
			for _, name := range named.FindAllString(d.whole(), -1) {
				if declared[name] == "" {
					t.Errorf("%s has the metric %s, which %s does not declare", d.path, name, program.source)
				}
			}
		}
		var want strings.Builder
		for _, name := range slices.Sorted(maps.Keys(declared)) {
			want.WriteString(declared[name])
		}
		block := regexp.MustCompile("(?s)(```text\n)" + program.prefix + ".*?(```)")
		if *updateMetrics {
			text = block.ReplaceAllLiteralString(text, "```text\n"+want.String()+"```")
			must.Do(t, os.WriteFile("../"+page, []byte(text), 0o600))
		} else if diff := gocmp.Diff("```text\n"+want.String()+"```", block.FindString(text)); diff != "" {
			t.Errorf("metrics (-%s +%s); if that is meant, run the test with -update-metrics:\n%s", program.source, page, diff)
		}
	}
}

// declaredMetrics returns what a page says of each metric that a file of Go declares: name, labels
// and help. All metrics have a label in common, but those of the process.
func declaredMetrics(t *testing.T, source, prefix, label string) map[string]string {
	t.Helper()
	declared := make(map[string]string)
	literal := func(e ast.Expr) string {
		if l, ok := e.(*ast.BasicLit); ok {
			return must.Get(strconv.Unquote(l.Value))(t)
		}
		return ""
	}
	add := func(name, help string, labels ...string) {
		if name == "" || help == "" {
			t.Fatalf("%s declares %q with the help %q", source, name, help)
		}
		if len(labels) > 0 {
			name += "{" + strings.Join(labels, ", ") + "}"
		}
		key, _, _ := strings.Cut(name, "{")
		declared[prefix+key] = prefix + name + "\n" + printable.WrapText("    "+help, 120, "    ") + "\n"
	}
	file := must.Get(parser.ParseFile(token.NewFileSet(), "../"+source, nil, 0))(t)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit: // the options of a histogram
			fields := make(map[string]string)
			for _, e := range n.Elts {
				if pair, ok := e.(*ast.KeyValueExpr); ok {
					fields[fmt.Sprint(pair.Key)] = literal(pair.Value)
				}
			}
			if fields["Name"] != "" {
				add(fields["Name"], fields["Help"])
			}
		case *ast.CallExpr:
			switch function := n.Fun.(type) {
			case *ast.Ident: // counter(name, help, labels...)
				if function.Name != "counter" {
					break
				}
				labels := []string{label}
				for _, e := range n.Args[2:] {
					labels = append(labels, literal(e))
				}
				add(literal(n.Args[0]), literal(n.Args[1]), labels...)
			case *ast.SelectorExpr:
				switch function.Sel.Name {
				case "Gauge", "Flag", "Time", "Count": // scrape.Gauge(name, help, value, label, value, ...)
					if len(n.Args) < 3 {
						break
					}
					var labels []string
					if fmt.Sprint(function.X) == "to" { // that of an owner or a catalog
						labels = []string{label}
					}
					for pair := range slices.Chunk(n.Args[3:], 2) {
						labels = append(labels, literal(pair[0]))
					}
					add(literal(n.Args[0]), literal(n.Args[1]), labels...)
				}
			}
		}
		return true
	})
	return declared
}

// whole returns the prose and the blocks.
func (d *document) whole() string {
	text := d.prose
	for _, b := range d.blocks {
		text += b.text
	}
	return text
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

// TestExampleConfigurations checks the configurations of owners and importers among the examples, and
// those in the documents, which begin with the name of the file.
func TestExampleConfigurations(t *testing.T) {
	found := map[string]int{}
	check := func(where, file, text string) {
		found[file]++
		var problems, warnings []problem.Problem
		if file == "import.yaml" {
			_, problems, warnings = config.CheckImport([]byte(text))
		} else {
			_, problems, warnings = config.Check([]byte(text))
		}
		if len(problems)+len(warnings) > 0 {
			t.Errorf("%s has the problems %v and the warnings %v", where, problems, warnings)
		}
	}
	for _, file := range []string{"owner.yaml", "import.yaml"} {
		for _, name := range must.Get(filepath.Glob("../corefile-examples/*/" + file))(t) {
			check(name, file, string(must.Get(os.ReadFile(name))(t)))
		}
		for _, d := range documents(t) {
			for _, b := range d.blocks {
				if strings.HasPrefix(b.text, "# "+file+"\n") {
					check(fmt.Sprintf("%s:%d", d.path, b.line), file, b.text)
				}
			}
		}
	}
	if found["owner.yaml"] < 5 || found["import.yaml"] < 2 {
		t.Errorf("only these were found: %v", found)
	}
}

// pronoun is a word that a reader can only understand with the sentence before.
var pronoun = regexp.MustCompile(`(?i)^(?:\*\*)?(?:it|they|these|this|those)\b`)

// TestSentencesNameTheirSubject finds text without a sentence before that begins with a word which
// stands for something else: behind a heading, in a bullet or in a cell of a table. There readers
// begin to read, and do not know who it is.
func TestSentencesNameTheirSubject(t *testing.T) {
	t.Parallel()
	bullet := regexp.MustCompile(`^(?:[*-]|[0-9]+\.) +`)
	for _, d := range documents(t) {
		begins := false // the next text is the first below its heading
		for i, line := range strings.Split(d.prose, "\n") {
			line = strings.TrimSpace(line)
			if line == "" {
				continue
			}
			var parts []string
			switch mark := bullet.FindString(line); {
			case heading.MatchString(line):
				begins = true
				continue
			case strings.HasPrefix(line, "|"):
				parts = strings.Split(line, "|")
			case mark != "" || begins:
				parts = []string{line[len(mark):]}
			}
			begins = false
			for _, part := range parts {
				if part = strings.TrimSpace(part); pronoun.MatchString(part) {
					t.Errorf("%s:%d: name what is meant: %q", d.path, i+1, part)
				}
			}
		}
	}
}

// TestPagesAreShort holds how much a reader has to read: words outside of blocks, and lines of the
// README.
func TestPagesAreShort(t *testing.T) {
	t.Parallel()
	words := func(d *document) int { return len(strings.Fields(d.prose)) }
	var all int
	for _, d := range documents(t) {
		if d.path == "README.md" || path.Dir(d.path) == "docs" || strings.HasPrefix(d.path, "cmd/") || strings.HasPrefix(d.path, "deploy/") {
			all += words(d)
		}
	}
	if all > 28000 {
		t.Errorf("the pages have %d words, and may have 28,000", all)
	}
	for name, most := range map[string]int{"CHANGELOG.md": 400, "test/README.md": 1500} {
		if n := words(documentAt(t, name)); n > most {
			t.Errorf("%s has %d words, and may have %d", name, n, most)
		}
	}
	if n := strings.Count(documentAt(t, "README.md").text, "\n"); n > 200 {
		t.Errorf("the README has %d lines, and may have 200", n)
	}
}
