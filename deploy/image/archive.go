package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
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
	w := program.NewArchive(file, time.Time{})
	root := os.DirFS(folder)
	err = fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error { // in the order of names
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, path)
		w.Add(path, 0o444, content)
		return err
	})
	w.Add("manifest.json", 0o444, list)
	return errors.Join(err, w.Close())
}
