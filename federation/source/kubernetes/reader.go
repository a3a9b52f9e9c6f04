package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// pace is how often things are done.
type pace struct {
	check time.Duration // whether the server answers, and which kinds are served
	retry time.Duration // while it does not
	// grace is how long a cluster may be out of reach before that is said: a server that
	// restarts, or a connection that breaks, is nothing to report.
	grace time.Duration
}

func usualPace() pace {
	return pace{check: 5 * time.Second, retry: time.Second, grace: 3 * time.Second}
}

const (
	firstDelay   = 100 * time.Millisecond // before a watch is tried again
	longestDelay = 5 * time.Second
)

// reader reads a cluster into the state of its source, with one watch for each kind
// and namespace, for as long as it runs.
type reader struct {
	*Source

	kick chan struct{} // has a token when a check is due at once

	client     *client
	text       []byte          // of the kubeconfig that the client is made from
	unreadable bool            // a newer one is not usable, and that was said
	found      map[kind]string // the version in which a kind is served; "" where it is not
	lost       bool            // whether the server did not answer when it was asked last
	running    map[watched]follower
}

// follower is a watch that runs.
type follower struct {
	version string
	stop    func() // ends it, and waits until it has
}

func newReader(s *Source) *reader {
	return &reader{Source: s, kick: make(chan struct{}, 1), running: make(map[watched]follower)}
}

// run reads until ctx ends.
func (r *reader) run(ctx context.Context) {
	defer r.stopAll()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.kick:
		}
		next := r.pace.retry
		if r.check(ctx) {
			next = r.pace.check
		}
		rouse(r.state.wake) // time has passed, and so a problem may have lasted
		timer.Reset(next)
	}
}

// check reports whether the server answers, and brings the watches to what it serves.
func (r *reader) check(ctx context.Context) bool {
	now := time.Now()
	if !r.reload() {
		return false
	}
	var found map[kind]string
	err := r.client.alive(ctx)
	if err == nil {
		found, err = r.client.discover(ctx, r.wanted)
	}
	if err == nil {
		r.announce(found)
		err = r.use()
	}
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		r.lost = true
		r.server(r.client.explain(err), now)
		if errors.Is(err, context.DeadlineExceeded) {
			r.client.dialer.CloseAll() // a connection that is dead without a word takes the watches with it
		}
		return false
	}
	if r.lost {
		// The server may be another, with an older past: a watch that goes on from where it
		// was could miss what is different. A store is restored within a second.
		r.stopAll()
	}
	r.lost = false
	r.follow(ctx)
	r.server(nil, now)
	return true
}

// use gives the writer clients for leases and, if the server serves them, ServiceExports.
func (r *reader) use() error {
	leases, err := r.client.leases()
	if err != nil {
		return err
	}
	version := r.found[kindExport]
	if version == "" {
		r.writer.Use(nil, "", leases)
		return nil
	}
	exports, err := r.client.group(schema.GroupVersion{Group: mcsGroup, Version: version})
	if err != nil {
		return err
	}
	r.writer.Use(exports, version, leases)
	return nil
}

// server notes why the server cannot be asked, or with nil that it can.
func (r *reader) server(reason error, now time.Time) {
	r.state.mu.Lock()
	defer r.state.mu.Unlock()
	r.state.health.server.set(reason, now)
	r.state.health.discovered = r.found != nil
}

// reload makes a client, anew where the kubeconfig has changed: credentials in it are
// replaced like that. It reports whether there is one.
func (r *reader) reload() bool {
	to, err := loadAccess(r.config.Kubeconfig, r.config.Context)
	if err == nil && r.client != nil && bytes.Equal(to.text, r.text) {
		r.unreadable = false
		return true
	}
	var fresh *client
	if err == nil {
		fresh, err = newClient(to.config, r.scheme, r.wrap)
	}
	if err != nil {
		if r.client == nil {
			r.server(classed("kubeconfig", "%w", err), time.Now())
			return false
		}
		if !r.unreadable {
			r.log.Warn("the kubeconfig is unusable; the previous one stays in use", "error", err)
		}
		r.unreadable = true
		return true
	}
	if r.client != nil {
		r.log.Info("the kubeconfig has changed")
		r.stopAll()
		r.client.close()
	}
	r.client, r.text, r.unreadable = fresh, to.text, false
	return true
}

// announce takes which kinds are served now, and logs what is different from before.
func (r *reader) announce(found map[kind]string) {
	news := make(map[string][]string) // the resources, by what is said of them
	for _, k := range r.wanted {
		var text string
		switch was, is := r.found[k] != "", found[k] != ""; {
		case r.found == nil && !is:
			text = "the cluster does not serve these resources; they will be read when it does"
		case r.found != nil && is && !was:
			text = "the cluster serves more resources"
		case was && !is: // where something is published because of them, Away says that it stays
			text = "the cluster serves fewer resources"
		default:
			continue
		}
		news[text] = append(news[text], k.String())
	}
	r.found = found
	for text, of := range news {
		r.log.Info(text, "resources", of)
	}
}

// follow starts and stops watches until there is one for everything that is served.
func (r *reader) follow(ctx context.Context) {
	now := time.Now()
	for _, k := range r.wanted {
		version := r.found[k]
		namespaces := r.config.Namespaces
		if resources[k].everywhere || len(namespaces) == 0 {
			namespaces = []string{metav1.NamespaceAll}
		}
		for _, namespace := range namespaces {
			id := watched{k, namespace}
			if f, ok := r.running[id]; ok && f.version != version {
				r.stop(id)
			}
			if _, ok := r.running[id]; version == "" {
				r.state.end(id, now)
			} else if !ok {
				r.start(ctx, id, version)
			}
		}
	}
}

// start starts a watch.
func (r *reader) start(ctx context.Context, id watched, version string) {
	ctx, cancel := context.WithCancel(ctx)
	c, gv := r.client, schema.GroupVersion{Group: resources[id.kind].group, Version: version}
	r.state.begin(id)
	var running sync.WaitGroup
	running.Go(func() { r.watch(ctx, id, c, gv) })
	r.running[id] = follower{version, func() {
		cancel()
		running.Wait()
	}}
}

// stop ends a watch. What it kept counts as old from then.
func (r *reader) stop(id watched) {
	r.running[id].stop()
	delete(r.running, id)
	r.state.begin(id)
}

func (r *reader) stopAll() {
	for id := range r.running {
		r.stop(id)
	}
}

// report notes how an attempt of a watch went, nil for well.
func (r *reader) report(id watched, err error) {
	if !r.state.report(id, err) {
		return
	}
	if err != nil {
		rouse(r.kick)
	}
	rouse(r.state.wake)
}

// watch follows what id says until ctx ends. It drives a Reflector, which is what an
// informer has inside, with a store of its own: an informer does not say when a list
// that follows an outage has been taken in, and forgets everything when it is
// replaced by one of another version or with other credentials.
func (r *reader) watch(ctx context.Context, id watched, c *client, gv schema.GroupVersion) {
	api, err := c.group(gv)
	if err != nil {
		r.report(id, c.explain(err)) // of no version that resources names
		return
	}
	backoff := wait.Backoff{Duration: firstDelay, Factor: 2, Jitter: 0.5, Steps: 10, Cap: longestDelay}
	reflector := cache.NewReflectorWithOptions(r.lister(ctx, id, c, api), resources[id.kind].object, store{r.state, id, r.config.Rules},
		cache.ReflectorOptions{Name: id.String(), Logger: new(klog.Logger), Backoff: &backoff})
	reflector.RunWithContext(ctx) // what fails is a request, and the lister reports it
}

// lister makes the requests of a watch, and reports how they go.
func (r *reader) lister(ctx context.Context, id watched, c *client, api *rest.RESTClient) *cache.ListWatch {
	request := func(options *metav1.ListOptions) *rest.Request {
		switch id.kind {
		case kindService:
			options.LabelSelector = r.selector.String()
		case kindSlice:
			options.LabelSelector = r.slices
		}
		return api.Get().NamespaceIfScoped(id.namespace, id.namespace != "").Resource(resources[id.kind].name).
			VersionedParams(options, metav1.ParameterCodec)
	}
	failed := func(err error) {
		if err != nil && ctx.Err() == nil {
			r.report(id, c.explain(err))
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion == "0" {
				// Any past would do for the server: one that is behind would take away what exists.
				options.ResourceVersion = ""
			}
			list, err := request(&options).Do(ctx).Get()
			failed(err) // where it has not, the watch that follows tells whether all is well
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			w, err := request(&options).Watch(ctx)
			if failed(err); err == nil && ctx.Err() == nil {
				r.report(id, nil)
			}
			return w, err
		},
	}
}
