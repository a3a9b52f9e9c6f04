package status

import (
	"cmp"
	"fmt"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Imports is what an importer has made of the services of its owners in a cluster.
type Imports struct {
	Cluster   string `json:"cluster"`           // the API server, as a URL
	Namespace string `json:"namespace"`         // of the Services, and of the lease
	Leads     bool   `json:"leads"`             // whether this replica writes
	Leader    string `json:"leader,omitempty"`  // the replica that does
	Failure   string `json:"failure,omitempty"` // why the API server cannot be asked

	PendingSince time.Time `json:"pendingSince,omitzero"` // since when the first of the pending services waits

	Services map[string]int    `json:"services,omitempty"` // how many are in a state, without those that are refused
	Refused  map[string]int    `json:"refused,omitempty"`  // services that are not written, by reason
	Problems []ImportedService `json:"problems,omitempty"` // these, newest first, 100 at most
}

// The states of an imported service.
const (
	ImportWritten = "written" // its objects are as they should be
	ImportStale   = "stale"   // they are as they were when its owner vouched for it last
	ImportPending = "pending" // they are yet to be written
	ImportKept    = "kept"    // they are from before the start, and its owner has not said yet whether it still offers the service
	ImportStandby = "standby" // another replica writes them
)

// The states of a service that has no objects, or not those that it should have: the reasons for that.
const (
	ImportNameTaken  = "name_taken"   // somebody else has made an object of that name
	ImportRival      = "rival"        // the objects of that name are those of another service
	ImportNoEndpoint = "no_endpoint"  // no endpoint has a port and an address that can be written
	ImportRejected   = "rejected"     // the API server does not take an object: a quota, a right, a policy
	ImportNamespace  = "no_namespace" // the namespace does not exist here, or is being deleted
)

// ImportedService is what an importer has made of a service, or of objects whose service is not known.
type ImportedService struct {
	Object  string    `json:"object"` // NAMESPACE/NAME of its objects
	Owner   string    `json:"owner,omitempty"`
	Service string    `json:"service,omitempty"`
	FQDN    string    `json:"fqdn,omitempty"`
	State   string    `json:"state"`
	Since   time.Time `json:"since,omitzero"` // of a reason, or since when it is pending
	Rule    string    `json:"rule,omitempty"` // with a reason: what is wrong, as a clause
}

// describeWriter returns who writes the objects, as a clause.
func (i *Imports) describeWriter() string {
	if i.Leads {
		return CountNoun(i.Services[ImportWritten], "service") + " written"
	}
	return "replica " + PrintableWord(i.Leader) + " writes"
}

// describe returns what is wrong with the objects of which service.
func (s *ImportedService) describe() string {
	of := PrintableWord(s.Object)
	if s.Service != "" {
		of = fmt.Sprintf("service %s (%s) of owner %s", safetext.Quote(s.Service), PrintableWord(s.FQDN), PrintableWord(s.Owner))
	}
	return of + ": " + safetext.Printable(cmp.Or(s.Rule, s.State, "no more is given"))
}

// importRemedies are what can be done about services that are not written, by reason.
var importRemedies = map[string]string{
	ImportNameTaken:  "if nobody needs that object, delete it, and the importer writes its own; otherwise give all imported objects other names with kubernetes.name, such as \"{service}-fed\", and restart",
	ImportRival:      "rename one of the services at its owner, or leave one out with import_names",
	ImportNoEndpoint: "have the owner publish an endpoint with a port and an address, or permit its addresses with allow_addresses",
	ImportRejected:   "change the quota, the rights or the policy that the API server names; the importer tries again by itself",
	ImportNamespace:  "create the namespace, or leave the service out with import_names",
}

// Remedy returns what can be done about a service that is not written.
func (s *ImportedService) Remedy() string {
	return cmp.Or(importRemedies[s.State], correctService)
}
