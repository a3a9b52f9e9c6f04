package test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestRunbookRows holds the tables of docs/symptoms.md about reasons, names and states
// against the golden files: what stands in a row is what a process has said of a real fault.
func TestRunbookRows(t *testing.T) {
	read := func(folders ...string) (texts []string) {
		for _, folder := range folders {
			files, err := filepath.Glob(filepath.Join(folder, "*.txt"))
			if err != nil || len(files) == 0 {
				t.Fatalf("no golden files in %s: %v", folder, err)
			}
			for _, file := range files {
				text := must.Get(os.ReadFile(file))(t)
				texts = append(texts, string(text))
			}
		}
		return texts
	}
	consumer := read("testdata/why", "../federation/dns/agent/testdata/outages")
	owner := read("../cmd/federationctl/testdata/why")
	all := must.Get(os.ReadFile("../docs/symptoms.md"))(t)
	code := regexp.MustCompile("`[^`]+`")
	said := func(texts []string, cell, more string) {
		t.Helper()
		for _, phrase := range code.FindAllString(cell, -1) {
			parts := strings.Split(strings.Trim(phrase, "`"), "...")
			if strings.Contains(phrase, "refused by consumer") { // with the time in between
				parts = []string{"refused", "by consumer"}
			}
			if !slices.ContainsFunc(texts, func(text string) bool {
				return strings.Contains(text, more) && !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, strings.TrimSpace(part)) })
			}) {
				t.Errorf("no golden file has %s with %q, which is in a row of docs/symptoms.md", phrase, more)
			}
		}
	}
	rows := func(head string) (cells [][]string) {
		t.Helper()
		_, table, found := strings.Cut(string(all), "\n"+head+"\n")
		if !found {
			t.Fatalf("no table %s in docs/symptoms.md", head)
		}
		for i, line := range strings.Split(table, "\n") {
			if !strings.HasPrefix(line, "|") {
				break
			}
			if i > 0 {
				cells = append(cells, strings.Split(strings.Trim(line, "| "), " | "))
			}
		}
		return cells
	}
	for _, row := range rows("| reason | the owner's status page | it is |") {
		said(consumer, row[0], "    to do: ") // the reason with a remedy
	}
	for _, row := range rows("| `why` at CoreDNS | `why` at the owner | it is |") {
		said(consumer, row[0], "")
		said(owner, row[1], "")
	}
	for _, row := range rows("| state | meaning | answers | what to do |") {
		said(consumer, row[0], "")
	}
}
