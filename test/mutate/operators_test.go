package main

import (
	"go/importer"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// packageOf returns a package of one file, with its mutants.
func packageOf(t *testing.T, text string) *pkg {
	t.Helper()
	p := &pkg{path: "p", name: "p", fset: token.NewFileSet(), imports: importer.ForCompiler(token.NewFileSet(), "source", nil)}
	file, err := parser.ParseFile(p.fset, "p.go", text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	p.sources = []source{{path: "p.go", text: []byte(text), file: file}}
	if err := p.mutate(); err != nil {
		t.Fatal(err)
	}
	return p
}

// changes returns what the mutants that compile make of their line.
func changes(p *pkg) []string {
	var list []string
	for _, m := range p.mutants {
		if p.compiles(m) {
			var after []string
			for line := range strings.Lines(m.diff) {
				if line, ok := strings.CutPrefix(line, "\t+ "); ok {
					after = append(after, strings.TrimSpace(line))
				}
			}
			list = append(list, strings.Join(after, " "))
		}
	}
	slices.Sort(list)
	return list
}

// TestOperators has a row for each operator. The last line of a source is the one
// that is mutated.
func TestOperators(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"less", "func f(a, b int) bool {\nreturn a < b }", []string{"return a <= b }", "return a >= b }"}},
		{"less or equal", "func f(a, b int) bool {\nreturn a <= b }", []string{"return a < b }", "return a > b }"}},
		{"greater", "func f(a, b int) bool {\nreturn a > b }", []string{"return a <= b }", "return a >= b }"}},
		{"greater or equal", "func f(a, b int) bool {\nreturn a >= b }", []string{"return a < b }", "return a > b }"}},
		{"equal", "func f(a, b int) bool {\nreturn a == b }", []string{"return a != b }"}},
		{"not equal", "func f(a, b int) bool {\nreturn a != b }", []string{"return a == b }"}},
		{"and", "func f(a, b bool) bool {\nreturn a && b }", []string{"return a || b }"}},
		{"or", "func f(a, b bool) bool {\nreturn a || b }", []string{"return a && b }"}},
		{"not", "func f(a bool) bool {\nreturn !a }", []string{"return a }"}},
		{"arithmetic", "func f(a, b int) (c int) {\nc = a + b*b; return }", []string{
			"; return }", "c = a + b/b; return }", "c = a - b*b; return }",
		}},
		{"remainder and shift", "func f(a uint) (b uint) {\nb = a % a << a; return }", []string{
			"; return }", "b = a % a >> a; return }", "b = a * a << a; return }",
		}},
		{"bits", "func f(a, b uint) (c uint) {\nc = a&b | b; return }", []string{
			"; return }", "c = a&b & b; return }", "c = a|b | b; return }",
		}},
		{"concatenation has no opposite", "func f(a, b string) (c string) {\nc = a + b; return }", []string{"; return }"}},
		{"assignment with an operator", "func f(a int) int {\na += a; return a }", []string{"; return a }", "a += a; return 0 }", "a -= a; return a }"}},
		{"increment", "func f(a int) {\na++ }", []string{"a-- }", "}"}},
		{"constant", "func f() (a int) {\na = 7; return }", []string{"; return }", "a = 8; return }"}},
		{"constant of a package", "const c = 1 << 4\nvar _ = c", nil},
		{"parts of a constant", "\nconst c = 1 << 4", []string{"const c = 1 << 5", "const c = 2 << 4"}},
		{"text and float stay", "func f() (a string, b float64) {\na, b = `x`, 1.5; return }", []string{"; return }"}},
		{"true and false", "func f() (a, b bool) {\na, b = true, false; return }", []string{
			"; return }", "a, b = false, false; return }", "a, b = true, true; return }",
		}},
		{"condition", "func f(a bool) {\nif a { _ = a } }", []string{"if !(a) { _ = a } }", "if a {  } }"}},
		{"condition of a loop", "func f(a func() bool) {\nfor a() { } }", []string{"for !(a()) { } }"}},
		{"condition with an operator", "func f(a bool) int {\nfor !a { }; return 1 }", []string{
			"for !a { }; return 0 }", "for !a { }; return 2 }", "for a { }; return 1 }",
		}},
		{"body and else", "func f(a bool, g func()) {\nif a { g(); g() } else { g(); return } }", []string{
			"if !(a) { g(); g() } else { g(); return } }", "if a { ; g() } else { g(); return } }",
			"if a { g();  } else { g(); return } }", "if a { g(); g() } else { ; return } }", "if a { g(); g() } else { g();  } }",
			"if a { g(); g() } else {} }", "if a {} else { g(); return } }",
		}},
		{"case", "func f(a int, g func()) {\nswitch a { case a: g(); g(); default: g() } }", []string{
			"switch a { case a:; default: g() } }", "switch a { case a: ; g(); default: g() } }",
			"switch a { case a: g(); ; default: g() } }", "switch a { case a: g(); g(); default:  } }",
		}},
		{"statement", "func f(g func(), c chan int) {\ng(); go g(); defer g(); c <- 0 }", []string{
			"; go g(); defer g(); c <- 0 }", "g(); ; defer g(); c <- 0 }", "g(); go g(); ; c <- 0 }", "g(); go g(); defer g();  }", "g(); go g(); defer g(); c <- 1 }",
		}},
		{"branches", "func f(a []int) {\nfor range a { continue }; for range a { break }; return }", []string{
			"for range a {  }; for range a { break }; return }", "for range a { continue }; for range a {  }; return }", "for range a { continue }; for range a { break };  }",
		}},
		{"results", "type s struct{ a int }\nfunc f(a int, b string, c *s, d []int, e s, g error, h bool) (int, string, *s, []int, s, error, bool) {\nreturn a, b, c, d, e, g, h }", []string{
			"return 0, b, c, d, e, g, h }", `return a, "", c, d, e, g, h }`, "return a, b, c, d, e, g, !(h) }", "return a, b, c, d, e, nil, h }",
			"return a, b, c, d, s{}, g, h }", "return a, b, c, nil, e, g, h }", "return a, b, nil, d, e, g, h }",
		}},
		{"results that are zero", "type s struct{ a int }\nfunc f() (string, *s, s) {\nreturn ``, nil, s{} }", nil},
		{"texts for people", "import (\"errors\"; \"fmt\"; \"log/slog\")\nfunc f(l *slog.Logger) error { l.Info(`x`, `n`, 1); _ = errors.New(`x`); _ = fmt.Errorf(`x`)\nreturn fmt.Errorf(`%d`, 1+1) }", []string{"return nil }"}},
		{"sizes that save an allocation", "func f(n int) (a []int, b map[int]int) {\na, b = make([]int, 0, n+1), make(map[int]int, n+1); return }", []string{
			"; return }", "a, b = make([]int, 1, n+1), make(map[int]int, n+1); return }",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := packageOf(t, "package p\n"+tt.text)
			last := strings.Count("package p\n"+tt.text, "\n") + 1
			p.mutants = slices.DeleteFunc(p.mutants, func(m mutant) bool { return !strings.HasSuffix(m.position, ":"+strconv.Itoa(last)) })
			slices.Sort(tt.want)
			if diff := cmp.Diff(tt.want, changes(p)); diff != "" {
				t.Errorf("mutants (-want +got):\n%s", diff)
			}
		})
	}
}
