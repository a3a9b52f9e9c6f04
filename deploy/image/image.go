package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

const (
	// user is the user and the group of the process, by number, as there is no
	// /etc/passwd. It is the one that images without root commonly have.
	user = 65532
	// state is a folder that the user may write to, for the property persist. With a
	// read-only root a volume is mounted there.
	state = "var/lib/federation/"
)

// imageSpec is a binary of this repository, and the image of it.
type imageSpec struct {
	name, binary string
	title        string
	ports        []string
	state        bool // it has the folder state
}

var programs = []imageSpec{
	{
		name: "coredns", binary: "coredns", title: "CoreDNS with the plugin federation",
		// DNS, and what the plugins prometheus, health and ready listen on by default.
		ports: []string{"53/udp", "53/tcp", "9153/tcp", "8080/tcp", "8181/tcp"}, state: true,
	},
	{
		name: "federationctl", binary: "federationctl", title: "Owner of federated services",
		ports: []string{"8008/tcp", "9155/tcp"}, // subscriptions, metrics
	},
}

// builtImage is an image for one architecture.
type builtImage struct {
	v1.Image
	*program.Binary
}

// buildImage packs a binary.
func buildImage(p imageSpec, b *program.Binary, license []byte) (builtImage, error) {
	labels := map[string]string{
		"org.opencontainers.image.title":    p.title,
		"org.opencontainers.image.source":   program.Source,
		"org.opencontainers.image.version":  b.Version,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	of := builtImage{Binary: b}
	if revision := b.Commit; revision != "" {
		if b.Modified {
			revision += " with changes"
		}
		labels["org.opencontainers.image.revision"] = revision
	}
	layer, err := layerOf(p, b, license)
	if err != nil {
		return of, err
	}
	created := v1.Time{Time: b.Time} // so that the image has no time of its own
	ports := make(map[string]struct{})
	for _, port := range p.ports {
		ports[port] = struct{}{}
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	config := &v1.ConfigFile{
		OS: "linux", Architecture: b.Arch, Created: created,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/" + p.binary}, User: fmt.Sprintf("%d:%d", user, user), WorkingDir: "/",
			ExposedPorts: ports, Labels: labels,
		},
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return of, err
	}
	image, err = mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: created, CreatedBy: "make image", Comment: "/" + p.binary},
	})
	if err != nil {
		return of, err
	}
	of.Image = mutate.Annotations(image, labels).(v1.Image)
	return of, nil
}

// layerOf returns the only layer of an image. Nobody may write to what is in it but
// to the folder state.
func layerOf(p imageSpec, b *program.Binary, license []byte) (v1.Layer, error) {
	var buffer bytes.Buffer
	w := program.NewArchive(&buffer, b.Time)
	w.Add("LICENSE", 0o444, license)
	w.Add(p.binary, 0o555, b.Content)
	if p.state {
		w.AddFolder("var/", 0o755, 0)
		w.AddFolder("var/lib/", 0o755, 0)
		w.AddFolder(state, 0o700, user)
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil }
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(6), tarball.WithCompressedCaching)
}

// indexOf returns the index.json of a layout, which names one image, and the digest
// of that image: with several architectures it is an index itself.
func indexOf(name string, images []builtImage) (index v1.ImageIndex, digest v1.Hash, err error) {
	tag := name[strings.LastIndexByte(name, ':')+1:]
	names := map[string]string{
		"org.opencontainers.image.ref.name": tag,
		"io.containerd.image.name":          name,
	}
	var child mutate.Appendable = images[0].Image
	if len(images) > 1 {
		list := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, image := range images {
			platform := &v1.Platform{OS: "linux", Architecture: image.Arch}
			list = mutate.AppendManifests(list, mutate.IndexAddendum{Add: image.Image, Descriptor: v1.Descriptor{Platform: platform}})
		}
		child = list
	}
	if digest, err = child.Digest(); err != nil {
		return nil, digest, err
	}
	descriptor := v1.Descriptor{Annotations: names}
	if len(images) == 1 {
		descriptor.Platform = &v1.Platform{OS: "linux", Architecture: images[0].Arch}
	}
	return mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: child, Descriptor: descriptor}), digest, nil
}
