package pattern

import "strings"

// matchesGlob reports whether the pattern, in which '*' is any number of any characters,
// matches the whole text. Every part between two stars is found where it comes first,
// and never looked for again, so the time is linear.
func matchesGlob(pattern, text string) bool {
	first, pattern, star := strings.Cut(pattern, "*")
	if !star {
		return text == first
	}
	text, ok := strings.CutPrefix(text, first)
	for ok {
		var part string
		part, pattern, star = strings.Cut(pattern, "*")
		if !star {
			return strings.HasSuffix(text, part)
		}
		_, text, ok = strings.Cut(text, part)
	}
	return false
}
