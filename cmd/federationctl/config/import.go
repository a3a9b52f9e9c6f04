package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/setting"
)

// ImportConfig is what the configuration file of an importer says. Paths are as they stand in the
// file; see ImportConfig.ResolvePaths.
type ImportConfig struct {
	ProcessConfig

	Owners     []ImportedOwner `yaml:"owners" needs:"addresses" least:"one is required" doc:"The owners whose services are imported, each under a name of its own."`
	Kubernetes ImportTarget    `yaml:"kubernetes" doc:"The cluster that services are imported into, and what they become there."`
	Persist    string          `yaml:"persist" doc:"A folder that keeps the catalogs of the owners through a restart, in a file for each, by default none. Nothing else may be in it."`
}

// ImportedOwner is an owner whose services are imported.
type ImportedOwner struct {
	FollowedOwner

	Import         pattern.NameFilter `yaml:"import_names" as:"pattern" least:"one is required; leave it out for all" doc:"The fqdns to import, by default all: *.pay.example is every name below it. Other services are acknowledged and forgotten."`
	Retention      time.Duration      `yaml:"retention" as:"retention" default:"24h" doc:"How long objects outlive a lost owner, 1s at least, or forever. 24h means that they stay for a day, and are then deleted. Set it to the longest outage that you want to bridge."`
	AllowAddresses []netip.Prefix     `yaml:"allow_addresses" as:"range" least:"one is required; leave it out for none" doc:"Ranges of refused endpoint addresses to take all the same, such as 100.100.100.200/32. Kubernetes itself takes no loopback, link-local or multicast addresses."`
}

// ImportTarget is the cluster that services are imported into, and what they become there.
type ImportTarget struct {
	Kubeconfig string `yaml:"kubeconfig" doc:"The path of a kubeconfig, by default the cluster that the process runs in."`
	Context    string `yaml:"context" doc:"The context of the kubeconfig, by default its current one."`
	Namespace  string `yaml:"namespace" as:"label" doc:"The namespace of all objects, by default that of the pod or of the context."`
	Name       string `yaml:"name" as:"object" default:"{service}" doc:"What Services are called. {service} stands for the labels of the fqdn below its zone, with - between them."`
	Headless   bool   `yaml:"headless" as:"bool" doc:"true makes Services without a virtual address, whose name leads to the endpoints themselves. By default they have one."`
	MCS        bool   `yaml:"as" as:"objects" quoted:"true" doc:"services makes Services and EndpointSlices in one namespace. mcs makes ServiceImports of the Multi-Cluster Services API, in the namespaces of their services. By default services."`
	Cluster    string `yaml:"cluster" as:"label" doc:"With mcs the name of this cluster, as its own owner has it, which is required."`
}

// importSection is what stands in the file of an importer.
type importSection struct {
	processSection
	ImportConfig
}

// neededOfImport are the keys that the file of an importer must have.
const neededOfImport = "identity owners"

// ImportSchema returns what the configuration of an importer may have.
func ImportSchema() *setting.Schema {
	return setting.SchemaOf(reflect.TypeFor[importSection](), `needs:"`+neededOfImport+`"`)
}

// CheckImport reads the content of the configuration file of an importer, as Check does that of an
// owner.
func CheckImport(data []byte) (c ImportConfig, problems, warnings []problem.Problem) {
	var d importSection
	r := configReader{problem.Read(data, MaxBytes, "a configuration is", neededOfImport, valueFormats(), &d)}
	if r.HasValue("") {
		c = d.ImportConfig
		c.ProcessConfig = d.toConfig()
		r.checkAddresses(c.ProcessConfig, "")
		warnings = r.checkOwners(&c)
		r.checkTarget(c.Kubernetes)
		for _, file := range append(c.filePaths(), &c.Kubernetes.Kubeconfig) {
			inside, err := filepath.Rel(c.Persist, *file)
			r.addProblemIf(c.Persist != "" && *file != "" && err == nil && filepath.IsLocal(inside), "persist",
				"has %s in it, which is a file of the configuration; the importer writes there, so give it a folder of its own", safetext.Quote(*file))
		}
	}
	if problems = r.SortedProblems(); len(problems) > 0 {
		return ImportConfig{}, problems, nil
	}
	return c, nil, warnings
}

// checkOwners gives the owners their names, and returns warnings of them.
func (r *configReader) checkOwners(c *ImportConfig) (warnings []problem.Problem) {
	names := make(map[string]int) // lines
	for i := range c.Owners {
		o, path := &c.Owners[i], fmt.Sprintf("owners[%d]", i)
		o.fillName()
		r.addProblemIf(names[o.Name] > 0, path, "%s is the name of the owner on line %d, too; set name", safetext.Quote(o.Name), names[o.Name])
		if o.Name != "" { // there are addresses
			names[o.Name] = r.LineOf(path)
		}
		r.checkIdentities(path, &o.FollowedOwner, c.Identity.SPIFFE.Socket != "")
		if o.isUnnamed() {
			warnings = append(warnings, r.ProblemAt(path+".addresses", noName))
		}
	}
	return warnings
}

// checkTarget notes what has no effect in a cluster, and what is missing.
func (r *configReader) checkTarget(k ImportTarget) {
	has := func(key string) bool { return r.HasValue("kubernetes." + key) }
	for _, key := range []string{"namespace", "name", "headless"} {
		r.addProblemIf(k.MCS && has(key), "kubernetes."+key, "has no effect with 'as: mcs', because a ServiceImport has the namespace, the name and the type of its service")
	}
	r.addProblemIf(k.MCS && !has("cluster"), "kubernetes.cluster", "required with 'as: mcs'")
	r.addProblemIf(!k.MCS && has("cluster") && !r.HasProblemIn("kubernetes.as"), "kubernetes.cluster", "has no effect without 'as: mcs'")
	r.addProblemIf(has("context") && !has("kubeconfig"), "kubernetes.context", "is one of a kubeconfig, and none is named")
}

// ResolvePaths has relative paths begin at a directory, that of the configuration file.
func (c *ImportConfig) ResolvePaths(dir string) {
	resolvePaths(dir, append(c.filePaths(), &c.Kubernetes.Kubeconfig, &c.Persist))
}
