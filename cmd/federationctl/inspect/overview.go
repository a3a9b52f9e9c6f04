package inspect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// Overview is a process at a glance: what it consists of, the worst first.
type Overview struct {
	Title string
	Level status.Level // of the process
	Says  []string     // sentences that sum it up
	Rows  []status.TableRow
	kind  string // what most rows are
	now   time.Time
}

// SaysSame reports whether two overviews say the same, but for times and numbers.
func (o *Overview) SaysSame(other *Overview) bool {
	return o.Level == other.Level && slices.EqualFunc(o.Rows, other.Rows, func(a, b status.TableRow) bool {
		return a.Level == b.Level && a.Name == b.Name && a.State == b.State
	})
}

// NewOverview returns the overview of a status.
func NewOverview(s *status.Status) *Overview {
	judged := s.Judge()
	o := &Overview{Level: judged.Level, Rows: s.Rows(), kind: "OWNER", now: s.Now}
	for _, f := range judged.Findings {
		o.Says = append(o.Says, safetext.Printable(f.Says))
	}
	what := "CoreDNS with federation"
	switch s.Role {
	case status.Consumer:
	case status.Importer:
		what, o.kind = "federationctl import", "CLUSTER, OWNER"
	default:
		what, o.kind = "federationctl serve", "CATALOG, SOURCE"
	}
	o.Title = fmt.Sprintf("%s %s, running for %s: %s", what, safetext.Printable(s.Version), status.FormatSpan(s.Now.Sub(s.Began)), o.Level)
	return o
}

// mostExplained is how many rows are explained below a table.
const mostExplained = 3

// FormatTable returns the overview as text: a table, and what to do about its first rows. Lines
// break between words at width.
func (o *Overview) FormatTable(width int, colours bool) string {
	lines := []string{printable.WrapText(o.Title, width, "")}
	if len(o.Rows) == 0 {
		for _, says := range o.Says {
			lines = append(lines, printable.WrapText(says, width, ""))
		}
		return strings.Join(lines, "\n") + "\n"
	}
	rows := make([][]string, len(o.Rows))
	for i, r := range o.Rows {
		since := "-"
		if !r.Since.IsZero() {
			since = status.FormatSpan(o.now.Sub(r.Since))
		}
		rows[i] = []string{r.Level.String(), r.Name, r.State, since, status.FormatNumber(r.Services), r.Note}
	}
	lines = append(lines, "")
	for i, line := range printable.FormatTable([]string{"LEVEL", o.kind, "STATE", "FOR", " SERVICES", "NOTE"}, rows, width) {
		if colours && i > 0 {
			level := o.Rows[i-1].Level
			line = levelColour(level) + level.String() + "\x1b[0m" + strings.TrimPrefix(line, level.String())
		}
		lines = append(lines, line)
	}
	return strings.Join(append(lines, o.explainRows(width)...), "\n") + "\n"
}

// countUnwell returns how many rows are not well. They are the first.
func (o *Overview) countUnwell() int {
	if n := slices.IndexFunc(o.Rows, func(r status.TableRow) bool { return r.Level == status.Well }); n >= 0 {
		return n
	}
	return len(o.Rows)
}

// explainRows returns what there is to say of the first rows, with what to do.
func (o *Overview) explainRows(width int) (lines []string) {
	bad := o.countUnwell()
	for _, r := range o.Rows[:min(bad, mostExplained)] {
		lines = append(lines, "", fmt.Sprintf("%s: %s", r.Name, r.State))
		for i, f := range r.Findings {
			lines = append(lines, printable.WrapText("  "+f.Says, width, "    "))
			if todo := r.Advice(i); todo != "" {
				lines = append(lines, printable.WrapText("  to do: "+safetext.Printable(todo), width, "    "))
			}
		}
	}
	if more := bad - mostExplained; more > 0 {
		lines = append(lines, "", status.FormatNumber(more)+" more: 'federationctl status -o json' shows everything")
	}
	return lines
}

// levelColour returns what has a terminal show a level in its colour: green, yellow or red, as
// ECMA-48 has them in section 8.3.117.
func levelColour(l status.Level) string { return [...]string{"\x1b[32m", "\x1b[33m", "\x1b[31m"}[l] }

// The exit codes of a check beside those of the levels, as in the guidelines of the
// Monitoring Plugins project: nobody answers is critical, as the process is what is to be
// monitored; unknown is a check that is called in a wrong way, or asks something else.
const (
	Critical = int(status.Act)
	Unknown  = 3
)

// FormatCheck returns the overview for a monitoring system: a line with a word for the level and
// performance data, one for each thing that is not well, and the exit code.
func (o *Overview) FormatCheck() (text string, code int) {
	var of [3]int
	for _, r := range o.Rows {
		of[r.Level]++
	}
	says := strings.Join(o.Says, " ")
	if says == "" {
		says = "nothing is configured"
	}
	text = CheckLine(int(o.Level), says) + fmt.Sprintf(" | act=%d;;0;0 look=%d;0;;0 well=%d;;;0\n", of[status.Act], of[status.Look], of[status.Well])
	const most = 20
	lines := []string{text}
	for _, r := range o.Rows[:min(o.countUnwell(), most)] {
		lines = append(lines, withoutPipes(fmt.Sprintf("%s: %s is %s: %s\n", r.Level, r.Name, r.State, r.Note)))
	}
	return strings.Join(lines, ""), int(o.Level)
}

// CheckLine returns the first line of a check, without performance data.
func CheckLine(code int, says string) string {
	return "FEDERATION " + [...]string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}[code] + " - " + withoutPipes(says)
}

// withoutPipes returns a text without the character that begins performance data.
func withoutPipes(text string) string { return strings.ReplaceAll(text, "|", "/") }
