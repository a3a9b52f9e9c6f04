package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/kube"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/internal/feedback"
)

// Config says which cluster is read, and what of that is exported.
type Config struct {
	export.Rules

	Kubeconfig string   `yaml:"kubeconfig" doc:"The path of a kubeconfig, by default the cluster that the process runs in."`
	Context    string   `yaml:"context" doc:"The context of the kubeconfig, by default its current one."`
	Namespaces []string `yaml:"namespaces" as:"label" least:"one is required; leave it out for all" doc:"The namespaces that may export, by default all."`
	Selector   string   `yaml:"selector" as:"selector" doc:"A selector of labels that exported Services must meet, such as tier=public, by default all do."`

	Logger *slog.Logger // nil: nothing is logged
}

// Source publishes what a cluster exports. It implements [source.Source], [source.NameClaimer] and
// [source.OutcomeListener]. Its state is in clusterState and in feedback.Writer, which outlive a
// connection; everything else is read-only after New.
type Source struct {
	config   Config
	selector labels.Selector
	wanted   []objectKind
	slices   string // label selector of the EndpointSlices that are read
	scheme   *runtime.Scheme
	log      *slog.Logger
	state    *clusterState
	writer   *feedback.Writer
	pace     pollPace                                  // other in tests
	wrap     func(http.RoundTripper) http.RoundTripper // of tests
}

var (
	_ source.Source          = (*Source)(nil)
	_ source.OutcomeListener = (*Source)(nil)
	_ source.NameClaimer     = (*Source)(nil)
)

// New returns a source that is not connected yet, or a one-line error when the configuration is not
// usable, or when the kubeconfig or the service account of the pod cannot be read.
func New(config Config) (*Source, error) {
	selector, err := labels.Parse(config.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	config.Namespaces = slices.Compact(slices.Sorted(slices.Values(config.Namespaces)))
	for _, namespace := range config.Namespaces {
		if faults := validation.ValidateNamespaceName(namespace, false); len(faults) > 0 {
			return nil, fmt.Errorf("namespace %q: %s", namespace, strings.Join(faults, ", "))
		}
	}
	if config.Kubeconfig == "" && config.Context != "" {
		return nil, errors.New("a context is named, but no kubeconfig")
	}
	to, err := kube.LoadAccess(config.Kubeconfig, config.Context)
	if err != nil {
		return nil, err
	}
	scheme := newScheme()
	if _, err := kube.NewClient(to, scheme, userAgent, nil); err != nil { // reads certificates and keys
		return nil, fmt.Errorf("kubeconfig %s: %w", config.Kubeconfig, err)
	}
	wanted, slices := wantedKinds(config.Rules)
	log := cmp.Or(config.Logger, slog.New(slog.DiscardHandler))
	return &Source{
		config: config, selector: selector, wanted: wanted, slices: slices, scheme: scheme,
		log: log, state: newClusterState(usualPace().grace), writer: feedback.New(leaseOf(config, to.Namespace), log), pace: usualPace(),
	}, nil
}

// leaseOf returns the name of the lease that one of the replicas of an owner holds. The name is the
// same in each replica, and another one where other Services are exported, or in another zone.
func leaseOf(config Config, namespace string) objectName {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%q %q %q %q", config.Cluster, config.Zone, config.Namespaces, config.Selector)
	return objectName{Namespace: namespace, Name: fmt.Sprintf("hamlet-federation-%016x", hash.Sum64())}
}

// wantedKinds returns the kinds that the rules need, and the label selector of EndpointSlices.
func wantedKinds(rules export.Rules) (wanted []objectKind, selector string) {
	wanted, selector = []objectKind{kindService, kindExport}, corev1.IsHeadlessService
	uses := func(k export.EndpointKind) bool { return len(rules.Order) == 0 || slices.Contains(rules.Order, k) }
	if uses(export.NodePorts) {
		wanted, selector = append(wanted, kindNode), "" // where externalTrafficPolicy is Local
	}
	if selector == "" || uses(export.Pods) && rules.RoutablePods {
		wanted = append(wanted, kindSlice)
	}
	if uses(export.Gateway) {
		wanted = append(wanted, kindGateway, kindHTTPRoute, kindGRPCRoute, kindTLSRoute, kindTCPRoute)
	}
	return wanted, selector
}

// Run implements [source.Source].
func (s *Source) Run(ctx context.Context, part source.Part) {
	ctx = klog.NewContext(ctx, klog.Logger{}) // what client-go logs is reported by us, once
	r := newClusterReader(s)
	var group sync.WaitGroup
	group.Go(func() { r.pollLoop(ctx) })
	group.Go(func() { s.writer.Run(ctx) })
	newPartPublisher(s, part).publishLoop(ctx)
	group.Wait()
	if r.client != nil {
		r.client.Close() // now that the lease has been given up
	}
}

// serviceName returns the name of a Service in the catalog.
func (s *Source) serviceName(of objectName) string {
	return s.config.Cluster + "/" + of.Namespace + "/" + of.Name
}

// nameIn returns the Service that has a name in the catalog, and whether the name is one of this
// source.
func (s *Source) nameIn(service string) (of objectName, ok bool) {
	rest, ok := strings.CutPrefix(service, s.config.Cluster+"/")
	if !ok {
		return objectName{}, false
	}
	namespace, last, ok := strings.Cut(rest, "/")
	return objectName{Namespace: namespace, Name: last}, ok
}

// MayClaim implements [source.NameClaimer].
func (s *Source) MayClaim(name string, fqdn federation.FQDN) bool {
	return strings.HasPrefix(name, s.config.Cluster+"/") || fqdn.Within(s.config.Zone)
}

// HiddenBy implements [source.OutcomeListener].
func (s *Source) HiddenBy(service, by string) {
	if of, ok := s.nameIn(service); ok {
		s.writer.SetHidden(of, by != "")
	}
}

// RefusedBy implements [source.OutcomeListener].
func (s *Source) RefusedBy(r registry.Refusal) {
	if of, ok := s.nameIn(r.Service); ok {
		s.writer.SetRefusal(of, r.Consumer, r.Rule)
	}
}
