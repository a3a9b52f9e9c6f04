package main

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

// writeArchive writes the layout in a folder to FOLDER.tar.
func writeArchive(folder string) (err error) {
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
	return errors.Join(err, w.Close())
}
