package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers its format
	"github.com/goreleaser/nfpm/v2/files"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

// writeDeb writes NAME_VERSION_ARCH.deb.
func writeDeb(p product, b *versionedBinary, repository, folder string) (err error) {
	staging, err := os.MkdirTemp("", "package")
	if err != nil {
		return err
	}
	defer os.RemoveAll(staging)
	s := stagingFolder{folder: staging, time: b.Time}
	at := func(path ...string) string { return filepath.Join(append([]string{repository}, path...)...) }
	named := func(name string) string {
		content, err := os.ReadFile(at("deploy/package/files", name))
		s.err = errors.Join(s.err, err)
		return s.writeFile(name, strings.NewReplacer("@PACKAGE@", p.name, "@UNIT@", p.unit).Replace(string(content)))
	}
	doc := "/usr/share/doc/" + p.name + "/"
	s.addFile("/usr/bin/"+p.command, "", 0o755, b.Path)
	s.addFile("/usr/lib/systemd/system/"+p.unit+".service", "", 0o644, at("deploy/systemd", p.unit+".service"))
	for _, name := range p.config {
		s.addFile("/etc/"+p.unit+"/"+name, files.TypeConfig, 0o644, at("deploy/package/files", name))
	}
	// For certificates and keys; the package's script makes it the group's.
	s.addFile("/etc/"+p.unit+"/tls", files.TypeDir, 0o750, "")
	s.addFile(doc+"README.md", "", 0o644, at("deploy/package/files", p.name+".readme"))
	s.addFile(doc+"copyright", "", 0o644, s.writeFile("copyright", fmt.Sprintf(copyright, p.name, program.Source)))
	s.addFile(doc+"changelog.gz", "", 0o644, s.writeFile("changelog.gz", s.compressText(fmt.Sprintf("%s (%s) unstable; urgency=medium\n\n  * See %s/blob/main/CHANGELOG.md\n\n -- %s  %s\n",
		p.name, b.debianVersion(), program.Source, maintainer, b.Time.Format(time.RFC1123Z)))))
	s.addFile("/usr/share/lintian/overrides/"+p.name, "", 0o644, named("lintian-overrides"))
	s.err = errors.Join(s.err, p.walkShared(repository, func(path, from string) error {
		if strings.HasPrefix(path, "man/") {
			page, err := os.ReadFile(from)
			path, from = path+".gz", s.writeFile(filepath.Base(path)+".gz", s.compressText(string(page)))
			s.err = errors.Join(s.err, err)
		}
		s.addFile("/usr/share/"+path, "", 0o644, from)
		return nil
	}))
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: p.name, Arch: b.Arch, Platform: "linux", Version: b.debianVersion(), VersionSchema: "none",
		Section: "net", Priority: "optional", Maintainer: maintainer, Homepage: program.Source, License: "Apache-2.0",
		Description: p.summary + "\n" + p.about, DisableGlobbing: true, MTime: b.Time,
		Overridables: nfpm.Overridables{
			Depends:  []string{"adduser"},
			Contents: s.contents,
			Scripts:  nfpm.Scripts{PostInstall: named("postinst"), PreRemove: named("prerm"), PostRemove: named("postrm")},
		},
	})
	if s.err != nil {
		return s.err
	}
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	packager, err := nfpm.Get("deb")
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(folder, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return packager.Package(info, file)
}

// stagingFolder is a folder with what goes into a package: nfpm takes only files.
type stagingFolder struct {
	folder   string
	time     time.Time
	contents files.Contents
	err      error // the first ones
}

// addFile puts a file of the user root into the package.
func (s *stagingFolder) addFile(destination, kind string, mode os.FileMode, source string) {
	s.contents = append(s.contents, &files.Content{
		Source: source, Destination: destination, Type: kind,
		FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: s.time},
	})
}

// writeFile returns the path of a new file in the folder.
func (s *stagingFolder) writeFile(name, content string) string {
	path := filepath.Join(s.folder, name)
	s.err = errors.Join(s.err, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// compressText returns a compressed text.
func (s *stagingFolder) compressText(text string) string {
	var zipped strings.Builder
	w, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err == nil {
		_, err = w.Write([]byte(text))
		err = errors.Join(err, w.Close())
	}
	s.err = errors.Join(s.err, err)
	return zipped.String()
}

// copyright is the file of that name, in the format that Debian has for it.
const copyright = `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: %s
Source: %s

Files: *
Copyright: 2026 The authors of coredns-federation
License: Apache-2.0

License: Apache-2.0
 On Debian systems the text of the license is in
 /usr/share/common-licenses/Apache-2.0.
`
