package config

import (
	"fmt"
	"path/filepath"
	"reflect"

	"github.com/hamlet-federation/coredns-federation/internal/importer"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/setting"
)

// ImportConfig is what the configuration file of an importer says. Paths are as they stand in the
// file; see ImportConfig.ResolvePaths.
type ImportConfig struct {
	ProcessConfig

	Owners     []importer.Owner `yaml:"owners" needs:"addresses" least:"one is required" doc:"The owners whose services are imported, each under a name of its own."`
	Kubernetes importer.Target  `yaml:"kubernetes" doc:"The cluster that services are imported into, and what they become there."`
	Persist    string           `yaml:"persist" doc:"A folder that keeps the catalogs of the owners through a restart, in a file for each, by default none. Nothing else may be in it."`
}

// neededOfImport are the keys that the file of an importer must have.
const neededOfImport = "identity owners"

// ImportSchema returns what the configuration of an importer may have.
func ImportSchema() *setting.Schema {
	return setting.SchemaOf(reflect.TypeFor[ImportConfig](), `needs:"`+neededOfImport+`"`)
}

// CheckImport reads the content of the configuration file of an importer, as Check does that of an
// owner.
func CheckImport(data []byte) (c ImportConfig, problems, warnings []problem.Problem) {
	r := configReader{problem.Read(data, MaxBytes, "a configuration is", neededOfImport, valueFormats(), &c)}
	if r.HasValue("") {
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
		o.FillName()
		r.addProblemIf(names[o.Name] > 0, path, "%s is the name of the owner on line %d, too; set name", safetext.Quote(o.Name), names[o.Name])
		if o.Name != "" { // there are addresses
			names[o.Name] = r.LineOf(path)
		}
		r.checkIdentities(path, &o.Owner, c.Identity.SPIFFE.Socket != "")
		if o.HasOnlyIP() {
			warnings = append(warnings, r.ProblemAt(path+".addresses", noName))
		}
	}
	return warnings
}

// checkTarget notes what has no effect in a cluster, and what is missing.
func (r *configReader) checkTarget(k importer.Target) {
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
