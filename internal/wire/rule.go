package wire

import (
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// checkRequired checks a string of a message that must not be empty.
func checkRequired(field, s string, limit int) *federation.InvalidError {
	if s == "" {
		return federation.Invalidf(field, federation.ReasonMissing, "required")
	}
	return federation.CheckText(field, s, limit)
}

func tooMany(field string, limit int) *federation.InvalidError {
	return federation.Invalidf(field, federation.ReasonLimit, "more than %d entries", limit)
}

// checkURL checks the resource type that a message names. It may name none.
func checkURL(url, want string) *federation.InvalidError {
	if url != "" && url != want {
		return federation.Invalidf("resource_url", federation.ReasonUndecodable, "%s is not %s", safetext.Quote(url), want)
	}
	return nil
}

// cutText returns s, or its first limit bytes without holding on to the rest.
func cutText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.Clone(s[:limit])
}
