// Command release makes everything of a release from a commit, and checks what there is of
// one as somebody would who has downloaded it. `make release` and `make release-check` run it.
//
// The same commit gives the same files: what is built comes from a clone of it, and what
// is written has no time but that of the commit.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

func main() { program.Main("release", run) }

const (
	sums  = program.Sums
	chart = "federation" // the name of the chart
)

// arches are the architectures of a release.
var arches = []string{"amd64", "arm64"}

// products are the programs of a release: how their archive and package, their command and
// their image are called.
var products = []struct{ name, command, image string }{
	{"coredns-federation", "coredns-federation", "coredns"},
	{"federationctl", "federationctl", "federationctl"},
}

// versions are the tags that the path of the module permits: v2 would be another path.
var versions = regexp.MustCompile(`^v[01]\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$`)

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	checked := flags.String("check", "", "`folder` with a release; it is checked, and nothing is made")
	version := flags.String("version", "", "tag, such as v1.2.0; the commit is that of the tag, or HEAD where there is none")
	repository := flags.String("repository", "", "`folder` of this repository")
	registry := flags.String("registry", "", "registry, and path, that the images and the chart are for")
	to := flags.String("out", "", "`folder` to write to; it is replaced")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("%q is no flag; see -help", flags.Arg(0))
	case *checked != "":
		return check(*checked, *version, out)
	case *repository == "" || *registry == "" || *to == "":
		return errors.New("the flags -version, -repository, -registry and -out are needed, or -check; see -help")
	case !versions.MatchString(*version):
		return fmt.Errorf("the version is %q, and must be a tag such as v1.2.0 or v1.2.0-rc.1, with a first number of 0 or 1 (VERSION=v1.2.0)", *version)
	}
	return release{*version, strings.TrimPrefix(*version, "v"), *registry}.make(*repository, *to, out)
}

// release is one that is made.
type release struct {
	version  string // such as v1.2.0
	number   string // such as 1.2.0
	registry string
}

// notes returns the name of the file with the release notes.
func (r release) notes() string { return "release-notes-" + r.number + ".md" }

// provenance returns the name of the file that says what the others were made of.
func (r release) provenance() string { return "provenance-" + r.number + ".intoto.json" }

// image returns the name of the file with an OCI layout.
func (r release) image(name string) string { return name + "-" + r.number + "-oci.tar" }

// archive returns the name of the file with the chart.
func (r release) archive() string { return chart + "-" + r.number + ".tgz" }
