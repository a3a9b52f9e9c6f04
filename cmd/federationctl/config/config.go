// Package config reads the configuration file of an owner, which says where it
// listens, who may subscribe, and which sources fill its catalogs. It returns the
// configuration, or everything that is wrong with the file, each with its line.
//
// The package is pure: it opens no file and knows no client of any source.
package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/status/page"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// MaxBytes is how large a configuration file may be.
const MaxBytes = 1 << 20

// What holds where the file says nothing.
const (
	defaultListen   = ":8008"
	defaultWindow   = 1
	defaultLifetime = time.Hour

	// defaultMaxWithdraw, in percent, and defaultWithdrawAfter are of clusters and registries:
	// an empty or restored store looks like a decision.
	defaultMaxWithdraw   = 50
	defaultWithdrawAfter = time.Hour
)

// Config is what a configuration file says. Paths are as they stand in the file; see
// Config.In.
type Config struct {
	Listen   string        // host:port
	Metrics  string        // host:port of metrics, health and the status page; empty for none
	Status   page.Config   // of status and why; without an address there is none
	Window   int           // responses sent ahead of their acknowledgements
	Identity mtls.Origin   // of the owner
	Grace    time.Duration // how long a connection outlives the certificate that its peer has shown
	Allow    Allow
	Audit    bool // whether each service that a consumer is told for the first time, and each withdrawal, is logged

	// AllowAddresses are ranges of endpoint addresses that consumers take although they
	// refuse them by default.
	AllowAddresses []netip.Prefix

	Catalogs []Catalog // with different server names; one at least
}

// Allow says which consumers may subscribe: those in IDs, and those in the file.
type Allow struct {
	IDs  []federation.ID
	File string // empty for none

	// Everybody lets each certificate in that an authority of the owner has signed. No
	// file can say this; it is for owners that are configured in another way.
	Everybody bool
}

// Catalog is what consumers get who ask for the server name in their TLS handshake.
type Catalog struct {
	ServerName string   // in lower case, without a final dot; empty for the default catalog
	Sources    []Source // the first wins where two publish the same; one at least, and a relay stands alone

	Policy  *policy.Policy // nil where there are no exports: everything to everyone who may subscribe
	Exports []Export       // the rules of Policy, in order
}

// Source fills a catalog, together with others. One of its pointers is set.
type Source struct {
	Name     string        // in logs and metrics, of its own within the catalog
	Lifetime time.Duration // how long its services outlive its origin; 0 for ever, source.NoLifetime for not at all

	// What may go at once, in percent, and when more goes all the same, as source.Entry has
	// them: 0 for everything, and for never.
	MaxWithdraw   int
	WithdrawAfter time.Duration

	File         *File
	Kubernetes   *Kubernetes
	Registration *Registration
	NSM          *NSM
	Relay        *Relay
}

// Key tells sources of a catalog apart: two that need not be started anew to take
// each other's place have the same.
func (s Source) Key() string {
	switch {
	case s.File != nil:
		return fmt.Sprintf("file %q %d", s.File.Path, s.File.MaxSize)
	case s.Kubernetes != nil:
		return fmt.Sprintf("kubernetes %q", fmt.Sprint(*s.Kubernetes))
	case s.NSM != nil:
		return fmt.Sprintf("nsm %q", fmt.Sprint(*s.NSM))
	case s.Relay != nil:
		return s.Relay.key()
	}
	g, etcd := *s.Registration, ""
	if g.Etcd != nil {
		etcd = fmt.Sprint(*g.Etcd)
	}
	g.Rules, g.Etcd = "", nil // rules can be set at any time
	return fmt.Sprintf("registration %q %q", fmt.Sprint(g), etcd)
}

// Prefix returns what the names of the services of the source begin with; empty where
// they may begin with anything.
func (s Source) Prefix() string {
	switch {
	case s.Kubernetes != nil:
		return s.Kubernetes.Cluster + "/"
	case s.Registration != nil:
		return s.Registration.Name + "/"
	case s.NSM != nil:
		return s.NSM.Name + "/"
	}
	return ""
}

// File is a catalog file.
type File struct {
	Path    string
	MaxSize int64 // in bytes; a larger file is broken
}

// Kubernetes is a cluster that exports Services.
type Kubernetes struct {
	Cluster    string   // begins the names of its services
	Zone       string   // that fqdns are in, as in the file
	Kubeconfig string   // path; empty for the cluster that the process runs in
	Context    string   // of the kubeconfig; empty for its current one
	Namespaces []string // empty for all
	Selector   string   // of labels of Services; empty for all
	Endpoints  []string // kinds of endpoints, some of EndpointKinds; the first that yields one is used
	Routable   bool     // whether consumers reach the addresses of pods
	Names      []Names  // that Services may have by annotation beside those of their namespace

	// Labels and Annotations are keys of labels and annotations of Services that are
	// published as labels. No key is in both.
	Labels, Annotations []string
}

// Names are names that a cluster's namespaces may use.
type Names struct {
	Namespaces []string // "*" is all of them
	Names      []string // patterns, as package pattern has them
}

// EndpointKinds returns the kinds of endpoints that a Service may have, in the usual
// order.
func EndpointKinds() []string {
	return []string{"gateway", "load-balancer", "external-ips", "node-ports", kindPods}
}

// kindPods is the kind that needs routable pods.
const kindPods = "pods"

// Parse reads the content of a configuration file. It returns either a configuration
// or, in the order of lines, all that is wrong with the content.
func Parse(data []byte) (Config, []problem.Problem) {
	c, problems, _ := read(data)
	return c, problems
}

// Check is Parse which also returns, for a configuration that can be used, what of it
// is probably not meant, in the order of lines.
func Check(data []byte) (c Config, problems, warnings []problem.Problem) {
	c, problems, r := read(data)
	if len(problems) > 0 {
		return c, problems, nil
	}
	return c, nil, inOrder(r.warnings(c))
}

// read is Parse, and returns with what the configuration was read.
func read(data []byte) (Config, []problem.Problem, *reader) {
	root, wrong := parse(data)
	if wrong != (problem.Problem{}) {
		wrong.Rule = problem.Printable(wrong.Rule)
		return Config{}, []problem.Problem{wrong}, nil
	}
	r := &reader{found: problem.List{Room: problem.Room}, places: make(map[string]value)}
	c := r.config(value{node: root, line: root.Line})
	if len(r.found.Kept) > 0 {
		return Config{}, inOrder(r.found), r
	}
	return c, nil, r
}

// inOrder returns problems in the order of their lines, and then how many more there are.
func inOrder(found problem.List) []problem.Problem {
	slices.SortStableFunc(found.Kept, func(a, b problem.Problem) int { return cmp.Compare(a.Line, b.Line) })
	if found.More > 0 {
		found.Kept = append(found.Kept, problem.Problem{Rule: fmt.Sprintf("and %d more", found.More)})
	}
	return found.Kept
}

// parse returns the one document of a text, or what keeps it from being one.
func parse(data []byte) (*yaml.Node, problem.Problem) {
	root, wrong := problem.Document(data, MaxBytes, "a configuration is")
	if wrong != (problem.Problem{}) {
		return nil, wrong
	}
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return nil, problem.Problem{Rule: "the file is empty"}
	}
	return root, problem.Problem{}
}

// in returns the registration with other paths.
func (g Registration) in(in func(path string) string) *Registration {
	g.Rules, g.Store = in(g.Rules), in(g.Store)
	if g.Etcd != nil {
		e := *g.Etcd
		e.TLS, e.PasswordFile = mtls.Files{Cert: in(e.TLS.Cert), Key: in(e.TLS.Key), CA: in(e.TLS.CA)}, in(e.PasswordFile)
		g.Etcd = &e
	}
	return &g
}

// In returns the configuration with relative paths taken from a directory, that of the
// configuration file.
func (c Config) In(dir string) Config {
	in := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(dir, path)
	}
	files := c.Identity.Files
	c.Identity.Files = mtls.Files{Cert: in(files.Cert), Key: in(files.Key), CA: in(files.CA)}
	c.Status.Files = mtls.Files{Cert: in(c.Status.Files.Cert), Key: in(c.Status.Files.Key), CA: in(c.Status.Files.CA)}
	c.Allow.File = in(c.Allow.File)
	c.Catalogs = slices.Clone(c.Catalogs)
	for i, catalog := range c.Catalogs {
		sources := slices.Clone(catalog.Sources)
		for j, s := range sources {
			if s.File != nil {
				file := *s.File
				file.Path = in(file.Path)
				sources[j].File = &file
			}
			if s.Kubernetes != nil {
				kubernetes := *s.Kubernetes
				kubernetes.Kubeconfig = in(kubernetes.Kubeconfig)
				sources[j].Kubernetes = &kubernetes
			}
			if s.Registration != nil {
				sources[j].Registration = s.Registration.in(in)
			}
			if s.Relay != nil {
				relay := *s.Relay
				relay.Persist = in(relay.Persist)
				sources[j].Relay = &relay
			}
		}
		c.Catalogs[i].Sources = sources
	}
	return c
}
