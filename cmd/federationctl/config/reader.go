package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/setting"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
)

// MaxBytes is how large a configuration file may be.
const MaxBytes = 1 << 20

// configReader makes a configuration of what stands in a file, and notes what is wrong with it.
type configReader struct{ *problem.Document }

// needed are the keys that a file must have.
const needed = "identity allow catalogs"

// Schema returns what a configuration may have.
func Schema() *setting.Schema {
	return setting.SchemaOf(reflect.TypeFor[Config](), `needs:"`+needed+`"`)
}

// readContent returns a configuration, which can be used where nothing is wrong.
func readContent(data []byte) (Config, configReader) {
	var c Config
	r := configReader{problem.Read(data, MaxBytes, "a configuration is", needed, valueFormats(), &c)}
	if !r.HasValue("") {
		return c, r
	}
	r.addProblemIf(r.HasValue("allow") && !r.HasValue("allow.ids") && !r.HasValue("allow.file"), "allow", "needs ids, file or both; 'ids: []' lets nobody subscribe")
	r.checkAddresses(c.ProcessConfig, c.Listen)
	r.readCatalogs(c.Catalogs)
	r.checkExclusive(c)
	if len(r.SortedProblems()) == 0 {
		r.checkLabels(c)
	}
	return c, r
}

// addProblemIf notes what is wrong at a path if it is.
func (r *configReader) addProblemIf(wrong bool, path, format string, args ...any) {
	if wrong {
		r.AddProblemf(path, format, args...)
	}
}

// checkAddresses checks where the process itself listens. An importer does not listen for consumers.
func (r *configReader) checkAddresses(c ProcessConfig, listen string) {
	same := func(a, b string) bool { return a == b && a != "" && !strings.HasSuffix(a, ":0") }
	status := c.Status.Address
	r.addProblemIf(same(c.Metrics, listen), "metrics", "is the address of listen as well")
	r.addProblemIf(same(status, listen), "status", "has the address of listen as well")
	r.addProblemIf(same(status, c.Metrics) && status != listen, "status",
		"has the address of metrics as well; that port is for scrapers and probes, and catalogs are not for everybody")
	if err := c.Status.Validate(); status != "" && err != nil {
		r.AddProblemf("status", "%v", err)
	}
}

// readCatalogs checks catalogs, and completes them with what is made of their keys.
func (r *configReader) readCatalogs(catalogs []Catalog) {
	names := make(map[string]string) // the paths of catalogs
	for i := range catalogs {
		path, of := fmt.Sprintf("catalogs[%d]", i), &catalogs[i]
		if r.readSources(path+".sources", of.Sources); of.Relay != nil {
			whole := Source{Relay: &PartialRelay{*of.Relay, sourceLifetime{source.NoLifetime}}}
			whole.describe()
			of.Sources = append(of.Sources, whole)
		}
		if len(of.Sources) == 0 {
			continue // that is said already
		}
		if exports := path + ".exports"; r.HasValue(exports) {
			r.readExports(exports, of)
		}
		at, name := path, of.ServerName
		if r.HasValue(path + ".server_name") {
			if at += ".server_name"; name == "" {
				continue // it is wrong, and not that of the default catalog
			}
		}
		switch first := names[name]; {
		case first == "":
			names[name] = at
		case name == "":
			r.AddProblemf(at, "has no server_name, and neither has the catalog on line %d; only one can be the default", r.LineOf(first))
		default:
			r.AddProblemf(at, "%s is that of the catalog on line %d, too", name, r.LineOf(first))
		}
	}
}

// readSources checks the sources of a catalog, and describes them.
func (r *configReader) readSources(path string, sources []Source) {
	names := make(map[string]int) // lines
	portless := 0                 // the line of the registration that has no port of its own
	relay := 0                    // that of the relay
	for i := range sources {
		path, o := fmt.Sprintf("%s[%d]", path, i), &sources[i]
		if o.Kubernetes != nil {
			r.checkKubernetes(path+".kubernetes", o.Kubernetes)
		}
		if o.Consul != nil {
			r.checkConsul(path+".consul", o.Consul)
		}
		if o.NSM != nil {
			r.checkNSM(path+".nsm", o.NSM)
		}
		if g := o.Registration; g != nil {
			r.checkRegistration(path+".registration", g)
			if !r.HasValue(path + ".registration.listen") {
				r.addProblemIf(portless > 0, path, "has no listen, and neither has the registration on line %d; the port of the owner leads to one registration of each catalog", portless)
				portless = r.LineOf(path)
			}
		}
		if o.Relay != nil {
			r.addProblemIf(relay > 0, path, "is the second relay of the catalog, after that on line %d; consumers are told one path, so give it a catalog with a server_name of its own", relay)
			relay = r.LineOf(path)
		}
		o.describe()
		if first, twice := names[o.Name]; twice && o.Name != "" && !strings.HasSuffix(o.Name, ":") {
			r.AddProblemf(path, "%s is there twice, first on line %d", safetext.Quote(o.Name), first)
		} else {
			names[o.Name] = r.LineOf(path)
		}
	}
}

// checkKubernetes checks what the source of a path has in the file, beyond each key.
func (r *configReader) checkKubernetes(path string, k *Kubernetes) {
	published := k.Publish
	r.addProblemIf(slices.ContainsFunc(published.Labels, func(key string) bool { return key != "" && slices.Contains(published.Annotations, key) }), path+".publish",
		"has one key in labels and in annotations, and a service can have it once only")
	r.addProblemIf(len(published.Labels)+len(published.Annotations) > limits.Labels, path+".publish", "has more than %d keys", limits.Labels)
	r.addProblemIf(k.Context != "" && !r.HasValue(path+".kubeconfig"), path+".context", "is one of a kubeconfig, and none is named")
	hasPods := slices.Contains(k.Order, export.Pods)
	endpoints := path + ".endpoints"
	r.addProblemIf(hasPods && !r.HasValue(path+".pods"), endpoints, "pods are endpoints only with 'pods: routable'")
	r.addProblemIf(k.RoutablePods && r.HasValue(endpoints) && !hasPods && !r.HasProblemIn(endpoints), path+".pods", "has no effect, as endpoints leaves pods out")
	every, err := pattern.ParseName("*." + k.Zone.String())
	zone, _ := every.Zone()
	for i, of := range k.Grants {
		for j, name := range of.Names {
			if err != nil || name == (pattern.Name{}) {
				continue // that is said already
			}
			at := fmt.Sprintf("%s.allow_names[%d].names[%d]", path, i, j)
			quoted, itself := safetext.Quote(name.String()), name.String() == zone
			r.addProblemIf(itself, at, "%s is the zone itself, which can be no name of a Service", quoted)
			r.addProblemIf(name.Covers(every), at, "%s gives no name: a name below the zone %s belongs to a namespace, or is above those that do; write each name of one label", quoted, zone)
			r.addProblemIf(!itself && !name.Covers(every) && !every.Covers(name), at, "%s matches no name below the zone %s", quoted, zone)
		}
	}
}
