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

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/removed"
)

// Document is a file in YAML that has been read into a struct, with the lines of its
// values and all that is wrong with them. The decoder of the YAML package would give up a
// struct at an unknown key, know no path, and take aliases, which are not read here.
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
type Document struct {
	formats map[string]Format
	lines   map[string]int // by path
	found   List
}

// Format makes a value of the text of a scalar, for a field with these tags. It takes no empty
// text.
type Format func(text string, tag reflect.StructTag) (any, error)

// Of returns the format that a function parses.
func Of[T any](parse func(text string) (T, error)) Format {
	return func(text string, _ reflect.StructTag) (any, error) { return parse(text) }
}

// place is a node at its place in the file.
type place struct {
	node *yaml.Node
	path string // such as catalogs[0].sources; empty for the whole file
	line int    // on which it begins, or its key does
}

// Read fills the struct that into points to with the one document of a file, of at most so
// many bytes. The struct needs some keys, separated by spaces. Are says what a document is,
// such as "rules are". A struct of which a list has pointers is nil where there is none in
// the file, and everything else that is wrong has the zero value.
func Read(data []byte, most int, are, needs string, formats map[string]Format, into any) *Document {
	d := &Document{formats: formats, lines: make(map[string]int), found: List{Room: Room}}
	root, wrong := Root(data, most, are)
	if root == nil {
		wrong.Rule = federation.Printable(wrong.Rule)
		d.found.Add(wrong)
		return d
	}
	d.read(place{root, "", root.Line}, reflect.StructTag(`needs:"`+needs+`"`), reflect.ValueOf(into).Elem())
	return d
}

// Empty is the rule that a file without a document breaks.
const Empty = "the file is empty"

// Root returns the one document of a file with at most so many bytes, or what keeps it
// from being one. are says what a document is, such as "rules are".
func Root(data []byte, most int, are string) (*yaml.Node, Problem) {
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

// Has reports whether the file has a value at a path.
func (d *Document) Has(path string) bool { return d.lines[path] > 0 }

// Line returns the line of a path, or of the nearest above it that the file has.
func (d *Document) Line(path string) int {
	for path != "" && d.lines[path] == 0 {
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return d.lines[path]
}

// At returns what there is to say of a path.
func (d *Document) At(path, format string, args ...any) Problem {
	return Problem{Line: d.Line(path), Field: path, Rule: federation.Printable(fmt.Sprintf(format, args...))}
}

// Wrongf notes what is wrong at a path.
func (d *Document) Wrongf(path, format string, args ...any) {
	d.found.Add(d.At(path, format, args...))
}

// wrongf is Wrongf for what is on another line.
func (d *Document) wrongf(line int, path, format string, args ...any) {
	p := d.At(path, format, args...)
	p.Line = line
	d.found.Add(p)
}

// WrongIn reports whether something is wrong at a path or below it. It does not know where
// there is too much wrong to keep.
func (d *Document) WrongIn(path string) bool {
	return slices.ContainsFunc(d.found.Kept, func(p Problem) bool {
		rest, ok := strings.CutPrefix(p.Field, path)
		return ok && (rest == "" || rest[0] == '[' || rest[0] == '.')
	})
}

// Wrong returns all that is wrong, in the order of lines; see [List.Ordered].
func (d *Document) Wrong() []Problem { return d.found.Ordered() }

// Ordered returns the problems in the order of their lines, and then how many more there are.
func (l *List) Ordered() []Problem {
	slices.SortStableFunc(l.Kept, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	if l.More > 0 {
		return append(l.Kept, Problem{Rule: fmt.Sprintf("and %d more", l.More)})
	}
	return l.Kept
}

// is reports whether a value is of a kind, and otherwise says that it is not.
func (d *Document) is(at place, kind yaml.Kind, what string) bool {
	switch tag := at.node.ShortTag(); {
	case at.node.Kind == yaml.AliasNode:
		d.Wrongf(at.path, noAlias, at.node.Value)
	case tag == "!!null":
		d.Wrongf(at.path, "has no value, must be %s", what)
	case at.node.Kind == kind:
		return true
	case at.node.Kind == yaml.ScalarNode:
		d.Wrongf(at.path, "must be %s, not %s", what, federation.Quote(at.node.Value))
	default:
		d.Wrongf(at.path, "must be %s", what)
	}
	return false
}

// read fills a value, and reports whether the node is one of its kind.
func (d *Document) read(at place, tag reflect.StructTag, into reflect.Value) bool {
	d.lines[at.path] = at.line
	switch kind := into.Kind(); {
	case kind == reflect.Slice:
		return d.list(at, tag, into)
	case tag.Get("as") != "" || kind == reflect.String:
		return d.scalar(at, tag, into)
	case kind == reflect.Map:
		into.Set(reflect.MakeMap(into.Type()))
		return d.entries(at, tag, nil, func(key string, at place) {
			if value := reflect.New(into.Type().Elem()).Elem(); d.read(at, tag, value) {
				into.SetMapIndex(reflect.ValueOf(key), value)
			}
		})
	case kind == reflect.Pointer:
		target := reflect.New(into.Type().Elem())
		if !d.read(at, tag, target.Elem()) {
			return false
		}
		into.Set(target)
		return true
	}
	return d.mapping(at, tag, into)
}

// keys returns the fields of a struct that the file has, by their keys.
func keys(of reflect.Type) map[string]reflect.StructField {
	fields := make(map[string]reflect.StructField)
	for _, field := range reflect.VisibleFields(of) {
		if key := field.Tag.Get("yaml"); key != "" {
			fields[key] = field
		}
	}
	return fields
}

// fill gives the fields of a struct, and of those in it, what holds by default.
func (d *Document) fill(into reflect.Value) map[string]reflect.StructField {
	fields := keys(into.Type())
	for _, field := range fields {
		value := into.FieldByIndex(field.Index)
		if text := field.Tag.Get("default"); text != "" {
			d.scalar(place{node: &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}}, field.Tag, value)
		} else if value.Kind() == reflect.Struct && field.Tag.Get("as") == "" {
			d.fill(value)
		}
	}
	return fields
}

func (d *Document) mapping(at place, tag reflect.StructTag, into reflect.Value) bool {
	fields := d.fill(into)
	if short := fields[tag.Get("short")]; short.Name != "" && at.node.Kind == yaml.ScalarNode {
		return d.read(at, short.Tag, into.FieldByIndex(short.Index))
	}
	ok := d.entries(at, "", fields, func(key string, at place) {
		d.read(at, fields[key].Tag, into.FieldByIndex(fields[key].Index))
	})
	if !ok {
		return false
	}
	for key := range strings.FieldsSeq(tag.Get("needs")) {
		if path := below(at.path, key); !d.Has(path) {
			d.Wrongf(path, "required")
		}
	}
	d.one(at.path, tag)
	return true
}

// one says that a mapping does not have exactly one of the keys of which it needs one.
func (d *Document) one(path string, tag reflect.StructTag) {
	of := strings.Fields(tag.Get("one"))
	first := ""
	for _, key := range of {
		switch at := below(path, key); {
		case !d.Has(at):
		case first == "":
			first = key
		default:
			d.Wrongf(at, "cannot be used with %s on line %d: %s", first, d.Line(below(path, first)), tag.Get("why"))
		}
	}
	if len(of) > 0 && first == "" {
		d.Wrongf(path, "needs one of %s: %s", strings.Join(of, ", "), tag.Get("why"))
	}
}

// below returns the path of a key in a mapping.
func below(path, key string) string {
	return strings.TrimPrefix(path+"."+federation.Printable(key), ".")
}

// entries hands each key and its value to a function, and reports whether the value is a
// mapping. It may have the keys of the fields only, unless these are nil.
func (d *Document) entries(at place, tag reflect.StructTag, fields map[string]reflect.StructField, each func(key string, at place)) bool {
	if !d.is(at, yaml.MappingNode, "a mapping") {
		return false
	}
	if rule := tag.Get("least"); rule != "" && len(at.node.Content) == 0 {
		d.Wrongf(at.path, "at least %s", rule)
	}
	lines := make(map[string]int)
	for i := 0; i+1 < len(at.node.Content); i += 2 {
		key := at.node.Content[i]
		value := place{at.node.Content[i+1], below(at.path, key.Value), key.Line}
		_, known := fields[key.Value]
		switch first, twice := lines[key.Value]; {
		case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge":
			d.wrongf(key.Line, at.path, "a key must be a plain word")
		case twice:
			d.wrongf(key.Line, value.path, "is there twice, first on line %d", first)
		case fields != nil && !known:
			lines[key.Value] = key.Line
			d.wrongf(key.Line, value.path, "there is no such key%s", cmp.Or(removed.Keys.RemedyAt(value.path),
				"; those that there are: "+strings.Join(slices.Sorted(maps.Keys(fields)), ", ")))
		default:
			lines[key.Value] = key.Line
			each(key.Value, value)
		}
	}
	return true
}

// list reads the elements of a list. Scalars must be different.
func (d *Document) list(at place, tag reflect.StructTag, into reflect.Value) bool {
	if !d.is(at, yaml.SequenceNode, "a list") {
		return false
	}
	length := len(at.node.Content)
	if rule := tag.Get("least"); rule != "" && length == 0 {
		d.Wrongf(at.path, "at least %s", rule)
	}
	if most, err := strconv.Atoi(tag.Get("most")); err == nil && length > most {
		d.Wrongf(at.path, "has %d entries, more than %d", length, most)
		return false
	}
	into.Set(reflect.MakeSlice(into.Type(), length, length))
	lines := make(map[string]int)
	for i, node := range at.node.Content {
		element, value := into.Index(i), place{node, fmt.Sprintf("%s[%d]", at.path, i), node.Line}
		isString := element.Kind() == reflect.String
		if !d.read(value, tag, element) || !isString && tag.Get("as") == "" {
			continue
		}
		text := element.String()
		if !isString {
			text = fmt.Sprint(element.Addr().Interface())
		}
		if first, twice := lines[text]; twice {
			d.Wrongf(value.path, "%s is there twice, first on line %d", federation.Quote(text), first)
		} else {
			lines[text] = node.Line
		}
	}
	return true
}

// scalar reads a value that has a format, or is a string.
func (d *Document) scalar(at place, tag reflect.StructTag, into reflect.Value) bool {
	format := d.formats[tag.Get("as")]
	what := "a string"
	if format != nil {
		_, err := format("", tag)
		what = fmt.Sprintf("a single value: %v", err)
	}
	if !d.is(at, yaml.ScalarNode, what) {
		return false
	}
	text := at.node.Value
	switch isString := format == nil || tag.Get("quoted") != ""; {
	case isString && at.node.ShortTag() != "!!str":
		d.Wrongf(at.path, "must be a string, not %s; put it in quotes", federation.Quote(text))
		return false
	case isString && text == "" && tag.Get("empty") == "":
		d.Wrongf(at.path, "is empty")
		return false
	case format == nil:
		into.SetString(text)
		return true
	}
	value, err := format(text, tag)
	if err != nil {
		d.Wrongf(at.path, "%v", err)
		return false
	}
	into.Set(reflect.ValueOf(value).Convert(into.Type()))
	return true
}
