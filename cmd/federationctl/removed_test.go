package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/removed"
)

// TestRemoved uses everything that was given up, where it is refused with what serves instead.
func TestRemoved(t *testing.T) {
	t.Parallel()

	folder := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, table := range []struct {
		of   string
		is   removed.Remedies
		args func(name string) []string
	}{
		{"properties", removed.Properties, func(name string) []string {
			return []string{"check", write("Corefile", ".:53 {\n\tfederation example.org {\n\t\t"+name+"\n\t}\n}\n")}
		}},
		{"keys", removed.Keys, func(name string) []string {
			text := strings.ReplaceAll(name, ".", ": {") + ": 1" + strings.Repeat("}", strings.Count(name, "."))
			if strings.Contains(name, ".") { // of a source
				text = "catalogs: [{sources: [{" + text + "}]}]"
			}
			return []string{"serve", "--config", write("owner.yaml", text+"\n")}
		}},
		{"flags", removed.Flags, func(name string) []string { return []string{"pki", "init", "--" + name} }},
		{"commands", removed.Commands, strings.Fields},
	} {
		for name, instead := range table.is {
			var out bytes.Buffer
			if code := runCommandLine(t.Context(), table.args(name), &out, &out); code == 0 || !strings.Contains(out.String(), "; it was given up: "+instead) {
				t.Errorf("%s, %s: exit code %d and\n%s", table.of, name, code, &out)
			}
		}
	}
}
