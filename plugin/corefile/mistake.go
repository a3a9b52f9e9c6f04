package corefile

import (
	"fmt"
	"strings"

	"github.com/coredns/caddy/caddyfile"

	"github.com/hamlet-federation/coredns-federation/internal/setting"
)

// MistakeError is something wrong in a Corefile, or something that is probably not meant.
type MistakeError struct {
	File string
	Line int    // from 1; 0 for the whole file
	Text string // what is wrong
}

// Error implements error, in the words of CoreDNS.
func (m *MistakeError) Error() string {
	return fmt.Sprintf("%s:%d - Error during parsing: %s", m.File, m.Line, m.Text)
}

// newMistake returns a mistake at the token that d is at.
func newMistake(d caddyfile.Dispenser, format string, args ...any) *MistakeError {
	return &MistakeError{File: d.File(), Line: d.Line(), Text: fmt.Sprintf(format, args...)}
}

// didYouMean returns a question with the property that is most like a word, or "".
func didYouMean(word string) string {
	var names []string
	for _, p := range setting.Properties {
		names = append(names, p.Name)
	}
	if near := setting.Nearest(word, names); len(near) > 0 {
		return fmt.Sprintf("; did you mean %s?", near[0])
	}
	return ""
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
