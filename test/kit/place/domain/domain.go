// Package domain runs what administrative domains that federate have, each a control
// plane of Kubernetes, owners that publish its Services, and a CoreDNS that answers
// for its own cluster and for the zones of the other domains. All of it is real
// processes on free ports of loopback: the programs of bin and of bin/tools.
package domain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// Node is a node that every cluster has, for pods: one without a node has no place
// in an EndpointSlice. It has no address, and so no node port.
const Node = "node"

const tokenLifetime = 24 * time.Hour

// accounts are the node, and the service account of the owners.
const accounts = `
---
{apiVersion: v1, kind: Node, metadata: {name: ` + Node + `}, status: {conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: federation-owner, namespace: default}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: federation-owner}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: hamlet-federation-owner}
subjects: [{kind: ServiceAccount, name: federation-owner, namespace: default}]
`

// Options are those of one domain.
type Options struct {
	Name   string   // of the cluster
	Owners int      // replicas of its owner; default 1
	API    []string // arguments of its API server, beside the usual ones
}

// Domain is one of them.
type Domain struct {
	Name    string
	Zone    string // which its owners publish in: NAME.fed.example
	Dir     string // of its files
	Cluster *realserver.Cluster
	Owners  []*Owner
	DNS     *DNS
	Place   *place.Place // of the Federation

	replicas int // of its owner
}

// Federation is all domains, under one authority.
type Federation struct {
	Domains []*Domain
}

// Find returns why a Federation cannot be started here, or nil.
func Find() error {
	_, err := place.Program("federationctl")
	_, err2 := place.Program("coredns")
	return errors.Join(err, err2, realserver.FindCluster())
}

// Start starts domains with their files in dir, which must exist. say is told what
// is done, line by line. The CoreDNS of each imports the zones of all others. What
// has been started must be ended with Stop, also after an error.
func (f *Federation) Start(ctx context.Context, dir string, say func(format string, args ...any), all ...Options) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	in, err := place.New(dir)
	if err != nil {
		return err
	}
	for _, o := range all {
		d := &Domain{Name: o.Name, Zone: o.Name + ".fed.example", Dir: filepath.Join(dir, o.Name), replicas: cmp.Or(o.Owners, 1), Place: in}
		if err := os.MkdirAll(d.Dir, 0o750); err != nil {
			return err
		}
		if err := errors.Join(in.Issue(d.Name+"-owner", d.OwnerID(), 0), in.Issue(d.Name+"-coredns", d.ConsumerID(), 0)); err != nil {
			return err
		}
		if d.Cluster, err = realserver.NewCluster(d.Dir); err != nil {
			return err
		}
		d.Cluster.API.Args = append(d.Cluster.API.Args, o.API...)
		f.Domains = append(f.Domains, d)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(all))
	for i, d := range f.Domains {
		say("Starting the cluster %s: etcd, kube-apiserver and kube-controller-manager", d.Name)
		wg.Go(func() { errs[i] = d.startCluster(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var consumers []string // that may subscribe
	for _, d := range f.Domains {
		consumers = append(consumers, d.ConsumerID())
	}
	for _, d := range f.Domains {
		for range d.replicas {
			o, err := d.addOwner(ctx, consumers)
			if err != nil {
				return err
			}
			say("Starting an owner on %s, which publishes what %s exports in %s", o.Address, d.Name, d.Zone)
		}
	}
	for _, d := range f.Domains {
		others := slices.DeleteFunc(slices.Clone(f.Domains), func(other *Domain) bool { return other == d })
		if err := d.startDNS(ctx, others...); err != nil {
			return err
		}
		say("Starting CoreDNS of %s on %s", d.Name, d.DNS.Address)
	}
	return nil
}

// Stop ends all of it.
func (f *Federation) Stop() {
	for _, d := range f.Domains {
		if d.DNS != nil {
			_ = d.DNS.Stop()
		}
		for _, o := range d.Owners {
			_ = o.Stop()
		}
		d.Cluster.Kill() // it has nothing to save
	}
}

// Processes returns all processes, to show their logs.
func (f *Federation) Processes() []*realserver.Process {
	var all []*realserver.Process
	for _, d := range f.Domains {
		all = append(all, d.Cluster.Processes()...)
		for _, o := range d.Owners {
			all = append(all, o.Process)
		}
		if d.DNS != nil {
			all = append(all, d.DNS.Process)
		}
	}
	return all
}

// OwnerID is the identity in the certificate of the domain's owners.
func (d *Domain) OwnerID() string { return "spiffe://" + d.Name + ".example/owner" }

// ConsumerID is the identity in the certificate of its CoreDNS.
func (d *Domain) ConsumerID() string { return "spiffe://" + d.Name + ".example/coredns" }

// ConsumerFiles are where the certificate of CoreDNS is.
func (d *Domain) ConsumerFiles() mtls.Files { return d.Place.Files(d.Name + "-coredns") }

// startCluster starts the cluster, and gives the owners an account, with the permissions
// that the manifest of the Kubernetes source has.
func (d *Domain) startCluster(ctx context.Context) error {
	if err := d.Cluster.Start(ctx); err != nil {
		return fmt.Errorf("cluster %s: %w", d.Name, err)
	}
	if err := d.Cluster.InstallMCS(ctx, "v1alpha1", "v1beta1"); err != nil {
		return err
	}
	root, err := realserver.Root()
	if err != nil {
		return err
	}
	role, err := os.ReadFile(filepath.Join(root, "internal", "source", "kubernetes", "testdata", "rbac.yaml"))
	if err != nil {
		return err
	}
	if err := d.Cluster.Apply(ctx, string(role)+accounts); err != nil {
		return err
	}
	return d.Cluster.WriteKubeconfig(ctx, d.ownerKubeconfig(), "default", "federation-owner", tokenLifetime)
}

func (d *Domain) ownerKubeconfig() string { return filepath.Join(d.Dir, "owner.kubeconfig") }

// Owner is a running federationctl serve.
type Owner struct {
	*realserver.Process

	Address string // of its consumers
	Metrics string
}

// addOwner starts one more owner, for those consumers.
func (d *Domain) addOwner(ctx context.Context, consumers []string) (*Owner, error) {
	path, err := place.Program("federationctl")
	if err != nil {
		return nil, err
	}
	address, err := loopback.FreeAddress()
	if err != nil {
		return nil, err
	}
	metrics, err := loopback.FreeAddress()
	if err != nil {
		return nil, err
	}
	config := place.Owner{
		Address: address, Metrics: metrics, TLS: d.Place.Files(d.Name + "-owner"), Allow: consumers,
		More: fmt.Sprintf(`catalogs:
- sources:
  - kubernetes:
      cluster: %s
      zone: %s
      max_withdraw: off # tests delete whole namespaces
      kubeconfig: %s
      pods: routable
`, d.Name, d.Zone, d.ownerKubeconfig()),
	}
	name := fmt.Sprintf("owner-%d", len(d.Owners)+1)
	file := filepath.Join(d.Dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config.Config()), 0o600); err != nil {
		return nil, err
	}
	o := &Owner{Address: address, Metrics: metrics, Process: &realserver.Process{
		Name: name, Path: path, Dir: d.Dir, Args: []string{"serve", "--config", file}, Ready: place.Dial(address),
	}}
	d.Owners = append(d.Owners, o)
	return o, o.Start(ctx)
}
