package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	sums   = "SHA256SUMS" // the file with the checksums of a folder
	public = 0o644        // the mode of what is published: everybody may read it
)

// checkReplaceable returns why a folder is not one that has checksums, and should not be removed.
func checkReplaceable(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) == 0 {
		return nil //nolint:nilerr // there is nothing to lose
	}
	if !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == sums }) {
		return fmt.Errorf("%s has other files, and would be replaced", folder)
	}
	return nil
}

// writeSums writes the checksums of the files in a folder, as sha256sum does, and
// says what the folder holds.
func writeSums(folder string, out io.Writer) error {
	entries, err := os.ReadDir(folder) // by name
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%x  %s\n", sha256.Sum256(content), entry.Name())
		fmt.Fprintf(out, "%6.1f MB  %s\n", float64(len(content))/1e6, filepath.Join(folder, entry.Name()))
	}
	return os.WriteFile(filepath.Join(folder, sums), []byte(text.String()), public)
}
