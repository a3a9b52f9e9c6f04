package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

// writeArchive writes NAME-VERSION-linux-ARCH.tar.gz, with the binary, the license, a
// README, the unit and its configuration, and a folder share like that in /usr.
func writeArchive(p product, b *versionedBinary, repository, folder string) error {
	stem := fmt.Sprintf("%s-%s-linux-%s", p.name, b.version, b.Arch)
	var buffer bytes.Buffer
	zipped := gzip.NewWriter(&buffer)
	w := program.NewArchive(zipped, b.Time)
	w.Add(stem+"/"+p.command, 0o755, b.Content)
	add := func(name, from string) error {
		content, err := os.ReadFile(from)
		w.Add(stem+"/"+name, 0o644, content)
		return err
	}
	sources := []string{"LICENSE", "deploy/systemd/" + p.unit + ".service", "deploy/package/files/" + p.name + ".readme"}
	for _, name := range p.config {
		sources = append(sources, "deploy/package/files/"+name)
	}
	var failures []error
	for _, from := range sources {
		name := filepath.Base(from)
		if name == p.name+".readme" {
			name = "README.md"
		}
		failures = append(failures, add(name, filepath.Join(repository, from)))
	}
	failures = append(failures, p.walkShared(repository, func(path, from string) error { return add("share/"+path, from) }))
	if err := errors.Join(append(failures, w.Close(), zipped.Close())...); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, stem+".tar.gz"), buffer.Bytes(), public)
}
