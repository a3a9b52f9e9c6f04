// Command package packs binaries of this repository for machines without containers:
// archives, Debian packages with units of systemd, a list of what is linked into each
// binary, and the checksums of all of it. `make dist` builds the binaries and runs it.
//
// The same binaries give the same files: what is written has no time but that of the
// commit, and one order.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

func main() { program.Main("package", packProducts) }

func packProducts(args []string, out io.Writer) error {
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
	if err := checkReplaceable(*to); err != nil {
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
			b := &versionedBinary{b, cmp.Or(*version, strings.TrimPrefix(b.Version, "v"))}
			for _, write := range []func(p product, b *versionedBinary, repository, folder string) error{writeArchive, writeBOM, writeDeb} {
				if err := write(p, b, *repository, *to); err != nil {
					return fmt.Errorf("%s for %s: %w", p.name, b.Arch, err)
				}
			}
		}
	}
	return writeSums(*to, out)
}
