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
	Name   string // begins the names of its services
	Listen string // host:port for providers; empty for the owner's own
	Rules  string // path of the rules that say who may register what

	// Owner is the name by which owners that share a store tell each other apart; empty
	// for one that is made of the host name and the port.
	Owner string

	// Store is the path of the file that keeps what is registered, and Etcd what keeps it
	// instead. Without both it is in memory only.
	Store string
	Etcd  *Etcd

	Convergence time.Duration // how long after a start providers have to come back
	Linger      time.Duration // how long the last node of a service that has expired stays; 0 for not at all
	MaxNodes    int
}

// Etcd is a cluster of etcd that keeps what is registered.
type Etcd struct {
	Endpoints []string // URLs, all of them of http or of https
	Prefix    string   // of its keys

	// TLS has the files for endpoints of https: the authorities, those of the system by
	// default, and the certificate to show, none by default.
	TLS mtls.Files

	Username, PasswordFile string // both or none
}

// NSM is the registry of a Network Service Mesh.
type NSM struct {
	Name     string
	Registry string          // tcp://host:port or unix:///path
	IDs      []federation.ID // that the registry must have one of; empty for its host name
	Zone     string          // that fqdns are in, as in the file
	Plain    bool            // whether the registry is asked without TLS; it is on this machine
}

// What holds where the file says nothing.
const (
	defaultConvergence = 2 * time.Minute
	defaultLinger      = 30 * time.Second
	defaultNodes       = 1_000_000
)

// The bounds of what a registration may say.
const (
	leastConvergence = time.Second // providers take a moment to come back
	mostConvergence  = time.Hour
	mostLinger       = time.Hour
	mostText         = 255 // bytes of a name or a prefix
)

// placedRegistration is a registration at its place in the file.
type placedRegistration struct {
	value

	registration *Registration
}

// placedNSM is a registry at its place in the file.
type placedNSM struct {
	value

	nsm *NSM
}

func (r *reader) registration(v value, s *Source) {
	g := &Registration{Name: "registration", Convergence: defaultConvergence, Linger: defaultLinger, MaxNodes: defaultNodes}
	s.Registration = g
	r.registrations = append(r.registrations, placedRegistration{v, g})
	r.places[v.field] = v
	lines, ok := r.mapping(v, map[string]func(v value){
		"name":        parsed(r, &g.Name, "a name", parseLabel),
		"listen":      r.placed(parsed(r, &g.Listen, "an address", parseAddress)),
		"rules":       r.store(&g.Rules),
		"owner":       parsed(r, &g.Owner, "a name", parseWord),
		"store":       func(v value) { r.nodeStore(v, g) },
		"convergence": parsed(r, &g.Convergence, "a duration", durationOf(leastConvergence, mostConvergence, "2m")),
		"linger":      parsed(r, &g.Linger, "a duration", durationOf(0, mostLinger, "30s")),
		"max_nodes":   parsed(r, &g.MaxNodes, "a whole number", wholeNumber(defaultNodes)),
		"lifetime":    r.lifetime(s),
	})
	if ok {
		r.require(v, lines, "rules")
	}
	if g.Etcd != nil && g.Etcd.Prefix == "" {
		g.Etcd.Prefix = "/federation/" + g.Name
	}
	s.Name = "registration:" + g.Name
}

// placed returns a function that reads a value and keeps its place.
func (r *reader) placed(read func(v value)) func(v value) {
	return func(v value) {
		r.places[v.field] = v
		read(v)
	}
}

// nodeStore reads what keeps the nodes of a registration.
func (r *reader) nodeStore(v value, g *Registration) {
	lines, ok := r.mapping(v, map[string]func(v value){
		"file": func(v value) {
			lines, ok := r.mapping(v, map[string]func(v value){"path": r.placed(r.store(&g.Store))})
			if ok {
				r.require(v, lines, "path")
			}
		},
		"etcd": func(v value) {
			g.Etcd = &Etcd{}
			r.etcd(v, g.Etcd)
		},
	})
	switch {
	case !ok:
	case len(lines) == 0:
		r.wrongf(v, "needs file or etcd; leave it out to keep what is registered in memory only")
	case lines["file"] > 0 && lines["etcd"] > 0:
		r.wrongf(value{field: v.field + ".etcd", line: lines["etcd"]}, "cannot be used with file, which is on line %d: what is registered is in one store", lines["file"])
	}
}

func (r *reader) etcd(v value, e *Etcd) {
	var endpoints, files value
	r.places[v.field] = v
	lines, ok := r.mapping(v, map[string]func(v value){
		"endpoints": func(v value) {
			endpoints = v
			r.words(v, &e.Endpoints, "none", parseEndpoint)
		},
		"prefix": parsed(r, &e.Prefix, "a string", parsePrefix),
		"tls": func(v value) {
			files = v
			lines, ok := r.mapping(v, map[string]func(v value){
				"cert": r.store(&e.TLS.Cert), "key": r.store(&e.TLS.Key), "ca": r.store(&e.TLS.CA),
			})
			if ok && len(lines) == 0 {
				r.wrongf(v, "is empty; leave it out for the authorities of the system and no certificate")
			}
			if ok && (lines["cert"] > 0) != (lines["key"] > 0) {
				r.wrongf(v, "needs both of cert and key, or none of them")
			}
		},
		"username":      r.store(&e.Username),
		"password_file": r.store(&e.PasswordFile),
	})
	if !ok {
		return
	}
	r.require(v, lines, "endpoints")
	secured := 0
	for _, endpoint := range e.Endpoints {
		if strings.HasPrefix(endpoint, "https:") {
			secured++
		}
	}
	switch {
	case secured > 0 && secured < len(e.Endpoints):
		r.wrongf(endpoints, "are all of http or all of https")
	case secured == 0 && len(e.Endpoints) > 0 && files.node != nil:
		r.wrongf(files, "has no effect, as the endpoints are of http")
	}
	switch {
	case (lines["username"] > 0) != (lines["password_file"] > 0):
		r.wrongf(v, "needs both of username and password_file, or none of them")
	case lines["username"] > 0 && slices.ContainsFunc(e.Endpoints, isPlainElsewhere):
		r.wrongf(v, "needs endpoints of https: a password is sent over TLS, or to this machine, only")
	}
}

// isPlainElsewhere reports whether a URL leads to another machine without TLS.
func isPlainElsewhere(endpoint string) bool {
	return strings.HasPrefix(endpoint, "http:") && !isLoopback(endpoint)
}

// parsePrefix takes what keys of etcd begin with.
func parsePrefix(text string) (string, error) {
	if _, err := parseWord(text); err != nil || text[0] != '/' || strings.HasSuffix(text, "/") {
		return "", fmt.Errorf("%s is not a prefix of keys, such as /federation/west: at most %d characters, the first of them '/' and the last another one", federation.Quote(text), mostText)
	}
	return text, nil
}

// parseEndpoint takes the URL of a member of an etcd cluster.
func parseEndpoint(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || !isHostPort(u) {
		return "", fmt.Errorf("%s is not the URL of a member, such as https://etcd-0.example:2379", federation.Quote(text))
	}
	return text, nil
}

// isHostPort reports whether there is a host and a port in a URL behind its scheme, and
// nothing else.
func isHostPort(u *url.URL) bool {
	_, err := parseAddress(u.Host)
	return err == nil && u.Hostname() != "" && u.Port() != "" && *u == url.URL{Scheme: u.Scheme, Host: u.Host}
}

// parseWord takes a text without blanks.
func parseWord(text string) (string, error) {
	if text == "" || len(text) > mostText || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", fmt.Errorf("%s is not 1 to %d characters of ASCII without blanks", federation.Quote(text), mostText)
	}
	return text, nil
}

// durationOf returns a function that takes a duration within bounds. 0 may be without a
// unit.
func durationOf(least, most time.Duration, example string) func(text string) (time.Duration, error) {
	return func(text string) (time.Duration, error) {
		d, err := time.ParseDuration(text)
		if err != nil || d < least || d > most {
			return 0, fmt.Errorf("%s is not a duration of %v to %v, such as %s", federation.Quote(text), least, most, example)
		}
		return d, nil
	}
}

func (r *reader) nsm(v value, s *Source) {
	n := &NSM{Name: "nsm"}
	s.NSM = n
	r.registries = append(r.registries, placedNSM{v, n})
	lines, ok := r.mapping(v, r.lists(s, defaultMaxWithdraw, map[string]func(v value){
		"name":         parsed(r, &n.Name, "a name", parseLabel),
		"registry":     parsed(r, &n.Registry, "an address", parseRegistry),
		"registry_ids": r.placed(func(v value) { r.ids(v, &n.IDs) }),
		"zone":         parsed(r, &n.Zone, "a zone", parseServerName),
		"tls": r.placed(func(v value) {
			n.Plain = r.text(v) == "none"
			if !n.Plain && v.node.Value != "" {
				r.wrongf(v, "must be none; leave it out for mutual TLS with the identity of the owner")
			}
		}),
	}))
	if !ok {
		return
	}
	r.require(v, lines, "registry", "zone")
	at := func(key string) value { return r.places[v.field+"."+key] }
	switch {
	case n.Plain && n.Registry != "" && !isLoopback(n.Registry):
		r.wrongf(at("tls"), "is for a registry on this machine only: its address must be one of loopback")
	case n.Plain && lines["registry_ids"] > 0:
		r.wrongf(at("registry_ids"), "has no effect with 'tls: none'")
	}
	s.Name = "nsm:" + n.Name
}

// parseRegistry takes the address of an NSM registry.
func parseRegistry(text string) (string, error) {
	u, err := url.Parse(text)
	if err == nil && (u.Scheme == "tcp" && isHostPort(u) || *u == url.URL{Scheme: "unix", Path: u.Path} && len(u.Path) > 1) {
		return text, nil
	}
	return "", fmt.Errorf("%s is not the address of a registry, such as tcp://registry.nsm-system:5002 or unix:///run/nsm/registry.sock", federation.Quote(text))
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

// ids reads a list of different identities.
func (r *reader) ids(list value, ids *[]federation.ID) {
	first := r.unique()
	r.list(list, func(v value) {
		text := r.text(v)
		if text == "" {
			return
		}
		id, err := federation.ParseID(text)
		switch {
		case err != nil:
			r.wrongf(v, "%v", err)
		case first(v, id.String()):
			r.places[fmt.Sprintf("%s[%d]", list.field, len(*ids))] = v
			*ids = append(*ids, id)
		}
	})
}

// files returns the clean paths of the files that are read and never written.
func (c Config) files() []string {
	own, page := c.Identity.Files, c.Status.Files
	files := []string{own.Cert, own.Key, own.CA, page.Cert, page.Key, page.CA, c.Allow.File}
	for _, catalog := range c.Catalogs {
		for _, s := range catalog.Sources {
			switch {
			case s.File != nil:
				files = append(files, s.File.Path)
			case s.Kubernetes != nil:
				files = append(files, s.Kubernetes.Kubeconfig)
			case s.Registration != nil:
				files = append(files, s.Registration.Rules)
			}
		}
	}
	for i, file := range files {
		files[i] = filepath.Clean(file) // "." for none
	}
	return files
}

// apart notes what several registrations and relays want that only one can have: an
// address, a file, or keys of etcd. A file that one of them writes is none that is read.
func (r *reader) apart(c Config) {
	taken := make(map[string]string) // by whom
	for _, port := range [][2]string{{c.Listen, "listen"}, {c.Metrics, "metrics"}, {c.Status.Address, "status"}} {
		taken["listen "+port[0]] = port[1]
	}
	by := "the registration on line %d"
	claim := func(v value, what, text string) {
		what += " " + text
		if by := taken[what]; by != "" {
			r.wrongf(v, "is that of %s as well", by)
		}
		taken[what] = fmt.Sprintf(by, v.line)
	}
	read := c.files()
	write := func(v value, path string) {
		file := filepath.Clean(path)
		claim(v, "file", file)
		if slices.Contains(read, file) {
			r.wrongf(v, "is a file of the configuration, and would be written over")
		}
	}
	for _, at := range r.registrations {
		g := at.registration
		if g.Listen != "" && !strings.HasSuffix(g.Listen, ":0") {
			claim(r.places[at.field+".listen"], "listen", g.Listen)
		}
		if g.Store != "" {
			write(r.places[at.field+".store.file.path"], g.Store)
		}
		if e := g.Etcd; e != nil {
			endpoints := slices.Sorted(slices.Values(e.Endpoints))
			claim(r.places[at.field+".store.etcd"], "etcd", fmt.Sprint(e.Prefix, endpoints))
		}
	}
	by = "the relay on line %d"
	for _, at := range r.relays {
		if at.relay.Persist != "" {
			write(r.places[at.field+".persist"], at.relay.Persist)
		}
	}
	r.checkRelays(c)
	for _, at := range r.registries {
		if agent := c.Identity.SPIFFE.Socket != ""; agent && !at.nsm.Plain && len(at.nsm.IDs) == 0 {
			r.wrongf(at.value, "needs registry_ids: where identities come from a SPIFFE agent the registry is known by its SPIFFE ID")
		}
	}
}
