package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

// repository returns a repository with one commit: the Makefile, license and folder deploy of
// this one, and binaries that do nothing.
func repository(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	must(t, os.CopyFS(filepath.Join(folder, "deploy"), os.DirFS("..")))
	for name, text := range map[string]string{
		"go.mod":                    "module " + strings.TrimPrefix(program.Source, "https://") + "\n\ngo 1.26.0\n",
		"cmd/coredns/main.go":       "package main\n\nfunc main() {}\n",
		"cmd/federationctl/main.go": "package main\n\nfunc main() { println() }\n",
		"CHANGELOG.md":              "# Changelog\n\n## Unreleased\n\n### Added\n\n- Later, see [here](docs/later.md).\n\n## 1.2.0 - 2026-11-26\n\n- See [docs](docs/install.md#releases), https://example.org.\n\n## 1.1.0 - 2026-11-01\n\n- Old.\n",
	} {
		put(t, folder, name, []byte(text))
	}
	for _, name := range []string{"Makefile", "LICENSE", ".gitignore"} {
		content, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		put(t, folder, name, content)
	}
	git(t, folder, "init", "--quiet")
	commit(t, folder)
	return folder
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, folder string, args ...string) string {
	t.Helper()
	printed, err := command(folder, "git", args...)
	must(t, err)
	return printed
}

func commit(t *testing.T, folder string) {
	t.Helper()
	git(t, folder, "add", "--all")
	git(t, folder, "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "--allow-empty", "--message=commit")
}

func put(t *testing.T, folder, name string, content []byte) {
	t.Helper()
	path := filepath.Join(folder, name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o750))
	must(t, os.WriteFile(path, content, 0o600))
}

func get(t *testing.T, folder, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, name))
	must(t, err)
	return content
}

// A release is the same the second time, from another folder and after other commits, and is
// found to be all right. Each part that is changed is refused, though the checksums and the
// subjects are those of the changed files.
func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs make")
	}
	origin := repository(t)
	to := filepath.Join(t.TempDir(), "release")
	makeRelease := func(repository, version, to string) error {
		return run([]string{"-version", version, "-repository", repository, "-registry", "registry.example/team", "-out", to}, io.Discard)
	}
	must(t, makeRelease(origin, "v1.2.0", to))
	t.Run("reproducible", func(t *testing.T) {
		clone := filepath.Join(t.TempDir(), "another/clone")
		git(t, origin, "clone", "--quiet", origin, clone)
		git(t, clone, "tag", "v1.2.0")
		git(t, clone, "tag", "v1.3.0") // of the same commit, and newer
		put(t, clone, "cmd/coredns/main.go", []byte("no Go"))
		commit(t, clone)
		again := filepath.Join(t.TempDir(), "release")
		if err := makeRelease(clone, "v1.2.0", again); err != nil {
			t.Fatal(err)
		}
		if one, two := get(t, to, sums), get(t, again, sums); !bytes.Equal(one, two) {
			t.Errorf("checksums are\n%s, and then\n%s", one, two)
		}
	})
	t.Run("check", func(t *testing.T) {
		var out bytes.Buffer
		if err := run([]string{"-check", to}, &out); err != nil {
			t.Fatal(err)
		}
		if want := to + " is v1.2.0, of the commit " + git(t, origin, "rev-parse", "HEAD") + "\n"; !strings.HasSuffix(out.String(), want) {
			t.Errorf("it says\n%s, want at the end\n%s", out.String(), want)
		}
		put(t, to, sums+".sig", []byte("signature"))
		defer os.Remove(filepath.Join(to, sums+".sig"))
		if err := run([]string{"-check", to, "-version", "v1.2.0"}, io.Discard); err != nil {
			t.Errorf("with a signature: %v", err)
		}
	})
	t.Run("notes", func(t *testing.T) {
		text := string(get(t, to, "release-notes-1.2.0.md"))
		want := "# v1.2.0\n\n- See [docs](" + program.Source + "/blob/v1.2.0/docs/install.md#releases), https://example.org.\n\n## Images\n"
		if !strings.HasPrefix(text, want) || strings.Contains(text, "Old") {
			t.Errorf("they are\n%s, want at the beginning\n%s", text, want)
		}
	})
	for name, corrupt := range corruptions {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "release")
			if err := os.CopyFS(folder, os.DirFS(to)); err != nil {
				t.Fatal(err)
			}
			corrupt.change(t, folder)
			if corrupt.covered == all {
				subjects(t, folder)
			}
			if corrupt.covered != nothing {
				must(t, os.Remove(filepath.Join(folder, sums)))
				must(t, program.WriteSums(folder, io.Discard))
			}
			err := run([]string{"-check", folder, "-version", "v1.2.0"}, io.Discard)
			if err == nil || !strings.Contains(err.Error(), " is not v1.2.0: "+corrupt.want) {
				t.Errorf("error is %v, want one with %q", err, corrupt.want)
			}
		})
	}
}

// subjects writes the subjects of the provenance anew, but for the images.
func subjects(t *testing.T, folder string) {
	t.Helper()
	const name = "provenance-1.2.0.intoto.json"
	var s statement
	must(t, json.Unmarshal(get(t, folder, name), &s))
	s.Subject = slices.DeleteFunc(s.Subject, func(of resource) bool { return !strings.HasPrefix(of.Name, "registry.example/") })
	entries, err := os.ReadDir(folder)
	must(t, err)
	for _, entry := range entries {
		if entry.Name() != name && entry.Name() != sums {
			hash, _, err := v1.SHA256(bytes.NewReader(get(t, folder, entry.Name())))
			must(t, err)
			s.Subject = append(s.Subject, resource{Name: entry.Name(), Digest: map[string]string{"sha256": hash.Hex}})
		}
	}
	text, err := json.MarshalIndent(s, "", "  ")
	must(t, err)
	put(t, folder, name, text)
}

// corruption is something that is done to a release, and what is said of it.
type corruption struct {
	change  func(t *testing.T, folder string)
	covered int // what is made to fit the change
	want    string
}

const (
	all       = iota // checksums, and subjects of the provenance
	checksums        // only these
	nothing
)

var corruptions = map[string]corruption{
	"a file is another one": {edit("release-notes-1.2.0.md", "See", "Sea"), nothing, "SHA256SUMS: lines are missing: "},
	"a file is missing":     {remove("federationctl_1.2.0_arm64.deb"), nothing, "SHA256SUMS: lines are missing: "},
	"a file more": {func(t *testing.T, folder string) {
		t.Helper()
		put(t, folder, "extra", nil)
	}, all, `files: files are missing: []; are not to be there: ["extra"]`},
	"an archive is missing":             {remove("federationctl-1.2.0-linux-arm64.tar.gz"), all, `files: files are missing: ["federationctl-1.2.0-linux-arm64.tar.gz"]`},
	"the notes are missing":             {remove("release-notes-1.2.0.md"), all, "files: files are missing: "},
	"the notes are empty":               {edit("release-notes-1.2.0.md", "\n- ", "\n"), all, "notes: release-notes-1.2.0.md says nothing of v1.2.0"},
	"the notes are of another version":  {edit("release-notes-1.2.0.md", "# v1.2.0", "# v1.1.0"), all, "notes: release-notes-1.2.0.md says nothing of v1.2.0"},
	"the notes have other digests":      {edit("release-notes-1.2.0.md", "coredns@sha256:", "coredns@sha256:0"), all, "notes: release-notes-1.2.0.md has not the digest sha256:"},
	"the SBOM is of another binary":     {swap("federationctl-1.2.0-linux-arm64.cdx.json", "federationctl-1.2.0-linux-amd64.cdx.json"), all, "SBOMs: federationctl for a"},
	"the SBOM lists another Go":         {edit("coredns-federation-1.2.0-linux-amd64.cdx.json", `"version": "1.`, `"version": "0.`), all, "SBOMs: coredns-federation for amd64: modules are missing: "},
	"the archive is of another machine": {swap("coredns-federation-1.2.0-linux-arm64.tar.gz", "coredns-federation-1.2.0-linux-amd64.tar.gz"), all, "binaries: coredns-federation for amd64: "},
	"the binary is of another version":  {binary("v1.2.0", "v1.2.1"), all, "binaries: coredns-federation for amd64: the binary is v1.2.1 for "},
	"the binary is modified":            {binary("vcs.modified=false", "vcs.modified=trues"), all, "binaries: coredns-federation for amd64: the binary is v1.2.0 for linux/amd64, CGO_ENABLED=0, of the commit "},
	"the binary is another one":         {binary("\x7fELF\x02\x01\x01\x00\x00", "\x7fELF\x02\x01\x01\x00\x01"), all, "packages: coredns-federation for amd64: coredns-federation is not the one of the archive"},
	"the package is another one":        {swap("federationctl_1.2.0_amd64.deb", "coredns-federation_1.2.0_amd64.deb"), all, "packages: coredns-federation for amd64: the package is federationctl 1.2.0 amd64"},
	"the image is another one":          {swap("coredns-1.2.0-oci.tar", "federationctl-1.2.0-oci.tar"), all, "images: coredns for amd64: it is linux/amd64 [/federationctl] v1.2.0"},
	"the image is damaged":              {edit("coredns-1.2.0-oci.tar", `"architecture":"arm64"`, `"architecture":"arm65"`), all, "images: coredns"},
	"the chart is another one": {func(t *testing.T, folder string) {
		t.Helper()
		put(t, folder, "federation-1.2.0.tgz", inside(t, get(t, folder, "federation-1.2.0.tgz"), "federation/Chart.yaml", "DNS", "SND"))
	}, all, "chart: the artefact does not hold federation-1.2.0.tgz"},
	"the chart has other digests":      {values(`digest: "sha256:`, `digest: "sha256:0`), all, "chart: the values have the digest "},
	"the chart has other images":       {values(`repository: "registry.example/team/`, `repository: "registry.example/other-`), all, "chart: the values have the repository "},
	"the chart is of another version":  {manifest("\nversion: 1.2.0", "\nversion: 1.2.1"), all, "chart: Chart.yaml has {federation 1.2.1 1.2.0}"},
	"the provenance is of a commit":    {edit("provenance-1.2.0.intoto.json", `"gitCommit": "`, `"gitCommit": "0`), all, "provenance: it does not name the commit "},
	"the provenance is of a version":   {edit("provenance-1.2.0.intoto.json", `"version": "v1.2.0"`, `"version": "v1.1.0"`), all, `provenance: it is of the version "v1.1.0"`},
	"the provenance is something else": {edit("provenance-1.2.0.intoto.json", `slsa.dev/provenance/v1`, `slsa.dev/provenance/v0`), all, "provenance: it is a "},
	"the provenance has other images":  {edit("provenance-1.2.0.intoto.json", `"name": "registry.example/team/coredns"`, `"name": "registry.example/team/other"`), all, "provenance: subjects are missing: "},
	"the provenance has other files":   {edit("provenance-1.2.0.intoto.json", `"name": "federation-1.2.0.tgz"`, `"name": "other"`), checksums, "provenance: subjects are missing: "},
}

// edit replaces a text in a file, which must have it.
func edit(name, old, by string) func(*testing.T, string) {
	return func(t *testing.T, folder string) {
		t.Helper()
		content := get(t, folder, name)
		if !bytes.Contains(content, []byte(old)) {
			t.Fatalf("%s has no %q", name, old)
		}
		put(t, folder, name, bytes.Replace(content, []byte(old), []byte(by), 1))
	}
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, folder string) {
		t.Helper()
		if err := os.Remove(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// swap has two files change places.
func swap(one, two string) func(*testing.T, string) {
	return func(t *testing.T, folder string) {
		t.Helper()
		first, second := get(t, folder, one), get(t, folder, two)
		put(t, folder, one, second)
		put(t, folder, two, first)
	}
}

// binary replaces a text in the binary of an archive.
func binary(old, by string) func(*testing.T, string) {
	const stem = "coredns-federation-1.2.0-linux-amd64"
	return func(t *testing.T, folder string) {
		t.Helper()
		put(t, folder, stem+".tar.gz", inside(t, get(t, folder, stem+".tar.gz"), stem+"/coredns-federation", old, by))
	}
}

// values replaces a text in the values of the chart, in both of its forms.
func values(old, by string) func(*testing.T, string) {
	return inChart("federation/values.yaml", old, by)
}

// manifest replaces a text in Chart.yaml, in both forms of the chart.
func manifest(old, by string) func(*testing.T, string) {
	return inChart("federation/Chart.yaml", old, by)
}

func inChart(name, old, by string) func(*testing.T, string) {
	return func(t *testing.T, folder string) {
		t.Helper()
		tgz := inside(t, get(t, folder, "federation-1.2.0.tgz"), name, old, by)
		put(t, folder, "federation-1.2.0.tgz", tgz)
		artefact, _, err := release{"v1.2.0", "1.2.0", "registry.example/team"}.artefact(tgz)
		if err != nil {
			t.Fatal(err)
		}
		put(t, folder, "federation-1.2.0-oci.tar", artefact)
	}
}

// inside replaces a text, wherever it is, in a file of a compressed archive.
func inside(t *testing.T, archive []byte, name, old, by string) []byte {
	t.Helper()
	files, err := untar(archive)
	must(t, err)
	if !bytes.Contains(files[name], []byte(old)) {
		t.Fatalf("%s has no %q", name, old)
	}
	files[name] = bytes.ReplaceAll(files[name], []byte(old), []byte(by))
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	w := tar.NewWriter(zip)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), ModTime: time.Unix(0, 0)}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	must(t, w.Close())
	must(t, zip.Close())
	return zipped.Bytes()
}

// Helm gets the chart from a registry that has its artefact, and renders the images of the
// release.
func TestHelm(t *testing.T) {
	helm := os.Getenv("HELM")
	if helm == "" {
		if os.Getenv("REAL_SERVERS") == "required" {
			t.Fatal("HELM names no program")
		}
		t.Skip("HELM names no program; make e2e-dist sets it")
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	r := release{"v1.2.0", "1.2.0", host + "/team"}
	digests := map[string]v1.Hash{"coredns": {Algorithm: "sha256", Hex: strings.Repeat("a", 64)}, "federationctl": {Algorithm: "sha256", Hex: strings.Repeat("b", 64)}}
	tgz, err := r.pack("../chart", digests, time.Unix(1700000000, 0))
	must(t, err)
	artefact, digest, err := r.artefact(tgz)
	must(t, err)
	l, err := readLayout(artefact)
	must(t, err)
	send := func(method, path, kind string, content []byte) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/v2/team/federation/"+path, bytes.NewReader(content))
		must(t, err)
		request.Header.Set("Content-Type", kind)
		response, err := http.DefaultClient.Do(request)
		must(t, err)
		must(t, response.Body.Close())
		if response.StatusCode != http.StatusCreated {
			t.Fatalf("%s %s: %s", method, path, response.Status)
		}
	}
	for name, content := range l.files {
		if hex, ok := strings.CutPrefix(name, "blobs/sha256/"); ok {
			send("POST", "blobs/uploads/?digest=sha256:"+hex, "application/octet-stream", content)
		}
	}
	manifest, err := l.blob(l.root)
	must(t, err)
	if l.root.Digest != digest {
		t.Errorf("the digest is %v, and was said to be %v", l.root.Digest, digest)
	}
	send("PUT", "manifests/1.2.0", string(l.root.MediaType), manifest)
	folder := t.TempDir()
	for _, variable := range []string{"HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"} {
		t.Setenv(variable, t.TempDir())
	}
	_, err = command(folder, helm, "pull", "oci://"+host+"/team/federation", "--version=1.2.0", "--plain-http")
	must(t, err)
	if !bytes.Equal(get(t, folder, "federation-1.2.0.tgz"), tgz) {
		t.Error("helm gets another chart")
	}
	rendered, err := command(folder, helm, "template", "federation-1.2.0.tgz", "--set=dns.enabled=true,dns.service.clusterIP=10.96.0.53",
		`--set-json=dns.owners=[{"zones":["fed.example"],"addresses":["owner.example:8008"]}]`)
	must(t, err)
	for _, want := range []string{"image: " + host + "/team/coredns@" + digests["coredns"].String() + "\n", "helm.sh/chart: federation-1.2.0\n"} {
		if !strings.Contains(rendered, want) {
			t.Errorf("it renders no %q, but\n%s", want, rendered)
		}
	}
}

// What comes before a release is described by what is to be released.
func TestNotes(t *testing.T) {
	changelog := filepath.Join(t.TempDir(), "CHANGELOG.md")
	put(t, filepath.Dir(changelog), "CHANGELOG.md", []byte("# Changelog\n\n## Unreleased\n\n- New.\n\n## 1.2.0 - 2026-11-26\n\n## 1.1.0-rc.1 - 2026-11-01\n\n- Early.\n"))
	for number, want := range map[string]string{
		"1.3.0-rc.1": "# v1.3.0-rc.1\n\n- New.\n",
		"1.1.0-rc.1": "# v1.1.0-rc.1\n\n- Early.\n",
		"1.2.0":      `CHANGELOG.md has no section "## 1.2.0", or an empty one`,
		"1.3.0":      `CHANGELOG.md has no section "## 1.3.0", or an empty one`,
	} {
		got, err := release{version: "v" + number, number: number}.notesOf(changelog)
		if err != nil {
			got, _, _ = strings.Cut(err.Error(), ":")
		}
		if got != want {
			t.Errorf("of %s: %q, want %q", number, got, want)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		args       []string
	}{
		{"no flags", "are needed", nil},
		{"an argument", `"all" is no flag`, []string{"all"}},
		{"no version", `the version is "", and must be a tag`, []string{"-repository", "../..", "-registry", "r", "-out", "out"}},
		{"another path", `the version is "v2.0.0", and must be a tag`, []string{"-version", "v2.0.0", "-repository", "../..", "-registry", "r", "-out", "out"}},
		{"no repository", "git rev-parse HEAD: ", []string{"-version", "v1.2.0", "-repository", t.TempDir(), "-registry", "r", "-out", filepath.Join(t.TempDir(), "out")}},
		{"another folder", "has other files", []string{"-version", "v1.2.0", "-repository", "../..", "-registry", "r", "-out", "."}},
		{"nothing to check", "no such file", []string{"-check", "gone"}},
		{"no release", "has no release notes of a version", []string{"-check", "."}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := run(tc.args, io.Discard); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want one with %q", err, tc.want)
			}
		})
	}
}
