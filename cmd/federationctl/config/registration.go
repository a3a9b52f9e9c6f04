package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// Registration is where programs tell of themselves.
type Registration struct {
	Name   string `yaml:"name" as:"label" default:"registration" doc:"What begins the names of its services: registration/FQDN."`
	Listen string `yaml:"listen" as:"address" doc:"A port for providers alone, as host:port. Without it they use that of consumers, where the server name of their TLS handshake chooses the catalog."`
	Rules  string `yaml:"rules" doc:"The path of the rules that say who may register what. The file is followed."`

	// Owner is the name by which owners that share a store tell each other apart; empty
	// for one that is made of the host name and the port.
	Owner string `yaml:"owner" as:"word" doc:"The name of this owner at the store, by default host name and port. It must be unique, and the same after a restart."`

	Convergence time.Duration `yaml:"convergence" as:"duration" default:"2m" max:"1h" min:"1s" doc:"How long after a start nothing is withdrawn, so that providers can come back, 1s to 1h. 2m means that a program that died with the owner is withdrawn two minutes later. Make it longer than the ttls of the rules."`
	Linger      time.Duration `yaml:"linger" as:"duration" default:"30s" max:"1h" min:"0s" doc:"How long the last node of a service stays after it has expired, 0 to 1h. 30s means that a program that is silent half a minute too long does not take its name away. Raise it if programs are restarted slowly."`
	MaxNodes    int           `yaml:"max_nodes" as:"number" default:"1000000" max:"1000000" doc:"How many nodes may be registered, a million at most. Lower it to bound memory, because further nodes are refused."`

	sourceLifetime

	Store struct {
		Etcd *Etcd `yaml:"etcd" needs:"endpoints" doc:"The etcd that keeps registrations."`
	} `yaml:"store" needs:"etcd" doc:"Where several owners share registrations. Without it, one owner keeps them in memory."`
}

// Etcd is a cluster of etcd that keeps what is registered.
type Etcd struct {
	Endpoints []string `yaml:"endpoints" as:"member" least:"one is required" doc:"The URLs of its members, all https or all http."`
	Prefix    string   `yaml:"prefix" as:"prefix" doc:"What its keys begin with, by default /federation/NAME. Owners that share registrations have the same."`

	Username     string `yaml:"username" doc:"The user of etcd, together with password_file."`
	PasswordFile string `yaml:"password_file" doc:"A file with the password, which is read at the start, and sent to another machine over https only."`

	TLS mtls.Files `yaml:"tls" doc:"Files for https, by default the authorities of the system and no certificate."`
}

// NSM is the registry of a Network Service Mesh.
type NSM struct {
	Name     string          `yaml:"name" as:"label" default:"nsm" doc:"What begins the names of its services: nsm/NETWORK-SERVICE."`
	Registry string          `yaml:"registry" as:"registry" doc:"The address of the registry, tcp://HOST:PORT or unix:///PATH."`
	IDs      []federation.ID `yaml:"registry_ids" as:"id" quoted:"true" doc:"Identities of which the registry must have one, by default its host name. With identity.spiffe they are required."`
	Zone     federation.FQDN `yaml:"zone" as:"fqdn" doc:"The zone of its names, NETWORK-SERVICE.ZONE."`
	Plain    bool            `yaml:"tls" as:"none" quoted:"true" doc:"none asks without TLS a registry on this machine. Leave it out for mutual TLS with the identity of the owner."`

	withdrawLimits
}

const mostText = 255 // bytes of a name or a prefix

// checkRegistration checks what the source of a path has in the file, beyond each key.
func (r *configReader) checkRegistration(path string, g *Registration) {
	etcd := path + ".store.etcd"
	e := g.Store.Etcd
	if e == nil {
		return
	}
	has := func(key string) bool { return r.HasValue(etcd + key) }
	of := func(scheme string) bool {
		return slices.ContainsFunc(e.Endpoints, func(endpoint string) bool { return strings.HasPrefix(endpoint, scheme) })
	}
	plain, secured := of("http:"), of("https:")
	tls := has(".tls")
	r.addProblemIf(tls && e.TLS == mtls.Files{} && !has(".tls.cert") && !has(".tls.key") && !has(".tls.ca"), etcd+".tls",
		"is empty; leave it out for the authorities of the system and no certificate")
	r.addProblemIf(has(".tls.cert") != has(".tls.key"), etcd+".tls", "needs both of cert and key, or none of them")
	r.addProblemIf(plain && secured, etcd+".endpoints", "are all of http or all of https")
	r.addProblemIf(plain && !secured && tls, etcd+".tls", "has no effect, as the endpoints are of http")
	named := has(".username")
	r.addProblemIf(named != has(".password_file"), etcd, "needs both of username and password_file, or none of them")
	r.addProblemIf(named && has(".password_file") && slices.ContainsFunc(e.Endpoints, isPlainElsewhere), etcd,
		"needs endpoints of https: a password is sent over TLS, or to this machine, only")
}

// isPlainElsewhere reports whether a URL leads to another machine without TLS.
func isPlainElsewhere(endpoint string) bool {
	return strings.HasPrefix(endpoint, "http:") && !isLoopback(endpoint)
}

// checkNSM checks what the source of a path has in the file, beyond each key.
func (r *configReader) checkNSM(path string, n *NSM) {
	remote := n.Plain && n.Registry != "" && !isLoopback(n.Registry)
	r.addProblemIf(remote, path+".tls", "is for a registry on this machine only: its address must be one of loopback")
	r.addProblemIf(!remote && n.Plain && r.HasValue(path+".registry_ids"), path+".registry_ids", "has no effect with 'tls: none'")
}

// isLoopback reports whether the host of a URL is this machine.
func isLoopback(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "unix" || u.Hostname() == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// checkExclusive notes what several registrations and relays want that only one can have: an
// address, a file, or keys of etcd. A file that one of them writes is none that is read.
func (r *configReader) checkExclusive(c Config) {
	taken := make(map[string]string) // by whom
	for _, port := range [][2]string{{c.Listen, "listen"}, {c.Metrics, "metrics"}, {c.Status.Address, "status"}} {
		taken["listen "+port[0]] = port[1]
	}
	var read []string
	paths, _ := pathsOf(&c)
	for _, path := range paths {
		read = append(read, filepath.Clean(*path)) // "." for none
	}
	for path, s := range c.allSources() {
		by, _, _ := strings.Cut(s.Name, ":")
		claim := func(key, what, text string) {
			what += " " + text
			r.addProblemIf(taken[what] != "", path+key, "is that of %s as well", taken[what])
			taken[what] = fmt.Sprintf("the %s on line %d", by, r.LineOf(path+key))
		}
		write := func(key, name string) {
			if name == "" {
				return
			}
			file := filepath.Clean(name)
			claim(key, "file", file)
			r.addProblemIf(slices.Contains(read, file), path+key, "is a file of the configuration, and would be overwritten")
		}
		agent := c.Identity.SPIFFE.Socket != ""
		switch g, n, l := s.Registration, s.NSM, s.Relay; {
		case g != nil:
			if g.Listen != "" && !strings.HasSuffix(g.Listen, ":0") {
				claim(".listen", "listen", g.Listen)
			}
			if e := g.Store.Etcd; e != nil {
				claim(".store.etcd", "etcd", fmt.Sprint(e.Prefix, slices.Sorted(slices.Values(e.Endpoints))))
			}
		case n != nil:
			r.addProblemIf(agent && !n.Plain && len(n.IDs) == 0, path, "needs registry_ids: where identities come from a SPIFFE agent the registry is known by its SPIFFE ID")
		case l != nil:
			write(".persist", l.Persist)
			r.checkIdentities(path, &l.Owner, agent)
		}
	}
}
