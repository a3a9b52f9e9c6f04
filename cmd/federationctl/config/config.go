// Package config reads the configuration file of an owner, which says where it
// listens, who may subscribe, and which sources fill its catalogs, and that of an importer. It returns the
// configuration, or everything that is wrong with the file, each with its line.
//
// It opens no file and asks nobody. What a source, an importer or another part of the program is told has
// its keys in the tags of its own configuration.
//
// Only packages of this module import it: it is not a stable API.
package config

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
)

// ProcessConfig is what owners and importers are told alike.
type ProcessConfig struct {
	Identity mtls.Origin `yaml:"identity" one:"files spiffe" why:"the identity has one origin" doc:"What is shown to the other side, and who is believed there: files or spiffe."`
	Status   page.Config `yaml:"status" short:"listen" needs:"listen" doc:"Where the status page and federationctl why are served, by default nowhere. An address alone stands for listen; one that is not loopback needs cert, key and ca."`
	Metrics  string      `yaml:"metrics" as:"address" doc:"Where metrics and probes are served in plain text, as host:port, by default nowhere. Let only monitoring reach it, because everybody who does can read the status."`
}

// Config is what the configuration file of an owner says. The file has the fields with tags; the
// others are made of these. Paths are as they stand in the file; see Config.ResolvePaths.
type Config struct {
	Listen string `yaml:"listen" as:"address" default:":8008" doc:"Where consumers connect, as host:port. A port alone means all addresses of the machine."`
	Window int    `yaml:"window" as:"window" default:"256" doc:"How many responses may wait for their acknowledgement, 1 to 1024, at a consumer that takes so many. 256 means that 10,000 services take 2 seconds at a round trip of 50 ms, and not 8 minutes. Raise it for longer round trips."`
	Allow  Allow  `yaml:"allow" doc:"Who may subscribe: those in ids, in file, or in both."`
	Audit  bool   `yaml:"audit" as:"bool" doc:"true logs each service that a consumer is told for the first time, and each withdrawal. Streams wait for the log, so set it only if you must account for who knew what."`

	// AllowAddresses are ranges of endpoint addresses that consumers take although they
	// refuse them by default.
	AllowAddresses []netip.Prefix `yaml:"allow_addresses" as:"range" doc:"Ranges of endpoint addresses that are published although consumers refuse them by default, such as 127.0.0.0/8. Consumers must allow them, too."`

	ProcessConfig

	Catalogs []Catalog `yaml:"catalogs" one:"sources relay" least:"one is required" why:"a relay is the whole catalog; beside other sources it is one of them, in their list" doc:"What is published, one catalog for each server_name: sources or a relay."` // with different server names
}

// Allow says which consumers may subscribe: those in IDs, and those in the file.
type Allow struct {
	IDs  []federation.ID `yaml:"ids" as:"id" quoted:"true" doc:"SPIFFE IDs or DNS names, of which the certificate of a consumer must have one. [] lets nobody in."`
	File string          `yaml:"file" doc:"A file with an identity in each line, which is followed. Use it if another program decides who may subscribe."`

	// Everybody lets each certificate in that an authority of the owner has signed. No
	// file can say this; it is for owners that are configured in another way.
	Everybody bool
}

// Catalog is what consumers get who ask for the server name in their TLS handshake.
type Catalog struct {
	ServerName string `yaml:"server_name" as:"host" doc:"The name that consumers ask for in the TLS handshake, their tls_servername. One catalog may be without it: who asks for any other name gets that one."` // in lower case, without a final dot

	// Sources fill the catalog. A relay that is the whole catalog is the only one of them.
	Sources []Source  `yaml:"sources" one:"file kubernetes registration consul nsm relay" least:"one is required" why:"give each a '-' of its own" doc:"What fills the catalog, each entry of one kind. Where two publish the same name, the first wins."`
	Relay   *Relay    `yaml:"relay" needs:"addresses" doc:"Another owner whose catalog is passed on, in place of sources. It has the keys of sources.relay but lifetime."`
	Exports []*Export `yaml:"exports" needs:"to" doc:"Rules that say who is told what, of which the first that fits decides. Without exports, everybody in allow is told everything; [] tells nobody anything."`

	Policy *policy.Policy // of the exports; nil where there are none: everything to everyone who may subscribe
}

// Source fills a catalog, together with others. One of its pointers is set.
type Source struct {
	Name     string        // in logs and metrics, of its own within the catalog
	Lifetime time.Duration // how long its services outlive its origin; 0 for ever, source.NoLifetime for not at all

	// What may go at once, in percent, and when more goes all the same, as source.Entry has
	// them: 0 for everything, and for never.
	MaxWithdraw   int
	WithdrawAfter time.Duration

	File         *File         `yaml:"file" needs:"path" doc:"A catalog file, which is followed."`
	Kubernetes   *Kubernetes   `yaml:"kubernetes" needs:"cluster zone" doc:"A cluster that exports Services."`
	Registration *Registration `yaml:"registration" needs:"rules" doc:"Programs that register themselves."`
	Consul       *Consul       `yaml:"consul" needs:"zone" doc:"A datacenter of Consul."`
	NSM          *NSM          `yaml:"nsm" needs:"registry zone" doc:"A registry of Network Service Mesh."`
	Relay        *PartialRelay `yaml:"relay" needs:"addresses" doc:"Another owner whose catalog is passed on beside other sources, at most one in a catalog."`
}

// withdrawLimits are of every source that lists what there is. By default they pause what
// looks like an empty or restored store.
type withdrawLimits struct {
	sourceLifetime

	MaxWithdraw   int           `yaml:"max_withdraw" as:"share" default:"50%" doc:"The share of services that may go within a minute before the owner pauses their withdrawal, or off. 50% means that an empty or restored registry takes nothing away before you confirm it. Raise it if your services go in large groups."`
	WithdrawAfter time.Duration `yaml:"withdraw_after" as:"patience" default:"1h" doc:"When paused services are withdrawn all the same, or never. 1h means that somebody has an hour to look. Raise it if nobody watches at night."`
}

// fileLimits are those of a catalog file.
type fileLimits struct {
	withdrawLimits

	MaxWithdraw int `yaml:"max_withdraw" as:"share" doc:"As for a cluster, but off by default, because whoever edits a file means it. Set it if a program writes the file."`
}

type sourceLifetime struct {
	Lifetime time.Duration `yaml:"lifetime" as:"lifetime" default:"1h" doc:"How long services stay while their origin cannot be asked, or forever. 1h means that they are withdrawn when it has been away for an hour. Raise it to the longest repair that you expect."`
}

// describe gives the source its name and the limits that its kind has in the file, and the kind its defaults.
func (s *Source) describe() {
	var limits withdrawLimits
	switch {
	case s.File != nil:
		s.Name, limits = "file:"+s.File.Path, s.File.withdrawLimits
		limits.MaxWithdraw = s.File.MaxWithdraw
	case s.Kubernetes != nil:
		s.Name, limits = "kubernetes:"+s.Kubernetes.Cluster, s.Kubernetes.withdrawLimits
	case s.Consul != nil:
		s.Name, limits = "consul:"+path.Join(s.Consul.Name, s.Consul.Datacenter), s.Consul.withdrawLimits
	case s.NSM != nil:
		s.Name, limits = "nsm:"+s.NSM.Name, s.NSM.withdrawLimits
	case s.Registration != nil:
		s.Name, limits.sourceLifetime = "registration:"+s.Registration.Name, s.Registration.sourceLifetime
		if e := s.Registration.Store.Etcd; e != nil {
			e.Prefix = cmp.Or(e.Prefix, "/federation/"+s.Registration.Name)
		}
	case s.Relay != nil:
		s.Relay.FillName()
		s.Name, limits.sourceLifetime = "relay:"+s.Relay.Name, s.Relay.sourceLifetime
	}
	s.Lifetime, s.MaxWithdraw, s.WithdrawAfter = limits.Lifetime, limits.MaxWithdraw, limits.WithdrawAfter
}

// File is a catalog file.
type File struct {
	Path    string `yaml:"path" doc:"The path of the catalog file."`
	MaxSize int64  `yaml:"max_size" as:"size" default:"256MiB" doc:"How large the file may be; a larger one counts as broken. Reading it takes seven times its size in memory, so raise both together."`

	fileLimits
}

// Kubernetes is a cluster that exports Services.
type Kubernetes struct {
	kubernetes.Config
	withdrawLimits
}

// Parse reads the content of a configuration file. It returns either a configuration
// or, in the order of lines, all that is wrong with the content.
func Parse(data []byte) (Config, []problem.Problem) {
	c, r := readContent(data)
	if problems := r.SortedProblems(); len(problems) > 0 {
		return Config{}, problems
	}
	return c, nil
}

// Check is Parse which also returns, for a configuration that can be used, what of it
// is probably not meant, in the order of lines.
func Check(data []byte) (c Config, problems, warnings []problem.Problem) {
	c, r := readContent(data)
	if problems = r.SortedProblems(); len(problems) > 0 {
		return Config{}, problems, nil
	}
	return c, nil, r.findWarnings(c)
}

// DifferentKeys returns the keys that have other values in next, in order. It looks no deeper
// than at a source or at the exports of a catalog.
func (c *Config) DifferentKeys(next Config) (keys []string) {
	before, after := c.valuesByKey(), next.valuesByKey()
	for key := range after {
		if _, known := before[key]; !known {
			before[key] = nil
		}
	}
	for key, value := range before {
		if !reflect.DeepEqual(value, after[key]) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// valuesByKey returns what DifferentKeys compares, by key.
func (c *Config) valuesByKey() map[string]any {
	all := map[string]any{
		"listen": c.Listen, "metrics": c.Metrics, "status": c.Status, "window": c.Window, "audit": c.Audit,
		"identity":  c.Identity,
		"allow.ids": c.Allow.IDs, "allow.file": c.Allow.File, "allow_addresses": c.AllowAddresses,
	}
	for i, of := range c.Catalogs {
		all[fmt.Sprintf("catalogs[%d].server_name", i)] = of.ServerName
		var rules []policy.Rule // nil: there are no exports
		if of.Policy != nil {
			rules = make([]policy.Rule, 0, len(of.Exports))
		}
		for _, e := range of.Exports {
			rules = append(rules, e.Rule)
		}
		all[fmt.Sprintf("catalogs[%d].exports", i)] = rules
	}
	for path, s := range c.allSources() {
		all[path[:strings.LastIndexByte(path, '.')]] = s // without its kind
	}
	return all
}

// ResolvePaths has relative paths begin at a directory, that of the configuration file.
func (c *Config) ResolvePaths(dir string) {
	read, others := pathsOf(c)
	resolvePaths(dir, slices.Concat(read, others))
}

func resolvePaths(dir string, paths []*string) {
	for _, path := range paths {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
}

// pathsOfFiles returns where the paths of the files of a certificate stand.
func pathsOfFiles(f *mtls.Files) []*string { return []*string{&f.Cert, &f.Key, &f.CA} }

// filePaths returns where the paths of the files stand that every process reads.
func (p *ProcessConfig) filePaths() []*string {
	return slices.Concat(pathsOfFiles(&p.Identity.Files), pathsOfFiles(&p.Status.Files))
}

// pathsOf returns where the paths stand of the files that are read, whatever fills the
// catalogs, and those of all others.
func pathsOf(c *Config) (read, others []*string) {
	read = append(c.filePaths(), &c.Allow.File)
	for _, s := range c.allSources() {
		switch {
		case s.File != nil:
			read = append(read, &s.File.Path)
		case s.Kubernetes != nil:
			read = append(read, &s.Kubernetes.Kubeconfig)
		case s.Registration != nil:
			read = append(read, &s.Registration.Rules)
			if e := s.Registration.Store.Etcd; e != nil {
				others = append(append(others, pathsOfFiles(&e.TLS)...), &e.PasswordFile)
			}
		case s.Consul != nil:
			others = append(append(others, pathsOfFiles(&s.Consul.TLS)...), &s.Consul.TokenFile)
		case s.Relay != nil:
			others = append(others, &s.Relay.Persist)
		}
	}
	return read, others
}

// allSources returns the sources of all catalogs, each with its path in the file.
func (c *Config) allSources() iter.Seq2[string, Source] {
	return func(yield func(string, Source) bool) {
		for i, catalog := range c.Catalogs {
			for j, s := range catalog.Sources {
				key, _, _ := strings.Cut(s.Name, ":")
				path := fmt.Sprintf("catalogs[%d].sources[%d].%s", i, j, key)
				if s.Relay != nil && s.Lifetime == source.NoLifetime {
					path = fmt.Sprintf("catalogs[%d].relay", i)
				}
				if !yield(path, s) {
					return
				}
			}
		}
	}
}
