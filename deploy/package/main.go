// Command package packs binaries of this repository for machines without containers:
// archives, Debian packages with units of systemd, a list of what is linked into each
// binary, and the checksums of all of it. `make dist` builds the binaries and runs it.
//
// The same binaries give the same files: what is written has no time but that of the
// commit, and one order.
package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

func main() { program.Main("package", run) }

const (
	sums = "SHA256SUMS" // the file with the checksums

	public = 0o644 // the mode of what is written: everybody may read it
)

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("package", flag.ContinueOnError)
	binaries := flags.String("binaries", "", "`folder` with linux-ARCH/coredns and linux-ARCH/federationctl")
	repository := flags.String("repository", "", "`folder` of this repository, for its license and units")
	to := flags.String("out", "", "`folder` to write to; it is replaced")
	version := flags.String("version", "", "version in names and packages; by default that of the binaries")
	arches := flags.String("arches", "amd64,arm64", "architectures, with commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *binaries == "" || *repository == "" || *to == "" || flags.NArg() > 0 || *arches == "" {
		return errors.New("the flags -binaries, -repository, -out and -arches are needed, and no arguments; see -help")
	}
	if err := replaceable(*to); err != nil {
		return err
	}
	if err := os.RemoveAll(*to); err != nil {
		return err
	}
	if err := os.MkdirAll(*to, 0o755); err != nil { //nolint:gosec // everybody may read what is published
		return err
	}
	for _, p := range products {
		all, err := program.Read(*binaries, p.binary, *arches)
		if err != nil {
			return err
		}
		for _, b := range all {
			b := &binary{b, cmp.Or(*version, strings.TrimPrefix(b.Version, "v"))}
			for _, write := range []func(p product, b *binary, repository, folder string) error{writeArchive, writeBOM, writeDeb} {
				if err := write(p, b, *repository, *to); err != nil {
					return fmt.Errorf("%s for %s: %w", p.name, b.Arch, err)
				}
			}
		}
	}
	return writeSums(*to, out)
}

// replaceable returns why a folder is not one that this command has written, and
// should not be removed.
func replaceable(folder string) error {
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
