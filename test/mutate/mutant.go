package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// mutant is one fault: a piece of one source file is replaced by another text.
type mutant struct {
	source   int    // index of the file in its package
	from, to int    // octets of the file that are replaced
	text     string // what stands there instead

	position string // file:line, as the report shows it
	function string // where it is: Type.Method, a function, or the name of a variable or constant
	diff     string // the changed lines, before and after
}

// apply returns the source text with the fault in it. The number of its lines
// stays the same.
func (m *mutant) apply(text []byte) []byte {
	lines := bytes.Count(text[m.from:m.to], []byte("\n"))
	return slices.Concat(text[:m.from], []byte(m.text), bytes.Repeat([]byte("\n"), lines), text[m.to:])
}

// describe sets the diff.
func (m *mutant) describe(text []byte) {
	first := bytes.LastIndexByte(text[:m.from], '\n') + 1
	last := len(text)
	if i := bytes.IndexByte(text[m.to:], '\n'); i >= 0 {
		last = m.to + i
	}
	var diff strings.Builder
	show := func(sign, lines string) {
		for line := range strings.Lines(lines) {
			if line = strings.TrimSpace(line); line != "" {
				fmt.Fprintf(&diff, "\t%s %s\n", sign, line)
			}
		}
	}
	show("-", string(text[first:last]))
	show("+", string(text[first:m.from])+m.text+string(text[m.to:last]))
	m.diff = diff.String()
}

// key identifies a mutant as long as the changed lines stay the same, wherever in
// the function they are.
func (m *mutant) key(pkg string) string { return pkg + " " + m.function + "\n" + m.diff }

// sample returns the mutants in the order in which they are tried. The place of a
// mutant depends on nothing but the seed and its key.
func (p *pkg) sample(seed uint64) []mutant {
	type ranked struct {
		rank [sha256.Size]byte
		mutant
	}
	list := make([]ranked, len(p.mutants))
	for i, m := range p.mutants {
		list[i] = ranked{sha256.Sum256(binary.BigEndian.AppendUint64([]byte(m.key(p.name)), seed)), m}
	}
	slices.SortStableFunc(list, func(a, b ranked) int { return bytes.Compare(a.rank[:], b.rank[:]) })
	sample := make([]mutant, len(list))
	for i, r := range list {
		sample[i] = r.mutant
	}
	return sample
}
