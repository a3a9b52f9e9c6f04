package ownerfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// digest is that of the text of one service in a file.
type digest [16]byte

func digestOf(text []byte) digest {
	sum := sha256.Sum256(text)
	return digest(sum[:len(digest{})])
}

// reader reads the versions of one catalog file. It remembers what the services
// of the last good one said by their text, so that the one in a million that was
// edited is decoded, and the others are taken as they were.
type reader struct {
	policy wire.Policy
	known  memory
}

// memory is what texts of services said that had no problem. Lines in it count
// from that on which the text begins.
type memory struct {
	services map[digest]remembered
	warnings map[digest][]Problem // of those that have any
}

type remembered struct {
	*federation.Service

	line int32
}

func newMemory() memory {
	return memory{make(map[digest]remembered), make(map[digest][]Problem)}
}

// read returns what a version of the file says. The only errors are those of
// check, which is called for each service: the reading ends with them.
func (r *reader) read(data []byte, check func() error) (Catalog, error) {
	// JSON is not read as YAML: it has escapes that YAML does not know.
	read := (*reading).plain
	if json.Valid(data) {
		read = (*reading).json
	}
	p := newReading(r, check)
	err := read(p, data)
	if errors.Is(err, errNotPlain) {
		hint := p.hint
		p = newReading(r, check)
		err = p.document(data, hint)
	}
	catalog, err := p.result(err)
	if err == nil && len(catalog.Problems) == 0 {
		r.known = p.next
	}
	return catalog, err
}

// reading is the work on one version of a file.
type reading struct {
	*reader

	check   func() error
	catalog Catalog
	lines   []int          // where the services of catalog begin
	places  map[string]int // of the services in catalog, by name
	count   int            // services seen so far, wrong ones as well
	next    memory
	hint    Problem // why the file is not in the plain form
}

func newReading(r *reader, check func() error) *reading {
	return &reading{reader: r, check: check, places: make(map[string]int), next: newMemory()}
}

// nonsense is an error that makes nonsense of the rest of the file.
type nonsense Problem

func (n nonsense) Error() string { return Problem(n).String() }

// result returns what the file says when the reading of it has ended with err.
func (p *reading) result(err error) (Catalog, error) {
	if n, ok := errors.AsType[nonsense](err); ok {
		n.Rule = printable(n.Rule)
		return Catalog{Problems: []Problem{Problem(n)}}, nil
	}
	if err != nil {
		return Catalog{}, err
	}
	p.warnSharedNames()
	byLine := func(a, b Problem) int { return a.Line - b.Line }
	slices.SortStableFunc(p.catalog.Problems, byLine)
	slices.SortStableFunc(p.catalog.Warnings, byLine)
	return p.catalog, nil
}

// done reports whether the reading ends before the next service, and with which
// error.
func (p *reading) done() (bool, error) {
	err := p.check()
	return err != nil || p.catalog.MoreProblems > maxCounted, err
}

// recall takes the service whose text begins on the line, if it is remembered.
func (p *reading) recall(key digest, line int) bool {
	known, ok := p.known.services[key]
	if !ok {
		return false
	}
	if _, twice := p.places[known.Name]; twice {
		return false // which is about a line within it
	}
	warnings := slices.Clone(p.known.warnings[key])
	for i := range warnings {
		warnings[i].Line += line
	}
	p.add(known.Service, line+int(known.line), findings{kept: warnings})
	p.next.services[key] = known
	if len(warnings) > 0 {
		p.next.warnings[key] = p.known.warnings[key]
	}
	return true
}

// decode takes the next entry. Where it has a key, its text begins on the line,
// and it is remembered.
func (p *reading) decode(e *entry, line int, key *digest) {
	found := findings{room: maxKept - len(p.catalog.Problems)}
	service := e.decode(place(p.count), p.policy, &found)
	if service != nil {
		if first, twice := p.places[service.Name]; twice {
			found.add(Problem{
				Line: e.line("name"), Service: federation.Quote(service.Name), Field: "name",
				Rule: fmt.Sprintf("the service on line %d has the same name; a name stands for one service", p.lines[first]),
			})
			service = nil
		}
	}
	for _, problem := range found.kept {
		problem.Rule = printable(problem.Rule)
		p.catalog.Problems = append(p.catalog.Problems, problem)
	}
	p.catalog.MoreProblems += found.more
	if service == nil {
		p.count++
		return
	}
	doubts := findings{room: maxKept}
	e.doubts(service, &doubts)
	p.add(service, e.start, doubts)
	if key == nil || doubts.more > 0 {
		return
	}
	p.next.services[*key] = remembered{service, int32(e.start - line)} //nolint:gosec // less than maxPiece
	if len(doubts.kept) > 0 {
		warnings := slices.Clone(doubts.kept)
		for i := range warnings {
			warnings[i].Line -= line
		}
		p.next.warnings[*key] = warnings
	}
}

// add adds a service that begins on the line.
func (p *reading) add(service *federation.Service, line int, doubts findings) {
	p.count++
	p.places[service.Name] = len(p.catalog.Services)
	p.lines = append(p.lines, line)
	p.catalog.Services = append(p.catalog.Services, service)
	for _, w := range doubts.kept {
		p.warn(w)
	}
	p.catalog.MoreWarnings += doubts.more
}

func (p *reading) warn(warning Problem) {
	if len(p.catalog.Warnings) < maxKept {
		p.catalog.Warnings = append(p.catalog.Warnings, warning)
	} else {
		p.catalog.MoreWarnings++
	}
}

// warnSharedNames warns of each service whose fqdn is that of another.
func (p *reading) warnSharedNames() {
	// Of one owner's services with one fqdn, consumers serve the smallest name.
	winners := make(map[federation.FQDN]*federation.Service, len(p.catalog.Services))
	for _, s := range p.catalog.Services {
		if winner := winners[s.FQDN]; winner == nil || s.Name < winner.Name {
			winners[s.FQDN] = s
		}
	}
	for i, s := range p.catalog.Services {
		if winner := winners[s.FQDN]; s != winner {
			p.warn(Problem{
				Line: p.lines[i], Service: federation.Quote(s.Name), Field: "fqdn",
				Rule: fmt.Sprintf("%s is also that of service %s, which wins: this one will not be served",
					s.FQDN, federation.Quote(winner.Name)),
			})
		}
	}
}

const expectServices = "the file must hold a mapping with the one key services; an empty catalog is 'services: []'"

func place(i int) string { return fmt.Sprintf("services[%d]", i) }

func tooLarge(line, size int) findings {
	return findings{kept: []Problem{{
		Line: line, Rule: fmt.Sprintf("has %d bytes, the limit is %d; is the '-' of the next one missing?", size, maxPiece),
	}}}
}

// errNotPlain says that a file may be a catalog and is not in the plain form.
var errNotPlain = errors.New("the catalog is not in the plain form")

// piece is the text of a service in a catalog in the plain form.
type piece struct {
	text []byte
	line int // on which it begins
	key  digest
}

// maxRun is how many bytes of services are decoded together: a decoder costs as
// much as a small service.
const maxRun = 32 << 10

// plain reads a catalog in the plain form, service by service. It fails with
// errNotPlain where that may not give what the whole document says.
func (p *reading) plain(data []byte) error {
	text, ok := newPlainText(data)
	if !ok {
		return errNotPlain
	}
	var run []piece
	for size := 0; ; {
		item, line, ok := text.next()
		if !ok {
			p.hint = Problem{Line: line, Rule: "the end of a document stands in it"}
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
		// An anchor is of no use to the services after it: which of them are decoded
		// with it depends on what is remembered.
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

// decodeRun takes services that follow each other.
func (p *reading) decodeRun(run []piece) error {
	if nodes := runNodes(run); nodes != nil {
		x := newExpander(run[0].line-1, 0) // there are no aliases
		for i, node := range nodes {
			p.decode(newEntry(node, x), run[i].line, &run[i].key)
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

// runNodes returns the nodes of services that follow each other, or nil where they
// are better decoded each by itself.
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

func (p *reading) decodePiece(item piece) error {
	if p.recall(item.key, item.line) {
		return nil
	}
	if len(item.text) > maxPiece {
		p.decode(&entry{start: item.line, broken: tooLarge(item.line, len(item.text))}, item.line, nil)
		return nil
	}
	nodes, err := items(item.text)
	if err == nil && len(nodes) != 1 {
		err = errNotItems
	}
	if err != nil {
		p.hint = syntaxProblem(err)
		p.hint.Line = max(p.hint.Line, 1) + item.line - 1
		return errNotPlain
	}
	p.decode(newEntry(nodes[0], newExpander(item.line-1, len(item.text))), item.line, &item.key)
	return nil
}

var errNotItems = errors.New("did not find a list of services")

// items returns the items of the sequence that the text is.
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

// document reads any catalog in YAML, which is not in the plain form for the
// reason in hint. It makes a tree of all of it first.
func (p *reading) document(data []byte, hint Problem) error {
	if len(data) > maxPiece {
		if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
			return nonsense(brokenJSON(data))
		}
		if hint.Rule != "" {
			hint.Rule += "; "
		}
		hint.Rule += fmt.Sprintf("a catalog of more than %d bytes must be JSON, or the line 'services:' and then a list in which"+
			" the '-' of each service stands in one column", maxPiece)
		return nonsense(hint)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, next yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		// An editor that is about to write leaves an empty file for a moment.
		return nonsense{Rule: "the file is empty; an empty catalog is 'services: []'"}
	} else if err != nil {
		return nonsense(syntaxProblem(err))
	}
	if err := decoder.Decode(&next); err == nil {
		return nonsense{Line: next.Line, Rule: "a second document begins here; a catalog is one document"}
	} else if !errors.Is(err, io.EOF) {
		return nonsense(syntaxProblem(err))
	}
	services, err := servicesOf(document.Content[0])
	if err != nil {
		return err
	}
	x := newExpander(0, len(data))
	for _, node := range services.Content {
		if done, err := p.done(); done {
			return err
		}
		p.decode(newEntry(node, x), 0, nil)
	}
	return nil
}

// servicesOf returns the list of services of a catalog.
func servicesOf(root *yaml.Node) (*yaml.Node, error) {
	if root.Kind != yaml.MappingNode {
		return nil, nonsense{Line: root.Line, Rule: expectServices}
	}
	var services *yaml.Node
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], resolve(root.Content[i+1])
		switch {
		case key.Value != "services":
			return nil, nonsense{Line: key.Line, Rule: "unknown key " + federation.Quote(key.Value) + "; " + expectServices}
		case services != nil:
			return nil, nonsense{Line: key.Line, Rule: "services is there twice"}
		case value.Kind != yaml.SequenceNode:
			return nil, nonsense{Line: key.Line, Rule: "services must be a list; an empty one is []"}
		}
		services = value
	}
	if services == nil {
		return nil, nonsense{Line: root.Line, Rule: expectServices}
	}
	return services, nil
}

// syntaxLine finds the line in an error of the YAML reader, which is not typed.
var syntaxLine = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s*)?(?:line (\d+): )?`)

func syntaxProblem(err error) Problem {
	text := err.Error()
	match := syntaxLine.FindStringSubmatch(text)
	line, _ := strconv.Atoi(match[1])
	return Problem{Line: line, Rule: text[len(match[0]):]}
}

// json reads data, which is valid JSON.
func (p *reading) json(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	counted, lines := int64(0), 1
	line := func(offset int64) int { // which only grows
		lines += bytes.Count(data[counted:offset], []byte("\n"))
		counted = offset
		return lines
	}
	if token, _ := decoder.Token(); token != json.Delim('{') {
		return nonsense{Line: line(decoder.InputOffset()), Rule: expectServices}
	}
	found := false
	for decoder.More() {
		token, _ := decoder.Token()
		key, _ := token.(string)
		at := line(decoder.InputOffset())
		switch {
		case key != "services":
			return nonsense{Line: at, Rule: "unknown key " + federation.Quote(key) + "; " + expectServices}
		case found:
			return nonsense{Line: at, Rule: "services is there twice"}
		}
		if token, _ := decoder.Token(); token != json.Delim('[') {
			return nonsense{Line: at, Rule: "services must be a list; an empty one is []"}
		}
		found = true
		for decoder.More() {
			if done, err := p.done(); done {
				return err
			}
			var raw json.RawMessage
			if err := decoder.Decode(&raw); err != nil {
				return nonsense{Line: at, Service: place(p.count), Rule: err.Error()}
			}
			p.jsonItem(raw, line(decoder.InputOffset()-int64(len(raw))))
		}
		if _, err := decoder.Token(); err != nil {
			return nonsense{Line: at, Rule: err.Error()}
		}
	}
	if !found {
		return nonsense{Rule: expectServices}
	}
	return nil
}

func (p *reading) jsonItem(raw []byte, line int) {
	key := digestOf(raw)
	if p.recall(key, line) {
		return
	}
	e := entry{start: line, json: raw}
	if len(raw) > maxPiece {
		e.broken = tooLarge(line, len(raw))
	} else if err := json.Unmarshal(raw, &e.value); err != nil {
		e.broken.kept = []Problem{{Line: line, Rule: err.Error()}}
	}
	p.decode(&e, line, &key)
}

// brokenJSON returns what is wrong with data, which is not valid JSON.
func brokenJSON(data []byte) Problem {
	err := json.Unmarshal(data, new(json.RawMessage))
	problem := Problem{Rule: err.Error()}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		problem.Line = 1 + bytes.Count(data[:min(syntax.Offset, int64(len(data)))], []byte("\n"))
	}
	return problem
}

// plainText is a catalog in the plain form: comments and empty lines, perhaps the
// line ---, then the line services: and the services, each behind a - that stands
// alone in its column. Whatever is between two of these is a text by itself, as
// nothing in YAML goes on in the column of the - of a sequence that it is in; a
// quoted text or a list in brackets that does leaves a piece that is broken.
type plainText struct {
	rest   []byte // begins with a line of a service
	line   int    // of rest
	indent int    // of the dashes
}

// newPlainText reports whether data seems to be a catalog in the plain form.
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

// cutLine returns the first line of text, without its end and spaces before that,
// and what comes after it.
func cutLine(text []byte) (line, after []byte) {
	line, after, _ = bytes.Cut(text, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	return bytes.TrimRight(line, " "), after
}

// isUnprintable reports whether a character may be one that YAML forbids even in a
// comment (YAML 1.1 section 4.1.1). What is not UTF-8 is one.
func isUnprintable(r rune) bool { return r == utf8.RuneError || r != '\t' && !unicode.IsPrint(r) }

func isServices(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("services:"))
	return ok && (len(rest) == 0 || bytes.HasPrefix(bytes.TrimLeft(rest, " "), []byte("#")) && rest[0] == ' ')
}

// begins reports whether a service begins at the beginning of text, which is
// that of a line.
func (t *plainText) begins(text []byte) bool {
	for i := range t.indent {
		if i >= len(text) || text[i] != ' ' {
			return false
		}
	}
	text = text[min(t.indent, len(text)):]
	return len(text) > 0 && text[0] == '-' && (len(text) == 1 || text[1] == ' ' || text[1] == '\t' || text[1] == '\r' || text[1] == '\n')
}

// next returns the text of the next service and the line on which it begins; no
// text is the end. It reports whether that is certain.
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

// isMarker reports whether a line begins like the end of a document (YAML 1.1,
// rule c-document-end and c-document-start).
func isMarker(text []byte) bool {
	return bytes.HasPrefix(text, []byte("---")) || bytes.HasPrefix(text, []byte("..."))
}

// exotic are the line breaks of YAML 1.1 beside "\n" and "\r\n" (section 4.1.4).
var exotic = [][]byte{[]byte("\r"), []byte("\u0085"), []byte("\u2028"), []byte("\u2029")}

// countBreaks returns the number of line breaks in text, and false where one of
// the exotic ones may be the end of a document.
func countBreaks(text []byte) (int, bool) {
	count := bytes.Count(text, []byte("\n"))
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
