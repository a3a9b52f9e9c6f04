package catalogfile

import (
	"bytes"
	"io"
	"unicode"
	"unicode/utf8"
)

const (
	// bufferBytes is how much of a large catalog in the plain form is held at a time:
	// a service of any size that is decoded, and what is read together.
	bufferBytes = maxPiece + 256<<10

	// maxIndent is the rightmost column that the dashes of a large catalog may have.
	maxIndent = 1024
)

// plainText is a catalog in the plain form: comments and empty lines, perhaps the
// line ---, then the line services: and the services, each after a '-' in the same
// column. It cuts the text before each '-' in that column. Every piece is YAML by
// itself, as nothing in an item of a sequence can stand in the column of its '-'. A
// quoted text or a list in brackets may do so; it leaves a broken piece, and the
// catalog is then read as a whole document.
type plainText struct {
	source io.Reader // of what comes behind rest
	ended  bool      // whether nothing does
	buffer []byte    // that rest is in, with its capacity
	most   int       // how large a piece may be, in bytes; the buffer has more

	rest   []byte // begins with a line of a service
	line   int    // of rest
	indent int    // of the dashes
}

// newPlainText returns the services of a text that begins with data, and goes on with
// source unless it has ended. It returns nil if that does not seem to be a catalog in
// the plain form.
func newPlainText(data []byte, source io.Reader, ended bool) *plainText {
	t := &plainText{source: source, ended: ended, buffer: data[:0], most: maxPiece, rest: data, line: 1}
	marked, begun := false, false
	for len(t.rest) > 0 {
		text, after := cutLine(t.rest)
		content := bytes.TrimLeft(text, " ")
		switch {
		case len(content) == 0 || content[0] == '#':
		case begun:
			t.indent = len(text) - len(content)
			if !t.begins(t.rest) || !ended && (t.indent > maxIndent || len(t.rest) < t.indent+3) {
				return nil
			}
			return t
		case bytes.Equal(text, []byte("---")) && !marked:
			marked = true
		case isServices(text):
			begun = true
		default:
			return nil
		}
		var lines breaks
		lines.add(t.rest[:len(t.rest)-len(after)])
		if lines.ended || lines.count != 1 || bytes.ContainsFunc(text, isUnprintable) {
			return nil
		}
		t.rest = after
		t.line++
	}
	return nil
}

// cutLine returns the first line of text, without its line break and the spaces
// before that, and what comes after the line.
func cutLine(text []byte) (line, after []byte) {
	line, after, _ = bytes.Cut(text, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	return bytes.TrimRight(line, " "), after
}

// isUnprintable reports whether YAML may forbid a character even in a comment (YAML
// 1.1 section 4.1.1), as it does with what is not UTF-8.
func isUnprintable(r rune) bool { return r == utf8.RuneError || r != '\t' && !unicode.IsPrint(r) }

// isServices reports whether a line is the key services, perhaps with a comment.
func isServices(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("services:"))
	return ok && (len(rest) == 0 || bytes.HasPrefix(bytes.TrimLeft(rest, " "), []byte("#")) && rest[0] == ' ')
}

// begins reports whether a service begins in the first line of text.
func (t *plainText) begins(text []byte) bool {
	for i := range t.indent {
		if i >= len(text) || text[i] != ' ' {
			return false
		}
	}
	text = text[min(t.indent, len(text)):]
	return len(text) > 0 && text[0] == '-' && (len(text) == 1 || text[1] == ' ' || text[1] == '\t' || text[1] == '\r' || text[1] == '\n')
}

// piece is the text of a service in a catalog in the plain form.
type piece struct {
	text []byte // valid until the next piece is read; nil if it is too large
	size int    // in bytes; 0 at the end of the catalog
	line int    // on which it begins
	key  digest
}

// next returns the next service, whose key is not set. ok is false if the document may
// end within it. It fails when the source does.
func (t *plainText) next() (item piece, ok bool, err error) {
	item.line = t.line
	var lines breaks
	dropped := 0 // bytes of the item that are not in rest any more
	drop := func(n int) {
		lines.add(t.rest[:n])
		dropped += n
		t.rest = t.rest[n:]
	}
	for end := 0; ; { // of the lines that are known to be in the item
		if newline := bytes.IndexByte(t.rest[end:], '\n'); newline >= 0 {
			end += newline + 1
		} else if t.ended {
			end = len(t.rest)
		} else {
			if end = len(t.rest); end > t.most {
				drop(end)
				end = 0
			}
			if err := t.more(); err != nil {
				return piece{}, false, err
			}
			continue
		}
		for !t.ended && len(t.rest)-end < t.indent+3 { // for a look at what comes after
			if err := t.more(); err != nil {
				return piece{}, false, err
			}
		}
		after := t.rest[end:]
		if isMarker(after) {
			return piece{}, false, nil
		}
		if len(after) == 0 || t.begins(after) {
			item.size = dropped + end
			if item.size <= t.most {
				item.text = t.rest[:end:end]
			}
			drop(end)
			t.line += lines.count
			return item, !lines.ended, nil
		}
		if end > t.most {
			drop(end)
			end = 0
		}
	}
}

// more reads more of the source. What is in the buffer already may move.
func (t *plainText) more() (err error) {
	if cap(t.rest)-len(t.rest) < cap(t.buffer)/64 {
		t.rest = append(t.buffer, t.rest...)
	}
	t.rest, t.ended, err = more(t.rest, t.source)
	return err
}

// isMarker reports whether a line begins like one that ends a document (YAML 1.1,
// rules c-document-end and c-document-start).
func isMarker(text []byte) bool {
	return bytes.HasPrefix(text, []byte("---")) || bytes.HasPrefix(text, []byte("..."))
}

// breaks counts the line breaks of a text that comes in parts. Beside "\n" and "\r\n"
// YAML 1.1 has exotic ones: "\r", "\u0085", "\u2028" and "\u2029" (section 4.1.4).
type breaks struct {
	count int
	ended bool // whether a document may end after an exotic one

	last   [2]byte // that were added
	behind int     // 1 behind an exotic break, then one more for each character of a marker; else 0
}

func (b *breaks) add(text []byte) {
	if len(text) == 0 {
		return
	}
	// Most texts have no byte of an exotic break.
	if b.behind == 0 && b.last[1] < utf8.RuneSelf && b.last[1] != '\r' &&
		bytes.IndexByte(text, '\r') < 0 && bytes.IndexByte(text, 0xc2) < 0 && bytes.IndexByte(text, 0xe2) < 0 {
		b.count += bytes.Count(text, []byte("\n"))
		b.last = [2]byte{}
		return
	}
	for _, c := range text {
		b.next(c)
	}
}

func (b *breaks) next(c byte) {
	if b.behind > 0 {
		if (c == '-' || c == '.') && (b.behind == 1 || c == b.last[1]) {
			b.behind++
			b.ended = b.ended || b.behind > len("---")
		} else {
			b.behind = 0
		}
	}
	switch {
	case c == '\n' && b.last[1] != '\r': // or else it was counted
		b.count++
	case c == '\r', c == 0x85 && b.last[1] == 0xc2, (c == 0xa8 || c == 0xa9) && b.last == [2]byte{0xe2, 0x80}:
		b.count++
		b.behind = 1
	}
	b.last = [2]byte{b.last[1], c}
}
