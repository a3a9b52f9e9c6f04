package wire

import (
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// limitError returns the error for a field that breaks a limit, or nil where none is broken.
func limitError(field string, broken *limits.RuleError) *federation.InvalidError {
	if broken == nil {
		return nil
	}
	return &federation.InvalidError{Field: field, Reason: federation.Reason(broken.Reason), Rule: broken.Rule}
}

// checkURL returns an error unless a message names the wanted resource type or none.
func checkURL(url, want string) *federation.InvalidError {
	if url != "" && url != want {
		return federation.Invalidf("resource_url", federation.ReasonUndecodable, "%s is not %s", safetext.Quote(url), want)
	}
	return nil
}

// cutText returns s, or a copy of its first limit bytes that does not keep the rest in memory.
func cutText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.Clone(s[:limit])
}
