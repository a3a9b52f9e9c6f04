package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// reader makes values of nodes, and keeps all that is wrong with them.
type reader struct {
	found  problem.List
	places map[string]value // of what may turn out to be wrong or not meant when all has been read, by field

	registrations []placedRegistration // in the order of the file
	registries    []placedNSM
	relays        []placedRelay
}

// value is a node at its place in the file.
type value struct {
	node  *yaml.Node
	field string // its path, such as catalogs[0].sources; empty for the whole file
	line  int    // on which it begins, or its key does
}

func (r *reader) wrongf(v value, format string, args ...any) { notef(&r.found, v, format, args...) }

// notef adds to a list what there is to say of a value.
func notef(list *problem.List, v value, format string, args ...any) {
	if list.Full() {
		list.More++
		return
	}
	list.Add(problem.Problem{Line: v.line, Field: v.field, Rule: problem.Printable(fmt.Sprintf(format, args...))})
}

// is reports whether a value is of a kind, and otherwise says that it is not.
func (r *reader) is(v value, kind yaml.Kind, what string) bool {
	switch {
	case v.node.Kind == kind && v.node.ShortTag() != "!!null":
		return true
	case v.node.Kind == yaml.AliasNode:
		r.wrongf(v, "aliases (*%s) are not resolved here; write the value again", problem.Printable(v.node.Value))
	case v.node.ShortTag() == "!!null":
		r.wrongf(v, "has no value, must be %s", what)
	case v.node.Kind == yaml.ScalarNode:
		r.wrongf(v, "must be %s, not %s", what, federation.Quote(v.node.Value))
	default:
		r.wrongf(v, "must be %s", what)
	}
	return false
}

// mapping hands the value of each key to its function. It returns the lines of the
// keys, and whether the value is a mapping.
func (r *reader) mapping(v value, known map[string]func(v value)) (lines map[string]int, ok bool) {
	return r.entries(v, func(key string, v value) {
		if read, ok := known[key]; ok {
			read(v)
		} else {
			r.wrongf(v, "there is no such key; %s", suggestion(key, slices.Sorted(maps.Keys(known))))
		}
	})
}

// entries hands each key and its value to a function. It returns the lines of the keys,
// and whether the value is a mapping.
func (r *reader) entries(v value, each func(key string, v value)) (lines map[string]int, ok bool) {
	if !r.is(v, yaml.MappingNode, "a mapping") {
		return nil, false
	}
	lines = make(map[string]int)
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key, node := v.node.Content[i], v.node.Content[i+1]
		at := value{node: node, line: key.Line, field: strings.TrimPrefix(v.field+"."+problem.Printable(key.Value), ".")}
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			r.wrongf(value{field: v.field, line: key.Line}, "a key must be a plain word")
			continue
		}
		if first, twice := lines[key.Value]; twice {
			r.wrongf(at, "is there twice, first on line %d", first)
			continue
		}
		lines[key.Value] = key.Line
		each(key.Value, at)
	}
	return lines, true
}

// require says which of the keys are missing in a mapping with these lines of keys.
func (r *reader) require(v value, lines map[string]int, keys ...string) {
	for _, key := range keys {
		if _, ok := lines[key]; !ok {
			r.wrongf(value{line: v.line, field: strings.TrimPrefix(v.field+"."+key, ".")}, "required")
		}
	}
}

// suggestion says which key may be meant by one that does not exist.
func suggestion(key string, known []string) string {
	best, least := "", 3
	for _, candidate := range known {
		if d := distance(strings.ToLower(key), candidate); d < least && d < len(candidate)-1 {
			best, least = candidate, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %s?", best)
	}
	return "those that there are: " + strings.Join(known, ", ")
}

// distance returns the Levenshtein distance of two words: by hand, as no library for
// it is in use, and it is a dozen lines.
func distance(a, b string) int {
	if len(a) > 2*len(b)+2 {
		return len(a) // far enough, and it bounds the work
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substituted := diagonal
			if a[i] != b[j] {
				substituted++
			}
			diagonal = row[j+1]
			row[j+1] = min(substituted, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// list calls each for the elements of a list.
func (r *reader) list(v value, each func(v value)) {
	if !r.is(v, yaml.SequenceNode, "a list") {
		return
	}
	for i, node := range v.node.Content {
		each(value{node: node, field: fmt.Sprintf("%s[%d]", v.field, i), line: node.Line})
	}
}

// unique returns a function that takes an element of a list and its text, and reports
// whether it is the first with that text. Otherwise it says that it is not.
func (r *reader) unique() func(v value, text string) bool {
	lines := make(map[string]int)
	return func(v value, text string) bool {
		first, twice := lines[text]
		if twice {
			r.wrongf(v, "%s is there twice, first on line %d", federation.Quote(text), first)
			return false
		}
		lines[text] = v.line
		return true
	}
}

// text returns a string that is not empty, or "" after it has said what is wrong.
func (r *reader) text(v value) string {
	switch {
	case !r.is(v, yaml.ScalarNode, "a string"):
		return ""
	case v.node.ShortTag() != "!!str":
		r.wrongf(v, "must be a string, not %s; put it in quotes", federation.Quote(v.node.Value))
		return ""
	case v.node.Value == "":
		r.wrongf(v, "is empty")
	}
	return v.node.Value
}

// store returns a function that stores the text of a value.
func (r *reader) store(target *string) func(v value) {
	return func(v value) { *target = r.text(v) }
}

// parsed returns a function that stores what parse makes of a scalar.
func parsed[T any](r *reader, target *T, what string, parse func(text string) (T, error)) func(v value) {
	return func(v value) {
		if !r.is(v, yaml.ScalarNode, what) {
			return
		}
		result, err := parse(v.node.Value)
		if err != nil {
			r.wrongf(v, "%v", err)
			return
		}
		*target = result
	}
}

func parseAddress(text string) (string, error) {
	_, port, err := net.SplitHostPort(text)
	if _, failure := strconv.ParseUint(port, 10, 16); err != nil || failure != nil {
		return "", fmt.Errorf("%s is not host:port, such as localhost:9153, or :8008 for all addresses of this machine", federation.Quote(text))
	}
	return text, nil
}

// wholeNumber returns a function that takes a whole number from 1 to most.
func wholeNumber(most int) func(text string) (int, error) {
	return func(text string) (int, error) {
		number, err := strconv.Atoi(text)
		if err != nil || number < 1 || number > most {
			return 0, fmt.Errorf("%s is not a whole number from 1 to %d", federation.Quote(text), most)
		}
		return number, nil
	}
}

// minLifetime is the shortest lifetime of a source: below it a mere reconnect would
// end what the source publishes.
const minLifetime = time.Second

// durationOr returns a function that takes a duration as a Corefile does: as Go writes it,
// as a bare number of seconds, or as the word for endless, for which it returns 0.
func durationOr(endless string) func(text string) (time.Duration, error) {
	return func(text string) (time.Duration, error) {
		if text == endless {
			return 0, nil
		}
		spelled := text
		if _, err := strconv.ParseUint(text, 10, 64); err == nil {
			spelled += "s"
		}
		d, err := time.ParseDuration(spelled)
		if err != nil || d < minLifetime {
			return 0, fmt.Errorf("%s is neither a duration such as 90m, of %v at least, nor %s", federation.Quote(text), minLifetime, endless)
		}
		return d, nil
	}
}

// parseShare takes a share in percent, or the word off, for which it returns 0 as for all.
func parseShare(text string) (int, error) {
	if text == "off" {
		return 0, nil
	}
	digits, percent := strings.CutSuffix(text, "%")
	share, err := strconv.Atoi(digits)
	if err != nil || !percent || share < 1 || share > 100 {
		return 0, fmt.Errorf("%s is neither a share of 1%% to 100%%, such as 50%%, nor off", federation.Quote(text))
	}
	return share % 100, nil
}

// ParseSize returns the number of bytes that a text stands for: a whole number from 1,
// which KiB, MiB or GiB may follow.
func ParseSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "BKMGi")
	unit := max(slices.Index(units, text[len(digits):]), 0)
	number, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || number < 1 || digits[0] == '+' || digits+units[unit] != text && digits != text {
		return 0, fmt.Errorf("%s is not a size such as 512MiB", federation.Quote(text))
	}
	return number << (10 * unit), nil
}

// FormatSize returns a number of bytes as ParseSize takes it, with the largest unit
// of which it is a multiple.
func FormatSize(size int64) string {
	unit := 0
	for size != 0 && size%1024 == 0 && unit < len(units)-1 {
		size, unit = size/1024, unit+1
	}
	return strconv.FormatInt(size, 10) + units[unit]
}

// units has the units of a size, each 1024 times the one before.
var units = []string{"B", "KiB", "MiB", "GiB"}

func parseRange(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return prefix, fmt.Errorf("%s is not a CIDR such as 127.0.0.0/8", federation.Quote(text))
	}
	return prefix, nil
}
