package wire

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// broken returns the error for a field that broke a rule. The caller that knows
// the service fills in its name.
func broken(field string, reason federation.Reason, format string, args ...any) *federation.InvalidError {
	return &federation.InvalidError{Field: field, Reason: reason, Rule: fmt.Sprintf(format, args...)}
}

// within puts the path of the enclosing field before that of the error.
func within(invalid *federation.InvalidError, format string, args ...any) *federation.InvalidError {
	invalid.Field = fmt.Sprintf(format, args...) + "." + invalid.Field
	return invalid
}

// text checks an optional string.
func text(field, s string, limit int) *federation.InvalidError {
	switch {
	case len(s) > limit:
		return broken(field, federation.ReasonLimit, "%d bytes, the limit is %d", len(s), limit)
	case !utf8.ValidString(s):
		return broken(field, federation.ReasonUndecodable, "not valid UTF-8: %s", federation.Quote(s))
	}
	return nil
}

// required checks a string that must be there.
func required(field, s string, limit int) *federation.InvalidError {
	if s == "" {
		return broken(field, federation.ReasonMissing, "required")
	}
	return text(field, s, limit)
}

// texts checks a list of strings, its length first. None is empty: an entry that
// says nothing takes as much memory as one that does.
func texts(field string, list []string, entries, bytes int) *federation.InvalidError {
	if len(list) > entries {
		return tooMany(field, entries)
	}
	for i, s := range list {
		if invalid := entry(field, s, bytes); invalid != nil {
			invalid.Field = fmt.Sprintf("%s[%d]", field, i)
			return invalid
		}
	}
	return nil
}

// entry checks a string of a list.
func entry(field, s string, limit int) *federation.InvalidError {
	if s == "" {
		return broken(field, federation.ReasonMissing, "is empty; leave it out")
	}
	return text(field, s, limit)
}

func tooMany(field string, entries int) *federation.InvalidError {
	return broken(field, federation.ReasonLimit, "more than %d entries", entries)
}

// checkURL checks the type that a message says it is about.
func checkURL(url, want string) *federation.InvalidError {
	if url != "" && url != want {
		return broken("resource_url", federation.ReasonUndecodable, "%s is not %s", federation.Quote(url), want)
	}
	return nil
}

// cut returns s, or its first limit bytes without holding on to the rest.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.Clone(s[:limit])
}
