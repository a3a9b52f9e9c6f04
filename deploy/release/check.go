package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"go.yaml.in/yaml/v3"
)

// checker looks at a release from the outside: it has files, and knows nothing of how they
// were made.
type checker struct {
	release

	files    map[string][]byte // by name
	binaries map[string][]byte // those of the archives, by command and architecture
	commit   string            // that the binaries name
	digests  map[string]v1.Hash
}

// check checks the release in a folder, and says what is wrong first. Without a version it is
// that of the release notes.
func check(folder, version string, out io.Writer) error {
	c := &checker{files: make(map[string][]byte), binaries: make(map[string][]byte), digests: make(map[string]v1.Hash)}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return err
		}
		c.files[entry.Name()] = content
		if rest, ok := strings.CutPrefix(entry.Name(), "release-notes-"); ok && version == "" {
			version = "v" + strings.TrimSuffix(rest, ".md")
		}
	}
	if !versions.MatchString(version) {
		return fmt.Errorf("%s has no release notes of a version, such as release-notes-1.2.0.md", folder)
	}
	c.version, c.number = version, strings.TrimPrefix(version, "v")
	for _, part := range []struct {
		name string
		of   func() error
	}{ // each relies on those before it
		{sums, c.checkSums},
		{"files", c.checkNames},
		{"binaries", c.checkBinaries},
		{"packages", c.checkPackages},
		{"SBOMs", c.checkBOMs},
		{"images", c.checkImages},
		{"chart", c.checkChart},
		{"notes", c.checkNotes},
		{"provenance", c.checkProvenance},
	} {
		if err := part.of(); err != nil {
			return fmt.Errorf("%s is not %s: %s: %w", folder, version, part.name, err)
		}
		fmt.Fprintf(out, "%s: as they should be\n", part.name)
	}
	fmt.Fprintf(out, "%s is %s, of the commit %s\n", folder, version, c.commit)
	return nil
}

// checkSums compares all files with the list of checksums. Signatures of the list are not in it.
func (c *checker) checkSums() error {
	var want []string
	for name, content := range c.files {
		if !strings.HasPrefix(name, sums) {
			want = append(want, fmt.Sprintf("%x  %s", sha256.Sum256(content), name))
		}
	}
	return same("lines", strings.Split(strings.TrimSpace(string(c.files[sums])), "\n"), want)
}

// same returns how a list differs from what it should be, in any order.
func same(what string, got, want []string) error {
	missing := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return slices.Contains(got, s) })
	more := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return slices.Contains(want, s) })
	if len(missing)+len(more) == 0 {
		return nil
	}
	slices.Sort(missing)
	slices.Sort(more)
	return fmt.Errorf("%s are missing: %q; are not to be there: %q", what, missing, more)
}

func (c *checker) checkNames() error {
	want := []string{c.notes(), c.provenance(), c.archive(), c.image(chart)}
	for _, p := range products {
		want = append(want, c.image(p.image))
		for _, arch := range arches {
			want = append(want, c.stem(p.name, arch)+".tar.gz", c.stem(p.name, arch)+".cdx.json", c.deb(p.name, arch))
		}
	}
	got := slices.DeleteFunc(slices.Collect(maps.Keys(c.files)), func(name string) bool { return strings.HasPrefix(name, sums) })
	return same("files", got, want)
}

func (c *checker) stem(name, arch string) string { return name + "-" + c.number + "-linux-" + arch }

func (c *checker) deb(name, arch string) string {
	return name + "_" + strings.ReplaceAll(c.number, "-", "~") + "_" + arch + ".deb"
}

// each calls a function for the name of each binary, and returns its first error.
func each(of func(name, command, arch string) error) error {
	for _, p := range products {
		for _, arch := range arches {
			if err := of(p.name, p.command, arch); err != nil {
				return fmt.Errorf("%s for %s: %w", p.name, arch, err)
			}
		}
	}
	return nil
}

// checkBinaries reads the binaries of the archives, and what they say of themselves.
func (c *checker) checkBinaries() error {
	return each(func(name, command, arch string) error {
		files, err := untar(c.files[c.stem(name, arch)+".tar.gz"])
		if err != nil {
			return err
		}
		binary := files[c.stem(name, arch)+"/"+command]
		c.binaries[command+arch] = binary
		info, err := buildinfo.Read(bytes.NewReader(binary))
		if err != nil {
			return err
		}
		settings := make(map[string]string)
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		if c.commit == "" {
			c.commit = settings["vcs.revision"]
		}
		got := fmt.Sprintf("%s for %s/%s, CGO_ENABLED=%s, of the commit %s, modified: %s", info.Main.Version,
			settings["GOOS"], settings["GOARCH"], settings["CGO_ENABLED"], settings["vcs.revision"], settings["vcs.modified"])
		if want := fmt.Sprintf("%s for linux/%s, CGO_ENABLED=0, of the commit %s, modified: false", c.version, arch, c.commit); got != want {
			return fmt.Errorf("the binary is %s, and must be %s", got, want)
		}
		return nil
	})
}

// checkPackages compares the binaries of packages with those of archives.
func (c *checker) checkPackages() error {
	return each(func(name, command, arch string) error {
		control, files, err := debian(c.files[c.deb(name, arch)])
		if err != nil {
			return err
		}
		got := control["Package"] + " " + control["Version"] + " " + control["Architecture"]
		if want := name + " " + strings.ReplaceAll(c.number, "-", "~") + " " + arch; got != want {
			return fmt.Errorf("the package is %s, and must be %s", got, want)
		}
		return c.isBinary(files["usr/bin/"+command], command, arch)
	})
}

// isBinary returns an error for a file that is not the binary of the archive.
func (c *checker) isBinary(content []byte, command, arch string) error {
	if want := c.binaries[command+arch]; len(want) == 0 || !bytes.Equal(content, want) {
		return fmt.Errorf("%s is not the one of the archive", command)
	}
	return nil
}

// checkBOMs compares the lists of modules with what `go version -m` says.
func (c *checker) checkBOMs() error {
	return each(func(name, command, arch string) error {
		binary := c.binaries[command+arch]
		info, err := buildinfo.Read(bytes.NewReader(binary))
		if err != nil {
			return err
		}
		var bom cdx.BOM
		if err := json.Unmarshal(c.files[c.stem(name, arch)+".cdx.json"], &bom); err != nil {
			return err
		}
		if bom.Metadata == nil || bom.Metadata.Component == nil || bom.Components == nil {
			return errors.New("it lists nothing")
		}
		hash := func(of *[]cdx.Hash) string {
			if of == nil || len(*of) != 1 {
				return ""
			}
			return (*of)[0].Value
		}
		if got, want := hash(bom.Metadata.Component.Hashes), fmt.Sprintf("%x", sha256.Sum256(binary)); got != want {
			return fmt.Errorf("it is of a binary with the hash %q, and must be of %s", got, want)
		}
		want := []string{info.Main.Path + " " + info.Main.Version, "std " + strings.TrimPrefix(info.GoVersion, "go")}
		for _, m := range info.Deps {
			want = append(want, linked(m))
		}
		var got []string
		for _, component := range append(*bom.Components, *bom.Metadata.Component) {
			got = append(got, component.Name+" "+component.Version)
		}
		return same("modules", got, want)
	})
}

// linked returns the name of a module as it was linked.
func linked(m *debug.Module) string {
	if m.Replace != nil {
		m = m.Replace
	}
	return m.Path + " " + m.Version
}

// checkImages reads the images, and compares their binaries with those of archives.
func (c *checker) checkImages() error {
	for _, p := range products {
		l, err := readLayout(c.files[c.image(p.image)])
		if err != nil {
			return fmt.Errorf("%s: %w", p.image, err)
		}
		c.digests[p.image] = l.root.Digest
		var index v1.IndexManifest
		if err := l.decode(l.root, &index); err != nil {
			return fmt.Errorf("%s: %w", p.image, err)
		}
		var platforms []string
		for _, d := range index.Manifests {
			arch := ""
			if d.Platform != nil {
				arch = d.Platform.Architecture
				platforms = append(platforms, d.Platform.String())
			}
			if err := c.checkImage(l, d, p.image, p.command, arch); err != nil {
				return fmt.Errorf("%s for %s: %w", p.image, arch, err)
			}
		}
		var want []string
		for _, arch := range arches {
			want = append(want, "linux/"+arch)
		}
		if err := same("platforms", platforms, want); err != nil {
			return fmt.Errorf("%s: %w", p.image, err)
		}
	}
	return nil
}

func (c *checker) checkImage(l *ociLayout, d v1.Descriptor, entry, command, arch string) error {
	var manifest v1.Manifest
	var config v1.ConfigFile
	if err := l.decode(d, &manifest); err != nil {
		return err
	}
	if err := l.decode(manifest.Config, &config); err != nil {
		return err
	}
	got := fmt.Sprint(config.OS, "/", config.Architecture, " ", config.Config.Entrypoint, " ", config.Config.Labels["org.opencontainers.image.version"])
	if want := fmt.Sprint("linux/", arch, " ", []string{"/" + entry}, " ", c.version); got != want || len(manifest.Layers) != 1 {
		return fmt.Errorf("it is %s with %d layers, and must be %s with 1", got, len(manifest.Layers), want)
	}
	layer, err := l.blob(manifest.Layers[0])
	if err != nil {
		return err
	}
	files, err := untar(layer)
	if err != nil {
		return err
	}
	return c.isBinary(files[entry], command, arch)
}

// checkChart compares the two forms of the chart with each other, and its values with the images.
func (c *checker) checkChart() error {
	l, err := readLayout(c.files[c.image(chart)])
	if err != nil {
		return err
	}
	c.digests[chart] = l.root.Digest
	var manifest v1.Manifest
	if err := l.decode(l.root, &manifest); err != nil {
		return err
	}
	if len(manifest.Layers) != 1 {
		return fmt.Errorf("the artefact has %d layers, and must have 1", len(manifest.Layers))
	}
	layer, err := l.blob(manifest.Layers[0])
	if err != nil {
		return err
	}
	if !bytes.Equal(layer, c.files[c.archive()]) {
		return fmt.Errorf("the artefact does not hold %s", c.archive())
	}
	files, err := untar(layer)
	if err != nil {
		return err
	}
	var metadata struct {
		Name, Version string
		AppVersion    string `yaml:"appVersion"`
	}
	type component struct {
		Image struct{ Repository, Digest string }
	}
	var values struct{ Owner, DNS component }
	if err := errors.Join(yaml.Unmarshal(files[chart+"/Chart.yaml"], &metadata), yaml.Unmarshal(files[chart+"/values.yaml"], &values)); err != nil {
		return err
	}
	if got, want := fmt.Sprint(metadata), fmt.Sprintf("{%s %s %s}", chart, c.number, c.number); got != want {
		return fmt.Errorf("Chart.yaml has %s, and must have %s", got, want)
	}
	for image, of := range map[string]component{"federationctl": values.Owner, "coredns": values.DNS} {
		if want := c.digests[image].String(); of.Image.Digest != want {
			return fmt.Errorf("the values have the digest %q of %s, and the image has %s", of.Image.Digest, image, want)
		}
		if c.registry = strings.TrimSuffix(of.Image.Repository, "/"+image); c.registry == of.Image.Repository {
			return fmt.Errorf("the values have the repository %q, which is none of %s", of.Image.Repository, image)
		}
	}
	return nil
}

// checkNotes looks for the version in the release notes, for what they say, and for the digests.
func (c *checker) checkNotes() error {
	text := string(c.files[c.notes()])
	changes, _, _ := strings.Cut(text, imagesTitle)
	if rest, ok := strings.CutPrefix(changes, "# "+c.version+"\n"); !ok || !strings.Contains(rest, "\n- ") {
		return fmt.Errorf("%s says nothing of %s", c.notes(), c.version)
	}
	for name, digest := range c.digests {
		if !strings.Contains(text, digest.String()) {
			return fmt.Errorf("%s has not the digest %v of %s", c.notes(), digest, name)
		}
	}
	return nil
}

// checkProvenance compares the subjects with the files and the images, and what they were
// made of with what the binaries say.
func (c *checker) checkProvenance() error {
	var s statement
	if err := json.Unmarshal(c.files[c.provenance()], &s); err != nil {
		return err
	}
	if s.Type != statementType || s.PredicateType != predicateType {
		return fmt.Errorf("it is a %q with a %q, and must be a %s with a %s", s.Type, s.PredicateType, statementType, predicateType)
	}
	var got, want []string
	for _, subject := range s.Subject {
		got = append(got, subject.Digest["sha256"]+" "+subject.Name)
	}
	for name, content := range c.files {
		if name != c.provenance() && !strings.HasPrefix(name, sums) {
			want = append(want, fmt.Sprintf("%x %s", sha256.Sum256(content), name))
		}
	}
	for name, digest := range c.digests {
		want = append(want, digest.Hex+" "+c.registry+"/"+name)
	}
	if err := same("subjects", got, want); err != nil {
		return err
	}
	definition := s.Predicate.BuildDefinition
	if got := definition.ExternalParameters["version"]; got != c.version {
		return fmt.Errorf("it is of the version %q, and must be of %s", got, c.version)
	}
	for _, of := range definition.ResolvedDependencies {
		if c.commit != "" && of.Digest["gitCommit"] == c.commit {
			return nil
		}
	}
	return fmt.Errorf("it does not name the commit %q of the binaries", c.commit)
}
