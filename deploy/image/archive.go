package main

import (
	"archive/tar"
	"encoding/json"
	"io"
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
	defer func() {
		if e := file.Close(); err == nil {
			err = e
		}
	}()
	w := tar.NewWriter(file)
	header := func(name string, size int64) *tar.Header {
		return &tar.Header{Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: name, Mode: 0o444, Size: size}
	}
	root := os.DirFS(folder)
	err = fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error { // in the order of names
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		content, err := root.Open(path)
		if err != nil {
			return err
		}
		defer content.Close()
		if err := w.WriteHeader(header(path, info.Size())); err != nil {
			return err
		}
		_, err = io.Copy(w, content)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.WriteHeader(header("manifest.json", int64(len(list)))); err != nil {
		return err
	}
	if _, err := w.Write(list); err != nil {
		return err
	}
	return w.Close()
}
