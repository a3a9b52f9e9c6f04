package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// accepted are survivors that are accepted, with the reason of each, by their key.
type accepted map[string]string

// readAccepted reads the list. An entry is what the report prints of a survivor,
// without the line number, and then the reason, indented as the rest:
//
//	federation/catalog Catalog.trim
//		- if n > limit {
//		+ if n >= limit {
//		The same: ...
//
// Empty lines, and those that begin with #, are left out.
func readAccepted(name string) (accepted, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	list := make(accepted)
	var key, reason string
	add := func() error {
		switch {
		case key == "":
		case reason == "":
			return fmt.Errorf("%s: no reason is given for\n%s", name, key)
		case list[key] != "":
			return fmt.Errorf("%s: stands there twice:\n%s", name, key)
		default:
			list[key] = reason
		}
		key, reason = "", ""
		return nil
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, " \n")
		switch text := strings.TrimPrefix(line, "\t"); {
		case line == "" || line[0] == '#':
		case text == line: // not indented: the next entry
			if err := add(); err != nil {
				return nil, err
			}
			key = line + "\n"
		case strings.HasPrefix(text, "- ") || strings.HasPrefix(text, "+ "):
			key += line + "\n"
		default:
			reason = strings.TrimSpace(reason + " " + text)
		}
	}
	return list, add()
}

// match returns an error when the list has an entry for one of the packages that
// is no mutant of it.
func (a accepted) match(pkgs []*pkg) error {
	keys := make(map[string]bool)
	for _, p := range pkgs {
		for _, m := range p.mutants {
			keys[m.key(p.name)] = true
		}
	}
	var unmatched []string
	for key := range a {
		name, _, _ := strings.Cut(key, " ")
		if !keys[key] && slices.ContainsFunc(pkgs, func(p *pkg) bool { return p.name == name }) {
			unmatched = append(unmatched, "accepted, but no mutant any more:\n"+key)
		}
	}
	slices.Sort(unmatched)
	if len(unmatched) > 0 {
		return errors.New(strings.Join(unmatched, "\n"))
	}
	return nil
}
