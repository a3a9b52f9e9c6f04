package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hamlet-federation/coredns-federation/internal/kube"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
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

const oneRequest = 5 * time.Second // bounds a request that is not a list or a watch

const userAgent = "hamlet-federation-owner"

// clusterReader reads a cluster into the clusterState of its source, with one watch for each kind
// and namespace. It keeps the client and the running watches, and its loop alone changes them; a
// watch only puts a token into kick. There are as many watches as kinds and namespaces. It is made
// anew with each Run, while the state stays.
type clusterReader struct {
	*Source

	kick chan struct{} // has a token when a check is due at once

	client     *kube.Client
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
		wake.Up(r.state.wake) // time has passed, and so a problem may have lasted
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
	err := checkReady(ctx, r.client)
	if err == nil {
		found, err = discoverKinds(ctx, r.client, r.wanted)
	}
	if err == nil {
		r.updateServed(found)
		err = r.writer.SetServer(r.client, r.found[kindExport])
	}
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		r.lost = true
		r.noteServer(r.client.ExplainError(err), now)
		if errors.Is(err, context.DeadlineExceeded) {
			r.client.Close() // so that watches do not wait on a connection that is dead
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

// checkReady returns why the API server cannot be asked, or nil.
func checkReady(ctx context.Context, c *kube.Client) error {
	api, err := c.Group(schema.GroupVersion{Version: "v1"})
	if err == nil {
		err = api.Get().AbsPath("/readyz").SetHeader("Accept", "text/plain").MaxRetries(0).Timeout(oneRequest).Do(ctx).Error()
	}
	switch {
	case apierrors.IsForbidden(err): // a server that refuses the request is there
		return nil
	case apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err):
		return errors.New("it is not ready: its /readyz says why")
	}
	return err
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
	to, err := kube.LoadAccess(r.config.Kubeconfig, r.config.Context)
	if err == nil && r.client != nil && bytes.Equal(to.Text, r.text) {
		r.unreadable = false
		return true
	}
	var fresh *kube.Client
	if err == nil {
		fresh, err = kube.NewClient(to, r.scheme, userAgent, r.wrap)
	}
	if err != nil {
		if r.client == nil {
			r.noteServer(kube.ClassErrorf("kubeconfig", "%w", err), time.Now())
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
		r.client.Close()
	}
	r.client, r.text, r.unreadable = fresh, to.Text, false
	return true
}

// updateServed records which kinds are served now, and logs when that has changed.
func (r *clusterReader) updateServed(found map[objectKind]string) {
	if !maps.Equal(found, r.found) {
		var served, missing []string
		for _, k := range r.wanted {
			if found[k] != "" {
				served = append(served, k.String())
			} else {
				missing = append(missing, k.String())
			}
		}
		r.log.Info("the cluster serves resources to read; those that it does not serve are read when it does", "served", served, "missing", missing)
	}
	r.found = found
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
	c, of := r.client, resources[id.kind]
	r.state.noteWatchBegun(id)
	report := func(err error) { r.reportAttempt(id, c.ExplainError(err)) }
	api, err := c.Group(schema.GroupVersion{Group: of.group, Version: version})
	if err != nil {
		report(err) // of no version that resources names
		return
	}
	selectors := map[objectKind]string{kindService: r.selector.String(), kindSlice: r.slices}
	w := kube.Watch{
		API: api, Resource: of.name, Namespace: id.namespace, LabelSelector: selectors[id.kind],
		Object: of.object, Store: watchStore{r.state, id, r.config.Rules}, Report: report,
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
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
		wake.Up(r.kick)
	}
	wake.Up(r.state.wake)
}
