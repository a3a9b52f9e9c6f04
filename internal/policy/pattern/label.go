package pattern

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// The rules that a pattern of labels or keys can break, beside the limits of package
// federation.
var (
	errNoKey   = errors.New("the key is missing")
	errKeyStar = errors.New("a key is never a pattern here: write it out")
	errStars   = errors.New(`"**" says no more than "*"`)
)

// Label is a pattern of the labels of services: a key, and the value that it must
// have. A Value of "*" is any value. [NewLabel] makes one.
type Label struct{ Key, Value string }

// NewLabel returns the pattern of a key and a value. A value of "*" matches any value.
func NewLabel(key, value string) (Label, error) {
	var err error
	switch key {
	case "":
		err = errNoKey
	case all:
		err = errKeyStar
	default:
		err = cmp.Or(limits.CheckText(key, limits.KeyBytes).Of("key"), limits.CheckText(value, limits.ValueBytes).Of("value"))
	}
	if err != nil {
		return Label{}, fmt.Errorf("label pattern %s: %w", safetext.Quote(key+"="+value), err)
	}
	return Label{key, value}, nil
}

// Matches reports whether the labels, which are sorted by key, have the key with the
// value.
func (p Label) Matches(labels []federation.Pair) bool {
	i, ok := slices.BinarySearchFunc(labels, p.Key, func(l federation.Pair, key string) int { return strings.Compare(l.Key, key) })
	return ok && p.Key != "" && (p.Value == all || p.Value == labels[i].Value)
}

// String returns the pattern as KEY=VALUE, or "=" for the zero value.
func (p Label) String() string { return p.Key + "=" + p.Value }

// Key is a pattern of the keys of labels and metadata.
type Key struct{ glob string }

// ParseKey returns the pattern that s spells, in which '*' is any number of any
// characters. Upper and lower case are different, as they are in keys.
func ParseKey(s string) (Key, error) {
	var err error
	switch {
	case s == "":
		err = errNoKey
	case strings.Contains(s, "**"):
		err = errStars
	default:
		err = limits.CheckText(s, limits.KeyBytes).Of("key")
	}
	if err != nil {
		return Key{}, fmt.Errorf("key pattern %s: %w", safetext.Quote(s), err)
	}
	return Key{s}, nil
}

// Matches reports whether p matches the key. The empty key is matched by "*" alone.
func (p Key) Matches(key string) bool { return p.glob != "" && matchesGlob(p.glob, key) }

// String returns the pattern as it was parsed, or "" for the zero value.
func (p Key) String() string { return p.glob }
