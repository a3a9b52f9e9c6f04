package dist

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// What is released from one commit at two places is the same to the last octet.
func TestReproducible(t *testing.T) {
	need(t, "git", "make")
	folders := must.Get(released())(t)
	var sums [2]string
	for i, folder := range folders {
		sums[i] = string(must.Get(os.ReadFile(filepath.Join(folder, "SHA256SUMS")))(t))
	}
	if sums[0] != sums[1] || strings.Count(sums[0], "\n") != 15 {
		t.Errorf("checksums are\n%s\nand\n%s\nwant the same of 15 files", sums[0], sums[1])
	}
}

// copyOf returns a copy of a release.
func copyOf(t *testing.T, folder string) string {
	t.Helper()
	copied := filepath.Join(t.TempDir(), "bin/release")
	must.Do(t, os.CopyFS(copied, os.DirFS(folder)))
	return copied
}

// damage changes one octet in the middle of a file.
func damage(t *testing.T, path string) {
	t.Helper()
	content := must.Get(os.ReadFile(path))(t)
	content[len(content)/2] ^= 1
	must.Do(t, os.WriteFile(path, content, 0o600))
}

// The chart of a release has its version, and the digests of its images.
func TestChart(t *testing.T) {
	need(t, "git", "make", "tar")
	folder := must.Get(released())(t)[0]
	number := strings.TrimPrefix(version, "v")
	inside := func(file string) string {
		return run(t, "tar", "-xzOf", fmt.Sprintf("%s/federation-%s.tgz", folder, number), "federation/"+file)
	}
	if text := inside("Chart.yaml"); !strings.Contains(text, "\nversion: "+number+"\nappVersion: "+number+"\n") {
		t.Errorf("Chart.yaml is\n%s", text)
	}
	values := inside("values.yaml")
	for component, image := range map[string]string{"owner": "federationctl", "dns": "coredns"} {
		var index struct {
			Manifests []struct {
				Digest string `json:"digest"`
			} `json:"manifests"`
		}
		must.Do(t, json.Unmarshal([]byte(run(t, "tar", "-xOf", fmt.Sprintf("%s/%s-%s-oci.tar", folder, image, number), "index.json")), &index))
		want := fmt.Sprintf("\n    repository: \"registry.example/dns/%s\"\n    tag: \"\"\n    digest: %q\n", image, index.Manifests[0].Digest)
		_, section, _ := strings.Cut(values, "\n"+component+":\n")
		if section, _, _ = strings.Cut(section, "\n\n"); !strings.Contains(section, want) {
			t.Errorf("%s of the chart has not %q:\n%s", component, want, section)
		}
	}
}

// A release that cannot be made says why, and leaves the folder as it is.
func TestReleaseRefused(t *testing.T) {
	need(t, "git", "make")
	folder := t.TempDir()
	must.Do(t, os.WriteFile(folder+"/letter.txt", []byte("keep"), 0o600))
	for _, tc := range []struct{ version, registry, want string }{
		{"1.2.0", "registry.example", `VERSION is "1.2.0", and must be a tag such as v1.2.0`},
		{"v2.0.0", "registry.example", `VERSION is "v2.0.0", and must be a tag`},
		{version, "", "REGISTRY is missing"},
		{version, "registry.example", " has other files, and would be replaced"},
	} {
		out, err := exec.Command("make", "--no-print-directory", "-C", repository, "release", "VERSION="+tc.version, "REGISTRY="+tc.registry, "RELEASE="+folder).CombinedOutput()
		if err == nil || !strings.Contains(string(out), tc.want) {
			t.Errorf("%v: %v\n%s, want %q in it", tc, err, out, tc.want)
		}
	}
	if text := must.Get(os.ReadFile(folder + "/letter.txt"))(t); string(text) != "keep" {
		t.Errorf("a file of the folder is %q", text)
	}
}

// commands returns the lines of a section of a page that begin with a command.
func commands(t *testing.T, page, section, name string) (lines []string) {
	t.Helper()
	text := string(must.Get(os.ReadFile(filepath.Join(repository, page)))(t))
	_, text, _ = strings.Cut(text, "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	if lines = regexp.MustCompile("(?m)^"+name+" .*$").FindAllString(text, -1); lines == nil {
		t.Fatalf("%s has no command %s in %s", page, name, section)
	}
	return lines
}

// The publisher signs and users check as the pages say.
func TestSignature(t *testing.T) {
	need(t, "git", "make", "sha256sum", "ssh-keygen")
	folder := copyOf(t, must.Get(released())(t)[0])
	publisher := filepath.Dir(filepath.Dir(folder))
	in := func(dir string, lines ...string) error {
		cmd := exec.Command("sh", "-ec", strings.Join(lines, "\n"))
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		t.Logf("%q: %s", lines, out)
		return err
	}
	must.Do(t, in(publisher, `ssh-keygen -q -t ed25519 -N "" -f release-key`))
	must.Do(t, in(publisher, commands(t, "CONTRIBUTING.md", "Releases", "ssh-keygen")...))
	key := strings.Fields(string(must.Get(os.ReadFile(publisher + "/release-key.pub"))(t)))
	line := commands(t, "CONTRIBUTING.md", "Releases", "release")[0]
	must.Do(t, os.WriteFile(folder+"/allowed_signers", []byte(strings.Replace(line, "AAAA...", key[1], 1)+"\n"), 0o600))

	verify := append(commands(t, "SECURITY.md", "Check a download", "ssh-keygen"), commands(t, "SECURITY.md", "Check a download", "sha256sum")...)
	must.Do(t, os.Remove(folder+"/coredns-0.2.0-rc.1-oci.tar")) // who downloads need not have all
	must.Do(t, in(folder, verify...))
	damage(t, folder+"/federation-0.2.0-rc.1.tgz")
	if in(folder, verify[1:]...) == nil {
		t.Error("a file that was changed is not noticed")
	}
	damage(t, folder+"/SHA256SUMS")
	if in(folder, verify[0]) == nil {
		t.Error("checksums that were changed are not noticed")
	}
}

// The archives hold binaries that say which commit they are of.
func TestArchive(t *testing.T) {
	need(t, "git", "make", "tar")
	folder := must.Get(released())(t)[0]
	commit := strings.TrimSpace(run(t, "git", "-C", folder, "rev-parse", "HEAD"))[:12]
	for _, call := range [][]string{{"coredns-federation", "-version"}, {"federationctl", "--version"}} {
		text := run(t, filepath.Join(unpackArchive(t, folder, call[0], "amd64"), call[0]), call[1])
		if !strings.Contains(text, "commit "+commit) || !strings.Contains(text, version) || strings.Contains(text, "modified") {
			t.Errorf("%q says %q; want %s, the commit %s and no modification", call, text, version, commit)
		}
	}
}

// unpackArchive returns a folder with what is in an archive of a release.
func unpackArchive(t *testing.T, folder, name, arch string) string {
	t.Helper()
	to := t.TempDir()
	run(t, "tar", "-xzf", fmt.Sprintf("%s/%s-%s-linux-%s.tar.gz", folder, name, strings.TrimPrefix(version, "v"), arch), "-C", to, "--strip-components=1")
	return to
}

const emulator = "/usr/bin/qemu-aarch64-static" // of the Debian package qemu-user-static

// What is for arm64 starts on such a processor: the binaries of the archives, and those of
// the images as they are in there, with the user, the entry point and nothing else.
func TestARM64(t *testing.T) {
	need(t, "git", "make", "tar", "chroot", emulator)
	folder := must.Get(released())(t)[0]
	for _, tc := range []struct{ name, image, argument, want string }{
		{"coredns-federation", "coredns", "-plugins", "\nfederation\n"},
		{"federationctl", "federationctl", "--version", version},
	} {
		t.Run(tc.name, func(t *testing.T) {
			binary := filepath.Join(unpackArchive(t, folder, tc.name, "arm64"), tc.name)
			if got := run(t, emulator, binary, tc.argument); !strings.Contains(got, tc.want) {
				t.Errorf("%s of the archive prints %q, want %q in it", tc.argument, got, tc.want)
			}
			image, entry := unpackImage(t, fmt.Sprintf("%s/%s-%s-oci.tar", folder, tc.image, strings.TrimPrefix(version, "v")), "arm64")
			run(t, "cp", emulator, image+"/emulator")
			got := run(t, "chroot", "--userspec=65532:65532", image, "/emulator", entry, tc.argument)
			if !strings.Contains(got, tc.want) {
				t.Errorf("%s of the image prints %q, want %q in it", tc.argument, got, tc.want)
			}
		})
	}
}

// unpackImage returns a folder with the files of an image for a processor, and its entry
// point.
func unpackImage(t *testing.T, archive, arch string) (root, entry string) {
	t.Helper()
	layout, root := t.TempDir(), t.TempDir()
	run(t, "tar", "-xf", archive, "-C", layout)
	type descriptor struct {
		Digest   string
		Platform struct{ Architecture string }
	}
	read := func(path string, into any) {
		t.Helper()
		must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(layout, path)))(t), into))
	}
	blob := func(d descriptor) string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }
	var top, index struct{ Manifests []descriptor }
	read("index.json", &top)
	read(blob(top.Manifests[0]), &index)
	for _, d := range index.Manifests {
		if d.Platform.Architecture != arch {
			continue
		}
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		var config struct{ Config struct{ Entrypoint []string } }
		read(blob(d), &manifest)
		read(blob(manifest.Config), &config)
		for _, layer := range manifest.Layers {
			run(t, "tar", "-xzf", filepath.Join(layout, blob(layer)), "-C", root)
		}
		return root, config.Config.Entrypoint[0]
	}
	t.Fatalf("%s has no image for %s", archive, arch)
	return "", ""
}
