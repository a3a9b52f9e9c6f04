package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program/programtest"
)

// pack runs the command, and returns the folder that it wrote to and what it printed.
func pack(t *testing.T, binaries string, flags ...string) (folder, printed string) {
	t.Helper()
	folder = t.TempDir()
	var out bytes.Buffer
	err := packImages(append([]string{"-binaries", binaries, "-license", "../../LICENSE", "-out", folder}, flags...), &out)
	if err != nil {
		t.Fatal(err)
	}
	return folder, out.String()
}

// files returns the content of every file below a folder, by path.
func files(t *testing.T, folder string) map[string]string {
	t.Helper()
	content := make(map[string]string)
	err := fs.WalkDir(os.DirFS(folder), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(folder, path))
		content[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// index returns the image, or the index of images, that a layout names.
func index(t *testing.T, folder string) (v1.ImageIndex, v1.Descriptor) {
	t.Helper()
	list, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(list); err != nil {
		t.Errorf("%s: %v", folder, err)
	}
	manifest, err := list.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("%s names %d images, want 1", folder, len(manifest.Manifests))
	}
	return list, manifest.Manifests[0]
}

func TestImage(t *testing.T) {
	folder, printed := pack(t, programtest.CompileBinaries(t, "amd64"), "-registry", "registry.example/team", "-tag", "v1")
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			list, descriptor := index(t, filepath.Join(folder, p.name))
			name := "registry.example/team/" + p.name + ":v1"
			if got := descriptor.Annotations["io.containerd.image.name"]; got != name {
				t.Errorf("name is %q, want %q", got, name)
			}
			if !strings.Contains(printed, name+"\n  "+descriptor.Digest.String()+"\n") {
				t.Errorf("printed %q, without the digest %v of %s", printed, descriptor.Digest, name)
			}
			image, err := list.Image(descriptor.Digest)
			if err != nil {
				t.Fatal(err)
			}
			file, err := image.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			config := file.Config
			got := fmt.Sprintln(file.OS, file.Architecture, config.User, config.Entrypoint, config.WorkingDir, slices.Sorted(maps.Keys(config.ExposedPorts)))
			want := fmt.Sprintln("linux", "amd64", "65532:65532", []string{"/" + p.binary}, "/", slices.Sorted(slices.Values(p.ports)))
			if got != want {
				t.Errorf("configuration is %s, want %s", got, want)
			}
			for _, label := range []string{"title", "source", "version", "licenses"} {
				if config.Labels["org.opencontainers.image."+label] == "" {
					t.Errorf("the image has no label %s: %v", label, config.Labels)
				}
			}
			manifest, err := image.Manifest()
			if err != nil {
				t.Fatal(err)
			}
			// umoci reads no others.
			if manifest.Config.MediaType != types.OCIConfigJSON || manifest.Layers[0].MediaType != types.OCILayer {
				t.Errorf("types are %s and %s", manifest.Config.MediaType, manifest.Layers[0].MediaType)
			}
			content := "LICENSE 444 0\n" + p.binary + " 555 0\n"
			if p.state {
				content += "var/ 755 0\nvar/lib/ 755 0\nvar/lib/federation/ 700 65532\n"
			}
			if got := layerFiles(t, image); got != content {
				t.Errorf("files are\n%s, want\n%s", got, content)
			}
		})
	}
}

// layerFiles returns a line for each file of an image: its name, mode and owner.
func layerFiles(t *testing.T, image v1.Image) (lines string) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v, want 1", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != header.Gid {
			t.Errorf("%s is of the user %d and the group %d", header.Name, header.Uid, header.Gid)
		}
		lines += fmt.Sprintf("%s %o %d\n", header.Name, header.Mode, header.Uid)
	}
}

// What was compiled and packed in other folders is the same to the last octet.
func TestImageReproducible(t *testing.T) {
	first, _ := pack(t, programtest.CompileBinaries(t, "amd64"))
	second, _ := pack(t, programtest.CompileBinaries(t, "amd64"))
	if one, two := files(t, first), files(t, second); !maps.Equal(one, two) {
		t.Errorf("two builds differ: %q and %q", slices.Sorted(maps.Keys(one)), slices.Sorted(maps.Keys(two)))
	}
}

func TestImageOfSeveralArchitectures(t *testing.T) {
	folder, _ := pack(t, programtest.CompileBinaries(t, "amd64", "arm64"), "-arches", "amd64,arm64")
	list, descriptor := index(t, filepath.Join(folder, "coredns"))
	if descriptor.MediaType != types.OCIImageIndex {
		t.Fatalf("type is %s, want %s", descriptor.MediaType, types.OCIImageIndex)
	}
	child, err := list.ImageIndex(descriptor.Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := child.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range manifest.Manifests {
		image, err := child.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		file, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, d.Platform.String()+"="+file.Architecture)
	}
	if want := []string{"linux/amd64=amd64", "linux/arm64=arm64"}; !slices.Equal(got, want) {
		t.Errorf("platforms are %v, want %v", got, want)
	}
}

// The archive has the layout, and nothing else.
func TestArchive(t *testing.T) {
	folder, _ := pack(t, programtest.CompileBinaries(t, "amd64"), "-tag", "v1")
	file, err := os.Open(filepath.Join(folder, "coredns.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	archived := make(map[string]string)
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		archived[header.Name] = string(text)
	}
	if written := files(t, filepath.Join(folder, "coredns")); !maps.Equal(archived, written) {
		t.Errorf("the archive has %q, want %q", slices.Sorted(maps.Keys(archived)), slices.Sorted(maps.Keys(written)))
	}
}

func TestErrors(t *testing.T) {
	binaries := programtest.CompileBinaries(t, "amd64")
	if err := os.Rename(filepath.Join(binaries, "linux-amd64"), filepath.Join(binaries, "linux-arm64")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		args       []string
	}{
		{"no flags", "are needed", nil},
		{"no license", "no such file", []string{"-binaries", binaries, "-license", "gone", "-out", "out"}},
		{"no binary", "coredns for amd64: ", []string{"-binaries", binaries, "-license", "main.go", "-out", "out"}},
		{"another architecture", "is for linux/amd64 with CGO_ENABLED=0; want linux/arm64", []string{
			"-binaries", binaries, "-license", "main.go", "-out", "out", "-arches", "arm64",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := packImages(tc.args, io.Discard); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want one with %q", err, tc.want)
			}
		})
	}
}
