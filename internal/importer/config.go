package importer

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Config says which owners are followed, and what is made of their services.
type Config struct {
	Owners   []Owner
	Identity mtls.Origin // of this consumer, for all owners
	Target   Target
	Persist  string // folder of a file for each owner; empty: none

	DryRun bool // the objects are printed, and no cluster is asked: see Importer.DryRun

	File    string       // that this was read from, for the status
	Version string       // of this program
	Logger  *slog.Logger // nil: nothing is logged
}

// Owner is an owner that is followed.
type Owner struct {
	Name       string // in logs, metrics and labels of objects; unique
	Addresses  []string
	IDs        []federation.ID
	ServerName string
	Version    wire.APIVersion

	Zones      []federation.FQDN  // that the owner may publish in; none: everywhere
	Import     pattern.NameFilter // which of its services are imported
	Retention  time.Duration      // catalog.Forever for no end
	Settle     time.Duration
	MaxCatalog int64

	AllowAddresses []netip.Prefix
}

// Target is the cluster, and what is written there.
type Target struct {
	Kubeconfig string // path; empty: the service account of the pod that this is
	Context    string // of the kubeconfig; empty: its current one
	Namespace  string // of the objects; empty: that of the pod, or of the context
	Name       string // of the objects, with {service} for the labels of the fqdn below the zone, joined by "-"
	Headless   bool   // Services get no virtual address
	MCS        bool   // ServiceImports, in the namespaces of their services, instead of Services
	Cluster    string // with MCS: the name of this cluster, as its owner has it
}
