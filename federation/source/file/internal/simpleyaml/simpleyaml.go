// Package simpleyaml reads the part of YAML, and of JSON, in which programs and people
// write most catalogs: mappings with simple keys, lists, and texts of printable ASCII
// on one line. Whatever is beyond that, or wrong, is not told apart: a [Reader] then
// says only that it cannot read the text, and the caller gives it to a decoder of the
// whole language.
//
// It is our own, as the decoder of YAML takes ten times as long: it makes a node of
// each text, with its comments and its place, which only those need who look for a
// mistake.
package simpleyaml

import "strings"

// maxKey bounds keys, in bytes. YAML has no limit for those of other kinds, and one of
// 1024 characters for simple keys.
const maxKey = 512

// Reader reads one text. Who knows what the text should say asks for it value by
// value, and the Reader reports whether the text has such a value next. When it has
// said no once, there is no way on.
type Reader struct {
	text string
	json bool
	pos  int // of what comes next

	// In block style a value may begin on the line of its key or dash, or on the next.

	line   bool // whether pos is at the first character of a line behind its indentation
	indent int  // of that line
	start  int  // of the current line in text
	outer  int  // the indentation of the collection around the value
	flow   int  // how many brackets are open
	dash   bool // whether the value follows a dash on its line
}

// Item returns a Reader for the one element of a block sequence that begins with the
// dash in column indent.
func Item(text string, indent int) (Reader, bool) {
	r := Reader{text: text, pos: indent, outer: indent}
	if strings.TrimLeft(text[:min(indent, len(text))], " ") != "" || !r.skip('-') || !r.skip(' ') {
		return r, false
	}
	r.dash = true
	r.spaces()
	return r, !r.lineEnds()
}

// JSON returns a Reader for a value, which must be valid JSON.
func JSON(text string) Reader {
	r := Reader{text: text, json: true}
	r.spaces()
	return r
}

// Mapping reads a mapping. It calls value behind each key, which reads the value.
func (r *Reader) Mapping(value func(key string) bool) bool {
	if r.skip('{') {
		return r.sequence('}', func() bool {
			key, ok := r.key()
			if ok && r.json {
				r.spaces()
			}
			return ok && r.skip(':') && (r.json || r.at() == ' ') && r.forward() && value(key)
		})
	}
	if r.json || r.flow > 0 {
		return false
	}
	column := r.pos - r.start
	if !r.dash {
		if !r.nextLine() || r.indent <= r.outer {
			return false
		}
		column = r.indent
	}
	outer := r.outer
	for {
		r.outer, r.line, r.dash = column, false, false
		key, ok := r.key()
		if !ok || !r.skip(':') || r.at() != ' ' && !r.lineEnds() {
			return false
		}
		r.spaces()
		if !value(key) || !r.line && !r.nextLine() {
			return false
		}
		if r.pos == len(r.text) || r.indent < column {
			r.outer = outer
			return true
		}
		if r.indent > column {
			return false // the text goes on
		}
	}
}

// List reads a list. It calls element at each element, which reads it.
func (r *Reader) List(element func() bool) bool {
	if r.skip('[') {
		return r.sequence(']', element)
	}
	// The dashes may stand in the column of the key.
	if r.json || r.flow > 0 || r.dash || !r.nextLine() || r.indent < r.outer || r.at() != '-' {
		return false
	}
	column, outer := r.indent, r.outer
	for {
		if !r.skip('-') || !r.skip(' ') {
			return false
		}
		r.spaces()
		r.outer, r.line, r.dash = column, false, true
		if r.lineEnds() || !element() || !r.line && !r.nextLine() {
			return false
		}
		r.dash = false
		if r.pos == len(r.text) || r.indent < column || r.indent == column && r.at() != '-' {
			r.outer = outer
			return true
		}
		if r.indent > column {
			return false
		}
	}
}

// sequence reads what stands between brackets, the first of which was read.
func (r *Reader) sequence(end byte, element func() bool) bool {
	r.flow++
	for r.forward(); !r.skip(end); {
		if !element() {
			return false
		}
		r.spaces()
		if r.skip(',') {
			r.spaces()
			if r.at() == end {
				return false
			}
		} else if r.at() != end {
			return false
		}
	}
	r.flow--
	return true
}

// Text reads a text.
func (r *Reader) Text() (string, bool) {
	if c := r.at(); c == '"' || c == '\'' && !r.json {
		return r.quoted(c)
	}
	begin := r.pos
	if r.json || !isWord(r.at()) {
		return "", false
	}
	end := begin // behind the last character that is not a space
	for r.pos < len(r.text) {
		c := r.text[r.pos]
		switch {
		case c == '\n', c == '#' && end < r.pos, r.flow > 0 && (c == ',' || c == ']' || c == '}'):
			return r.text[begin:end], isText(r.text[begin:end])
		case c == ' ':
			r.pos++
			continue
		case c == ':' && (r.pos+1 == len(r.text) || !isWord(r.text[r.pos+1]) && r.text[r.pos+1] != ':'):
			return "", false
		case !isWord(c) && c != ':' && (c != ',' && c != '?' || r.flow > 0) && strings.IndexByte(".-+=@~%()*&;$'!", c) < 0:
			return "", false
		}
		r.pos++
		end = r.pos
	}
	return r.text[begin:end], isText(r.text[begin:end])
}

// Number reads a whole number from 1 to 999,999,999.
func (r *Reader) Number() (uint32, bool) {
	begin, n := r.pos, uint32(0)
	for r.pos < len(r.text) && isDigit(r.text[r.pos]) && r.pos < begin+9 {
		n = 10*n + uint32(r.text[r.pos]-'0')
		r.pos++
	}
	if r.pos == begin || r.text[begin] == '0' {
		return 0, false
	}
	// It ends here, and is not the beginning of something else.
	switch c := r.at(); {
	case r.pos == len(r.text), c == ' ', c == '\n', c == '\r', c == '\t':
		return n, true
	default:
		return n, r.flow > 0 && (c == ',' || c == ']' || c == '}')
	}
}

// End reports whether there is nothing behind the value that was read.
func (r *Reader) End() bool {
	if r.json {
		r.spaces()
	} else if !r.line && !r.nextLine() {
		return false
	}
	return r.pos == len(r.text)
}

// key reads the key of a mapping.
func (r *Reader) key() (string, bool) {
	begin := r.pos
	if c := r.at(); c == '"' || c == '\'' && !r.json {
		text, ok := r.quoted(c)
		return text, ok && len(text) <= maxKey
	}
	if r.json || !isWord(r.at()) {
		return "", false
	}
	for isWord(r.at()) || r.at() == '-' || r.at() == '.' {
		r.pos++
	}
	return r.text[begin:r.pos], r.pos-begin <= maxKey
}

// quoted reads a text between quotes, without escapes.
func (r *Reader) quoted(quote byte) (string, bool) {
	r.pos++
	begin := r.pos
	for ; r.pos < len(r.text); r.pos++ {
		switch c := r.text[r.pos]; {
		case c == quote:
			r.pos++
			return r.text[begin : r.pos-1], r.at() != quote // two stand for one
		case c < ' ' || c > '~' || c == '\\' && quote == '"':
			return "", false
		}
	}
	return "", false
}

// at returns the next character, 0 at the end.
func (r *Reader) at() byte {
	if r.pos < len(r.text) {
		return r.text[r.pos]
	}
	return 0
}

// skip goes past the character if it is the next one, and reports whether it was.
func (r *Reader) skip(c byte) bool {
	if r.pos == len(r.text) || r.text[r.pos] != c {
		return false
	}
	r.pos++
	return true
}

// spaces goes past blanks. In JSON these are line breaks as well.
func (r *Reader) spaces() {
	for r.pos < len(r.text) {
		switch r.text[r.pos] {
		case ' ':
		case '\t', '\r', '\n':
			if !r.json {
				return
			}
		default:
			return
		}
		r.pos++
	}
}

// forward is spaces where a condition is wanted.
func (r *Reader) forward() bool {
	r.spaces()
	return true
}

// lineEnds reports whether nothing but a comment stands in the rest of the line.
func (r *Reader) lineEnds() bool {
	c := r.at()
	return c == 0 || c == '\n' || c == '#'
}

// nextLine goes to the next line that is not empty and no comment, or to the end. It
// fails if something stands in the rest of this line, or a character in a comment that
// YAML may forbid.
func (r *Reader) nextLine() bool {
	for {
		r.spaces()
		if r.at() == '#' {
			if r.pos > r.start && r.text[r.pos-1] != ' ' {
				return false // it is no comment
			}
			for c := r.at(); ' ' <= c && c <= '~'; c = r.at() {
				r.pos++
			}
		}
		if r.pos < len(r.text) && !r.skip('\n') {
			return false
		}
		r.start = r.pos
		r.spaces()
		r.line, r.indent = true, r.pos-r.start
		if r.pos == len(r.text) || r.at() != '\n' && r.at() != '#' {
			return true
		}
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isWord reports whether c may begin a text without quotes.
func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || isDigit(c) || c == '_' || c == '/'
}

// isText reports whether YAML certainly takes a text without quotes for a text, or for
// a date, which a catalog has as text. No number has two dots, a colon, or one of
// these letters.
func isText(s string) bool {
	if isDigit(s[0]) {
		return strings.ContainsAny(s, ":ghijklmnpqrstuvwyz") || strings.Count(s, ".") >= 2
	}
	return !strings.EqualFold(s, "null") && !strings.EqualFold(s, "true") && !strings.EqualFold(s, "false")
}
