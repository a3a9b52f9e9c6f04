package kube

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Watch follows the objects of one resource. It keeps nothing itself: objects go to the Store, which
// has all of them after its first Replace.
type Watch struct {
	API           rest.Interface // of the group; see [Client.Group]
	Resource      string         // in the plural, as in paths
	Namespace     string         // empty: all
	LabelSelector string         // empty: all objects
	Object        runtime.Object // an empty one, for its type
	Store         cache.ReflectorStore
	Report        func(error) // is told of each request that failed, and with nil that a watch is open
}

// Run follows the objects until ctx ends. It runs a Reflector, which is what an informer has inside,
// with a store of the caller: an informer does not say when a list that follows an outage has been
// applied, and forgets everything when one of another version or with other credentials replaces it.
func (w Watch) Run(ctx context.Context) {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 5 * time.Second} // before a request is made again
	reflector := cache.NewReflectorWithOptions(w.newListWatch(ctx), w.Object, w.Store, cache.ReflectorOptions{Name: w.Resource, Logger: new(klog.Logger), Backoff: &backoff})
	reflector.RunWithContext(ctx) // what fails is a request, and the ListWatch reports it
}

// newListWatch returns the requests, which report how they end until the context of the run does.
func (w Watch) newListWatch(run context.Context) *cache.ListWatch {
	requests := cache.NewFilteredListWatchFromClient(w.API, w.Resource, w.Namespace, func(options *metav1.ListOptions) {
		options.LabelSelector = w.LabelSelector
	})
	report := func(err error) {
		if run.Err() == nil {
			w.Report(err)
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion == "0" {
				// Without a version, the server may answer with an old state, in which objects are missing.
				options.ResourceVersion = ""
			}
			list, err := requests.ListWithContext(ctx, options)
			if err != nil { // otherwise the watch that follows shows whether all is well
				report(err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			opened, err := requests.WatchWithContext(ctx, options)
			report(err)
			return opened, err
		},
	}
}
