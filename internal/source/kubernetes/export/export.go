// Package export translates an exported Service of a Kubernetes cluster into a service of a
// catalog, or says why it does not: [Rules.Translate] makes a [Verdict] of an [Input]. The package is pure:
// objects of the cluster go in, and a federation.Service or a refusal comes out, which is the same for the
// same objects in any order. It asks no server, and its only state is [Claims].
package export

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
)

const (
	prefix = "hamlet-federation.github.io/"

	// Label is the label of a Service that is exported without a ServiceExport. Its
	// value is "true".
	Label = prefix + "export"
)

// EndpointKind is a kind of endpoints: a way by which a Service is reached from outside
// its cluster.
type EndpointKind string

// The kinds of endpoints.
const (
	Gateway      EndpointKind = "gateway"       // addresses of Gateways with a route to the Service
	LoadBalancer EndpointKind = "load-balancer" // status.loadBalancer
	ExternalIPs  EndpointKind = "external-ips"  // spec.externalIPs
	NodePorts    EndpointKind = "node-ports"    // addresses of nodes
	Pods         EndpointKind = "pods"          // ready pods of a headless Service
)

// EndpointKinds are all kinds, in the order in which they are tried by default.
func EndpointKinds() []EndpointKind {
	return []EndpointKind{Gateway, LoadBalancer, ExternalIPs, NodePorts, Pods}
}

// Rules are what the configuration says of a cluster, with the keys that a file has for it.
type Rules struct {
	Cluster      string          `yaml:"cluster" as:"label" doc:"The name of the cluster, which begins the names of its services: west/shop/web."`
	Zone         federation.FQDN `yaml:"zone" as:"fqdn" doc:"The zone of its names, SERVICE.NAMESPACE.ZONE."`
	Order        []EndpointKind  `yaml:"endpoints" as:"kind" least:"one is required; leave it out for all" doc:"Kinds of endpoints in order, of which the first that a Service has is published. By default gateway, load-balancer, external-ips, node-ports, and pods if they are routable."`
	RoutablePods bool            `yaml:"pods" as:"routable" quoted:"true" doc:"routable says that consumers reach the addresses of pods. Leave it out if they do not."`
	Grants       []Grant         `yaml:"allow_names" needs:"namespaces names" least:"one is required; leave it out for none" doc:"Names that Services may have by annotation beside those of their namespace, by default none."`

	// Publish has no key in both.
	Publish struct {
		Labels      []string `yaml:"labels" as:"key" least:"one is required; leave it out for none" doc:"Keys of labels to publish, such as tier."`
		Annotations []string `yaml:"annotations" as:"key" least:"one is required; leave it out for none" doc:"Keys of annotations to publish, such as acme.example/team."`
	} `yaml:"publish" doc:"What Services have that is published as labels, by default nothing. exports can choose by it."`
}

// Grant lets the Services of namespaces have names that are not below the name of their namespace.
type Grant struct {
	Namespaces []string       `yaml:"namespaces" as:"namespace" least:"one is required" doc:"The namespaces that may use the names; * is all."`
	Names      []pattern.Name `yaml:"names" as:"pattern" least:"one is required" doc:"The names, or patterns such as *.pay.west.fed.example."`
}

// AnyNamespace stands for all namespaces in a [Grant].
const AnyNamespace = "*"

// Input is what is known of one exported Service: the Service, or what exports it, or both. Lists
// may be in any order. Entries that the Service does not need are passed over, so the lists may be
// those of the whole namespace or cluster. Nothing in an Input is changed or kept.
type Input struct {
	Export   *mcsv1beta1.ServiceExport // of either version, as they have the same fields; nil: the label of the Service exports it
	Labelled time.Time                 // when the label was first seen
	Service  *corev1.Service           // nil: there is no Service
	Slices   []*discoveryv1.EndpointSlice
	Nodes    []*corev1.Node
	Routes   []*Route
	Gateways []*gatewayv1.Gateway
}

// Rule is a rule that an exported Service breaks. It is the reason of a condition
// and the value of a metric's label, so the set is small and fixed.
type Rule string

// The rules for which a Service is not published.
const (
	NoService          Rule = "NoService"          // there is no Service, or it is being deleted; a reason of the MCS API
	InvalidServiceType Rule = "InvalidServiceType" // ExternalName; a reason of the MCS API
	BeingDeleted       Rule = "BeingDeleted"       // the ServiceExport is being deleted
	NameOutsideZone    Rule = "NameOutsideZone"
	NameNotAllowed     Rule = "NameNotAllowed" // the fqdn belongs to nobody, or to another namespace, and no Grant gives it
	InvalidName        Rule = "InvalidName"    // the fqdn is no usable DNS name
	BadAnnotation      Rule = "BadAnnotation"
	NoPort             Rule = "NoPort"    // the Service has no ports
	UDPOnly            Rule = "UDPOnly"   // all ports of the Service are UDP or SCTP, so that nothing is left to publish, also for those who make ServiceImports
	NoAddress          Rule = "NoAddress" // no kind of endpoints has an address
	TooLarge           Rule = "TooLarge"  // over a limit of package federation
	Conflict           Rule = "Conflict"  // an export that goes first has the fqdn
	Hidden             Rule = "Hidden"    // an earlier source of the catalog has the name or the fqdn
)

// The rules that leave out a part of a Service, and publish the rest.
const (
	UnsupportedPort   Rule = "UnsupportedPort"   // UDP or SCTP
	UnreachablePort   Rule = "UnreachablePort"   // without an endpoint, where other ports have one
	DuplicateID       Rule = "DuplicateID"       // two ports, or a port and a pod, with one name
	InvalidID         Rule = "InvalidID"         // the name of a port or a pod is no DNS label
	InvalidAddress    Rule = "InvalidAddress"    // an address that is neither an IP nor a host name
	MixedListeners    Rule = "MixedListeners"    // listeners that speak another protocol to clients
	AmbiguousListener Rule = "AmbiguousListener" // nothing says whether the listener accepts the route
	UnknownAnnotation Rule = "UnknownAnnotation"
	TooManyEndpoints  Rule = "TooManyEndpoints" // more than a service may have; the rest is published
	NoExportLabel     Rule = "NoExportLabel"    // package mcs, or a service, has no place for what the MCS API needs; the rest is published
)

// Finding is a rule that an object breaks, and where.
type Finding struct {
	Rule    Rule
	Message string // one sentence that names the thing and the place; at most 1 KiB
	Detail  string // for the owner's log alone, because it names objects of others; mostly empty
}

// Verdict is the result for an exported Service. Either Service or Refusal is set.
type Verdict struct {
	Service  *federation.Service // valid by [federation.Service.Validate]
	Refusal  *Finding
	Warnings []Finding // what was left out; in a fixed order

	Kind  EndpointKind // of the endpoints; empty when refused
	Claim Claim

	// Nodes and Slices report whether the nodes of the cluster, or EndpointSlices, were asked,
	// so that a change of them can change the verdict.
	Nodes, Slices bool
}
