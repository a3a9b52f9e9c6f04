// Package program reads the binaries of this repository for the commands that pack them,
// and has what these have in common: archives that are the same for the same binaries.
package program

import (
	"archive/tar"
	"cmp"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// Source is where the programs come from.
const Source = "https://github.com/hamlet-federation/coredns-federation"

// Main runs a command, and says with its name why it fails.
func Main(name string, run func(args []string, out io.Writer) error) {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		}
		os.Exit(1)
	}
}

// Binary is one that was built, and what it says of itself.
type Binary struct {
	Path     string
	Content  []byte
	Info     *debug.BuildInfo
	Arch     string
	Version  string // such as v1.2.0 or v0.0.0-20261122131157-c33c1088fc01; devel where git was not asked
	Commit   string // empty where git was not asked
	Modified bool   // whether the tree had changes that are in no commit
	Time     time.Time
}

// Read reads the binaries of that name in folder/linux-ARCH, for each architecture in a list
// with commas. They must be static ones of Go. Their time is that of the variable
// SOURCE_DATE_EPOCH or else of the commit.
func Read(folder, name, arches string) (all []*Binary, err error) {
	for arch := range strings.SplitSeq(arches, ",") {
		b, err := readBinary(filepath.Join(folder, "linux-"+arch, name), arch)
		if err != nil {
			return nil, fmt.Errorf("%s for %s: %w", name, arch, err)
		}
		all = append(all, b)
	}
	return all, nil
}

func readBinary(path, arch string) (*Binary, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, err
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["GOOS"] != "linux" || settings["GOARCH"] != arch || settings["CGO_ENABLED"] != "0" {
		return nil, fmt.Errorf("%s is for %s/%s with CGO_ENABLED=%s; want linux/%s with CGO_ENABLED=0, which needs no C library",
			path, settings["GOOS"], settings["GOARCH"], settings["CGO_ENABLED"], arch)
	}
	b := &Binary{
		Path: path, Info: info, Arch: arch, Version: cmp.Or(strings.Trim(info.Main.Version, "()"), "devel"),
		Commit: settings["vcs.revision"], Modified: settings["vcs.modified"] == "true", Time: time.Unix(0, 0).UTC(),
	}
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		b.Time = time.Unix(seconds, 0).UTC()
	} else if at, err := time.Parse(time.RFC3339, settings["vcs.time"]); err == nil {
		b.Time = at
	}
	b.Content, err = os.ReadFile(path)
	return b, err
}

// Archive is a tar file whose entries have a time that is set, and nothing else that the
// machine says. It is of no use after an error, which Close returns.
type Archive struct {
	w    *tar.Writer
	time time.Time
	err  error
}

// NewArchive returns an archive of entries of that time.
func NewArchive(w io.Writer, t time.Time) *Archive { return &Archive{w: tar.NewWriter(w), time: t} }

// Add adds a file of the user root.
func (a *Archive) Add(name string, mode int64, content []byte) {
	a.addEntry(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}, content)
}

// AddFolder adds a folder of a user, and of the group with the same number.
func (a *Archive) AddFolder(name string, mode int64, user int) {
	a.addEntry(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, Uid: user, Gid: user}, nil)
}

func (a *Archive) addEntry(header *tar.Header, content []byte) {
	header.Format, header.ModTime = tar.FormatUSTAR, a.time
	if a.err == nil {
		a.err = a.w.WriteHeader(header)
	}
	if a.err == nil {
		_, a.err = a.w.Write(content)
	}
}

// Close ends the archive.
func (a *Archive) Close() error { return cmp.Or(a.err, a.w.Close()) }
