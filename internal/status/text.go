package status

import (
	_ "embed" // the templates
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// The bounds of what is shown. What is beyond them is counted.
const (
	maxShown = 20   // entries of a list
	maxLine  = 2048 // bytes of a line
	maxWord  = 320  // bytes of a name, an address or an ID: longer than any that is valid
)

//go:embed why.tmpl
var whyText string

// textRenderer renders texts as they read at one time.
type textRenderer struct{ now time.Time }

// renderLines returns the lines that the template makes of an explanation. Every line is printable
// ASCII of bounded length: text of peers passes through the functions plain, word or quote.
func (t textRenderer) renderLines(of explainedAnswer) (lines []string) {
	var all *template.Template
	execute := func(name string, data any) (string, error) {
		var b strings.Builder
		err := all.ExecuteTemplate(&b, name, data)
		return b.String(), err
	}
	all = template.Must(template.New("").Funcs(template.FuncMap{
		"indent": func(name string, data any) (string, error) { // all lines but the first
			s, err := execute(name, data)
			return strings.ReplaceAll(s, "\n", "\n  "), err
		},
		"judge": t.judgeSource, "first": firstShown, "more": describeRest,
		"at": t.formatTime, "since": t.formatSince, "next": func(when time.Time) string { return FormatNext(t.now, when) }, "serial": formatSerial, "count": CountNoun, "counts": joinCounts,
		"plain": safetext.Printable, "quote": safetext.Quote, "word": PrintableWord, "words": joinWords, "catalog": CatalogName,
		"also": furtherRecords, "records": formatRecords, "rdata": recordData, "kind": describeKind, "cause": describeCause, "contains": strings.Contains,
	}).Parse(whyText))
	s, err := execute("why", of)
	if err != nil {
		panic(errors.Join(errors.New("a template and what it shows do not fit"), err))
	}
	for line := range strings.SplitSeq(s, "\n") {
		line = strings.TrimRight(line, " ")
		if len(line) > maxLine {
			line = line[:maxLine-3] + "..."
		}
		if line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// judgeSource returns the judgement of a source.
func (t textRenderer) judgeSource(s CatalogSource) *Judgement { return new(s.Judge(t.now)) }

// firstShown returns the first maxShown entries of a slice.
func firstShown(list any) any {
	v := reflect.ValueOf(list)
	if v.Len() <= maxShown {
		return list
	}
	return v.Slice(0, maxShown).Interface()
}

// describeRest returns how many entries are not shown, or "" when all are.
func describeRest(list any, noun string) string {
	if rest := reflect.ValueOf(list).Len() - maxShown; rest > 0 {
		return fmt.Sprintf("and %s more %s", FormatNumber(rest), nounFor(rest, noun))
	}
	return ""
}

// formatTime returns the age of a time, and the time in UTC, or "" for no time.
func (t textRenderer) formatTime(when time.Time) string {
	if when.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s (%s)", FormatAge(t.now, when), formatClock(when))
}

// formatSince returns a clause with the time since when something is so, or "" when that is not
// known.
func (t textRenderer) formatSince(when time.Time) string {
	if when.IsZero() {
		return ""
	}
	return fmt.Sprintf("since %s (%s)", formatClock(when), FormatSpan(t.now.Sub(when)))
}

// FormatNext returns when the next attempt is, or "" when there is none.
func FormatNext(now, when time.Time) string {
	switch d := when.Sub(now); {
	case when.IsZero():
		return ""
	case d > 0:
		return "next attempt in " + FormatSpan(max(d, time.Second))
	}
	return "next attempt now"
}

// formatClock returns a time in UTC, to the second.
func formatClock(when time.Time) string { return when.UTC().Format("2006-01-02 15:04:05 UTC") }

// FormatSpan returns a duration, rounded as people round: 4:57 is 5 min.
func FormatSpan(d time.Duration) string {
	d = max(d, 0)
	seconds, minutes := d.Round(time.Second), d.Round(time.Minute)
	switch {
	case seconds < time.Minute:
		return fmt.Sprintf("%d s", seconds/time.Second)
	case minutes < time.Hour:
		return fmt.Sprintf("%d min", minutes/time.Minute)
	case minutes < 48*time.Hour && minutes%time.Hour > 0:
		return fmt.Sprintf("%d h %d min", minutes/time.Hour, minutes%time.Hour/time.Minute)
	case minutes < 48*time.Hour:
		return fmt.Sprintf("%d h", minutes/time.Hour)
	}
	return fmt.Sprintf("%d days", d.Round(24*time.Hour)/(24*time.Hour))
}

// FormatOctets returns a size in the largest unit that fits.
func FormatOctets(n int64) string {
	const unit = 1024
	switch {
	case n < unit:
		return fmt.Sprintf("%d B", n)
	case n < unit*unit:
		return fmt.Sprintf("%.1f KiB", float64(n)/unit)
	case n < unit*unit*unit:
		return fmt.Sprintf("%.1f MiB", float64(n)/(unit*unit))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(unit*unit*unit))
}

// PrintableWord returns a name, an address or an ID without the dot at its end, or in quotes when
// it is empty, too long or has characters that none of these has.
func PrintableWord(s string) string {
	odd := func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }
	if s == "" || len(s) > maxWord || strings.ContainsFunc(s, odd) {
		return safetext.Quote(s)
	}
	if short := strings.TrimSuffix(s, "."); short != "" && !strings.HasSuffix(short, "/") {
		return short
	}
	return s
}

// joinWords returns a list of words, or the first ones and how many more there are.
func joinWords(list []string) string {
	var shown []string
	for _, s := range list[:min(len(list), maxShown)] {
		shown = append(shown, PrintableWord(s))
	}
	if rest := len(list) - len(shown); rest > 0 {
		shown = append(shown, fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(shown, ", ")
}

// joinCounts returns the keys with their counts, in the order of the keys.
func joinCounts(of map[string]int) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		if len(parts) == maxShown {
			parts = append(parts, fmt.Sprintf("and %d more", len(of)-maxShown))
			break
		}
		parts = append(parts, PrintableWord(key)+" "+FormatNumber(of[key]))
	}
	return strings.Join(parts, ", ")
}

// CatalogName returns the name of a catalog for readers, also of the one without a server name.
func CatalogName(serverName string) string {
	if serverName == "" {
		return "(default)"
	}
	return PrintableWord(serverName)
}

// formatSerial returns the serial of a zone, or "" when the zone has none.
func formatSerial(n uint32) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", serial %d", n)
}

// describeCause returns how a service went, as a clause.
func describeCause(word string) string {
	said, known := map[string]string{
		"withdrawn": "was withdrawn by the owner",
		"absent":    "was missing from a complete catalog and was removed",
		"expired":   "expired, because its owner was lost for longer than the retention,",
		"excluded":  "was excluded by the configuration of this side",
		"moved":     "moved to another fqdn",
		"unproven":  "was restored from a part of a file, and was removed when the whole file was read,",
	}[word]
	if !known {
		return "went (" + safetext.Printable(word) + ")"
	}
	return said
}
