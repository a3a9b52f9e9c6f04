package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/blakesmith/ar"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// untar returns the files of a tar archive, which may be compressed, by name.
func untar(content []byte) (map[string][]byte, error) {
	var from io.Reader = bytes.NewReader(content)
	if bytes.HasPrefix(content, []byte{0x1f, 0x8b}) { // RFC 1952 section 2.3.1
		zipped, err := gzip.NewReader(from)
		if err != nil {
			return nil, err
		}
		from = zipped
	}
	files := make(map[string][]byte)
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if files[path.Clean(header.Name)], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
}

// debian returns the fields of the control file of a Debian package, and its files.
func debian(content []byte) (control map[string]string, files map[string][]byte, err error) {
	control = make(map[string]string)
	for r := ar.NewReader(bytes.NewReader(content)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return control, files, nil
		}
		if err != nil {
			return nil, nil, err
		}
		member, err := io.ReadAll(r)
		if err != nil {
			return nil, nil, err
		}
		switch name := strings.TrimSuffix(header.Name, "/"); name {
		case "control.tar.gz":
			inside, err := untar(member)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", name, err)
			}
			for line := range strings.Lines(string(inside["control"])) {
				key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
				control[key] = value
			}
		case "data.tar.gz":
			if files, err = untar(member); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
}

// ociLayout is one that was read, and that names one image or index of images.
type ociLayout struct {
	files map[string][]byte
	root  v1.Descriptor
}

// readLayout reads the tar archive of a layout.
func readLayout(content []byte) (*ociLayout, error) {
	files, err := untar(content)
	if err != nil {
		return nil, err
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		return nil, fmt.Errorf("index.json: %w", err)
	}
	if len(index.Manifests) != 1 {
		return nil, fmt.Errorf("index.json names %d images, and must name 1", len(index.Manifests))
	}
	return &ociLayout{files, index.Manifests[0]}, nil
}

// blob returns the content that a descriptor names. It must be in the layout.
func (l *ociLayout) blob(d v1.Descriptor) ([]byte, error) {
	content := l.files["blobs/"+d.Digest.Algorithm+"/"+d.Digest.Hex]
	hash, size, err := v1.SHA256(bytes.NewReader(content))
	if err == nil && (hash != d.Digest || size != d.Size) {
		err = fmt.Errorf("the blob %v has the digest %v and %d octets, and must have %d", d.Digest, hash, size, d.Size)
	}
	return content, err
}

// decode decodes the JSON that a descriptor names.
func (l *ociLayout) decode(d v1.Descriptor, into any) error {
	content, err := l.blob(d)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, into)
}
