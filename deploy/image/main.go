// Command image packs binaries of this repository into OCI images, from an empty
// base and without a daemon. `make image` builds the binaries and runs it.
//
// The same binaries give the same digests: what goes into an image has no time of
// its own, and is written in one order.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

func main() { program.Main("image", packImages) }

func packImages(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	binaries := flags.String("binaries", "", "`folder` with linux-ARCH/coredns and linux-ARCH/federationctl")
	license := flags.String("license", "", "`file` with the license, which goes into each image")
	to := flags.String("out", "", "`folder` for NAME/, an OCI layout, and NAME.tar")
	registry := flags.String("registry", "localhost", "registry, and path, in the names of the images")
	tag := flags.String("tag", "", "tag of the images; by default the version of the binary")
	arches := flags.String("arches", "amd64", "architectures, with commas; with several, an image is an index")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *binaries == "" || *license == "" || *to == "" || flags.NArg() > 0 || *arches == "" {
		return errors.New("the flags -binaries, -license, -out and -arches are needed, and no arguments; see -help")
	}
	text, err := os.ReadFile(*license)
	if err != nil {
		return err
	}
	for _, p := range programs {
		all, err := program.Read(*binaries, p.binary, *arches)
		if err != nil {
			return err
		}
		var images []builtImage
		for _, b := range all {
			image, err := buildImage(p, b, text)
			if err != nil {
				return fmt.Errorf("%s for %s: %w", p.name, b.Arch, err)
			}
			images = append(images, image)
		}
		name := fmt.Sprintf("%s/%s:%s", *registry, p.name, tagOf(*tag, images[0].Version))
		if err := writeLayout(filepath.Join(*to, p.name), name, images, out); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// tagOf returns the tag that was asked for, or one for the version: a tag has no
// "+", which versions have before what is no part of their order.
func tagOf(asked, version string) string {
	if asked != "" {
		return asked
	}
	return strings.ReplaceAll(version, "+", "-")
}

// writeLayout writes the layout to a folder, replacing what is there, and the archive
// beside it, and says what they hold.
func writeLayout(folder, name string, images []builtImage, out io.Writer) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	index, digest, err := indexOf(name, images)
	if err != nil {
		return err
	}
	if _, err := layout.Write(folder, index); err != nil {
		return err
	}
	if err := writeArchive(folder); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n  %v\n  %s/ and %s.tar\n", name, digest, folder, folder)
	return err
}
