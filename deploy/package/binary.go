package main

import (
	"cmp"
	"debug/buildinfo"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

const (
	source     = "https://github.com/hamlet-federation/coredns-federation"
	maintainer = "The maintainers of coredns-federation <coredns-federation@users.noreply.github.com>"
)

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

// binary is one that was built, and what it says of itself.
type binary struct {
	content []byte
	info    *debug.BuildInfo
	arch    string
	version string // such as 1.2.0 or 0.0.0-20261122131157-c33c1088fc01; devel where git was not asked
	commit  string // empty where git was not asked
	time    time.Time
}

// readBinary reads the binary at path, which must be a static one of Go for Linux and
// arch. The version is the binary's own where none is given. Its time is that of the
// variable SOURCE_DATE_EPOCH or else of the commit.
func readBinary(path, arch, version string) (*binary, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, err
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["GOOS"] != "linux" || settings["GOARCH"] != arch || settings["CGO_ENABLED"] != "0" {
		return nil, fmt.Errorf("%s is for %s/%s with CGO_ENABLED=%s; want linux/%s with CGO_ENABLED=0, which runs with any C library",
			path, settings["GOOS"], settings["GOARCH"], settings["CGO_ENABLED"], arch)
	}
	b := &binary{info: info, arch: arch, version: version, commit: settings["vcs.revision"]}
	if b.version == "" {
		b.version = cmp.Or(strings.TrimPrefix(strings.Trim(info.Main.Version, "()"), "v"), "devel")
	}
	b.time, err = time.Parse(time.RFC3339, settings["vcs.time"])
	if err != nil {
		b.time = time.Unix(0, 0).UTC()
	}
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		b.time = time.Unix(seconds, 0).UTC()
	}
	b.content, err = os.ReadFile(path)
	return b, err
}

// debianVersion returns the version as Debian orders it: what comes before a release
// sorts before it. Each begins with a digit.
func (b *binary) debianVersion() string {
	if b.version[0] < '0' || b.version[0] > '9' {
		return "0.0.0~" + strings.ReplaceAll(b.version, "-", "~")
	}
	return strings.ReplaceAll(b.version, "-", "~")
}
