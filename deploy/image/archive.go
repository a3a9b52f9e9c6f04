package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// archive writes the layout in a folder to FOLDER.tar, and manifest.json with it,
// which is what tools that do not know layouts read. That file can name the image of
// one architecture only.
func archive(folder, name string, image v1.Image) (err error) {
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	entry := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{Config: blob(manifest.Config.Digest), RepoTags: []string{name}}
	for _, layer := range manifest.Layers {
		entry.Layers = append(entry.Layers, blob(layer.Digest))
	}
	list, err := json.Marshal([]any{entry})
	if err != nil {
		return err
	}
	file, err := os.Create(folder + ".tar")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := tar.NewWriter(file)
	add := func(name string, content []byte) error {
		header := &tar.Header{Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: name, Mode: 0o444, Size: int64(len(content))}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	root := os.DirFS(folder)
	err = fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error { // in the order of names
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, path)
		return errors.Join(err, add(path, content))
	})
	return errors.Join(err, add("manifest.json", list), w.Close())
}
