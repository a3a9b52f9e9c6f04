package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

const maintainer = "The maintainers of coredns-federation <coredns-federation@users.noreply.github.com>"

// product is a binary of this repository, and how it is packed.
type product struct {
	binary string
	name   string // of the package and of the archive
	// command is the file in /usr/bin. Other packages of CoreDNS, which is none of
	// Debian's, have /usr/bin/coredns, a unit, a user and a folder of that name.
	command string
	// unit is the name of the unit, its user, and its folders in /etc and /var/lib.
	unit    string
	config  []string // of the folder files, for /etc/UNIT
	summary string
	about   string
}

var products = []product{
	{
		binary: "coredns", name: "coredns-federation", command: "coredns-federation", unit: "coredns-federation",
		config:  []string{"Corefile"},
		summary: "DNS server that resolves services of other meshes and clusters",
		about: `CoreDNS with every plugin of its tree and the plugin federation, which
subscribes to the owners of services over the Hamlet API and answers DNS
queries from memory. The unit coredns-federation is not enabled: edit
/etc/coredns-federation/Corefile first.`,
	},
	{
		binary: "federationctl", name: "federationctl", command: "federationctl", unit: "federation-owner",
		config:  []string{"owner.yaml", "catalog.yaml"},
		summary: "publish services to other platforms over the Hamlet API",
		about: `The owner's side of federated service discovery: it publishes services of
files, Kubernetes clusters and programs that register, and has tools to
check catalogs and to watch owners. The unit federation-owner is not
enabled: it needs certificates, and /etc/federation-owner/owner.yaml.`,
	},
}

// walkShared calls add for each file that the product has in /usr/share, with its path there and
// where it is: manual pages, and what shells complete its command with.
func (p product) walkShared(repository string, add func(path, from string) error) error {
	root := filepath.Join(repository, "deploy/package/files/share", p.name)
	return fs.WalkDir(os.DirFS(root), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return add(path, filepath.Join(root, path))
	})
}

// versionedBinary is one with the version that it is packed with, such as 1.2.0.
type versionedBinary struct {
	*program.Binary

	version string
}

// debianVersion returns the version as Debian orders it: what comes before a release
// sorts before it. Each begins with a digit.
func (b *versionedBinary) debianVersion() string {
	if b.version[0] < '0' || b.version[0] > '9' {
		return "0.0.0~" + strings.ReplaceAll(b.version, "-", "~")
	}
	return strings.ReplaceAll(b.version, "-", "~")
}
