package corefile

import (
	"fmt"
	"strings"

	"github.com/coredns/caddy/caddyfile"
)

// MistakeError is what is wrong with a Corefile, or is probably not meant.
type MistakeError struct {
	File string
	Line int    // from 1; 0 for the whole file
	Text string // what is wrong
}

// Error implements error, in the words of CoreDNS.
func (m *MistakeError) Error() string {
	return fmt.Sprintf("%s:%d - Error during parsing: %s", m.File, m.Line, m.Text)
}

// newMistake returns one at the token that d is at.
func newMistake(d caddyfile.Dispenser, format string, args ...any) *MistakeError {
	return &MistakeError{File: d.File(), Line: d.Line(), Text: fmt.Sprintf(format, args...)}
}

// didYouMean returns a question with the property that is most like a word, or "".
func didYouMean(word string) string {
	best, least := "", 1+min(len(word), 9)/3 // a third of the letters may be wrong
	for _, property := range properties {
		if d := editDistance(strings.ToLower(word), property); d < least {
			best, least = property, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// ofOldPlugin returns a remedy for a line of the plugin federation that CoreDNS had before
// 1.7.0, which is NAME DOMAIN or upstream [ADDRESS...], or "".
func ofOldPlugin(property string, args []string) string {
	domain := len(args) == 1 && strings.Contains(strings.TrimSuffix(args[0], "."), ".") && !strings.ContainsAny(args[0], "/:")
	if property != "upstream" && !domain {
		return ""
	}
	return "; NAME DOMAIN and upstream are of another plugin with this name, which CoreDNS had before 1.7.0: " +
		"remove its block, and begin a new one with owner and tls"
}

// editDistance returns how many letters of a have to be inserted, removed, changed or swapped
// with the next one to have b.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1) // of each prefix of a, the distances to each prefix of b
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
				continue
			}
			rows[i][j] = 1 + min(rows[i-1][j-1], rows[i-1][j], rows[i][j-1])
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], 1+rows[i-2][j-2])
			}
		}
	}
	return rows[len(a)][len(b)]
}
