package importing

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// managedBy is the label by which an importer knows its objects, and ours its value.
const (
	managedBy = "app.kubernetes.io/managed-by"
	ours      = "federationctl-import"
)

// record is the ConfigMap of an importer, as a key of a watcher and in YAML.
const (
	record     = "configmaps/federation-import"
	recordText = "{apiVersion: v1, kind: ConfigMap, metadata: {name: federation-import, namespace: NAMESPACE}}"
)

// late is how long after the end of its retention an endpoint may still be there.
const late = 10 * time.Second

// watched are the kinds of objects.
var watched = []schema.GroupVersionResource{
	corev1.SchemeGroupVersion.WithResource("services"),
	corev1.SchemeGroupVersion.WithResource("configmaps"),
	discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
}

// watcher sees every state of every object of a namespace. It notes as wrong
//   - a change or the end of an object of somebody else, unless the test has said that it does that;
//   - an endpoint that the owner has not published under the name, or has withdrawn before;
//   - the end of an object before the test has released its name, and after the deadline.
type watcher struct {
	stop func() // ends it, and waits for its end

	mu        sync.Mutex
	objects   map[string]*unstructured.Unstructured // by resource/name
	slices    map[string]slice                      // by resource/name
	published map[string]map[string]bool            // by service: its endpoints that may be there
	released  map[string]span                       // by service: when it may go
	exempt    map[string]bool                       // by resource/name: objects of others that the test changes
	states    map[string]int                        // by resource/name: how many there were
	wrong     []string
}

// slice is what an EndpointSlice of the importer has.
type slice struct {
	service   string
	endpoints []string
}

// span is when an object may go: from a time on, and until then; zero is no end.
type span struct{ from, until time.Time }

// watch begins to watch, until the end of the test, which fails where something was wrong. The endpoints of
// the catalogs may be there.
func watch(t testing.TB, cluster *realserver.Cluster, namespace string, allowed ...catalog) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running, listed sync.WaitGroup
	w := &watcher{
		stop:    func() { cancel(); running.Wait() },
		objects: make(map[string]*unstructured.Unstructured), slices: make(map[string]slice),
		published: make(map[string]map[string]bool), released: make(map[string]span), exempt: make(map[string]bool), states: make(map[string]int),
	}
	for _, c := range allowed {
		w.allow(c)
	}
	for _, resource := range watched {
		listed.Add(1)
		api := cluster.Dynamic.Resource(resource).Namespace(namespace)
		running.Go(func() { w.follow(ctx, api, resource.Resource, sync.OnceFunc(listed.Done)) })
	}
	listed.Wait()
	t.Cleanup(func() { w.check(t) })
	return w
}

// follow watches one kind. A watch that ends goes on where it was, so that no state is missed.
func (w *watcher) follow(ctx context.Context, api dynamic.ResourceInterface, resource string, listed func()) {
	defer listed()
	version := ""
	retry := time.NewTicker(50 * time.Millisecond)
	defer retry.Stop()
	for ; ctx.Err() == nil; <-retry.C {
		if version == "" {
			list, err := api.List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			w.replace(resource, list.Items)
			version = list.GetResourceVersion()
			listed()
		}
		events, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			if apierrors.IsGone(err) || apierrors.IsResourceExpired(err) {
				version = ""
			}
			continue
		}
		for event := range events.ResultChan() {
			object, ok := event.Object.(*unstructured.Unstructured)
			if event.Type == apiwatch.Error || !ok {
				version = ""
				break
			}
			version = object.GetResourceVersion()
			w.mu.Lock()
			w.see(resource+"/"+object.GetName(), object, event.Type == apiwatch.Deleted)
			w.mu.Unlock()
		}
		events.Stop()
	}
}

// replace takes a list for the events that were missed.
func (w *watcher) replace(resource string, list []unstructured.Unstructured) {
	w.mu.Lock()
	defer w.mu.Unlock()
	missing := maps.Clone(w.objects)
	for i := range list {
		key := resource + "/" + list[i].GetName()
		delete(missing, key)
		w.see(key, &list[i], false)
	}
	for key, object := range missing {
		if strings.HasPrefix(key, resource+"/") {
			w.see(key, object, true)
		}
	}
}

// see judges one state of an object, or its end.
func (w *watcher) see(key string, object *unstructured.Unstructured, gone bool) {
	before, now := w.objects[key], time.Now()
	if before != nil && before.GetResourceVersion() == object.GetResourceVersion() && !gone {
		return // of a list
	}
	w.objects[key] = object
	if gone {
		delete(w.objects, key)
	}
	mine := object.GetLabels()[managedBy] == ours || key == record
	was := before != nil && (before.GetLabels()[managedBy] == ours || key == record)
	w.states[key]++
	switch {
	case w.exempt[key] || key == record:
		return
	case before != nil && !was && before.GetUID() == object.GetUID():
		w.wrongf("%s, of somebody else, was changed or deleted: %v, before %v", key, object, before)
	case !mine:
		delete(w.slices, key)
		return
	case gone:
		name := w.slices[key].service
		if delete(w.slices, key); name == "" {
			name = object.GetName()
		}
		if s, ok := w.released[name]; !ok || now.Before(s.from) {
			w.wrongf("%s was deleted without a cause", key)
		} else if !s.until.IsZero() && now.After(s.until) {
			w.wrongf("%s was deleted %v after it had to go", key, now.Sub(s.until))
		}
	case object.GetKind() == "EndpointSlice":
		var typed discoveryv1.EndpointSlice
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &typed); err != nil {
			w.wrongf("%s: %v", key, err)
		}
		s := sliceOf(&typed)
		for _, endpoint := range s.endpoints {
			if !w.published[s.service][endpoint] {
				w.wrongf("%s has the endpoint %s, which %s does not have", key, endpoint, s.service)
			}
		}
		w.slices[key] = s
	}
}

func (w *watcher) wrongf(format string, args ...any) {
	w.wrong = append(w.wrong, time.Now().Format(time.TimeOnly+" ")+fmt.Sprintf(format, args...))
}

// sliceOf returns the endpoints of a slice, each at each port. One that is not ready is marked.
func sliceOf(typed *discoveryv1.EndpointSlice) slice {
	s := slice{service: typed.Labels[discoveryv1.LabelServiceName]}
	for _, endpoint := range typed.Endpoints {
		mark := ""
		if ready := endpoint.Conditions.Ready; ready != nil && !*ready {
			mark = " not ready"
		}
		for _, port := range typed.Ports {
			s.endpoints = append(s.endpoints, net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*port.Port)))+mark)
		}
	}
	return s
}

// allow says that the endpoints of a catalog may be there, beside those that are already.
func (w *watcher) allow(c catalog) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, endpoints := range c {
		if w.published[name] == nil {
			w.published[name] = make(map[string]bool)
		}
		for _, endpoint := range endpoints {
			w.published[name][endpoint] = true
		}
	}
}

// restrict says that there may be no others from now on, and that nothing goes.
func (w *watcher) restrict(c catalog) {
	w.mu.Lock()
	w.published, w.released = make(map[string]map[string]bool), make(map[string]span)
	w.mu.Unlock()
	w.allow(c)
}

// release says that the objects of services may go from now on.
func (w *watcher) release(services ...string) { w.expect(span{from: time.Now()}, services...) }

// expect says when the objects of services may go, and when they must have gone.
func (w *watcher) expect(when span, services ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, service := range services {
		w.released[service] = when
	}
}

// spare says that the test itself changes or deletes objects of others, resource/name.
func (w *watcher) spare(keys ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		w.exempt[key] = true
	}
}

// await calls f, and waits until an object has had two more states, such as what f makes of it, and what the
// importer makes of that.
func (w *watcher) await(t testing.TB, key string, f func()) {
	t.Helper()
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.states[key]
	}
	before := count()
	f()
	eventually(t, func() string {
		if n := count() - before; n < 2 {
			return fmt.Sprintf("%s has had %d states, want two", key, n)
		}
		return ""
	})
}

// object returns an object as it is, resource/name, or nil.
func (w *watcher) object(key string) *unstructured.Unstructured {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.objects[key]
}

// differs returns how the objects differ from those of a catalog, or "".
func (w *watcher) differs(want catalog) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	got := make(catalog)
	for key, object := range w.objects {
		if references := object.GetOwnerReferences(); key != record && object.GetLabels()[managedBy] == ours && (len(references) != 1 || w.objects[record] == nil || references[0].UID != w.objects[record].GetUID()) {
			return fmt.Sprintf("%s does not go with the record: %v", key, references)
		}
		if object.GetKind() == "Service" && object.GetLabels()[managedBy] == ours {
			got[object.GetName()] = nil
		}
	}
	for key, s := range w.slices {
		if _, ok := got[s.service]; !ok {
			return key + " is without its service " + s.service
		}
		got[s.service] = append(got[s.service], s.endpoints...)
	}
	for name, endpoints := range want {
		slices.Sort(got[name])
		if _, ok := got[name]; !ok || !slices.Equal(got[name], slices.Sorted(slices.Values(endpoints))) {
			return fmt.Sprintf("%s has the endpoints %v, want %v; there are %d services, want %d", name, got[name], endpoints, len(got), len(want))
		}
	}
	if len(got) != len(want) {
		return fmt.Sprintf("there are %d services, want %d", len(got), len(want))
	}
	return ""
}

// check ends the watch, and fails the test where something was wrong.
func (w *watcher) check(t testing.TB) {
	t.Helper()
	w.stop()
	for name, s := range w.released {
		if w.objects["services/"+name] != nil && !s.until.IsZero() && time.Now().After(s.until) {
			w.wrongf("%s is still there, and had to go at %v", name, s.until)
		}
	}
	for _, wrong := range w.wrong[:min(len(w.wrong), 20)] {
		t.Errorf("%d states were wrong: %s", len(w.wrong), wrong)
	}
	w.wrong = nil
}
