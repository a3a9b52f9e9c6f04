package main

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var (
	fenced    = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```$")
	shellLine = regexp.MustCompile(`(?m)^(?:[a-z]*\$ )?(?:bin/)?federationctl (.*)$`)
	codeSpan  = regexp.MustCompile("`(?:bin/)?federationctl ([^`]*)`")
)

// TestDocumentedCommands looks for each command that a document of the repository has, and for
// its flags.
func TestDocumentedCommands(t *testing.T) {
	found := 0
	check := func(where, line string) {
		line, _, _ = strings.Cut(line, " #")
		line, _, _ = strings.Cut(line, " | ")
		words := strings.Fields(line)
		if strings.ToUpper(words[0]) == words[0] {
			return // COMMAND, which stands for any
		}
		found++
		root := rootCommand(t.Context())
		root.InitDefaultCompletionCmd()
		command, _, err := root.Find(words)
		if err != nil || !command.HasParent() && !strings.HasPrefix(words[0], "-") {
			t.Errorf("%s: federationctl %s: %v", where, line, err)
			return
		}
		for _, word := range words {
			flag, _, _ := strings.Cut(strings.TrimRight(word, ".,;"), "=")
			name, ok := strings.CutPrefix(flag, "--")
			if ok && name != "help" && name != "version" && command.Flags().Lookup(name) == nil && command.InheritedFlags().Lookup(name) == nil {
				t.Errorf("%s: %s has no flag %s", where, command.CommandPath(), flag)
			}
		}
	}
	root := os.DirFS("../..")
	must.Do(t, fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch base := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && (name == "bin" || name == "run" || base == "testdata" || base == "node_modules" || len(base) > 1 && base[0] == '.'):
			return fs.SkipDir
		case path.Ext(name) != ".md":
			return nil
		}
		text := strings.ReplaceAll(string(must.Get(fs.ReadFile(root, name))(t)), "\\\n", " ")
		for _, block := range fenced.FindAllStringSubmatch(text, -1) {
			if block[1] != "sh" && block[1] != "console" {
				continue
			}
			for _, line := range shellLine.FindAllStringSubmatch(block[2], -1) {
				check(name, line[1])
			}
		}
		for _, span := range codeSpan.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			check(name, span[1])
		}
		return nil
	}))
	if found < 50 {
		t.Errorf("only %d commands were found", found)
	}
}
