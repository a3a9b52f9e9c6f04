package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// The bounds of what is shown. What is beyond them is counted.
const (
	maxShown = 20   // entries of a list
	maxLine  = 2048 // bytes of a line
	maxWord  = 320  // bytes of a name, an address or an ID: longer than any that is valid
)

// text is a text that grows line by line. Every line is printable ASCII of bounded
// length, whatever it is made of.
type text struct {
	now   time.Time
	lines []string
}

// addf adds a line, indented by so many steps.
func (t *text) addf(depth int, format string, args ...any) {
	line := strings.Repeat("  ", depth) + fmt.Sprintf(format, args...)
	if len(line) > maxLine {
		line = line[:maxLine-3] + "..."
	}
	t.lines = append(t.lines, line)
}

// more adds how many of n entries are not shown, if there are any.
func (t *text) more(depth, n int, noun string) {
	if n > maxShown {
		t.addf(depth, "and %d more %s", n-maxShown, noun)
	}
}

// at says when something was or will be: the age, and the time in UTC.
func (t *text) at(when time.Time) string {
	if d := t.now.Sub(when); d >= 0 {
		return fmt.Sprintf("%s ago (%s)", Span(d), clock(when))
	}
	return fmt.Sprintf("in %s (%s)", Span(when.Sub(t.now)), clock(when))
}

// since says since when something is so.
func (t *text) since(when time.Time) string {
	return fmt.Sprintf("since %s (%s)", clock(when), Span(t.now.Sub(when)))
}

// next says behind something else when the next attempt is; nothing if there is none.
func (t *text) next(when time.Time) string {
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

// Span returns a duration in the two largest units that say enough.
func Span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		if rest := d % time.Hour / time.Minute; rest > 0 {
			return fmt.Sprintf("%d h %d min", d/time.Hour, rest)
		}
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
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

// count returns a number with its noun, in the plural unless n is 1.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// word returns a name, an address or an ID as it is, without the dot at its end, or
// quoted where it has anything that these do not have.
func word(s string) string {
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
		shown = append(shown, word(s))
	}
	if rest := len(list) - len(shown); rest > 0 {
		shown = append(shown, fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(shown, ", ")
}

// plain returns a sentence, which may repeat what a peer says.
func plain(s string) string { return problem.Printable(s) }

// counts returns numbers with what they count, in the order of that.
func counts(of map[string]int) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		if len(parts) == maxShown {
			parts = append(parts, fmt.Sprintf("and %d more", len(of)-maxShown))
			break
		}
		parts = append(parts, fmt.Sprintf("%s %d", word(key), of[key]))
	}
	return strings.Join(parts, ", ")
}

// catalogName returns the name of a catalog as a reader knows it.
func catalogName(serverName string) string {
	if serverName == "" {
		return "(default)"
	}
	return word(serverName)
}

// rate says how often something happened.
func (t *text) rate(r Rate) string {
	s := fmt.Sprintf("%d in the last minute, %d in the last hour", r.LastMinute, r.LastHour)
	if !r.Last.IsZero() {
		s += ", the last " + t.at(r.Last)
	}
	return s
}

// refused adds what was refused, newest first.
func (t *text) refused(depth int, by string, refusals []Refusal) {
	for _, r := range refusals[:min(len(refusals), maxShown)] {
		s := "refused " + t.at(r.At)
		if r.Consumer != "" {
			s += " by consumer " + word(r.Consumer)
		} else {
			s += by
		}
		s += ":"
		if r.Service != "" {
			s += " service " + federation.Quote(r.Service)
		}
		if r.FQDN != "" {
			s += fmt.Sprintf(" (%s)", word(r.FQDN))
		}
		if r.Field != "" {
			s += ", field " + word(r.Field)
		}
		if r.Reason != "" {
			s += ", reason " + word(r.Reason)
		}
		t.addf(depth, "%s: %s", s, plain(cmp.Or(r.Rule, "no rule is given")))
	}
	t.more(depth, len(refusals), "refusals")
}

// gone adds what was there and is no more, newest first.
func (t *text) gone(depth int, gone []Gone) {
	for _, g := range gone[:min(len(gone), maxShown)] {
		t.addf(depth, "service %s (%s) %s %s", federation.Quote(g.Service), word(g.FQDN), cause(g.Cause), t.at(g.At))
	}
	t.more(depth, len(gone), "services that are gone")
}

// cause returns how a service went, as a clause.
func cause(word string) string {
	switch word {
	case "withdrawn":
		return "was withdrawn by the owner"
	case "absent":
		return "was missing from a catalog that was complete, and went"
	case "expired":
		return "expired, as its owner was lost for longer than retention,"
	case "excluded":
		return "was excluded by the configuration of this side"
	case "moved":
		return "moved to another fqdn"
	case "unproven":
		return "was restored from a part of a file, and went when the file was read anew,"
	}
	return "went (" + plain(word) + ")"
}
