// Package problem describes what is wrong with a file that someone wrote by hand, such
// as a catalog or a list of identities: in lines that can be logged and shown,
// whatever stands in the file, and in no more of them than anybody reads.
//
// It reads YAML as well: into a struct by its tags, as a [Document]; or by [ValueOf] as one of the
// types that encoding/json has. Both report all problems, and resolve no aliases. They are our
// own, as the decoder of the YAML package ends a struct at its first unknown key, compares
// each key of a mapping with each other one and has an error for each pair of equal ones,
// and does not bound what aliases of long texts expand to.
package problem

import (
	"errors"
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with a file, or is probably not meant.
type Problem struct {
	Line    int    // in the file, from 1; the nearest that is known, 0 for the whole file
	Service string // name in quotes, or place such as services[2] when it has none; empty in files without services
	Field   string // path below the service, such as endpoints[0].port
	Rule    string // what is wrong
}

// String returns the service, the field and the rule: all but the line.
func (p Problem) String() string {
	text := p.Rule
	if p.Field != "" {
		text = p.Field + ": " + text
	}
	if p.Service != "" {
		text = "service " + p.Service + ": " + text
	}
	return text
}

// Room is how many problems of a file are kept by default. One slip may cause
// millions.
const Room = 100

// List keeps as many problems as it has room for and counts the others.
type List struct {
	Room int
	Kept []Problem
	More int
}

// IsFull reports whether the list has no room, so that Add only counts.
func (l *List) IsFull() bool { return len(l.Kept) >= l.Room }

// Add keeps the problem, or counts it.
func (l *List) Add(p Problem) {
	if l.IsFull() {
		l.More++
	} else {
		l.Kept = append(l.Kept, p)
	}
}

// maxSpelledOut bounds the problems that one error or one log line spells out.
const maxSpelledOut = 5

// Error returns an error with the text of Summary, or nil when there are no problems.
func Error(problems []Problem, more int) error {
	if len(problems) == 0 {
		return nil
	}
	return errors.New(Summary(problems, more))
}

// FormatLines returns a text for each problem, with its line.
func FormatLines(problems []Problem) (lines []string) {
	for _, p := range problems {
		text := p.String()
		if p.Line > 0 {
			text = fmt.Sprintf("line %d: %s", p.Line, text)
		}
		lines = append(lines, text)
	}
	return lines
}

// Summary returns a text with the first few problems and the number of the others. More is how many
// problems there are, at least, beside those given.
func Summary(problems []Problem, more int) string {
	parts := FormatLines(problems[:min(len(problems), maxSpelledOut)])
	switch rest := len(problems) - len(parts) + more; {
	case more > 0:
		parts = append(parts, fmt.Sprintf("and at least %d more", rest))
	case rest > 0:
		parts = append(parts, fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(parts, "; ")
}
