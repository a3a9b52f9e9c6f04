package ownerfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// Catalog is what a catalog file says: a mapping in YAML or JSON whose one key,
// services, holds the list of services in the protobuf JSON mapping of
// FederatedService.
type Catalog struct {
	Services []*federation.Service // the valid ones, in the order of the file
	Problems []Problem             // mistakes; with any of them the file is not fit to be published
	Warnings []Problem             // what is allowed and probably not meant
}

// Problem is a mistake in a catalog file.
type Problem struct {
	Line    int    // in the file, from 1; the nearest that is known, 0 for the whole file
	Service string // name in quotes, or place such as services[2] when it has none
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

// maxProblems bounds the problems that one error or one log line spells out.
const maxProblems = 5

// Err returns nil for a catalog without problems, and else an error that spells
// out the first few of them.
func (c Catalog) Err() error {
	if len(c.Problems) == 0 {
		return nil
	}
	return errors.New(summary(c.Problems))
}

func summary(problems []Problem) string {
	var lines []string
	for _, p := range problems[:min(len(problems), maxProblems)] {
		if p.Line > 0 {
			lines = append(lines, fmt.Sprintf("line %d: %s", p.Line, p))
		} else {
			lines = append(lines, p.String())
		}
	}
	if more := len(problems) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "; ")
}

// ParseCatalog reads a catalog file. Each service is checked as a consumer with
// that policy would check it.
func ParseCatalog(data []byte, policy wire.Policy) Catalog {
	var c Catalog
	entries, problem := readEntries(data)
	if problem != nil {
		c.Problems = append(c.Problems, *problem)
		return c
	}
	lines := make(map[string]int) // of the services, by name
	for i := range entries {
		e := &entries[i]
		service, problems := e.decode(i, policy)
		c.Problems = append(c.Problems, problems...)
		if service == nil {
			continue
		}
		if line, ok := lines[service.Name]; ok {
			c.Problems = append(c.Problems, Problem{
				Line: e.line("name"), Service: federation.Quote(service.Name), Field: "name",
				Rule: fmt.Sprintf("the service on line %d has the same name; a name stands for one service", line),
			})
			continue
		}
		lines[service.Name] = e.line("")
		c.Services = append(c.Services, service)
		c.Warnings = append(c.Warnings, e.doubts(service)...)
	}
	c.Warnings = append(c.Warnings, sharedNames(c.Services, lines)...)
	byLine := func(a, b Problem) int { return a.Line - b.Line }
	slices.SortStableFunc(c.Problems, byLine)
	slices.SortStableFunc(c.Warnings, byLine)
	return c
}

// entry is one element of services.
type entry struct {
	start int        // line where it begins
	node  *yaml.Node // where its fields stand; in a JSON file nil until someone asks
	value any        // as encoding/json decodes it
	json  []byte
}

// readEntries splits a catalog file into its services.
func readEntries(data []byte) ([]entry, *Problem) {
	// JSON is not read as YAML: it has escapes that YAML does not know.
	if json.Valid(data) {
		return readJSON(data)
	}
	return readYAML(data)
}

const expectServices = "the file must hold a mapping with the one key services; an empty catalog is 'services: []'"

func readYAML(data []byte) ([]entry, *Problem) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, next yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		// An editor that is about to write leaves an empty file for a moment.
		return nil, &Problem{Rule: "the file is empty; an empty catalog is 'services: []'"}
	} else if err != nil {
		return nil, syntaxProblem(err)
	}
	if err := decoder.Decode(&next); err == nil {
		return nil, &Problem{Line: next.Line, Rule: "a second document begins here; a catalog is one document"}
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxProblem(err)
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, &Problem{Line: root.Line, Rule: expectServices}
	}
	var services *yaml.Node
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], resolve(root.Content[i+1])
		switch {
		case key.Value != "services":
			return nil, &Problem{Line: key.Line, Rule: "unknown key " + federation.Quote(key.Value) + "; " + expectServices}
		case services != nil:
			return nil, &Problem{Line: key.Line, Rule: "services is there twice"}
		case value.Kind != yaml.SequenceNode:
			return nil, &Problem{Line: key.Line, Rule: "services must be a list; an empty one is []"}
		}
		services = value
	}
	if services == nil {
		return nil, &Problem{Line: root.Line, Rule: expectServices}
	}
	plain(services)
	var entries []entry
	for i, node := range services.Content {
		e := entry{start: node.Line, node: node}
		if err := node.Decode(&e.value); err != nil {
			p := syntaxProblem(err)
			p.Service, p.Line = place(i), max(p.Line, node.Line)
			return nil, p
		}
		var err error
		if e.json, err = json.Marshal(e.value); err != nil { // numbers that JSON does not have
			return nil, &Problem{Line: node.Line, Service: place(i), Rule: err.Error()}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// plain makes strings of what YAML would turn into something that JSON does not
// have: the keys of mappings that are numbers and the like, and dates.
func plain(node *yaml.Node) {
	for i, child := range node.Content {
		isKey := node.Kind == yaml.MappingNode && i%2 == 0
		if child.Kind == yaml.ScalarNode && (isKey && child.ShortTag() != "!!merge" || child.ShortTag() == "!!timestamp") {
			child.Tag = "!!str"
		}
		plain(child)
	}
}

// resolve follows an alias to what it stands for.
func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// syntaxLine finds the line in an error of the YAML reader, which is not typed.
var syntaxLine = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s*)?(?:line (\d+): )?`)

func syntaxProblem(err error) *Problem {
	text := err.Error()
	match := syntaxLine.FindStringSubmatch(text)
	line, _ := strconv.Atoi(match[1])
	return &Problem{Line: line, Rule: text[len(match[0]):]}
}

// readJSON reads data, which is valid JSON.
func readJSON(data []byte) ([]entry, *Problem) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	counted, lines := int64(0), 1
	line := func(offset int64) int { // which only grows
		lines += bytes.Count(data[counted:offset], []byte("\n"))
		counted = offset
		return lines
	}
	if token, _ := decoder.Token(); token != json.Delim('{') {
		return nil, &Problem{Line: line(decoder.InputOffset()), Rule: expectServices}
	}
	var entries []entry
	found := false
	for decoder.More() {
		token, _ := decoder.Token()
		key, _ := token.(string)
		at := line(decoder.InputOffset())
		switch {
		case key != "services":
			return nil, &Problem{Line: at, Rule: "unknown key " + federation.Quote(key) + "; " + expectServices}
		case found:
			return nil, &Problem{Line: at, Rule: "services is there twice"}
		}
		if token, _ := decoder.Token(); token != json.Delim('[') {
			return nil, &Problem{Line: at, Rule: "services must be a list; an empty one is []"}
		}
		found = true
		for decoder.More() {
			var raw json.RawMessage
			if err := decoder.Decode(&raw); err != nil {
				return nil, &Problem{Line: at, Service: place(len(entries)), Rule: err.Error()}
			}
			e := entry{start: line(decoder.InputOffset() - int64(len(raw))), json: raw}
			if err := json.Unmarshal(raw, &e.value); err != nil {
				return nil, &Problem{Line: e.start, Service: place(len(entries)), Rule: err.Error()}
			}
			entries = append(entries, e)
		}
		if _, err := decoder.Token(); err != nil {
			return nil, &Problem{Line: at, Rule: err.Error()}
		}
	}
	if !found {
		return nil, &Problem{Rule: expectServices}
	}
	return entries, nil
}

func place(i int) string { return fmt.Sprintf("services[%d]", i) }

// decode returns the service that the entry at index i of the list spells, or
// nil, and what is wrong with it.
func (e *entry) decode(i int, policy wire.Policy) (*federation.Service, []Problem) {
	var problems []Problem
	object, ok := e.value.(map[string]any)
	if !ok {
		return nil, []Problem{{Line: e.start, Service: place(i), Rule: "a service must be a mapping"}}
	}
	label := place(i)
	if name, ok := object["name"].(string); ok && name != "" {
		label = federation.Quote(name)
	}
	report := func(field, rule string) {
		problems = append(problems, Problem{Line: e.line(field), Service: label, Field: field, Rule: rule})
	}
	var message typespb.FederatedService
	unknownFields(object, message.ProtoReflect().Descriptor(), "", func(path, key string) {
		problems = append(problems, Problem{
			Line: e.line(path + "." + key), Service: label, Field: path,
			Rule: "there is no field " + federation.Quote(key),
		})
	})
	options := protojson.UnmarshalOptions{DiscardUnknown: true}
	var wrong []string // paths of what has the wrong type
	if err := options.Unmarshal(e.json, &message); err != nil {
		var values map[string]any // of the types of JSON, whatever the file is
		_ = json.Unmarshal(e.json, &values)
		misfits(values, message.ProtoReflect().Descriptor(), "", func(path, rule string) {
			wrong = append(wrong, path)
			report(path, rule)
		})
		rest, failure := json.Marshal(values)
		if len(wrong) == 0 || failure != nil || options.Unmarshal(rest, &message) != nil {
			report("", decodeRule(err))
			return nil, problems
		}
	}
	service, err := wire.DecodeService(&message, policy)
	if err != nil {
		for _, invalid := range mistakes(&message, policy, err) {
			// What has the wrong type was left out, and is not missing.
			if !slices.ContainsFunc(wrong, func(path string) bool {
				return invalid.Field == path || strings.HasPrefix(invalid.Field, path+".")
			}) {
				report(invalid.Field, invalid.Rule)
			}
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return service, nil
}

// unknownFields calls report for each key of object that is no field of the
// message, with the path of the mapping that has it. protojson would stop at the
// first one.
func unknownFields(object map[string]any, message protoreflect.MessageDescriptor, path string, report func(path, key string)) {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		field := fieldOf(message, key)
		if field == nil {
			report(path, key)
			continue
		}
		if field.Message() == nil || !field.IsList() {
			continue
		}
		elements, _ := object[key].([]any)
		for i, element := range elements {
			if child, ok := element.(map[string]any); ok {
				unknownFields(child, field.Message(), fmt.Sprintf("%s[%d]", field.TextName(), i), report)
			}
		}
	}
}

// decodePrefix is what protojson puts before the rule. Its line is that of our
// own conversion, and its space varies on purpose.
var decodePrefix = regexp.MustCompile(`^proto:\s*(?:syntax error\s*)?(?:\(line \d+:\d+\):)?\s*`)

func decodeRule(err error) string {
	return decodePrefix.ReplaceAllString(strings.ReplaceAll(err.Error(), "\u00a0", " "), "")
}

// line returns the line on which a field stands, or the nearest to it that is
// known.
func (e *entry) line(field string) int {
	if e.node == nil && field != "" {
		e.node = locate(e.json, e.start)
	}
	line, node := e.start, e.node
	for part := range strings.FieldsFuncSeq(field, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		if node == nil {
			break
		}
		node = resolve(node)
		var next *yaml.Node
		if node.Kind == yaml.MappingNode {
			for i := 0; i < len(node.Content); i += 2 {
				if key := node.Content[i]; key.Value == part || snake(key.Value) == part {
					next, line = node.Content[i+1], key.Line
				}
			}
		} else if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(node.Content) {
			next, line = node.Content[i], node.Content[i].Line
		}
		node = next
	}
	return line
}

// doubts returns what is probably not meant in a valid service.
func (e *entry) doubts(s *federation.Service) []Problem {
	var warnings []Problem
	warn := func(field, rule string) {
		warnings = append(warnings, Problem{Line: e.line(field), Service: federation.Quote(s.Name), Field: field, Rule: rule})
	}
	selected := make([]bool, len(s.Endpoints))
	labels := make(map[federation.Label]string) // IDs by the names they stand for
	for i, instance := range s.Instances {
		field := fmt.Sprintf("instances[%d]", i)
		matches := 0
		for j, endpoint := range s.Endpoints {
			if instance.Selects(endpoint.Labels) {
				selected[j] = true
				matches++
			}
		}
		if matches == 0 {
			// Hamlet: "If there is no matching selector for an Instance, then consumer
			// agent implementors must associate to that Instance all endpoints."
			for j := range selected {
				selected[j] = true
			}
			if len(instance.EndpointSelector) > 0 {
				warn(field+".endpoint_selector", "no endpoint has one of these labels, so the instance gets every endpoint")
			}
		}
		label, err := federation.ParseLabel(instance.ID)
		if err == nil {
			_, err = federation.ParseFQDN(label.String() + "." + s.FQDN.String())
		}
		switch other, taken := labels[label]; {
		case err != nil:
			warn(field+".id", fmt.Sprintf("%s will have no DNS name of its own: %v", federation.Quote(instance.ID), err))
		case taken:
			warn(field+".id", fmt.Sprintf("%s and %s are one DNS name; one of the two instances will have none",
				federation.Quote(other), federation.Quote(instance.ID)))
		default:
			labels[label] = instance.ID
		}
	}
	for j, endpoint := range s.Endpoints {
		if !selected[j] {
			warn(fmt.Sprintf("endpoints[%d]", j), fmt.Sprintf("no instance selects %s, so only the name of the service leads to it",
				endpoint.Address))
		}
	}
	return warnings
}

// sharedNames returns a warning for each service whose fqdn is that of another.
func sharedNames(services []*federation.Service, lines map[string]int) []Problem {
	var warnings []Problem
	byName := make(map[federation.FQDN][]string)
	for _, s := range services {
		byName[s.FQDN] = append(byName[s.FQDN], s.Name)
	}
	for _, s := range services {
		names := byName[s.FQDN]
		// Of one owner's services with one fqdn, consumers serve the smallest name.
		if first := slices.Min(names); len(names) > 1 && s.Name != first {
			warnings = append(warnings, Problem{
				Line: lines[s.Name], Service: federation.Quote(s.Name), Field: "fqdn",
				Rule: fmt.Sprintf("%s is also that of service %s, which wins: this one will not be served",
					s.FQDN, federation.Quote(first)),
			})
		}
	}
	return warnings
}
