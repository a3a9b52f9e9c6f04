package importer

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
)

// Config says which owners are followed, and what is made of their services.
type Config struct {
	Owners   []Owner
	Identity mtls.Origin // of this consumer, for all owners
	Target   Target
	Persist  string // folder of a file for each owner; empty: none

	DryRun bool // the objects are printed, and no cluster is asked: see Importer.DryRun

	Version string       // of this program
	Logger  *slog.Logger // nil: nothing is logged
}

// Owner is an owner whose services are imported: an entry of owners in the configuration file.
type Owner struct {
	consumer.Owner

	Import         pattern.NameFilter `yaml:"import_names" as:"pattern" least:"one is required; leave it out for all" doc:"The fqdns to import, by default all: *.pay.example is every name below it. Other services are acknowledged and forgotten."`
	Retention      time.Duration      `yaml:"retention" as:"retention" default:"24h" doc:"How long objects outlive a lost owner, 1s at least, or forever. 24h means that they stay for a day, and are then deleted. Set it to the longest outage that you want to bridge."`
	AllowAddresses []netip.Prefix     `yaml:"allow_addresses" as:"range" least:"one is required; leave it out for none" doc:"Ranges of refused endpoint addresses to take all the same, such as 100.100.100.200/32. Kubernetes itself takes no loopback, link-local or multicast addresses."`
}

// Target is the cluster, and what is written there: the section kubernetes of the configuration file.
type Target struct {
	Kubeconfig string `yaml:"kubeconfig" doc:"The path of a kubeconfig, by default the cluster that the process runs in."`
	Context    string `yaml:"context" doc:"The context of the kubeconfig, by default its current one."`
	Namespace  string `yaml:"namespace" as:"label" doc:"The namespace of all objects, by default that of the pod or of the context."`
	Name       string `yaml:"name" as:"object" default:"{service}" doc:"What Services are called. {service} stands for the labels of the fqdn below its zone, with - between them."`
	Headless   bool   `yaml:"headless" as:"bool" doc:"true makes Services without a virtual address, whose name leads to the endpoints themselves. By default they have one."`
	MCS        bool   `yaml:"as" as:"objects" quoted:"true" doc:"services makes Services and EndpointSlices in one namespace. mcs makes ServiceImports of the Multi-Cluster Services API, in the namespaces of their services. By default services."`
	Cluster    string `yaml:"cluster" as:"label" doc:"With mcs the name of this cluster, as its own owner has it, which is required."`
}
