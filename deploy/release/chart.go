package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

// pack returns the chart as `helm package` would, but the same each time: with the version
// of the release, and in its values the images of the release by their digests.
func (r release) pack(folder string, digests map[string]v1.Hash, at time.Time) ([]byte, error) {
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	w := program.NewArchive(zip, at)
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error { // in the order of names
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path) // also behind a link
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		text := string(content)
		switch name {
		case "Chart.yaml":
			text, err = replace(text, "\nversion: ", "\n", "\nversion: "+r.number+"\nappVersion: "+r.number+"\n")
		case "values.yaml":
			for component, image := range map[string]string{"owner": "federationctl", "dns": "coredns"} {
				before, after, _ := strings.Cut(text, "\n"+component+":\n")
				for key, value := range map[string]string{"repository": r.registry + "/" + image, "digest": digests[image].String()} {
					if err == nil {
						after, err = replace(after, "    "+key+": ", "\n", fmt.Sprintf("    %s: %q\n", key, value))
					}
				}
				text = before + "\n" + component + ":\n" + after
			}
		}
		w.Add(chart+"/"+filepath.ToSlash(name), 0o644, []byte(text))
		return err
	})
	err = errors.Join(err, w.Close(), zip.Close())
	return zipped.Bytes(), err
}

// replace replaces what is first between two texts, and these.
func replace(text, from, to, by string) (string, error) {
	before, after, found := strings.Cut(text, from)
	_, after, ended := strings.Cut(after, to)
	if !found || !ended {
		return "", fmt.Errorf("there is no %q", strings.TrimSpace(from))
	}
	return before + by + after, nil
}

// What the artefact of a chart consists of: https://helm.sh/docs/topics/registries
const (
	chartConfig types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartLayer  types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// artefact returns an OCI layout, in a tar archive, with a packed chart as helm push makes
// one, and the digest of its manifest.
func (r release) artefact(tgz []byte) (content []byte, digest v1.Hash, err error) {
	files, err := untar(tgz)
	if err != nil {
		return nil, digest, err
	}
	var metadata map[string]any
	if err := yaml.Unmarshal(files[chart+"/Chart.yaml"], &metadata); err != nil {
		return nil, digest, err
	}
	config, err := json.Marshal(metadata)
	if err != nil {
		return nil, digest, err
	}
	var tar bytes.Buffer
	w := program.NewArchive(&tar, time.Time{})
	w.Add("oci-layout", 0o444, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	blob := func(kind types.MediaType, content []byte) v1.Descriptor {
		hash, size, err2 := v1.SHA256(bytes.NewReader(content))
		err = errors.Join(err, err2)
		w.Add("blobs/sha256/"+hash.Hex, 0o444, content)
		return v1.Descriptor{MediaType: kind, Size: size, Digest: hash}
	}
	manifest, err2 := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: blob(chartConfig, config), Layers: []v1.Descriptor{blob(chartLayer, tgz)},
		Annotations: map[string]string{
			"org.opencontainers.image.title": chart, "org.opencontainers.image.version": r.number, "org.opencontainers.image.source": program.Source,
		},
	})
	root := blob(types.OCIManifestSchema1, manifest)
	root.Annotations = map[string]string{"org.opencontainers.image.ref.name": r.number}
	index, err3 := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{root}})
	w.Add("index.json", 0o444, index)
	err = errors.Join(err, err2, err3, w.Close())
	return tar.Bytes(), root.Digest, err
}
