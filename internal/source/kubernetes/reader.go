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

// pollPace says how often the reader does things.
type pollPace struct {
	check time.Duration // whether the server answers, and which kinds are served
	retry time.Duration // the same, while the server does not answer
	// grace is how long a cluster may be out of reach before that is reported, because a server
	// that restarts, or a connection that breaks, is nothing to report.
	grace time.Duration
}

func usualPace() pollPace {
	return pollPace{check: 5 * time.Second, retry: time.Second, grace: 3 * time.Second}
}

const (
	firstDelay   = 100 * time.Millisecond // before a watch is tried again
	longestDelay = 5 * time.Second
)

// clusterReader reads a cluster into the clusterState of its source, with one watch for each kind
// and namespace. It keeps the client and the running watches, and its loop alone changes them; a
// watch only puts a token into kick. There are as many watches as kinds and namespaces. It is made
// anew with each Run, while the state stays.
type clusterReader struct {
	*Source

	kick chan struct{} // has a token when a check is due at once

	client     *apiClient
	text       []byte                // of the kubeconfig that the client is made from
	unreadable bool                  // a newer kubeconfig is not usable, which was logged
	found      map[objectKind]string // the version in which a kind is served; "" where the kind is not served
	lost       bool                  // whether the server did not answer the last request
	running    map[watchID]runningWatch
}

// runningWatch is a watch that runs.
type runningWatch struct {
	version string
	stop    func() // ends the watch, and waits until it has ended
}

func newClusterReader(s *Source) *clusterReader {
	return &clusterReader{Source: s, kick: make(chan struct{}, 1), running: make(map[watchID]runningWatch)}
}

// pollLoop reads until ctx ends.
func (r *clusterReader) pollLoop(ctx context.Context) {
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
		if r.checkServer(ctx) {
			next = r.pace.check
		}
		putToken(r.state.wake) // time has passed, and so a problem may have lasted
		timer.Reset(next)
	}
}

// checkServer reports whether the server answers, and adjusts the watches to the kinds that it
// serves.
func (r *clusterReader) checkServer(ctx context.Context) bool {
	now := time.Now()
	if !r.reloadClient() {
		return false
	}
	var found map[objectKind]string
	err := r.client.checkReady(ctx)
	if err == nil {
		found, err = r.client.discoverKinds(ctx, r.wanted)
	}
	if err == nil {
		r.updateServed(found)
		err = r.updateWriter()
	}
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		r.lost = true
		r.noteServer(r.client.explainError(err), now)
		if errors.Is(err, context.DeadlineExceeded) {
			r.client.dialer.CloseAll() // so that watches do not wait on a connection that is dead
		}
		return false
	}
	if r.lost {
		// The server may have been restored from an older state: a watch that goes on from where it
		// was could miss the differences. A store is restored within a second.
		r.stopAll()
	}
	r.lost = false
	r.adjustWatches(ctx)
	r.noteServer(nil, now)
	return true
}

// updateWriter gives the writer clients for leases and, if the server serves them, ServiceExports.
func (r *clusterReader) updateWriter() error {
	leases, err := r.client.leaseClient()
	if err != nil {
		return err
	}
	version := r.found[kindExport]
	if version == "" {
		r.writer.SetServer(nil, "", leases)
		return nil
	}
	exports, err := r.client.groupClient(schema.GroupVersion{Group: mcsGroup, Version: version})
	if err != nil {
		return err
	}
	r.writer.SetServer(exports, version, leases)
	return nil
}

// noteServer records why the server cannot be asked, or with nil that it can.
func (r *clusterReader) noteServer(reason error, now time.Time) {
	r.state.mu.Lock()
	defer r.state.mu.Unlock()
	r.state.health.server.noteOutcome(reason, now)
	r.state.health.discovered = r.found != nil
}

// reloadClient makes a client, and another one where the kubeconfig has changed, because
// credentials in it are replaced in that way. It reports whether there is a client.
func (r *clusterReader) reloadClient() bool {
	to, err := loadAccess(r.config.Kubeconfig, r.config.Context)
	if err == nil && r.client != nil && bytes.Equal(to.text, r.text) {
		r.unreadable = false
		return true
	}
	var fresh *apiClient
	if err == nil {
		fresh, err = newClient(to.config, r.scheme, r.wrap)
	}
	if err != nil {
		if r.client == nil {
			r.noteServer(classErrorf("kubeconfig", "%w", err), time.Now())
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
		r.client.closeConnections()
	}
	r.client, r.text, r.unreadable = fresh, to.text, false
	return true
}

// updateServed records which kinds are served now, and logs what has changed.
func (r *clusterReader) updateServed(found map[objectKind]string) {
	news := make(map[string][]string) // the resources, by what is said of them
	for _, k := range r.wanted {
		var text string
		switch was, is := r.found[k] != "", found[k] != ""; {
		case r.found == nil && !is:
			text = "the cluster does not serve these resources; they will be read when it does"
		case r.found != nil && is && !was:
			text = "the cluster serves more resources"
		case was && !is: // where something is published because of them, SetAway says that it stays
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

// adjustWatches starts and stops watches until there is one for every kind that is served.
func (r *clusterReader) adjustWatches(ctx context.Context) {
	now := time.Now()
	for _, k := range r.wanted {
		version := r.found[k]
		namespaces := r.config.Namespaces
		if resources[k].everywhere || len(namespaces) == 0 {
			namespaces = []string{metav1.NamespaceAll}
		}
		for _, namespace := range namespaces {
			id := watchID{k, namespace}
			if f, ok := r.running[id]; ok && f.version != version {
				r.stopWatch(id)
			}
			if _, ok := r.running[id]; version == "" {
				r.state.noteNotServed(id, now)
			} else if !ok {
				r.startWatch(ctx, id, version)
			}
		}
	}
}

// startWatch starts a watch.
func (r *clusterReader) startWatch(ctx context.Context, id watchID, version string) {
	ctx, cancel := context.WithCancel(ctx)
	c, gv := r.client, schema.GroupVersion{Group: resources[id.kind].group, Version: version}
	r.state.noteWatchBegun(id)
	var running sync.WaitGroup
	running.Go(func() { r.runWatch(ctx, id, c, gv) })
	r.running[id] = runningWatch{version, func() {
		cancel()
		running.Wait()
	}}
}

// stopWatch ends a watch. What it has read counts as old from then on.
func (r *clusterReader) stopWatch(id watchID) {
	r.running[id].stop()
	delete(r.running, id)
	r.state.noteWatchBegun(id)
}

func (r *clusterReader) stopAll() {
	for id := range r.running {
		r.stopWatch(id)
	}
}

// reportAttempt records how an attempt of a watch ended, where nil is success, and wakes whoever
// has to know.
func (r *clusterReader) reportAttempt(id watchID, err error) {
	if !r.state.noteAttempt(id, err) {
		return
	}
	if err != nil {
		putToken(r.kick)
	}
	putToken(r.state.wake)
}

// runWatch follows the objects of id until ctx ends. It runs a Reflector, which is what an informer
// has inside, with a store of its own: an informer does not say when a list that follows an outage
// has been applied, and forgets everything when one of another version or with other credentials
// replaces it.
func (r *clusterReader) runWatch(ctx context.Context, id watchID, c *apiClient, gv schema.GroupVersion) {
	api, err := c.groupClient(gv)
	if err != nil {
		r.reportAttempt(id, c.explainError(err)) // of no version that resources names
		return
	}
	backoff := wait.Backoff{Duration: firstDelay, Factor: 2, Jitter: 0.5, Steps: 10, Cap: longestDelay}
	reflector := cache.NewReflectorWithOptions(r.newListWatch(ctx, id, c, api), resources[id.kind].object, watchStore{r.state, id, r.config.Rules},
		cache.ReflectorOptions{Name: id.String(), Logger: new(klog.Logger), Backoff: &backoff})
	reflector.RunWithContext(ctx) // what fails is a request, and the ListWatch reports it
}

// newListWatch returns the requests of a watch, which report how they end.
func (r *clusterReader) newListWatch(ctx context.Context, id watchID, c *apiClient, api *rest.RESTClient) *cache.ListWatch {
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
			r.reportAttempt(id, c.explainError(err))
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion == "0" {
				// Without a version, the server may answer with an old state, in which objects are missing.
				options.ResourceVersion = ""
			}
			list, err := request(&options).Do(ctx).Get()
			failed(err) // without an error, the watch that follows shows whether all is well
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			w, err := request(&options).Watch(ctx)
			if failed(err); err == nil && ctx.Err() == nil {
				r.reportAttempt(id, nil)
			}
			return w, err
		},
	}
}
