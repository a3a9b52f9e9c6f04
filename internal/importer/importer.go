// Package importer makes objects of Kubernetes from the services of owners: an [Importer] follows owners as
// the plugin does, and writes a Service and EndpointSlices for each service, for clusters whose DNS
// cannot be changed and clients that want a virtual address.
//
// # From an update to the objects
//
// The mirror of an owner publishes a change into the names of the importer: a name of objects has the offers of
// services that lead to it, and the objects that are there. Whatever changes either of them puts the name
// into a queue. A worker takes the name, compares what is wanted with what is there, and writes the
// difference. So nothing is written twice, and a start, a restored cluster and a change take the same way.
// An update is acknowledged when the API server has answered for its names, unless another replica
// writes.
//
// # Objects of others
//
// All Services and EndpointSlices of the namespace are read, and only those with the importer's label are
// changed or removed: an object is created with a request that fails where there is one of that name, and is
// changed and removed as the version that was read. (Server-side apply, which the importer uses for conditions,
// would take an object over that somebody makes at the same time.) A Service of somebody else keeps its name,
// and gets no endpoints.
//
// # Which service has a name
//
// The one whose objects are there; else the one that was offered first. Objects say in annotations
// of which service they are.
//
// # Retention
//
// The mirror bounds how long services of a lost owner stay. After a start, objects are there
// before their owner has said anything. They stay until its catalog is complete, and no longer than the
// retention, which counts from the start, or with Config.Persist from when the owner was lost.
//
// # Replicas
//
// All replicas follow the owners, and the one that has the lease reads and writes objects. It reads
// everything again when a request for the lease has failed and the next one has not, because the server
// may have been restored from a backup.
package importer

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/dns/hostname"
	"github.com/hamlet-federation/coredns-federation/internal/kube"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/stream"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
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

// anchor is the name of the ConfigMap that owns all objects, and of the lease.
const anchor = "federation-import"

// Importer imports. Mirrors put offers into its names, watches put objects, and the workers of the replica
// that leads take names from the queue; all under mu, which nobody holds during a request. Names are as many as
// the owners offer, within their limits, and as there are objects in the namespace.
type Importer struct {
	// read-only after New
	config   Config
	log      *slog.Logger
	identity *mtls.Source
	server   string // the API server
	client   *kube.Client
	api      map[string]*rest.RESTClient // by kind
	election *kube.Election
	hosts    *hostname.Resolver
	upstream hostname.Upstream
	owners   []*followedOwner
	began    time.Time

	relist    chan struct{} // has room for one value: everything is to be read again
	anchoring sync.Mutex    // held while the ConfigMap is read and written

	mu       sync.Mutex
	names    map[types.NamespacedName]*importedName
	queue    kube.Queue            // nil unless this replica leads
	unread   int                   // kinds that have yet to be read
	listed   bool                  // everything has been read
	anchor   metav1.OwnerReference // to the ConfigMap, as it was last
	anchored bool                  // the ConfigMap is that one
	leader   string
	broken   bool             // a request has failed since everything was read
	trouble  map[string]error // why the server cannot be asked, by what is asked for: the lease, a kind, or "write"
}

// importedName is a name of objects. It is forgotten once it has neither offers nor objects.
type importedName struct {
	offers  []*offer               // the first that was offered first
	objects map[objectKey]object   // that are there, of the importer and of others
	changed time.Time              // since when the objects may not be as they should be; zero: they are
	again   bool                   // something has changed since they were compared last
	refused status.ImportedService // why they are not as they should be; without a state, they could be written
}

// New returns an importer that has not begun, or a one-line error about what the configuration names: the
// certificates, the kubeconfig or the folder of persist. It asks nobody.
func New(ctx context.Context, c Config) (*Importer, error) { return newImporter(ctx, c, hooks{}) }

// hooks are what tests replace.
type hooks struct {
	wrap     func(http.RoundTripper) http.RoundTripper // of the client of the API server
	dial     func(context.Context, string) (net.Conn, error)
	identity stream.Identity
	upstream hostname.Upstream
}

func newImporter(ctx context.Context, c Config, h hooks) (*Importer, error) {
	m := &Importer{
		config: c, log: loglimit.NewLogger(c.Logger), began: time.Now(), relist: make(chan struct{}, 1),
		names: make(map[types.NamespacedName]*importedName), trouble: make(map[string]error),
	}
	var err error
	if m.identity, err = mtls.Open(c.Identity, c.Logger); err != nil {
		return nil, Error{"identity", err}
	}
	if m.upstream = h.upstream; m.upstream == nil {
		if m.upstream, err = systemUpstream(); err != nil {
			return nil, err
		}
	}
	retentions := make(map[string]time.Duration)
	for i := range c.Owners {
		o := &c.Owners[i]
		retentions[o.Name] = max(o.Retention, 0)
		f, err := m.follow(ctx, o, h)
		if err != nil {
			return nil, err
		}
		m.owners = append(m.owners, f)
	}
	m.hosts = hostname.New(retentions, func(cause any) { m.log.Error("a look-up of a host has had a panic", "cause", cause) })
	if c.DryRun {
		return m, nil
	}
	return m, m.connect(h.wrap)
}

// Error is an error about a key of the configuration.
type Error struct {
	Key string
	error
}

// connect makes the clients of the API server. Wrap is put around their transport, unless it is nil.
func (m *Importer) connect(wrap func(http.RoundTripper) http.RoundTripper) error {
	access, err := kube.LoadAccess(m.config.Target.Kubeconfig, m.config.Target.Context)
	if err != nil {
		return Error{"kubernetes", err}
	}
	if m.config.Target.Namespace == "" {
		m.config.Target.Namespace = access.Namespace
	}
	m.server = access.Config.Host
	scheme, known := runtime.NewScheme(), runtime.NewSchemeBuilder(corev1.AddToScheme, discoveryv1.AddToScheme, mcsv1beta1.Install)
	if err := known.AddToScheme(scheme); err != nil {
		return err
	}
	if m.client, err = kube.NewClient(access, scheme, "federationctl-import", wrap); err != nil {
		return Error{"kubernetes", err}
	}
	core, err := m.client.Group(corev1.SchemeGroupVersion)
	discovery, also := m.client.Group(discoveryv1.SchemeGroupVersion)
	multicluster, too := m.client.Group(mcsVersion)
	leases, at := m.client.Leases()
	m.api = map[string]*rest.RESTClient{serviceKind: core, mapKind: core, sliceKind: discovery, importKind: multicluster, exportKind: multicluster}
	m.election = &kube.Election{
		Lease:  types.NamespacedName{Namespace: m.config.Target.Namespace, Name: anchor},
		Leases: leases, Lead: m.lead, Noted: m.noteLease, Observed: m.noteLeader,
	}
	return cmp.Or(err, also, too, at)
}

// Run follows the owners, and writes while this replica leads, until ctx ends. Objects stay.
func (m *Importer) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.Logger{}) // what client-go logs is reported here
	var running sync.WaitGroup
	defer hostname.Close(m.hosts)
	defer running.Wait()
	for _, f := range m.owners {
		running.Go(func() { _ = f.mirror.Run(ctx) }) // it returns nil when ctx ends
	}
	m.election.Run(ctx)
	m.client.Close()
	return nil
}

// DryRun writes the objects of all services as YAML, by name, once the catalogs of all owners are complete,
// and returns an error with the owners that are missing when ctx ends before that. It asks no cluster, so that
// objects lack their reference to the ConfigMap, and conflicts there are not known.
func (m *Importer) DryRun(ctx context.Context, out io.Writer) error {
	following, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer hostname.Close(m.hosts)
	for _, f := range m.owners {
		running.Go(func() { _ = f.mirror.Run(following) })
	}
	var waiting []string
	_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		waiting = nil
		for _, f := range m.owners {
			if s := f.mirror.Status(); s.LastSync.IsZero() {
				waiting = append(waiting, f.Name)
			}
		}
		return len(waiting) == 0, nil
	})
	end()
	running.Wait() // so that nothing changes from now on
	if len(waiting) > 0 {
		return fmt.Errorf("the catalogs of these owners are not complete: %s; 'federationctl watch' shows why", strings.Join(waiting, ", "))
	}
	for _, name := range slices.SortedFunc(maps.Keys(m.names), func(a, b types.NamespacedName) int { return cmp.Compare(a.String(), b.String()) }) {
		n, p := m.names[name], plan{begun: true}
		for p.begun {
			p = m.planName(ctx, name, n)
			for _, o := range p.wanted {
				m.noteObject(o, false) // as if the API server had taken it
			}
		}
		if p.rule != "" {
			fmt.Fprintf(out, "# %s: %s\n", name, p.rule)
		}
		for _, o := range p.wanted {
			o.SetOwnerReferences(nil)
			text, err := yaml.Marshal(o)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "---\n%s", text)
		}
	}
	for _, f := range m.owners {
		for _, r := range f.events.Refusals() {
			fmt.Fprintf(out, "# service %q of owner %s is not imported: %s\n", r.Service, f.Name, safetext.Printable(r.Rule))
		}
	}
	for _, s := range m.reportServices() {
		if s.Rule != "" {
			fmt.Fprintf(out, "# service %q of owner %s is not imported: %s\n", s.Service, s.Owner, s.Rule)
		}
	}
	return nil
}

// workers is how many names are written at a time.
const workers = 8

// lead reads and writes objects until ctx ends, because another replica leads.
func (m *Importer) lead(ctx context.Context) {
	m.log.Info("this replica writes")
	queue := kube.NewQueue()
	m.mu.Lock()
	m.queue, m.anchored = queue, false
	m.enqueueAll()
	m.mu.Unlock()
	var running sync.WaitGroup
	for range workers {
		running.Go(func() { kube.DrainQueue(ctx, queue, m.writeName) })
	}
	for ctx.Err() == nil {
		m.readObjects(ctx)
	}
	queue.ShutDown()
	running.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue, m.listed = nil, false
	for _, f := range m.owners {
		for name := range f.unwritten.Clone() {
			f.noteWritten(name)
		}
	}
	for name, n := range m.names { // of a replica that does not lead, only the offers are known
		*n = importedName{offers: n.offers, objects: make(map[objectKey]object)}
		if len(n.offers) == 0 {
			delete(m.names, name)
		}
	}
}

// readObjects reads all objects, and follows them until ctx ends or they are to be read again.
func (m *Importer) readObjects(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	watched, namespace := map[string]runtime.Object{serviceKind: new(corev1.Service), sliceKind: new(discoveryv1.EndpointSlice)}, m.config.Target.Namespace
	if m.config.Target.MCS {
		watched[importKind], watched[exportKind], namespace = new(mcsv1beta1.ServiceImport), new(mcsv1beta1.ServiceExport), metav1.NamespaceAll
	}
	m.mu.Lock()
	m.unread, m.listed = len(watched), false
	m.mu.Unlock()
	for kind, of := range watched {
		watch := kube.Watch{
			API: m.api[kind], Resource: kind, Namespace: namespace, Object: of,
			Store: &objectStore{importer: m, kind: kind}, Report: func(err error) { m.noteAnswer(kind, err) },
		}
		running.Go(func() { watch.Run(ctx) })
	}
	select {
	case <-m.relist:
	case <-ctx.Done():
	}
}

// entry returns what is known of a name. The caller holds mu.
func (m *Importer) entry(name types.NamespacedName) *importedName {
	n := m.names[name]
	if n == nil {
		n = &importedName{objects: make(map[objectKey]object)}
		m.names[name] = n
	}
	return n
}

// enqueue has a name written, if this replica leads. The caller holds mu.
func (m *Importer) enqueue(name types.NamespacedName) {
	if n := m.names[name]; n != nil {
		if n.again = true; n.changed.IsZero() {
			n.changed = time.Now()
		}
	}
	if m.queue != nil && m.listed {
		m.queue.Add(name)
	}
}

// enqueueAll has everything compared. The caller holds mu.
func (m *Importer) enqueueAll() {
	for name := range m.names {
		m.enqueue(name)
	}
}

// noteLease records how a request for the lease has ended. One that is answered after another request
// has failed has everything read again, because the server may have been restored from a backup. So has one for
// another version than this replica has written, as no request may have failed when the server was restored quickly.
func (m *Importer) noteLease(err error) {
	m.noteAnswer("leases", err)
	m.mu.Lock()
	defer m.mu.Unlock()
	if (apierrors.IsConflict(err) || err == nil && m.broken) && m.listed {
		m.broken = false
		wake.Up(m.relist)
	}
}

// noteAnswer records why the server cannot be asked for something, or with nil or a conflict that it can.
func (m *Importer) noteAnswer(of string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.trouble[of]
	if err == nil || apierrors.IsConflict(err) {
		if delete(m.trouble, of); before != nil && len(m.trouble) == 0 {
			m.log.Info("the API server answers again")
		}
		return
	}
	m.broken = true
	now := m.client.ExplainError(err)
	if before == nil || kube.ReasonClass(before) != kube.ReasonClass(now) {
		m.log.Warn("the API server cannot be asked; objects stay as they are", "for", of, "error", now)
	}
	m.trouble[of] = now
}

// noteLeader records which replica leads.
func (m *Importer) noteLeader(holder string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leader = holder
}
