package status

import (
	"cmp"
	"fmt"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Imports is what an importer has made of the services of its owners in a cluster.
type Imports struct {
	Config    string `json:"config,omitempty"`    // the file
	Cluster   string `json:"cluster"`             // the API server, as a URL
	Namespace string `json:"namespace,omitempty"` // of the objects; empty with ServiceImports, which have that of their service
	As        string `json:"as"`                  // services or mcs
	Leads     bool   `json:"leads"`               // whether this replica writes
	Leader    string `json:"leader,omitempty"`    // the replica that does
	Failure   string `json:"failure,omitempty"`   // why the API server cannot be asked
	Remedy    string `json:"remedy,omitempty"`

	Since   time.Time `json:"since,omitzero"`    // of the failure
	Written int       `json:"written"`           // names whose objects are as they should be
	Pending int       `json:"pending,omitempty"` // names that are yet to be written
	Kept    int       `json:"kept,omitempty"`    // names of earlier objects, of which no owner has said yet whether they are still offered, or the guard keeps them

	PendingSince time.Time `json:"pendingSince,omitzero"` // since when the first of them waits

	Refused  map[string]int  `json:"refused,omitempty"`  // names and services that are not written, by reason
	Problems []ImportProblem `json:"problems,omitempty"` // these, newest first, 20 at most

	Requests map[string]uint64 `json:"requests,omitempty"` // to the API server that write objects, by the HTTP status code; "0" without an answer
}

// The reasons for which a service has no objects, or not those that it should have.
const (
	ImportNameTaken   = "name_taken"   // somebody else has made an object of that name
	ImportRival       = "rival"        // an earlier service has the name
	ImportInvalidName = "invalid_name" // its fqdn makes no name of an object
	ImportNoEndpoint  = "no_endpoint"  // no endpoint has a port and an address that can be written
	ImportRejected    = "rejected"     // the API server does not take an object: a quota, a namespace that is being deleted, a policy
	ImportNamespace   = "no_namespace" // the namespace does not exist here
)

// ImportProblem is why a service has no objects, or not those that it should have.
type ImportProblem struct {
	At      time.Time `json:"at"` // since when
	Owner   string    `json:"owner"`
	Service string    `json:"service"`
	FQDN    string    `json:"fqdn"`
	Object  string    `json:"object,omitempty"` // NAMESPACE/NAME; empty without a valid name
	Reason  string    `json:"reason"`
	Rule    string    `json:"rule"` // what is wrong, as a clause
}

// ImportedName is what an importer has under one name. A Problem says why its objects are not
// those of the Service here.
type ImportedName struct {
	Object  string `json:"object"` // NAMESPACE/NAME
	Kind    string `json:"kind"`   // Service or ServiceImport
	Owner   string `json:"owner,omitempty"`
	Service string `json:"service,omitempty"`
	FQDN    string `json:"fqdn,omitempty"`

	Stale   bool      `json:"stale,omitempty"`  // the owner is lost
	Expires time.Time `json:"expires,omitzero"` // when the objects go, if stale
	Kept    bool      `json:"kept,omitempty"`   // as Imports.Kept

	Pending bool           `json:"pending,omitempty"` // they are yet to be written
	Problem *ImportProblem `json:"problem,omitempty"`
	Rivals  []RivalService `json:"rivals,omitempty"` // 100 at most
}

// describeWriter returns who writes the objects, as a clause.
func (i *Imports) describeWriter() string {
	if i.Leads {
		return CountNoun(i.Written, "name") + " written"
	}
	return "replica " + PrintableWord(i.Leader) + " writes"
}

// describe returns what is wrong with the objects of which service.
func (p *ImportProblem) describe() string {
	of := PrintableWord(p.Object) // where no service is offered for it now
	if p.Service != "" {
		of = fmt.Sprintf("service %s (%s) of owner %s", safetext.Quote(p.Service), PrintableWord(p.FQDN), PrintableWord(p.Owner))
	}
	return of + ": " + safetext.Printable(cmp.Or(p.Rule, p.Reason, "no more is given"))
}

// Remedy returns what can be done about the problem.
func (p *ImportProblem) Remedy() string {
	switch p.Reason {
	case ImportNameTaken:
		return "if nobody needs that object, delete it, and the importer writes its own; otherwise give all imported objects other names with kubernetes.name, such as \"{service}-fed\", and restart"
	case ImportRival:
		return "rename one of the services at its owner, or leave one out with import_names"
	case ImportInvalidName:
		return "have the owner give the service an fqdn whose labels make a valid name, or correct kubernetes.name"
	case ImportNoEndpoint:
		return "have the owner publish an endpoint with a port and an address, or permit its addresses with allow_addresses"
	case ImportRejected:
		return "change the quota, the rights or the policy that the API server names; the importer tries again by itself"
	case ImportNamespace:
		return "create the namespace, or leave the service out with import_names"
	}
	return "have the owner correct the service"
}
