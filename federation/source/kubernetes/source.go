package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/internal/feedback"
)

// Config says which cluster is read, and what of it is exported.
type Config struct {
	Rules export.Rules // cluster, zone, order of the kinds of endpoints, pods

	Kubeconfig string // path; empty: the service account of the pod that this is
	Context    string // of the kubeconfig; empty: its current one

	Namespaces []string // of the Services; none: all
	Selector   string   // of labels of the Services; empty: all

	Logger *slog.Logger // nil: nothing is logged
}

// Source is what a cluster exports. It implements [source.Source] and
// [source.Listener].
type Source struct {
	config   Config
	selector labels.Selector
	wanted   []kind
	slices   string // label selector of the EndpointSlices that are read
	scheme   *runtime.Scheme
	log      *slog.Logger
	world    *world
	writer   *feedback.Writer
	pace     pace                                      // other in tests
	wrap     func(http.RoundTripper) http.RoundTripper // of tests

	mu       sync.Mutex
	opinions map[name]opinion
}

var (
	_ source.Source   = (*Source)(nil)
	_ source.Listener = (*Source)(nil)
)

// New returns a source that is not connected yet. It fails with one line when the
// configuration is not usable, and when the kubeconfig, or the service account of the
// pod, cannot be read.
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
	restConfig, _, err := loadConfig(config.Kubeconfig, config.Context)
	if err != nil {
		return nil, err
	}
	scheme := newScheme()
	if _, err := newClient(restConfig, scheme, nil); err != nil { // reads certificates and keys
		return nil, fmt.Errorf("kubeconfig %s: %w", config.Kubeconfig, err)
	}
	wanted, slices := wantedKinds(config.Rules)
	log := cmp.Or(config.Logger, slog.New(slog.DiscardHandler))
	return &Source{
		config: config, selector: selector, wanted: wanted, slices: slices, scheme: scheme,
		log: log, world: newWorld(usualPace().grace), writer: feedback.New(log), pace: usualPace(),
		opinions: make(map[name]opinion),
	}, nil
}

// wantedKinds returns the kinds that the rules need, and which EndpointSlices.
func wantedKinds(rules export.Rules) (wanted []kind, selector string) {
	wanted, selector = []kind{kindService, kindExport}, headless
	uses := func(k export.Kind) bool { return len(rules.Order) == 0 || slices.Contains(rules.Order, k) }
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
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { newReader(s).run(ctx) })
	group.Go(func() { s.writer.Run(ctx) })
	newPublisher(s, part).run(ctx)
}

// service returns the name of a Service in the catalog.
func (s *Source) service(of name) string {
	return s.config.Rules.Cluster + "/" + of.Namespace + "/" + of.Name
}

// nameIn is the inverse of service.
func (s *Source) nameIn(service string) (of name, ok bool) {
	rest, ok := strings.CutPrefix(service, s.config.Rules.Cluster+"/")
	if !ok {
		return name{}, false
	}
	namespace, last, ok := strings.Cut(rest, "/")
	return name{Namespace: namespace, Name: last}, ok
}

// opinion is what others say of a Service.
type opinion struct {
	hiddenBy string
	refusals map[string]string // by consumer
	changed  time.Time         // when it was last seen to be published otherwise, or zero
}

// maxRefusals is how many consumers are remembered that refuse one Service.
const maxRefusals = 16

// Hidden implements [source.Listener].
func (s *Source) Hidden(service, by string) {
	s.note(service, func(o *opinion) bool {
		news := o.hiddenBy != by
		o.hiddenBy = by
		return news
	})
}

// RefusedBy implements [source.Listener].
func (s *Source) RefusedBy(r owner.Refusal) {
	s.note(r.Service, func(o *opinion) bool {
		before, known := o.refusals[r.Consumer]
		switch {
		case r.Rule == "":
			delete(o.refusals, r.Consumer)
			return known
		case !known && len(o.refusals) >= maxRefusals:
			return false
		case o.refusals == nil:
			o.refusals = make(map[string]string, 1)
		}
		o.refusals[r.Consumer] = r.Rule
		return before != r.Rule
	})
}

// note changes the opinion on a Service, and has its author told where change reports
// that it is another.
func (s *Source) note(service string, change func(*opinion) bool) {
	of, ok := s.nameIn(service)
	if !ok {
		return
	}
	s.mu.Lock()
	o := s.opinions[of]
	news := change(&o)
	s.keep(of, o)
	s.mu.Unlock()
	if news {
		s.world.touch(of)
	}
}

// keep stores an opinion, or forgets it where there is none. It is called with mu held.
func (s *Source) keep(of name, o opinion) {
	if o.hiddenBy == "" && len(o.refusals) == 0 && o.changed.IsZero() {
		delete(s.opinions, of)
		return
	}
	s.opinions[of] = o
}

// forgetRefusals forgets what consumers say of a Service: it is published in another form now.
// live says that it was seen to change, and not only to be there.
func (s *Source) forgetRefusals(of name, live bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.opinions[of]
	o.refusals = nil
	if live {
		o.changed = time.Now()
	}
	s.keep(of, o)
}

// opinion returns what others say of a Service.
func (s *Source) opinion(of name) opinion {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.opinions[of]
	o.refusals = maps.Clone(o.refusals)
	return o
}

// gone forgets a Service that is exported no more.
func (s *Source) gone(of name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.opinions, of)
	s.writer.Forget(of)
}
