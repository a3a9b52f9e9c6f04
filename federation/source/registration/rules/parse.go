package rules

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern/capture"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// MaxBytes is how large a file of rules may be.
const MaxBytes = 1 << 20

// The limits of what a file says.
const (
	maxRules   = 1000
	maxEntries = 256 // of each list
	maxName    = 63  // bytes of the name of a rule
	maxQuota   = 1_000_000
	leastTTL   = time.Second // a shorter one is nothing that heartbeats can keep
	mostTTL    = time.Hour
)

// What holds where a rule says nothing.
const (
	defaultLeast = 5 * time.Second
	defaultMost  = 5 * time.Minute
	defaultTTL   = 30 * time.Second
	defaultQuota = 100
)

// Parse reads a file of rules. It returns either the rules or, in the order of lines,
// all that is wrong with the file.
func Parse(data []byte) (*Rules, []problem.Problem) {
	root, wrong := problem.Document(data, MaxBytes, "rules are")
	if wrong != (problem.Problem{}) {
		wrong.Rule = problem.Printable(wrong.Rule)
		return nil, []problem.Problem{wrong}
	}
	r := &reader{found: problem.List{Room: problem.Room}}
	rules := r.file(value{node: root, line: root.Line})
	if len(r.found.Kept) > 0 {
		return nil, inOrder(r.found)
	}
	rules.index = indexOf(rules.rules)
	return rules, nil
}

// inOrder returns problems in the order of their lines, and then how many more there are.
func inOrder(found problem.List) []problem.Problem {
	slices.SortStableFunc(found.Kept, func(a, b problem.Problem) int { return cmp.Compare(a.Line, b.Line) })
	if found.More > 0 {
		found.Kept = append(found.Kept, problem.Problem{Rule: fmt.Sprintf("and %d more", found.More)})
	}
	return found.Kept
}

// file reads the whole file.
func (r *reader) file(v value) *Rules {
	rules := &Rules{}
	lines, ok := r.mapping(v, map[string]func(v value){
		"rules": func(v value) {
			name := r.unique()
			r.list(v, maxRules, func(v value) { rules.rules = append(rules.rules, r.rule(v, name)) })
		},
		"observers": func(v value) { rules.observers = readList(r, v, pattern.ParseID) },
	})
	if ok {
		r.require(v, lines, "rules")
	}
	return rules
}

// rule reads one rule, whose name must be the first of its kind.
func (r *reader) rule(v value, first func(v value, name string)) rule {
	parsed := rule{peer: true, min: defaultLeast, max: defaultMost, usual: defaultTTL, quota: defaultQuota}
	lines, ok := r.mapping(v, map[string]func(v value){
		"name": func(v value) {
			if read(r, v, &parsed.name, parseName) {
				first(v, parsed.name)
			}
		},
		"providers": func(v value) { parsed.providers = readNames(r, v, capture.ParseID) },
		"services":  func(v value) { parsed.services = readNames(r, v, capture.ParseName) },
		"addresses": func(v value) { r.addresses(v, &parsed) },
		"ttl":       func(v value) { r.ttl(v, &parsed) },
		"quota":     func(v value) { read(r, v, &parsed.quota, parseQuota) },
	})
	if !ok {
		return parsed
	}
	r.require(v, lines, "name", "providers", "services")
	r.checkCaptures(v, lines, &parsed)
	return parsed
}

// readNames reads a list with one entry at least.
func readNames[T any](r *reader, v value, parse func(text string) (T, error)) []T {
	list := readList(r, v, parse)
	if v.node.Kind == yaml.SequenceNode && len(v.node.Content) == 0 {
		r.wrongf(v, "names nothing")
	}
	return list
}

// readList reads a list of texts that are different.
func readList[T any](r *reader, v value, parse func(text string) (T, error)) []T {
	var list []T
	first := r.unique()
	r.list(v, maxEntries, func(v value) {
		var entry T
		if read(r, v, &entry, parse) {
			first(v, v.node.Value)
			list = append(list, entry)
		}
	})
	return list
}

const nameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-._"

// parseName returns the name of a rule, which stands in reasons, logs and stores.
func parseName(text string) (string, error) {
	if text == "" || len(text) > maxName || strings.Trim(strings.ToLower(text), nameCharacters) != "" {
		return "", fmt.Errorf("%s is not a name of letters, digits, '-', '.' and '_', %d at most", federation.Quote(text), maxName)
	}
	return text, nil
}

func parseQuota(text string) (int, error) {
	quota, err := strconv.Atoi(text)
	if err != nil || quota < 1 || quota > maxQuota {
		return 0, fmt.Errorf("%s is not a whole number from 1 to %d", federation.Quote(text), maxQuota)
	}
	return quota, nil
}

// checkCaptures says which captures are used and not captured by each of the providers.
func (r *reader) checkCaptures(v value, lines map[string]int, parsed *rule) {
	said := map[string]bool{}
	check := func(key string, list []capture.Name) {
		at := value{field: v.field + "." + key, line: lines[key]}
		for i := range list {
			for _, name := range list[i].Captures() {
				if said[name] {
					continue
				}
				for j := range parsed.providers {
					if p := &parsed.providers[j]; !p.Captures(name) && !said[name] {
						said[name] = true
						r.wrongf(at, "%s has {%s}, which the pattern %s of providers does not capture",
							federation.Quote(list[i].String()), name, federation.Quote(p.String()))
					}
				}
			}
		}
	}
	check("services", parsed.services)
	check("addresses", parsed.hosts)
}

// addresses reads which addresses a rule allows.
func (r *reader) addresses(v value, parsed *rule) {
	parsed.peer = false
	readNames(r, v, func(text string) (struct{}, error) { return struct{}{}, parsed.allow(text) })
}

// peerWord stands for the address of the connection.
const peerWord = "peer"

// allow adds what a text stands for to the addresses that the rule allows.
func (r *rule) allow(text string) error {
	if text == peerWord {
		r.peer = true
		return nil
	}
	if ip, err := netip.ParseAddr(text); err == nil {
		text = netip.PrefixFrom(ip, ip.BitLen()).String()
		if ip.Zone() != "" {
			return federation.ErrAddressZone
		}
	}
	if strings.Contains(text, "/") {
		addresses, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			return fmt.Errorf("%s is not a CIDR such as 10.0.0.0/8", federation.Quote(text))
		case addresses.Addr().Is4In6():
			return fmt.Errorf("%s has an IPv4 address in IPv6, which no node has: write it as IPv4", federation.Quote(text))
		case addresses != addresses.Masked():
			return fmt.Errorf("%s has bits behind its length; %v is the range that it is in", federation.Quote(text), addresses.Masked())
		}
		r.ranges = append(r.ranges, addresses)
		return nil
	}
	hosts, err := capture.ParseName(text)
	if err != nil {
		return fmt.Errorf("neither peer, nor a CIDR, nor a pattern of host names: %w", err)
	}
	r.hosts = append(r.hosts, hosts)
	return nil
}

// ttl reads the bounds of the ttl.
func (r *reader) ttl(v value, parsed *rule) {
	before := len(r.found.Kept) + r.found.More
	lines, ok := r.mapping(v, map[string]func(v value){
		"min":     func(v value) { read(r, v, &parsed.min, parseTTL) },
		"max":     func(v value) { read(r, v, &parsed.max, parseTTL) },
		"default": func(v value) { read(r, v, &parsed.usual, parseTTL) },
	})
	if !ok || len(r.found.Kept)+r.found.More > before {
		return
	}
	if lines["default"] == 0 {
		parsed.usual = min(max(parsed.usual, parsed.min), parsed.max)
	}
	switch {
	case parsed.min > parsed.max:
		r.wrongf(v, "min is %v, and max is %v", parsed.min, parsed.max)
	case parsed.usual < parsed.min || parsed.usual > parsed.max:
		r.wrongf(v, "default is %v, and not from %v to %v", parsed.usual, parsed.min, parsed.max)
	}
}

func parseTTL(text string) (time.Duration, error) {
	ttl, err := time.ParseDuration(text)
	if err != nil || ttl < leastTTL || ttl > mostTTL {
		return 0, fmt.Errorf("%s is not a duration from %v to %v, such as 30s", federation.Quote(text), leastTTL, mostTTL)
	}
	return ttl, nil
}
