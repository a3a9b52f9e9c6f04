package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
	"github.com/hamlet-federation/coredns-federation/deploy/internal/program/programtest"
)

// pack runs the command, and returns the files that it wrote, by name.
func pack(t *testing.T, binaries string, flags ...string) map[string]string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "dist")
	args := append([]string{"-binaries", binaries, "-repository", "../..", "-out", folder}, flags...)
	for range 2 { // the second replaces what the first has written
		if err := packProducts(args, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	content := make(map[string]string)
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		content[entry.Name()] = string(text)
	}
	return content
}

// The files have the same content wherever they are compiled and packed, and the
// checksums are those of all of them.
func TestReproducible(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	first := pack(t, programtest.CompileBinaries(t, "amd64", "arm64"))
	second := pack(t, programtest.CompileBinaries(t, "amd64", "arm64"))
	if len(first) != 13 {
		t.Errorf("%d files, want an archive, a list and a package of each of four binaries, and %s", len(first), sums)
	}
	var want []string
	for name, content := range first {
		if second[name] != content {
			t.Errorf("%s differs", name)
		}
		if name != sums {
			want = append(want, fmt.Sprintf("%x  %s", sha256.Sum256([]byte(content)), name))
		}
	}
	got := strings.Split(strings.TrimSuffix(first[sums], "\n"), "\n")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("checksums are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestArchive(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	all := pack(t, programtest.CompileBinaries(t, "amd64"), "-arches", "amd64", "-version", "1.2.0")
	for stem, want := range map[string]string{
		"coredns-federation-1.2.0-linux-amd64": "coredns-federation 755\nLICENSE 644\ncoredns-federation.service 644\nREADME.md 644\nCorefile 644\nshare/man/man1/coredns-federation.1 644\n",
		"federationctl-1.2.0-linux-amd64": "federationctl 755\nLICENSE 644\nfederation-owner.service 644\nREADME.md 644\nowner.yaml 644\ncatalog.yaml 644\n" +
			"share/bash-completion/completions/federationctl 644\nshare/fish/vendor_completions.d/federationctl.fish 644\n" +
			"share/zsh/vendor-completions/_federationctl 644\n",
	} {
		zipped, err := gzip.NewReader(strings.NewReader(all[stem+".tar.gz"]))
		if err != nil {
			t.Fatal(err)
		}
		var got string
		for r := tar.NewReader(zipped); ; {
			header, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if header.Uid != 0 || header.ModTime.Unix() != 1700000000 {
				t.Errorf("%s is of the user %d and of %v", header.Name, header.Uid, header.ModTime)
			}
			got += fmt.Sprintf("%s %o\n", strings.TrimPrefix(header.Name, stem+"/"), header.Mode)
		}
		if got != want {
			t.Errorf("%s has\n%s, want\n%s", stem, got, want)
		}
	}
}

func TestBOM(t *testing.T) {
	folder := t.TempDir()
	b := &versionedBinary{version: "1.2.0", Binary: &program.Binary{Content: []byte("binary"), Arch: "arm64", Commit: "c33c1088", Info: &debug.BuildInfo{
		GoVersion: "go1.26.8",
		Main:      debug.Module{Path: "example.org/Main", Version: "v1.2.0"},
		Deps: []*debug.Module{
			{Path: "example.org/a", Version: "v2.0.0+incompatible", Sum: "h1:" + "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="},
			{Path: "example.org/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/c", Version: "v1.0.1"}},
		},
	}}}
	if err := writeBOM(products[0], b, "", folder); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "coredns-federation-1.2.0-linux-arm64.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if bom.SpecVersion != cdx.SpecVersion1_6 || bom.SerialNumber != "" {
		t.Errorf("version %v, serial number %q", bom.SpecVersion, bom.SerialNumber)
	}
	var got []string
	for _, c := range append([]cdx.Component{*bom.Metadata.Component}, *bom.Components...) {
		hash := ""
		if c.Hashes != nil {
			hash = (*c.Hashes)[0].Value[:8]
		}
		got = append(got, strings.TrimSpace(c.PackageURL+" "+hash))
	}
	want := []string{
		"pkg:golang/example.org/main@v1.2.0 9a3a45d0", // of the binary
		"pkg:golang/std@1.26.8",
		"pkg:golang/example.org/a@v2.0.0%2Bincompatible e3b0c442", // of its files
		"pkg:golang/example.org/c@v1.0.1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("components are %q, want %q", got, want)
	}
}

// lintian finds nothing in the packages but for what they override. What is in the
// binaries does not matter to it.
func TestLintian(t *testing.T) {
	if _, err := exec.LookPath("lintian"); err != nil {
		if os.Getenv("REAL_SERVERS") == "required" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	folder := t.TempDir()
	args := []string{"--allow-root", "--fail-on=error,warning"}
	for name, content := range pack(t, programtest.CompileBinaries(t, "amd64"), "-arches", "amd64", "-version", "1.2.0") {
		if filepath.Ext(name) == ".deb" {
			args = append(args, filepath.Join(folder, name))
			if err := os.WriteFile(args[len(args)-1], []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if out, err := exec.Command("lintian", args...).CombinedOutput(); err != nil {
		t.Errorf("lintian: %v\n%s", err, out)
	}
}

func TestDebianVersion(t *testing.T) {
	for version, want := range map[string]string{
		"1.2.0":      "1.2.0",
		"1.2.0-rc.1": "1.2.0~rc.1",
		"0.0.0-20261122131157-c33c1088fc01+dirty": "0.0.0~20261122131157~c33c1088fc01+dirty",
		"devel": "0.0.0~devel",
	} {
		if got := (&versionedBinary{version: version}).debianVersion(); got != want {
			t.Errorf("%q is %q, want %q", version, got, want)
		}
	}
}

func TestErrors(t *testing.T) {
	binaries, used := programtest.CompileBinaries(t, "amd64"), t.TempDir()
	if err := os.Rename(filepath.Join(binaries, "linux-amd64"), filepath.Join(binaries, "linux-arm64")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(used, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "dist")
	for _, tc := range []struct {
		name, want string
		args       []string
	}{
		{"no flags", "are needed", nil},
		{"another folder", "has other files", []string{"-binaries", binaries, "-repository", "../..", "-out", used}},
		{"no binary", "coredns for amd64: ", []string{"-binaries", binaries, "-repository", "../..", "-out", out, "-arches", "amd64"}},
		{"another architecture", "is for linux/amd64 with CGO_ENABLED=0; want linux/arm64", []string{
			"-binaries", binaries, "-repository", "../..", "-out", out, "-arches", "arm64",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := packProducts(tc.args, io.Discard); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want one with %q", err, tc.want)
			}
		})
	}
	t.Run("no repository", func(t *testing.T) {
		err := packProducts([]string{"-binaries", programtest.CompileBinaries(t, "amd64"), "-repository", "gone", "-out", out, "-arches", "amd64"}, io.Discard)
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("error is %v, want that a file is missing", err)
		}
	})
}
