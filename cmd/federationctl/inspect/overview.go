package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// Overview is a process at a glance: what it consists of, the worst first.
type Overview struct {
	Title string
	Level status.Level // of the process
	Says  []string     // sentences that sum it up
	Rows  []Row
	kind  string // what most rows are
}

// Same reports whether two overviews say the same, but for times and numbers.
func (o *Overview) Same(other *Overview) bool {
	return o.Level == other.Level && slices.EqualFunc(o.Rows, other.Rows, func(a, b Row) bool {
		return a.Level == b.Level && a.Name == b.Name && a.State == b.State
	})
}

// Row is an owner that is followed or, at an owner, a catalog, one of its sources or, if
// there is something to say of it, the process.
type Row struct {
	Level    status.Level
	Name     string
	State    string
	Since    string // for how long, if that is known
	Services string
	Note     string // a few words
	of       string // the owner or the catalog, of which it is the row
	findings []status.Finding
	failure  string
	left     string // how long its records stay
}

// NewOverview returns the overview of a status.
func NewOverview(s *status.Status) *Overview {
	judged := s.Judge()
	o := &Overview{Level: judged.Level, kind: "OWNER", Title: "CoreDNS with federation"}
	for _, f := range judged.Findings {
		o.Says = append(o.Says, federation.Printable(f.Says))
	}
	for i := range s.Owners {
		o.Rows = append(o.Rows, ownerRow(&s.Owners[i], s.Now))
	}
	if s.Role != status.Consumer {
		o.published(s)
	}
	slices.SortStableFunc(o.Rows, func(a, b Row) int { return cmp.Compare(b.Level, a.Level) })
	o.Title += fmt.Sprintf(" %s, running for %s: %s", federation.Printable(s.Version), status.Span(s.Now.Sub(s.Began)), o.Level)
	return o
}

// ownerRow returns the row of an owner that is followed.
func ownerRow(u *status.FollowedOwner, now time.Time) Row {
	judged := u.Judge(now, false)
	r := Row{
		Level: judged.Level, Name: plain(u.ID), of: plain(u.ID), State: plain(u.State), Since: span(now, u.Since),
		Services: status.Number(u.Services), findings: judged.Findings,
	}
	if u.Failure != "" {
		r.failure = federation.Printable(u.Failure)
	}
	if left, _ := u.Left(now); left > 0 && u.CertificateError == "" { // which is to be mended first
		r.left = "records go in " + status.Span(left)
	}
	r.Note = cmp.Or(r.failure, note(judged))
	return r
}

// published adds what an owner consists of.
func (o *Overview) published(s *status.Status) {
	o.kind, o.Title = "CATALOG, SOURCE", "federationctl serve"
	if s.Publisher != nil {
		if judged := s.Publisher.Judge(s.Now); judged.Level > status.Well {
			o.Rows = append(o.Rows, Row{Level: judged.Level, Name: "this owner", State: judged.Findings[0].State, Note: note(judged), findings: judged.Findings})
		}
	}
	for i := range s.Catalogs {
		c := &s.Catalogs[i]
		name := catalogName(c.Name)
		judged, state := c.Judge(s.Now)
		streams := 0
		for _, n := range c.Consumers {
			streams += n
		}
		o.Rows = append(o.Rows, Row{
			Level: judged.Level, Name: "catalog " + name, of: name, State: state, Services: status.Number(c.Services),
			Note: cmp.Or(note(judged), status.Count(streams, "consumer")), findings: judged.Findings,
		})
		of := ""
		if len(s.Catalogs) > 1 {
			of = " of " + name
		}
		for j := range c.Sources {
			source := &c.Sources[j]
			judged := source.Judge(s.Now)
			o.Rows = append(o.Rows, Row{
				Level: judged.Level, Name: "source " + plain(source.Name) + of, State: plain(source.State), Since: span(s.Now, source.Since),
				Services: status.Number(source.Services), Note: note(judged), findings: judged.Findings,
			})
		}
	}
}

// note returns the first that there is to say.
func note(v status.Judgement) string {
	if len(v.Findings) == 0 {
		return ""
	}
	return federation.Printable(v.Findings[0].Says)
}

// span returns for how long something is so; nothing if that is not known.
func span(now, since time.Time) string {
	if since.IsZero() {
		return ""
	}
	return status.Span(now.Sub(since))
}

// mostExplained is how many rows are explained below a table.
const mostExplained = 3

// Table returns the overview as text: a table, and what to do about its first rows. Lines
// break between words at width.
func (o *Overview) Table(width int, colours bool) string {
	lines := []string{printable.Wrap(o.Title, width, "")}
	if len(o.Rows) == 0 {
		for _, says := range o.Says {
			lines = append(lines, printable.Wrap(says, width, ""))
		}
		return strings.Join(lines, "\n") + "\n"
	}
	rows := make([][]string, len(o.Rows))
	for i, r := range o.Rows {
		text := r.left
		if i >= min(o.bad(), mostExplained) { // otherwise it stands below
			text = cmp.Or(text, r.Note)
		}
		rows[i] = []string{r.Level.String(), r.Name, r.State, cmp.Or(r.Since, "-"), cmp.Or(r.Services, "-"), text}
	}
	lines = append(lines, "")
	columns := printable.Columns{Titles: []string{"LEVEL", o.kind, "STATE", "FOR", " SERVICES", "NOTE"}, Width: width}
	for i, line := range columns.Lines(rows) {
		if colours && i > 0 {
			level := o.Rows[i-1].Level
			line = colour(level) + level.String() + "\x1b[0m" + strings.TrimPrefix(line, level.String())
		}
		lines = append(lines, line)
	}
	return strings.Join(append(lines, o.explained(width)...), "\n") + "\n"
}

// bad returns how many rows are not well. They are the first.
func (o *Overview) bad() int {
	if n := slices.IndexFunc(o.Rows, func(r Row) bool { return r.Level == status.Well }); n >= 0 {
		return n
	}
	return len(o.Rows)
}

// explained returns what there is to say of the first rows, with what to do.
func (o *Overview) explained(width int) (lines []string) {
	bad := o.bad()
	for _, r := range o.Rows[:min(bad, mostExplained)] {
		lines = append(lines, "", fmt.Sprintf("%s: %s", r.Name, r.State))
		if r.failure != "" {
			lines = append(lines, printable.Wrap("  no stream: "+r.failure, width, "    "))
		}
		for i, f := range r.findings {
			lines = append(lines, printable.Wrap("  "+federation.Printable(f.Says), width, "    "))
			if i+1 == len(r.findings) || r.findings[i+1].Remedy != f.Remedy {
				lines = append(lines, printable.Wrap("  to do: "+federation.Printable(f.Remedy), width, "    "))
			}
		}
	}
	if more := bad - mostExplained; more > 0 {
		lines = append(lines, "", status.Number(more)+" more: 'federationctl status --details' says all")
	}
	return lines
}

// colour returns what has a terminal show a level in its colour: green, yellow or red, as
// ECMA-48 has them in section 8.3.117.
func colour(l status.Level) string { return [...]string{"\x1b[32m", "\x1b[33m", "\x1b[31m"}[l] }

// The exit codes of a check beside those of the levels, as in the guidelines of the
// Monitoring Plugins project: nobody answers is critical, as the process is what is to be
// monitored; unknown is a check that is called in a wrong way, or asks something else.
const (
	Critical = int(status.Act)
	Unknown  = 3
)

// Check returns the overview for a monitoring system: a line with a word for the level and
// performance data, one for each thing that is not well, and the exit code.
func (o *Overview) Check() (text string, code int) {
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
	for _, r := range o.Rows[:min(o.bad(), most)] {
		lines = append(lines, unpiped(fmt.Sprintf("%s: %s is %s: %s\n", r.Level, r.Name, r.State, cmp.Or(r.left, r.Note))))
	}
	return strings.Join(lines, ""), int(o.Level)
}

// CheckLine returns the first line of a check, without performance data.
func CheckLine(code int, says string) string {
	return "FEDERATION " + [...]string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}[code] + " - " + unpiped(says)
}

// unpiped returns a text without the character that begins performance data.
func unpiped(text string) string { return strings.ReplaceAll(text, "|", "/") }
