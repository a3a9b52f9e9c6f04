package problem

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/internal/removed"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Document is a file in YAML that has been read into a struct, with the lines of its
// values and all their problems. The decoder of the YAML package would give up a
// struct at an unknown key, know no path, and take aliases, which are not read here. A Document
// keeps [Room] problems, and counts the others. One goroutine uses it at a time.
//
// The tags of the fields say how the values are read:
//
//	yaml     the key; a field without it is none of the file
//	default  what holds where the key is missing, as it would stand in the file
//	as       the format of a scalar, or of those of a list, which may have tags of its own
//	quoted   the scalar must be a string in YAML, too, as one without a format must be
//	empty    the strings of a mapping may be empty
//	least    that a list or a mapping is not empty: its value ends the sentence
//	most     how many elements a list may have
//	needs    the keys that a mapping must have
//	one      the keys of which a mapping must have exactly one; why says for what reason
//	short    the key whose value may stand for the whole mapping
//	doc      what the key means, for people; see package setting
type Document struct {
	formats map[string]Format
	lines   map[string]int // by path
	found   List
}

// Format returns the value in the text of a scalar, for a field with these tags, or why the text is
// refused. It refuses empty text.
type Format func(text string, tag reflect.StructTag) (any, error)

// FormatOf returns the format that calls parse and needs no tags.
func FormatOf[T any](parse func(text string) (T, error)) Format {
	return func(text string, _ reflect.StructTag) (any, error) { return parse(text) }
}

// nodePlace is a node at its place in the file.
type nodePlace struct {
	node *yaml.Node
	path string // such as catalogs[0].sources; empty for the whole file
	line int    // on which it begins, or its key does
}

// Read fills the struct that into points to with the one document of a file, and returns the
// document with its problems. The file may have at most so many bytes. Needs are the keys that the
// struct must have, separated by spaces. Are says in problems what a document is, such as "rules
// are". An element of a list of pointers is nil where the file has no mapping for it. Any other
// broken value keeps its default, or is zero.
func Read(data []byte, most int, are, needs string, formats map[string]Format, into any) *Document {
	d := &Document{formats: formats, lines: make(map[string]int), found: List{Room: Room}}
	root, wrong := ReadRoot(data, most, are)
	if root == nil {
		wrong.Rule = safetext.Printable(wrong.Rule)
		d.found.Add(wrong)
		return d
	}
	d.readValue(nodePlace{root, "", root.Line}, reflect.StructTag(`needs:"`+needs+`"`), reflect.ValueOf(into).Elem())
	return d
}

// Empty is the rule that a file without a document breaks.
const Empty = "the file is empty"

// ReadRoot returns the one document of a file with at most so many bytes, or the problem that keeps
// it from being one. Are says in the problem what a document is, such as "rules are".
func ReadRoot(data []byte, most int, are string) (*yaml.Node, Problem) {
	if len(data) > most {
		return nil, Problem{Rule: fmt.Sprintf("the file has more than %d bytes", most)}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, next yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, Problem{Rule: Empty}
	case err != nil:
		return nil, syntaxProblem(err)
	}
	switch err := decoder.Decode(&next); {
	case err == nil:
		return nil, Problem{Line: next.Line, Rule: "a second document begins here; " + are + " one document"}
	case !errors.Is(err, io.EOF):
		return nil, syntaxProblem(err)
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return nil, Problem{Rule: Empty}
	}
	return root, Problem{}
}

// HasValue reports whether the file has a value at a path.
func (d *Document) HasValue(path string) bool { return d.lines[path] > 0 }

// LineOf returns the line of a path, or of the nearest path above it that the file has.
func (d *Document) LineOf(path string) int {
	for path != "" && d.lines[path] == 0 {
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return d.lines[path]
}

// ProblemAt returns a problem at a path, with its line.
func (d *Document) ProblemAt(path, format string, args ...any) Problem {
	return Problem{Line: d.LineOf(path), Field: path, Rule: safetext.Printable(fmt.Sprintf(format, args...))}
}

// AddProblemf adds a problem at a path.
func (d *Document) AddProblemf(path, format string, args ...any) {
	d.found.Add(d.ProblemAt(path, format, args...))
}

// addOnLinef adds a problem at a path, with a line other than that of the path.
func (d *Document) addOnLinef(line int, path, format string, args ...any) {
	p := d.ProblemAt(path, format, args...)
	p.Line = line
	d.found.Add(p)
}

// HasProblemIn reports whether there is a problem at a path or below it. It looks at the problems
// that are kept only, so it may miss one when there are too many.
func (d *Document) HasProblemIn(path string) bool {
	return slices.ContainsFunc(d.found.Kept, func(p Problem) bool {
		rest, ok := strings.CutPrefix(p.Field, path)
		return ok && (rest == "" || rest[0] == '[' || rest[0] == '.')
	})
}

// SortedProblems returns all problems in the order of their lines; see [List.SortByLine].
func (d *Document) SortedProblems() []Problem { return d.found.SortByLine() }

// SortByLine returns the problems in the order of their lines, and at the end one that says how
// many more there are, if any.
func (l *List) SortByLine() []Problem {
	slices.SortStableFunc(l.Kept, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	if l.More > 0 {
		return append(l.Kept, Problem{Rule: fmt.Sprintf("and %d more", l.More)})
	}
	return l.Kept
}

// hasKind reports whether a value is of a kind, and adds a problem when it is not.
func (d *Document) hasKind(at nodePlace, kind yaml.Kind, what string) bool {
	switch tag := at.node.ShortTag(); {
	case at.node.Kind == yaml.AliasNode:
		d.AddProblemf(at.path, noAlias, at.node.Value)
	case tag == "!!null":
		d.AddProblemf(at.path, "has no value, must be %s", what)
	case at.node.Kind == kind:
		return true
	case at.node.Kind == yaml.ScalarNode:
		d.AddProblemf(at.path, "must be %s, not %s", what, safetext.Quote(at.node.Value))
	default:
		d.AddProblemf(at.path, "must be %s", what)
	}
	return false
}

// readValue fills a value from a node, and reports whether the node has the right kind.
func (d *Document) readValue(at nodePlace, tag reflect.StructTag, into reflect.Value) bool {
	d.lines[at.path] = at.line
	switch kind := into.Kind(); {
	case kind == reflect.Slice:
		return d.readList(at, tag, into)
	case tag.Get("as") != "" || kind == reflect.String:
		return d.readScalar(at, tag, into)
	case kind == reflect.Map:
		into.Set(reflect.MakeMap(into.Type()))
		return d.readEntries(at, tag, nil, func(key string, at nodePlace) {
			if value := reflect.New(into.Type().Elem()).Elem(); d.readValue(at, tag, value) {
				into.SetMapIndex(reflect.ValueOf(key), value)
			}
		})
	case kind == reflect.Pointer:
		target := reflect.New(into.Type().Elem())
		if !d.readValue(at, tag, target.Elem()) {
			return false
		}
		into.Set(target)
		return true
	}
	return d.readMapping(at, tag, into)
}

// fieldsByKey returns the fields of a struct that have a key in the file, by their keys.
func fieldsByKey(of reflect.Type) map[string]reflect.StructField {
	fields := make(map[string]reflect.StructField)
	for _, field := range reflect.VisibleFields(of) {
		if key := field.Tag.Get("yaml"); key != "" {
			fields[key] = field
		}
	}
	return fields
}

// fillDefaults sets the fields of a struct, and of structs in it, to their defaults. It returns the
// fields by their keys.
func (d *Document) fillDefaults(into reflect.Value) map[string]reflect.StructField {
	fields := fieldsByKey(into.Type())
	for _, field := range fields {
		value := into.FieldByIndex(field.Index)
		if text := field.Tag.Get("default"); text != "" {
			d.readScalar(nodePlace{node: &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}}, field.Tag, value)
		} else if value.Kind() == reflect.Struct && field.Tag.Get("as") == "" {
			d.fillDefaults(value)
		}
	}
	return fields
}

// readMapping fills a struct from a mapping, or from the scalar that may stand for it, and reports
// whether the node is one of these.
func (d *Document) readMapping(at nodePlace, tag reflect.StructTag, into reflect.Value) bool {
	fields := d.fillDefaults(into)
	if short := fields[tag.Get("short")]; short.Name != "" && at.node.Kind == yaml.ScalarNode {
		return d.readValue(at, short.Tag, into.FieldByIndex(short.Index))
	}
	ok := d.readEntries(at, "", fields, func(key string, at nodePlace) {
		d.readValue(at, fields[key].Tag, into.FieldByIndex(fields[key].Index))
	})
	if !ok {
		return false
	}
	for key := range strings.FieldsSeq(tag.Get("needs")) {
		if path := joinPath(at.path, key); !d.HasValue(path) {
			d.AddProblemf(path, "required")
		}
	}
	d.checkOneOf(at.path, tag)
	return true
}

// checkOneOf adds a problem unless a mapping has exactly one of the keys in its tag one.
func (d *Document) checkOneOf(path string, tag reflect.StructTag) {
	of := strings.Fields(tag.Get("one"))
	first := ""
	for _, key := range of {
		switch at := joinPath(path, key); {
		case !d.HasValue(at):
		case first == "":
			first = key
		default:
			d.AddProblemf(at, "cannot be used with %s on line %d: %s", first, d.LineOf(joinPath(path, first)), tag.Get("why"))
		}
	}
	if len(of) > 0 && first == "" {
		d.AddProblemf(path, "needs one of %s: %s", strings.Join(of, ", "), tag.Get("why"))
	}
}

// joinPath returns the path of a key in a mapping.
func joinPath(path, key string) string {
	return strings.TrimPrefix(path+"."+safetext.Printable(key), ".")
}

// readEntries calls each with each key and its value, and reports whether the node is a mapping. A
// key that is not one of the fields is a problem, unless fields is nil.
func (d *Document) readEntries(at nodePlace, tag reflect.StructTag, fields map[string]reflect.StructField, each func(key string, at nodePlace)) bool {
	if !d.hasKind(at, yaml.MappingNode, "a mapping") {
		return false
	}
	if rule := tag.Get("least"); rule != "" && len(at.node.Content) == 0 {
		d.AddProblemf(at.path, "at least %s", rule)
	}
	lines := make(map[string]int)
	for i := 0; i+1 < len(at.node.Content); i += 2 {
		key := at.node.Content[i]
		value := nodePlace{at.node.Content[i+1], joinPath(at.path, key.Value), key.Line}
		_, known := fields[key.Value]
		switch first, twice := lines[key.Value]; {
		case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge":
			d.addOnLinef(key.Line, at.path, "a key must be a plain word")
		case twice:
			d.addOnLinef(key.Line, value.path, "is there twice, first on line %d", first)
		case fields != nil && !known:
			lines[key.Value] = key.Line
			d.addOnLinef(key.Line, value.path, "there is no such key%s", cmp.Or(removed.Keys.RemedyAt(value.path),
				"; those that there are: "+strings.Join(slices.Sorted(maps.Keys(fields)), ", ")))
		default:
			lines[key.Value] = key.Line
			each(key.Value, value)
		}
	}
	return true
}

// readList fills a slice from a list, and reports whether the node is a list that is not too long.
// Two equal scalars are a problem.
func (d *Document) readList(at nodePlace, tag reflect.StructTag, into reflect.Value) bool {
	if !d.hasKind(at, yaml.SequenceNode, "a list") {
		return false
	}
	length := len(at.node.Content)
	if rule := tag.Get("least"); rule != "" && length == 0 {
		d.AddProblemf(at.path, "at least %s", rule)
	}
	if most, err := strconv.Atoi(tag.Get("most")); err == nil && length > most {
		d.AddProblemf(at.path, "has %d entries, more than %d", length, most)
		return false
	}
	into.Set(reflect.MakeSlice(into.Type(), length, length))
	lines := make(map[string]int)
	for i, node := range at.node.Content {
		element, value := into.Index(i), nodePlace{node, fmt.Sprintf("%s[%d]", at.path, i), node.Line}
		isString := element.Kind() == reflect.String
		if !d.readValue(value, tag, element) || !isString && tag.Get("as") == "" {
			continue
		}
		text := element.String()
		if !isString {
			text = fmt.Sprint(element.Addr().Interface())
		}
		if first, twice := lines[text]; twice {
			d.AddProblemf(value.path, "%s is there twice, first on line %d", safetext.Quote(text), first)
		} else {
			lines[text] = node.Line
		}
	}
	return true
}

// readScalar fills a value that has a format or is a string, and reports whether it did.
func (d *Document) readScalar(at nodePlace, tag reflect.StructTag, into reflect.Value) bool {
	format := d.formats[tag.Get("as")]
	what := "a string"
	if format != nil {
		_, err := format("", tag)
		what = fmt.Sprintf("a single value: %v", err)
	}
	if !d.hasKind(at, yaml.ScalarNode, what) {
		return false
	}
	text := at.node.Value
	switch isString := format == nil || tag.Get("quoted") != ""; {
	case isString && at.node.ShortTag() != "!!str":
		d.AddProblemf(at.path, "must be a string, not %s; put it in quotes", safetext.Quote(text))
		return false
	case isString && text == "" && tag.Get("empty") == "":
		d.AddProblemf(at.path, "is empty")
		return false
	case format == nil:
		into.SetString(text)
		return true
	}
	value, err := format(text, tag)
	if err != nil {
		d.AddProblemf(at.path, "%v", err)
		return false
	}
	into.Set(reflect.ValueOf(value).Convert(into.Type()))
	return true
}
