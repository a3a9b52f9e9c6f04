package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// user is the user and the group of the process, by number, as there is no
	// /etc/passwd. It is the one that images without root commonly have.
	user   = 65532
	source = "https://github.com/hamlet-federation/coredns-federation"
	// state is a folder that the user may write to, for the property persist. With a
	// read-only root a volume is mounted there.
	state = "var/lib/federation/"
)

// program is a binary of this repository, and the image of it.
type program struct {
	name, binary string
	title        string
	ports        []string
	state        bool // it has the folder state
}

var programs = []program{
	{
		name: "coredns", binary: "coredns", title: "CoreDNS with the plugin federation",
		// DNS, and what the plugins prometheus, health and ready listen on by default.
		ports: []string{"53/udp", "53/tcp", "9153/tcp", "8080/tcp", "8181/tcp"}, state: true,
	},
	{
		name: "federationctl", binary: "federationctl", title: "Owner of federated services",
		ports: []string{"8008/tcp", "9153/tcp"}, // subscriptions, metrics
	},
}

// built is an image for one architecture.
type built struct {
	v1.Image
	arch              string
	version, revision string // as the binary says
	unpacked          int64  // octets of the files
}

// build packs the binary at path, which must be one of Go for Linux and arch.
func build(p program, path, arch string, license []byte) (built, error) {
	b := built{arch: arch}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return b, err
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["GOOS"] != "linux" || settings["GOARCH"] != arch || settings["CGO_ENABLED"] != "0" {
		return b, fmt.Errorf("%s is for %s/%s with CGO_ENABLED=%s; want linux/%s with CGO_ENABLED=0, as there is no C library in the image",
			path, settings["GOOS"], settings["GOARCH"], settings["CGO_ENABLED"], arch)
	}
	b.version = strings.Trim(info.Main.Version, "()") // "(devel)" where git was not asked
	b.revision = "of no commit"
	labels := map[string]string{
		"org.opencontainers.image.title":    p.title,
		"org.opencontainers.image.source":   source,
		"org.opencontainers.image.version":  b.version,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	if revision := settings["vcs.revision"]; revision != "" {
		if settings["vcs.modified"] == "true" {
			revision += " with changes"
		}
		b.revision = "commit " + revision
		labels["org.opencontainers.image.revision"] = revision
	}
	// The time of the commit, so that the image has none of its own.
	created, err := time.Parse(time.RFC3339, settings["vcs.time"])
	if err != nil {
		created = time.Unix(0, 0).UTC()
	}
	binary, err := os.ReadFile(path)
	if err != nil {
		return b, err
	}
	b.unpacked = int64(len(binary) + len(license))
	layer, err := layerOf(p, binary, license, created)
	if err != nil {
		return b, err
	}
	ports := make(map[string]struct{})
	for _, port := range p.ports {
		ports[port] = struct{}{}
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	config := &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: v1.Time{Time: created},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/" + p.binary}, User: fmt.Sprintf("%d:%d", user, user), WorkingDir: "/",
			ExposedPorts: ports, Labels: labels,
		},
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return b, err
	}
	image, err = mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "make image", Comment: "/" + p.binary},
	})
	if err != nil {
		return b, err
	}
	b.Image = mutate.Annotations(image, labels).(v1.Image)
	return b, nil
}

// layerOf returns the only layer of an image. Nobody may write to what is in it but
// to the folder state.
func layerOf(p program, binary, license []byte, created time.Time) (v1.Layer, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	add := func(name string, kind byte, mode int64, id int, content []byte) error {
		header := tar.Header{
			Format: tar.FormatUSTAR, Typeflag: kind, Name: name, Mode: mode, Uid: id, Gid: id, Size: int64(len(content)), ModTime: created,
		}
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	if err := add("LICENSE", tar.TypeReg, 0o444, 0, license); err != nil {
		return nil, err
	}
	if err := add(p.binary, tar.TypeReg, 0o555, 0, binary); err != nil {
		return nil, err
	}
	if p.state {
		for i := range state {
			if state[i] != '/' {
				continue
			}
			folder, id, mode := state[:i+1], 0, int64(0o755)
			if folder == state {
				id, mode = user, 0o700
			}
			if err := add(folder, tar.TypeDir, mode, id, nil); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil }
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(6), tarball.WithCompressedCaching)
}

// indexOf returns the index.json of a layout, which names one image, and the digest
// of that image: with several architectures it is an index itself.
func indexOf(name string, images []built) (index v1.ImageIndex, digest v1.Hash, err error) {
	tag := name[strings.LastIndexByte(name, ':')+1:]
	names := map[string]string{
		"org.opencontainers.image.ref.name": tag,
		"io.containerd.image.name":          name,
	}
	var child mutate.Appendable = images[0].Image
	if len(images) > 1 {
		list := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, image := range images {
			platform := &v1.Platform{OS: "linux", Architecture: image.arch}
			list = mutate.AppendManifests(list, mutate.IndexAddendum{Add: image.Image, Descriptor: v1.Descriptor{Platform: platform}})
		}
		child = list
	}
	if digest, err = child.Digest(); err != nil {
		return nil, digest, err
	}
	descriptor := v1.Descriptor{Annotations: names}
	if len(images) == 1 {
		descriptor.Platform = &v1.Platform{OS: "linux", Architecture: images[0].arch}
	}
	return mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: child, Descriptor: descriptor}), digest, nil
}
