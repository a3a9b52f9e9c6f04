package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// dependents returns the packages with tests that notice a change of a wing of the module
// in dir: those of the wing, and all that import one of them, if only in their tests or by
// way of other packages. A wing is a folder of federation or of the module itself.
func dependents(dir, wing string) ([]string, error) {
	folder := "federation/" + wing
	if _, err := os.Stat(filepath.Join(dir, folder)); err != nil {
		folder = wing
	}
	if _, err := os.Stat(filepath.Join(dir, folder)); err != nil || !filepath.IsLocal(wing) {
		return nil, fmt.Errorf("wing %q: there is no such folder in federation, nor beside it", wing)
	}
	cmd := exec.Command("go", "list", "-test", "-f", `{{.ImportPath}} {{with .Module}}{{.Path}}{{end}} {{join .Deps " "}}`, "./...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		tested, ok := strings.CutSuffix(fields[0], ".test") // the program that go test runs
		if !ok {
			continue
		}
		root := fields[1] + "/" + folder
		if slices.ContainsFunc(fields[2:], func(name string) bool { return name == root || strings.HasPrefix(name, root+"/") }) {
			found = append(found, tested)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("wing %q: no package below %s has tests, nor one that imports it", wing, folder)
	}
	return found, nil
}
