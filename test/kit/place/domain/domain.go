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
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// Node is a node that every cluster has, for pods: one without a node has no place
// in an EndpointSlice. It has no address, and so no node port.
const Node = "node"

// Account is the service account of the owners, in the namespace default.
const Account = "federation-owner"

const tokenLifetime = 24 * time.Hour

// Options are those of one domain.
type Options struct {
	Name    string // of the cluster
	Owners  int    // replicas of its owner; default 1
	Cluster realserver.Options
}

// Domain is one of them.
type Domain struct {
	Name    string
	Zone    string // which its owners publish in: NAME.fed.example
	Dir     string // of its files
	Cluster *realserver.Cluster
	Owners  []*Owner
	DNS     *DNS

	options   Options
	authority *mtls.Authority
	consumers []string // identities of those that may subscribe to its owners
}

// World is all domains, under one authority.
type World struct {
	Domains   []*Domain
	Authority *mtls.Authority
}

// Find returns why a World cannot be started here, or nil.
func Find() error {
	_, err := place.Program("federationctl")
	_, err2 := place.Program("coredns")
	return errors.Join(err, err2, realserver.FindCluster())
}

// Start starts domains with their files in dir, which must exist. say is told what
// is done, line by line. The CoreDNS of each imports the zones of all others. What
// has been started must be ended with Stop, also after an error.
func (w *World) Start(ctx context.Context, dir string, say func(format string, args ...any), all ...Options) error {
	authority, err := mtls.NewAuthority("domains", 30*24*time.Hour)
	if err != nil {
		return err
	}
	w.Authority = authority
	for _, o := range all {
		d := &Domain{Name: o.Name, Zone: o.Name + ".fed.example", Dir: filepath.Join(dir, o.Name), options: o, authority: authority}
		if d.Dir, err = filepath.Abs(d.Dir); err != nil {
			return err
		}
		if err := d.files(); err != nil {
			return err
		}
		if d.Cluster, err = realserver.NewCluster(d.Dir, o.Cluster); err != nil {
			return err
		}
		w.Domains = append(w.Domains, d)
	}
	for _, d := range w.Domains {
		for _, other := range w.Domains {
			d.consumers = append(d.consumers, other.ConsumerID())
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, len(all))
	for i, d := range w.Domains {
		say("Starting the cluster %s: etcd, kube-apiserver and kube-controller-manager", d.Name)
		wg.Go(func() { errs[i] = d.startCluster(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, d := range w.Domains {
		for range cmp.Or(d.options.Owners, 1) {
			o, err := d.addOwner(ctx)
			if err != nil {
				return err
			}
			say("Starting an owner on %s, which publishes what %s exports in %s", o.Address, d.Name, d.Zone)
		}
	}
	for _, d := range w.Domains {
		others := slices.DeleteFunc(slices.Clone(w.Domains), func(other *Domain) bool { return other == d })
		if err := d.startDNS(ctx, others...); err != nil {
			return err
		}
		say("Starting CoreDNS of %s on %s", d.Name, d.DNS.Address)
	}
	return nil
}

// Stop ends all of it.
func (w *World) Stop() {
	for _, d := range w.Domains {
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
func (w *World) Processes() []*realserver.Process {
	var all []*realserver.Process
	for _, d := range w.Domains {
		all = append(all, d.Cluster.Etcd.Process, d.Cluster.API.Process)
		if d.Cluster.Controllers != nil {
			all = append(all, d.Cluster.Controllers)
		}
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

// files writes certificates for the domain.
func (d *Domain) files() error {
	if err := os.MkdirAll(d.Dir, 0o750); err != nil {
		return err
	}
	return errors.Join(d.Issue(d.OwnerFiles(), d.OwnerID()), d.Issue(d.ConsumerFiles(), d.ConsumerID()))
}

// OwnerFiles are where the certificate of the owners is.
func (d *Domain) OwnerFiles() mtls.Files { return d.pem("owner") }

// ConsumerFiles are where the certificate of CoreDNS is.
func (d *Domain) ConsumerFiles() mtls.Files { return d.pem("coredns") }

func (d *Domain) pem(name string) mtls.Files {
	in := func(name string) string { return filepath.Join(d.Dir, name) }
	return mtls.Files{Cert: in(name + ".pem"), Key: in(name + "-key.pem"), CA: in("ca.pem")}
}

// Issue writes a new certificate, in the place of one that is there.
func (d *Domain) Issue(files mtls.Files, id string) error {
	issued, err := d.authority.Issue(mtls.Leaf{
		Name: id, URIs: []string{id}, DNSNames: []string{"localhost"}, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
	})
	if err != nil {
		return err
	}
	return issued.WriteFiles(files)
}

// startCluster starts the cluster, and gives the owners an account.
func (d *Domain) startCluster(ctx context.Context) error {
	if err := d.Cluster.Start(ctx, d.options.Cluster); err != nil {
		return fmt.Errorf("cluster %s: %w", d.Name, err)
	}
	err := d.Cluster.Apply(ctx, `{apiVersion: v1, kind: Node, metadata: {name: `+Node+`}, status: {conditions: [{type: Ready, status: "True"}]}}`)
	if err != nil {
		return err
	}
	rules, err := rules()
	if err != nil {
		return err
	}
	if err := d.Cluster.ServiceAccount(ctx, "default", Account, rules...); err != nil {
		return err
	}
	token, err := d.Cluster.Token(ctx, "default", Account, tokenLifetime)
	if err != nil {
		return err
	}
	_, err = d.Cluster.NewKubeconfig("owner", "", realserver.Access{Token: token})
	return err
}

// rules returns the permissions that an owner needs in its cluster, as the manifest of
// the Kubernetes source has them.
func rules() ([]rbacv1.PolicyRule, error) {
	root, err := realserver.Root()
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(root, "federation", "source", "kubernetes", "testdata", "rbac.yaml"))
	if err != nil {
		return nil, err
	}
	var role rbacv1.ClusterRole
	err = yaml.UnmarshalStrict(data, &role)
	return role.Rules, err
}

// Owner is a running federationctl serve.
type Owner struct {
	*realserver.Process

	Address string // of its consumers
	Metrics string
	Config  string // path of its owner.yaml
}

// OwnerKubeconfig is the path of the kubeconfig of the owners.
func (d *Domain) OwnerKubeconfig() string { return filepath.Join(d.Dir, "owner.kubeconfig") }

// addOwner starts one more owner, with a file owner.yaml. CoreDNS of others does not know of
// it; see Reconfigure.
func (d *Domain) addOwner(ctx context.Context) (*Owner, error) {
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
	name := fmt.Sprintf("owner-%d", len(d.Owners)+1)
	o := &Owner{Address: address, Metrics: metrics, Config: filepath.Join(d.Dir, name+".yaml")}
	o.Process = &realserver.Process{
		Name: name, Path: path, Dir: d.Dir, Args: []string{"serve", "--config", o.Config},
		Ready: func(ctx context.Context) error { return dial(ctx, address) },
	}
	d.Owners = append(d.Owners, o)
	if err := d.configure(o); err != nil {
		return nil, err
	}
	return o, o.Start(ctx)
}

// configure writes the file owner.yaml of an owner.
func (d *Domain) configure(o *Owner) error {
	files := d.OwnerFiles()
	return os.WriteFile(o.Config, fmt.Appendf(nil, `listen: %q
metrics: %q
window: 256
identity:
  files: {cert: %q, key: %q, ca: %q}
allow:
  ids: ["%s"]
catalogs:
- sources:
  - kubernetes:
      cluster: %s
      zone: %s
      max_withdraw: off # tests delete whole namespaces
      kubeconfig: %s
      pods: routable
`, o.Address, o.Metrics, files.Cert, files.Key, files.CA, strings.Join(d.consumers, `", "`), d.Name, d.Zone, d.OwnerKubeconfig()), 0o600)
}

// dial reports with nil that something listens on an address.
func dial(ctx context.Context, address string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}
