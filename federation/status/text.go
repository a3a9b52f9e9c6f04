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

	"github.com/hamlet-federation/coredns-federation/federation"
)

// The bounds of what is shown. What is beyond them is counted.
const (
	maxShown = 20   // entries of a list
	maxLine  = 2048 // bytes of a line
	maxWord  = 320  // bytes of a name, an address or an ID: longer than any that is valid
)

//go:embed why.tmpl
var whyText string

// text is what is shown at one time.
type text struct{ now time.Time }

// lines returns what the template makes of an explanation. Every line is printable ASCII of
// bounded length, whatever it is made of: what peers send passes through plain, word or quote.
func (t text) lines(of explained) (lines []string) {
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
		"judge": t.judge, "first": first, "more": more,
		"at": t.at, "since": t.since, "next": t.next, "serial": serial, "count": Count, "counts": counts,
		"plain": federation.Printable, "quote": federation.Quote, "word": Word, "words": words, "catalog": CatalogName,
		"also": also, "records": records, "rdata": rdata, "kind": kind, "cause": cause, "contains": strings.Contains,
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

// judge says how a source is.
func (t text) judge(s Source) *Judgement { return new(s.Judge(t.now)) }

// first returns the entries of a slice, or of a map with text as keys, that are shown.
func first(list any) any {
	v := reflect.ValueOf(list)
	if v.Len() <= maxShown {
		return list
	}
	if of, ok := list.(map[string]string); ok {
		some := make(map[string]string)
		for _, key := range slices.Sorted(maps.Keys(of))[:maxShown] {
			some[key] = of[key]
		}
		return some
	}
	return v.Slice(0, maxShown).Interface()
}

// more says how many entries are not shown, if there are any.
func more(list any, noun string) string {
	if rest := reflect.ValueOf(list).Len() - maxShown; rest > 0 {
		return fmt.Sprintf("and %s more %s", Number(rest), nouns(rest, noun))
	}
	return ""
}

// at says when something was or will be: the age, and the time in UTC. It is empty for no time.
func (t text) at(when time.Time) string {
	if when.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s (%s)", Age(t.now, when), clock(when))
}

// since says since when something is so; nothing if that is not known.
func (t text) since(when time.Time) string {
	if when.IsZero() {
		return ""
	}
	return fmt.Sprintf("since %s (%s)", clock(when), Span(t.now.Sub(when)))
}

// next says behind something else when the next attempt is; nothing if there is none.
func (t text) next(when time.Time) string {
	if when.IsZero() {
		return ""
	}
	return "; " + Next(t.now, when)
}

// Next says when the next attempt is.
func Next(now, when time.Time) string {
	if d := when.Sub(now); d > 0 {
		return "next attempt in " + Span(max(d, time.Second))
	}
	return "next attempt now"
}

// clock returns a time in UTC, in seconds.
func clock(when time.Time) string { return when.UTC().Format("2006-01-02 15:04:05 UTC") }

// Span returns a duration rounded as people do: 4:57 is 5 min.
func Span(d time.Duration) string {
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

// Octets returns a size in the largest unit that fits.
func Octets(n int64) string {
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

// Word returns a name, an address or an ID as it is, without the dot at its end, or
// quoted where it has anything that these do not have.
func Word(s string) string {
	odd := func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }
	if s == "" || len(s) > maxWord || strings.ContainsFunc(s, odd) {
		return federation.Quote(s)
	}
	if short := strings.TrimSuffix(s, "."); short != "" && !strings.HasSuffix(short, "/") {
		return short
	}
	return s
}

// words returns a list of words, or how many there are beside the first.
func words(list []string) string {
	var shown []string
	for _, s := range list[:min(len(list), maxShown)] {
		shown = append(shown, Word(s))
	}
	if rest := len(list) - len(shown); rest > 0 {
		shown = append(shown, fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(shown, ", ")
}

// counts returns numbers with what they count, in the order of that.
func counts(of map[string]int) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		if len(parts) == maxShown {
			parts = append(parts, fmt.Sprintf("and %d more", len(of)-maxShown))
			break
		}
		parts = append(parts, Word(key)+" "+Number(of[key]))
	}
	return strings.Join(parts, ", ")
}

// CatalogName returns the name of a catalog as a reader knows it.
func CatalogName(serverName string) string {
	if serverName == "" {
		return "(default)"
	}
	return Word(serverName)
}

// serial returns the serial of a zone, if it has one.
func serial(n uint32) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", serial %d", n)
}

// cause returns how a service went, as a clause.
func cause(word string) string {
	said, known := map[string]string{
		"withdrawn": "was withdrawn by the owner",
		"absent":    "was missing from a catalog that was complete, and went",
		"expired":   "expired, as its owner was lost for longer than retention,",
		"excluded":  "was excluded by the configuration of this side",
		"moved":     "moved to another fqdn",
		"unproven":  "was restored from a part of a file, and went when the file was read anew,",
	}[word]
	if !known {
		return "went (" + federation.Printable(word) + ")"
	}
	return said
}
