package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// file is one of an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// writeArchive writes NAME-VERSION-linux-ARCH.tar.gz, with the binary, the license, a
// README, the unit and its configuration.
func writeArchive(p product, b *binary, repository, folder string) error {
	files := []file{{p.command, 0o755, b.content}}
	sources := []string{"LICENSE", "deploy/systemd/" + p.unit + ".service", "deploy/package/files/" + p.name + ".readme"}
	for _, name := range p.config {
		sources = append(sources, "deploy/package/files/"+name)
	}
	for _, from := range sources {
		content, err := os.ReadFile(filepath.Join(repository, from))
		if err != nil {
			return err
		}
		name := filepath.Base(from)
		if name == p.name+".readme" {
			name = "README.md"
		}
		files = append(files, file{name, 0o644, content})
	}
	stem := fmt.Sprintf("%s-%s-linux-%s", p.name, b.version, b.arch)
	var buffer bytes.Buffer
	zipped := gzip.NewWriter(&buffer)
	w := tar.NewWriter(zipped)
	for _, f := range files {
		header := tar.Header{
			Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: stem + "/" + f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: b.time,
		}
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, stem+".tar.gz"), buffer.Bytes(), public)
}
