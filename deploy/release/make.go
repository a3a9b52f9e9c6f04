package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

// make makes the release from a clone of the repository, in which the commit has the tag of
// the release and no other: Go writes it into the binaries.
func (r release) make(repository, to string, out io.Writer) error {
	if err := program.Replaceable(to); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	tree := filepath.Join(temporary, "tree")
	commit, err := command(repository, "git", "rev-parse", "--verify", "--quiet", "refs/tags/"+r.version+"^{commit}")
	if err != nil { // it has no such tag yet
		commit, err = command(repository, "git", "rev-parse", "HEAD")
	}
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"git", "clone", "--quiet", "--no-tags", "--no-checkout", repository, tree},
		{"git", "-C", tree, "-c", "advice.detachedHead=false", "checkout", "--quiet", commit},
		{"git", "-C", tree, "tag", r.version},
	} {
		if _, err := command(repository, args[0], args[1:]...); err != nil {
			return err
		}
	}
	notes, err := r.notesOf(filepath.Join(tree, "CHANGELOG.md")) // before anything that takes minutes
	if err != nil {
		return err
	}
	if _, err := command(tree, "make", "--no-print-directory", "dist", "image", "ARCHES="+strings.Join(arches, ","), "VERSION="+r.number,
		"TAG="+r.version, "REGISTRY="+r.registry, "STATIC=bin/static", "DIST=bin/dist", "IMAGES=bin/image"); err != nil {
		return err
	}
	binaries, err := program.Read(filepath.Join(tree, "bin/static"), "coredns", arches[0])
	if err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil { //nolint:gosec // everybody may read what is published
		return err
	}
	if err := r.gather(tree, to, notes, binaries[0]); err != nil {
		return err
	}
	if err := program.WriteSums(to, out); err != nil {
		return err
	}
	return check(to, r.version, out)
}

// gather moves what was built to the folder of the release, and adds the chart, the notes
// and the provenance.
func (r release) gather(tree, to, notes string, b *program.Binary) error {
	if err := os.CopyFS(to, os.DirFS(filepath.Join(tree, "bin/dist"))); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(to, sums)); err != nil { // it is of these files alone
		return err
	}
	digests := make(map[string]v1.Hash)
	for _, p := range products {
		content, err := os.ReadFile(filepath.Join(tree, "bin/image", p.image+".tar"))
		if err != nil {
			return err
		}
		l, err := readLayout(content)
		if err != nil {
			return fmt.Errorf("%s: %w", p.image, err)
		}
		digests[p.image] = l.root.Digest
		if err := write(to, r.image(p.image), content); err != nil {
			return err
		}
	}
	tgz, err := r.pack(filepath.Join(tree, "deploy/chart"), digests, b.Time)
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	artefact, digest, err := r.artefact(tgz)
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	digests[chart] = digest
	err = errors.Join(write(to, r.archive(), tgz), write(to, r.image(chart), artefact), write(to, r.notes(), []byte(notes+r.images(digests))))
	if err != nil {
		return err
	}
	statement, err := r.statement(to, digests, b)
	if err != nil {
		return err
	}
	return write(to, r.provenance(), statement)
}

// links are the relative ones of a text.
var links = regexp.MustCompile(`\]\(([A-Za-z][^():]*)\)`)

// notesOf returns the section of the version in a changelog. What comes before a release is
// described by the section of what is to be released.
func (r release) notesOf(changelog string) (string, error) {
	text, err := os.ReadFile(changelog)
	if err != nil {
		return "", err
	}
	sections := make(map[string]string)
	for _, section := range strings.Split("\n"+string(text), "\n## ")[1:] {
		title, content, _ := strings.Cut(section, "\n")
		number, _, _ := strings.Cut(title, " ")
		sections[number] = strings.TrimSpace(content)
	}
	section := sections[r.number]
	if section == "" && strings.Contains(r.number, "-") {
		section = sections["Unreleased"]
	}
	if section == "" {
		return "", fmt.Errorf("CHANGELOG.md has no section %q, or an empty one: it is what Unreleased becomes, with a date, in the commit of the release", "## "+r.number)
	}
	return "# " + r.version + "\n\n" + links.ReplaceAllString(section, "]("+program.Source+"/blob/"+r.version+"/$1)") + "\n", nil
}

// imagesTitle begins the part of the notes after what the changelog says.
const imagesTitle = "\n## Images"

// images returns the part of the notes that says which images the release has.
func (r release) images(digests map[string]v1.Hash) string {
	text := imagesTitle + "\n\nThe chart of the release has the digests of its images.\n\n"
	for _, p := range products {
		text += fmt.Sprintf("- `%s/%s@%v`\n", r.registry, p.image, digests[p.image])
	}
	return text + fmt.Sprintf("- `oci://%s/%s`, the chart, `%v`\n", r.registry, chart, digests[chart])
}

// command runs a program in a folder, without what a make around it has set, and returns
// what it prints.
func command(folder, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = folder
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "MAKE") && !strings.HasPrefix(variable, "MFLAGS=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	var diagnostics strings.Builder
	cmd.Stderr = &diagnostics
	printed, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(append([]string{name}, args...), " "), err, diagnostics.String())
	}
	return strings.TrimSpace(string(printed)), nil
}

// write writes a file that everybody may read.
func write(folder, name string, content []byte) error {
	return os.WriteFile(filepath.Join(folder, name), content, program.Public)
}
