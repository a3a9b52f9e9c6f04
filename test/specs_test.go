package test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestSpecs compares the specs that docs/import.md says to hold with those that the suite runs.
func TestSpecs(t *testing.T) {
	t.Parallel()
	suite := string(must.Get(os.ReadFile("suites/kubernetes/importing/clusterset_test.go"))(t))
	var run []string
	for _, row := range regexp.MustCompile(`(?m)^\t\t\{"([^"]+)", "([^"]+)", func\(x \*trial`).FindAllStringSubmatch(suite, -1) {
		run = append(run, fmt.Sprintf("%-46s  %s", row[1], row[2]))
	}
	_, rest, _ := strings.Cut(documentAt(t, "docs/import.md").text, "because they need pods:\n\n```text\n")
	said, _, _ := strings.Cut(rest, "\n```\n")
	if diff := cmp.Diff(run, strings.Split(said, "\n")); diff != "" || len(run) < 14 {
		t.Errorf("docs/import.md says other specs than the suite has (-suite +page):\n%s", diff)
	}
}
