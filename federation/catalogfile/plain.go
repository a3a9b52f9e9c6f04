package catalogfile

import (
	"bytes"
	"errors"
	"io"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation/catalogentry"
	"github.com/hamlet-federation/coredns-federation/federation/problem"
	"github.com/hamlet-federation/coredns-federation/federation/yamlvalue"
)

// errNotPlain says that a file, which may still be a catalog, is not in the plain form.
var errNotPlain = errors.New("the catalog is not in the plain form")

// piece is the text of a service in a catalog in the plain form.
type piece struct {
	text []byte
	line int // on which it begins
	key  digest
}

// maxRun is how many bytes of services are decoded together: to make a decoder costs
// as much as to decode a small service.
const maxRun = 32 << 10

// plain reads a catalog in the plain form, service by service. It fails with
// errNotPlain if the services read one by one may differ from those of the whole
// document.
func (p *reading) plain(data []byte) error {
	text, ok := newPlainText(data)
	if !ok {
		return errNotPlain
	}
	var run []piece
	for size := 0; ; {
		item, line, ok := text.next()
		if !ok {
			p.hint = problem.Problem{Line: line, Rule: "the end of a document stands in it"}
			return errNotPlain
		}
		if item == nil {
			return p.decodeRun(run)
		}
		if done, err := p.done(); done {
			return err
		}
		next := piece{item, line, digestOf(item)}
		_, known := p.known.services[next.key]
		// A service with an anchor is decoded alone. If it were decoded with the services
		// after it, whether their aliases of it are valid would depend on which of them
		// are remembered.
		single := known || len(item) > maxRun || bytes.IndexByte(item, '&') >= 0
		if single || size > maxRun {
			if err := p.decodeRun(run); err != nil {
				return err
			}
			run, size = run[:0], 0
		}
		if !single {
			run = append(run, next)
			size += len(item)
		} else if err := p.decodePiece(next); err != nil {
			return err
		}
	}
}

// decodeRun decodes services that follow each other.
func (p *reading) decodeRun(run []piece) error {
	if nodes := runNodes(run); nodes != nil {
		x := yamlvalue.New(run[0].line-1, 0) // there are no aliases
		for i, node := range nodes {
			p.decode(catalogentry.FromYAML(node, x), run[i].line, &run[i].key)
		}
		return nil
	}
	for _, piece := range run {
		if err := p.decodePiece(piece); err != nil {
			return err
		}
	}
	return nil
}

// runNodes returns the nodes of services that follow each other, one for each, or nil
// if they have to be decoded one by one, as one of them is broken.
func runNodes(run []piece) []*yaml.Node {
	if len(run) < 2 {
		return nil
	}
	texts := make([][]byte, len(run))
	for i := range run {
		texts[i] = run[i].text
	}
	nodes, err := items(bytes.Join(texts, nil))
	if err != nil || len(nodes) != len(run) {
		return nil
	}
	for i, node := range nodes {
		line := node.Line + run[0].line - 1
		if line < run[i].line || i+1 < len(run) && line >= run[i+1].line {
			return nil
		}
	}
	return nodes
}

// decodePiece decodes a service by itself, unless it is remembered.
func (p *reading) decodePiece(item piece) error {
	if p.recall(item.key, item.line) {
		return nil
	}
	if len(item.text) > maxPiece {
		p.decode(tooLarge(item.line, len(item.text)), item.line, nil)
		return nil
	}
	nodes, err := items(item.text)
	if err == nil && len(nodes) != 1 {
		err = errNotItems
	}
	if err != nil {
		p.hint = yamlvalue.SyntaxProblem(err)
		p.hint.Line = max(p.hint.Line, 1) + item.line - 1
		return errNotPlain
	}
	p.decode(catalogentry.FromYAML(nodes[0], yamlvalue.New(item.line-1, len(item.text))), item.line, &item.key)
	return nil
}

var errNotItems = errors.New("did not find a list of services")

// items returns the items of a text that is one YAML sequence.
func items(text []byte) ([]*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, next yaml.Node
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	if err := decoder.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, errNotItems
	}
	root := document.Content[0]
	if root.Kind != yaml.SequenceNode {
		return nil, errNotItems
	}
	return root.Content, nil
}

// plainText is a catalog in the plain form: comments and empty lines, perhaps the
// line ---, then the line services: and the services, each after a '-' in the same
// column. It cuts the text before each '-' in that column. Every piece is YAML by
// itself, as nothing in an item of a sequence can stand in the column of its '-'. A
// quoted text or a list in brackets may do so; it leaves a broken piece, and the
// catalog is then read as a whole document.
type plainText struct {
	rest   []byte // begins with a line of a service
	line   int    // of rest
	indent int    // of the dashes
}

// newPlainText returns the services of data, and reports whether it seems to be a
// catalog in the plain form.
func newPlainText(data []byte) (*plainText, bool) {
	t := &plainText{rest: data, line: 1}
	marked, begun := false, false
	for len(t.rest) > 0 {
		text, after := cutLine(t.rest)
		content := bytes.TrimLeft(text, " ")
		switch {
		case len(content) == 0 || content[0] == '#':
		case begun:
			t.indent = len(text) - len(content)
			return t, t.begins(t.rest)
		case bytes.Equal(text, []byte("---")) && !marked:
			marked = true
		case isServices(text):
			begun = true
		default:
			return nil, false
		}
		count, ok := countBreaks(t.rest[:len(t.rest)-len(after)])
		if !ok || count != 1 || bytes.ContainsFunc(text, isUnprintable) {
			return nil, false
		}
		t.rest = after
		t.line++
	}
	return nil, false
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

// next returns the text of the next service and the line on which it begins, or nil
// at the end. ok is false if the document may end within the service.
func (t *plainText) next() (item []byte, line int, ok bool) {
	line = t.line
	for end := 0; end < len(t.rest); {
		newline := bytes.IndexByte(t.rest[end:], '\n')
		if newline < 0 {
			newline = len(t.rest) - end - 1
		}
		end += newline + 1
		after := t.rest[end:]
		if isMarker(after) {
			return nil, 0, false
		}
		if len(after) == 0 || t.begins(after) {
			item, t.rest = t.rest[:end:end], after
			break
		}
	}
	count, ok := countBreaks(item)
	t.line += count
	return item, line, ok
}

// isMarker reports whether a line begins like one that ends a document (YAML 1.1,
// rules c-document-end and c-document-start).
func isMarker(text []byte) bool {
	return bytes.HasPrefix(text, []byte("---")) || bytes.HasPrefix(text, []byte("..."))
}

// exotic are the line breaks of YAML 1.1 beside "\n" and "\r\n" (section 4.1.4).
var exotic = [][]byte{[]byte("\r"), []byte("\u0085"), []byte("\u2028"), []byte("\u2029")}

// countBreaks returns the number of line breaks in text. ok is false if a document may
// end after one of the exotic ones.
func countBreaks(text []byte) (count int, ok bool) {
	count = bytes.Count(text, []byte("\n"))
	for _, newline := range exotic {
		for rest := text; ; count++ {
			_, after, found := bytes.Cut(rest, newline)
			if !found {
				break
			}
			rest = after
			switch {
			case isMarker(rest):
				return 0, false
			case newline[0] == '\r' && bytes.HasPrefix(rest, []byte("\n")):
				count--
			}
		}
	}
	return count, true
}
