package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/federation/status/page"
)

// topKeys are the keys at the top of a file.
var topKeys = []string{"listen", "metrics", "status", "window", "identity", "allow", "allow_addresses", "audit", "catalogs"}

// config reads the whole file.
func (r *reader) config(v value) Config {
	c := Config{Listen: defaultListen, Window: defaultWindow, Grace: mtls.DefaultGrace}
	var metrics, status value
	lines, ok := r.mapping(v, map[string]func(v value){
		"listen": parsed(r, &c.Listen, "an address", parseAddress),
		"metrics": func(v value) {
			metrics = v
			parsed(r, &c.Metrics, "an address", parseAddress)(v)
		},
		"status": func(v value) {
			status = v
			r.status(v, &c.Status)
		},
		"window":          parsed(r, &c.Window, "a whole number", wholeNumber(owner.MaxWindow)),
		"identity":        func(v value) { r.identity(v, &c) },
		"allow":           func(v value) { r.allow(v, &c.Allow) },
		"allow_addresses": func(v value) { r.ranges(v, &c.AllowAddresses) },
		"audit":           parsed(r, &c.Audit, "true or false", parseBool),
		"catalogs":        func(v value) { r.catalogs(v, &c.Catalogs) },
	})
	if !ok {
		return c
	}
	r.require(v, lines, "identity", "allow", "catalogs")
	if c.Metrics == c.Listen && !strings.HasSuffix(c.Metrics, ":0") {
		r.wrongf(metrics, "is the address of listen as well")
	}
	switch address := c.Status.Address; {
	case address == "" || strings.HasSuffix(address, ":0"):
	case address == c.Listen:
		r.wrongf(status, "has the address of listen as well")
	case address == c.Metrics:
		r.wrongf(status, "has the address of metrics as well; that port is for scrapers and probes, and catalogs are not for everybody")
	}
	r.apart(c)
	if len(r.found.Kept) == 0 {
		r.labelled(c)
	}
	return c
}

// status reads where status and why are served: an address alone, or with the files that
// another address than a loopback one needs.
func (r *reader) status(v value, c *page.Config) {
	address := parsed(r, &c.Address, "an address, or a mapping with listen, cert, key and ca", parseAddress)
	if v.node.Kind == yaml.MappingNode {
		lines, ok := r.mapping(v, map[string]func(v value){
			"listen": parsed(r, &c.Address, "an address", parseAddress),
			"cert":   r.store(&c.Files.Cert), "key": r.store(&c.Files.Key), "ca": r.store(&c.Files.CA),
		})
		if ok {
			r.require(v, lines, "listen")
		}
	} else {
		address(v)
	}
	if c.Address == "" {
		return
	}
	if err := c.Validate(); err != nil {
		r.wrongf(v, "%v", err)
	}
}

func (r *reader) identity(v value, c *Config) {
	files, agent := &c.Identity.Files, &c.Identity.SPIFFE
	lines, ok := r.mapping(v, map[string]func(v value){
		"files": func(v value) {
			lines, ok := r.mapping(v, map[string]func(v value){
				"cert": r.store(&files.Cert), "key": r.store(&files.Key), "ca": r.store(&files.CA),
			})
			if ok {
				r.require(v, lines, "cert", "key", "ca")
			}
		},
		"spiffe": func(v value) {
			lines, ok := r.mapping(v, map[string]func(v value){
				"socket":        parsed(r, &agent.Socket, "a string", parseSocket),
				"trust_domains": func(v value) { r.words(v, &agent.TrustDomains, "none", parseTrustDomain) },
			})
			if ok {
				r.require(v, lines, "socket")
			}
		},
		"grace": parsed(r, &c.Grace, "a duration", parseGrace),
	})
	if !ok {
		return
	}
	switch byFiles, byAgent := lines["files"], lines["spiffe"]; {
	case byFiles == 0 && byAgent == 0:
		r.wrongf(v, "needs files or spiffe")
	case byFiles > 0 && byAgent > 0:
		r.wrongf(value{field: v.field + ".spiffe", line: byAgent}, "cannot be used with files, which are on line %d: the identity has one origin", byFiles)
	}
}

func (r *reader) allow(v value, allow *Allow) {
	lines, ok := r.mapping(v, map[string]func(v value){
		"ids":  func(v value) { r.ids(v, &allow.IDs) },
		"file": r.store(&allow.File),
	})
	if ok && lines["ids"]+lines["file"] == 0 {
		r.wrongf(v, "needs ids, file or both; 'ids: []' lets nobody subscribe")
	}
}

func (r *reader) ranges(v value, ranges *[]netip.Prefix) {
	first := r.unique()
	r.list(v, func(v value) {
		var prefix netip.Prefix
		parsed(r, &prefix, "a CIDR", parseRange)(v)
		if prefix.IsValid() && first(v, prefix.String()) {
			*ranges = append(*ranges, prefix)
		}
	})
}

func (r *reader) catalogs(v value, catalogs *[]Catalog) {
	names := make(map[string]int) // the lines of catalogs
	r.list(v, func(v value) {
		var c Catalog
		var relayed []Source
		lines, ok := r.mapping(v, map[string]func(v value){
			"server_name": parsed(r, &c.ServerName, "a host name", parseServerName),
			"sources":     func(v value) { r.sources(v, &c.Sources) },
			"relay":       func(v value) { r.relay(v, &relayed) },
			"exports":     func(v value) { r.exports(v, &c) },
		})
		if !ok {
			return
		}
		switch sources, relay := lines["sources"], lines["relay"]; {
		case sources == 0 && relay == 0:
			r.wrongf(v, "needs sources or a relay")
		case sources > 0 && relay > 0:
			r.wrongf(value{field: v.field + ".relay", line: relay}, "cannot be used with sources, which are on line %d: the catalog of another owner is not mixed with others; give it a catalog with a server_name of its own", sources)
		case relay > 0:
			c.Sources = relayed
		}
		at := v
		if line := lines["server_name"]; line > 0 {
			at = value{field: v.field + ".server_name", line: line}
			if c.ServerName == "" {
				return // it is wrong, and not that of the default catalog
			}
		}
		switch first, twice := names[c.ServerName]; {
		case twice && c.ServerName == "":
			r.wrongf(at, "has no server_name, and neither has the catalog on line %d; only one can be the default", first)
		case twice:
			r.wrongf(at, "%s is that of the catalog on line %d, too", c.ServerName, first)
		default:
			names[c.ServerName] = at.line
			*catalogs = append(*catalogs, c)
		}
	})
	if len(v.node.Content) == 0 && v.node.ShortTag() == "!!seq" {
		r.wrongf(v, "at least one is required")
	}
}

// parseServerName takes a host name, and returns it as names are compared.
func parseServerName(text string) (string, error) {
	name, err := federation.ParseFQDN(text)
	if err != nil {
		return "", fmt.Errorf("%s is no host name: %w", federation.Quote(text), err)
	}
	return strings.TrimSuffix(name.String(), "."), nil
}

func (r *reader) sources(v value, sources *[]Source) {
	first := r.unique()
	portless := 0 // the line of the registration that has no port of its own
	r.list(v, func(v value) {
		s := Source{Lifetime: defaultLifetime}
		lines, ok := r.mapping(v, map[string]func(v value){
			"file":         func(v value) { r.file(v, &s) },
			"kubernetes":   func(v value) { r.kubernetes(v, &s) },
			"registration": func(v value) { r.registration(v, &s) },
			"nsm":          func(v value) { r.nsm(v, &s) },
		})
		if g := s.Registration; g != nil && g.Listen == "" && r.places[v.field+".registration.listen"].node == nil {
			if portless > 0 {
				r.wrongf(v, "has no listen, and neither has the registration on line %d; the port of the owner leads to one registration of each catalog", portless)
			}
			portless = v.line
		}
		switch {
		case !ok:
		case len(v.node.Content) == 0:
			r.wrongf(v, "is empty; it needs an origin: file, kubernetes, registration or nsm")
		case len(lines) > 1:
			r.wrongf(v, "has %d origins; give each a '-' of its own", len(lines))
		case s.Name != "" && first(v, s.Name):
			*sources = append(*sources, s)
		}
	})
	if len(v.node.Content) == 0 && v.node.ShortTag() == "!!seq" {
		r.wrongf(v, "at least one is required")
	}
}

func (r *reader) lifetime(s *Source) func(v value) {
	return parsed(r, &s.Lifetime, "a duration", durationOr("forever"))
}

// lists adds to the keys of a source those of every source that lists what there is.
func (r *reader) lists(s *Source, maxWithdraw int, keys map[string]func(v value)) map[string]func(v value) {
	s.MaxWithdraw, s.WithdrawAfter = maxWithdraw, defaultWithdrawAfter
	keys["lifetime"] = r.lifetime(s)
	keys["max_withdraw"] = parsed(r, &s.MaxWithdraw, "a share", parseShare)
	keys["withdraw_after"] = parsed(r, &s.WithdrawAfter, "a duration", durationOr("never"))
	return keys
}

func (r *reader) file(v value, s *Source) {
	s.File = &File{MaxSize: catalogfile.DefaultLimit}
	lines, ok := r.mapping(v, r.lists(s, 0, map[string]func(v value){
		"path":     r.store(&s.File.Path),
		"max_size": parsed(r, &s.File.MaxSize, "a size", ParseSize),
	}))
	if ok {
		r.require(v, lines, "path")
	}
	if s.File.Path != "" {
		s.Name = "file:" + s.File.Path
	}
}

func (r *reader) kubernetes(v value, s *Source) {
	k := &Kubernetes{}
	s.Kubernetes = k
	var endpoints, pods, names value
	lines, ok := r.mapping(v, r.lists(s, defaultMaxWithdraw, map[string]func(v value){
		"cluster":    parsed(r, &k.Cluster, "a name", parseLabel),
		"zone":       parsed(r, &k.Zone, "a zone", parseServerName),
		"kubeconfig": r.store(&k.Kubeconfig),
		"context":    r.store(&k.Context),
		"namespaces": func(v value) { r.words(v, &k.Namespaces, "all", parseLabel) },
		"selector":   parsed(r, &k.Selector, "a selector of labels", parseSelector),
		"endpoints": func(v value) {
			endpoints = v
			r.words(v, &k.Endpoints, "all", parseKind)
		},
		"pods": func(v value) {
			pods = v
			k.Routable = r.text(v) == "routable"
			if !k.Routable && v.node.Value != "" {
				r.wrongf(v, "must be routable; leave it out where consumers do not reach pods")
			}
		},
		"allow_names": func(v value) { names = v },
		"publish":     func(v value) { r.publish(v, k) },
	}))
	if !ok {
		return
	}
	r.require(v, lines, "cluster", "zone")
	if names.node != nil {
		r.names(names, k)
	}
	if k.Context != "" && lines["kubeconfig"] == 0 {
		r.wrongf(value{field: v.field + ".context", line: lines["context"]}, "is one of a kubeconfig, and none is named")
	}
	hasPods := slices.Contains(k.Endpoints, kindPods)
	switch {
	case endpoints.node == nil:
		k.Endpoints = EndpointKinds()
		if !k.Routable {
			k.Endpoints = slices.DeleteFunc(k.Endpoints, func(kind string) bool { return kind == kindPods })
		}
	case hasPods && pods.node == nil:
		r.wrongf(endpoints, "pods are endpoints only with 'pods: routable'")
	case k.Routable && !hasPods && len(k.Endpoints) > 0:
		r.wrongf(pods, "has no effect, as endpoints leaves pods out")
	}
	if k.Cluster != "" {
		s.Name = "kubernetes:" + k.Cluster
	}
}

// names reads which names the namespaces of a cluster may use.
func (r *reader) names(v value, k *Kubernetes) {
	r.list(v, func(v value) {
		var of Names
		lines, ok := r.mapping(v, map[string]func(v value){
			"namespaces": func(v value) { r.words(v, &of.Namespaces, "none", parseNamespace) },
			"names":      func(v value) { r.words(v, &of.Names, "none", k.parseName) },
		})
		if ok {
			r.require(v, lines, "namespaces", "names")
			k.Names = append(k.Names, of)
		}
	})
	if len(v.node.Content) == 0 && v.node.ShortTag() == "!!seq" {
		r.wrongf(v, "at least one is required; leave it out for none")
	}
}

// publish reads what of Services is published as labels.
func (r *reader) publish(v value, k *Kubernetes) {
	r.mapping(v, map[string]func(v value){
		"labels":      func(v value) { r.words(v, &k.Labels, "none", parseKey) },
		"annotations": func(v value) { r.words(v, &k.Annotations, "none", parseKey) },
	})
	switch {
	case slices.ContainsFunc(k.Labels, func(key string) bool { return slices.Contains(k.Annotations, key) }):
		r.wrongf(v, "has one key in labels and in annotations, and a service can have it once only")
	case len(k.Labels)+len(k.Annotations) > federation.MaxLabels:
		r.wrongf(v, "has more than %d keys", federation.MaxLabels)
	}
}

// parseKey takes the key of a label or an annotation.
func parseKey(text string) (string, error) {
	if faults := validation.IsQualifiedName(text); len(faults) > 0 {
		return "", fmt.Errorf("%s is no key such as tier or acme.example/tier", federation.Quote(text))
	}
	return text, nil
}

// parseName takes a pattern that matches names below the zone.
func (k *Kubernetes) parseName(text string) (string, error) {
	p, err := pattern.ParseName(text)
	if err != nil {
		return "", err
	}
	every, wrong := pattern.ParseName("*." + k.Zone)
	switch zone, _ := every.Zone(); {
	case wrong != nil: // the zone is, and that is said already
	case p.String() == zone:
		return "", fmt.Errorf("%s is the zone itself, which can be no name of a Service", federation.Quote(text))
	case !p.Covers(every) && !every.Covers(p):
		return "", fmt.Errorf("%s matches no name below the zone %s", federation.Quote(text), zone)
	}
	return p.String(), nil //nolint:nilerr // a wrong zone has been reported where it stands
}

func parseNamespace(text string) (string, error) {
	if text == "*" {
		return text, nil
	}
	return parseLabel(text)
}

// words reads a list of different words, one at least. Absent is what it means where
// there is no list.
func (r *reader) words(v value, words *[]string, absent string, parse func(text string) (string, error)) {
	first := r.unique()
	r.list(v, func(v value) {
		var word string
		parsed(r, &word, "a word", parse)(v)
		if word != "" && first(v, word) {
			*words = append(*words, word)
		}
	})
	if len(v.node.Content) == 0 && v.node.ShortTag() == "!!seq" {
		r.wrongf(v, "at least one is required; leave it out for %s", absent)
	}
}

func parseLabel(text string) (string, error) {
	if len(validation.IsDNS1123Label(text)) > 0 {
		return "", fmt.Errorf("%s is not a name of up to 63 lower-case letters, digits and '-'", federation.Quote(text))
	}
	return text, nil
}

func parseKind(text string) (string, error) {
	if !slices.Contains(EndpointKinds(), text) {
		return "", fmt.Errorf("%s is not one of %s", federation.Quote(text), strings.Join(EndpointKinds(), ", "))
	}
	return text, nil
}

func parseSelector(text string) (string, error) {
	selector, err := labels.Parse(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s is no selector of labels: %w", federation.Quote(text), err)
	case selector.Empty():
		return "", errors.New("is empty; leave it out for all")
	}
	return text, nil
}

func parseBool(text string) (bool, error) {
	switch text {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("%s is neither true nor false", federation.Quote(text))
}

// maxGrace is how long a connection may outlive a certificate at most.
const maxGrace = 24 * time.Hour

func parseGrace(text string) (time.Duration, error) {
	grace, err := time.ParseDuration(text)
	if err != nil || grace < 0 || grace > maxGrace {
		return 0, fmt.Errorf("%s is not a duration of 0s to %v, such as 1m", federation.Quote(text), maxGrace)
	}
	return grace, nil
}

// parseSocket takes the address of a SPIFFE agent.
func parseSocket(text string) (string, error) {
	if text == "" || (mtls.SPIFFE{Socket: text}).Check() != nil {
		return "", fmt.Errorf("%s is not the address of a SPIFFE agent, such as unix:///run/spire/agent.sock or tcp://127.0.0.1:8081", federation.Quote(text))
	}
	return text, nil
}

func parseTrustDomain(text string) (string, error) {
	if (mtls.SPIFFE{TrustDomains: []string{text}}).Check() != nil {
		return "", fmt.Errorf("%s is not a trust domain such as partner.example", federation.Quote(text))
	}
	return text, nil
}
