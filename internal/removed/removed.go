// Package removed has a replacement for each property, key, flag and command that the plugin and
// the commands do not take any more. The errors of all of them are made from these tables.
package removed

import "strings"

// Properties are the removed properties of a federation block of the Corefile.
var Properties = Remedies{
	"identity_grace": "a stream outlives the owner's last certificate by a minute",
	"keepalive":      "a ping is sent each 30 s, and less often to an owner that complains",
	"max_message":    "a message may have 16 MiB",
	"max_services":   "max_catalog bounds what an owner can send",
	"weight":         "SRV records have weight 100, and tier puts endpoints behind others",
	"hold":           "a shared name follows what its owners say at once",
	"demote":         "endpoints of a lost owner stand behind live ones at once",
	"https":          "template, which comes before federation, can answer queries for HTTPS records",
	"reverse":        "file or template can serve the reverse zones",
	"import_labels":  "import_names chooses services by their fqdn, and exports of the owner by their labels",
}

// Keys are the removed keys of the configuration file of an owner, at any depth: each with as much
// of its path as tells it from others.
var Keys = Remedies{
	"observers":               "nodes are services of the owner: federationctl services and the status page show them",
	"relay.keepalive":         Properties["keepalive"],
	"relay.max_message":       Properties["max_message"],
	"relay.max_services":      Properties["max_services"],
	"publish_to":              "a relay that both sides reach, or a TCP tunnel, leads to an owner that nobody can reach",
	"relay.accept":            "a relay dials its owner at addresses; a TCP tunnel leads to one that nobody can reach",
	"registration.store.file": "an owner keeps registrations in memory, or in store.etcd, where several share them; after a restart programs have the time of convergence to come back",
	"grace":                   "a stream outlives the certificate of its consumer by a minute",
	"receipts":                `"To stop a backend" in docs/owner.md says what to look at`,
}

// Flags are the removed flags of federationctl, without the dashes.
var Flags = Remedies{
	"import":       "'federationctl watch' prints every service: filter its lines with grep, or with jq after -o json",
	"import-label": "'federationctl watch' prints every service: filter its lines with grep, or with jq after -o json",
	"label":        "'federationctl services' takes words such as team=storefront",
	"details":      "'federationctl status -o json' and the status page have all",
	"address":      "'federationctl services' takes words such as 192.0.2.10",
}

// Commands are the removed commands of federationctl, a subcommand behind its command and a space.
var Commands = Remedies{
	"lint":        "'federationctl check' recognizes what a file is, and finds mistakes in catalog files, configurations, rules and Corefiles",
	"convert":     "yq -c '.services[]' makes JSON lines of a catalog in YAML, and 'federationctl dump' has a service a line",
	"policy diff": "say what 'federationctl policy test' answers with each configuration, and compare that with diff",
	"diff":        "compare what 'federationctl dump' writes with diff, and ask DNS servers with dig",
	"providers":   "nodes are services of the owner: federationctl services and the status page show them",
	"wait":        `ask in a loop of dig, or look at 'federationctl status' of the owner before a backend is stopped`,
}

// Remedies have a sentence without a full stop for each removed name, which says what to use
// instead.
type Remedies map[string]string

// RemedyAt returns the result of RemedyFor for the key at a path.
func (r Remedies) RemedyAt(path string) string {
	for name := range r {
		if path == name || strings.HasSuffix(path, "."+name) {
			return r.RemedyFor(name)
		}
	}
	return ""
}

// RemedyFor returns the end of an error that refuses a name, from the semicolon on. It returns ""
// for a name that never was one.
func (r Remedies) RemedyFor(name string) string {
	if r[name] == "" {
		return ""
	}
	return "; it was given up: " + r[name]
}
