package kubernetes

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
)

// name is the namespace and the name of an object.
type name = cache.ObjectName

// routeName names a route among those of all kinds.
type routeName struct {
	kind kind
	name name
}

// world is what is known of a cluster: trimmed objects, indexes from them to the
// Services that they belong to, and the Services to look at again because of what has
// changed. It outlives connections and watches: a new watch brings what is different.
// It is safe for concurrent use.
type world struct {
	wake     chan struct{} // has a token when there is something to do
	doubtful chan struct{} // has a token when there are doubts

	mu       sync.Mutex
	objects  [kinds]map[name]metav1.Object
	slices   map[name]map[string]*discoveryv1.EndpointSlice // by Service
	parsed   map[routeName]export.Route
	routes   map[name]map[routeName]struct{} // by Service
	children map[name]map[routeName]struct{} // by Gateway
	nodes    []*corev1.Node                  // never changed, only replaced
	onNodes  map[name]struct{}               // Services whose verdict is about the nodes as well
	dirty    map[name]struct{}
	doubted  [kinds]map[name]struct{} // objects that are gone, unless their definition goes
	missing  []watched                // watches that have lost touch and cannot read
	held     map[name]struct{}        // Services to look at when missing is another
	health   health
}

func newWorld(grace time.Duration) *world {
	w := &world{
		wake: make(chan struct{}, 1), doubtful: make(chan struct{}, 1),
		slices: make(map[name]map[string]*discoveryv1.EndpointSlice),
		parsed: make(map[routeName]export.Route), routes: make(map[name]map[routeName]struct{}),
		children: make(map[name]map[routeName]struct{}),
		onNodes:  make(map[name]struct{}), dirty: make(map[name]struct{}), held: make(map[name]struct{}),
		health: newHealth(grace),
	}
	for k := range kinds {
		w.objects[k], w.doubted[k] = make(map[name]metav1.Object), make(map[name]struct{})
	}
	return w
}

// rouse makes the worker look. It does not block.
func (w *world) rouse() {
	select {
	case w.wake <- struct{}{}:
	default: // it is about to look
	}
}

func nameOf(object metav1.Object) name {
	return name{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// put takes an object that is new or has changed. One of a version that is known is
// the same object, but not in the first list of a watch: a cluster that was set back
// to a backup gives out versions for the second time. It is called with mu held.
func (w *world) put(k kind, object metav1.Object, first bool) {
	of := nameOf(object)
	delete(w.doubted[k], of)
	before := w.objects[k][of]
	w.objects[k][of] = object
	known := !first && before != nil && before.GetResourceVersion() == object.GetResourceVersion() && before.GetUID() == object.GetUID()
	if !known && (before == nil || !alike(before, object)) {
		w.index(k, of, before, object)
	}
}

// alike reports whether two trimmed objects differ at most in their version.
func alike(a, b metav1.Object) bool {
	version := b.GetResourceVersion()
	b.SetResourceVersion(a.GetResourceVersion())
	same := apiequality.Semantic.DeepEqual(a, b)
	b.SetResourceVersion(version)
	return same
}

// remove takes that an object is gone. Whether it is, is in doubt where the
// definition of its kind may be going. It is called with mu held.
func (w *world) remove(k kind, of name) {
	if _, ok := w.objects[k][of]; !ok {
		return
	}
	if resources[k].custom {
		w.doubted[k][of] = struct{}{}
		select {
		case w.doubtful <- struct{}{}:
		default:
		}
		return
	}
	w.drop(k, of)
}

func (w *world) drop(k kind, of name) {
	before := w.objects[k][of]
	delete(w.objects[k], of)
	w.index(k, of, before, nil)
}

// index brings the indexes from one state of an object to the next, and marks the
// Services that it belongs to. It is called with mu held.
func (w *world) index(k kind, of name, before, after metav1.Object) {
	switch k {
	case kindService, kindExport:
		w.dirty[of] = struct{}{}
	case kindSlice:
		w.indexSlice(before, after)
	case kindNode:
		w.nodes = nil
		maps.Copy(w.dirty, w.onNodes)
	case kindGateway:
		for route := range w.children[of] {
			w.markBackends(w.parsed[route])
		}
	default:
		w.indexRoute(routeName{k, of}, after)
	}
}

func (w *world) indexSlice(before, after metav1.Object) {
	if before != nil {
		of := serviceOf(before)
		delete(w.slices[of], before.GetName())
		if len(w.slices[of]) == 0 {
			delete(w.slices, of)
		}
		w.dirty[of] = struct{}{}
	}
	if slice, ok := after.(*discoveryv1.EndpointSlice); ok {
		of := serviceOf(slice)
		if w.slices[of] == nil {
			w.slices[of] = make(map[string]*discoveryv1.EndpointSlice, 1)
		}
		w.slices[of][slice.Name] = slice
		w.dirty[of] = struct{}{}
	}
}

// serviceOf returns the Service that an EndpointSlice belongs to.
func serviceOf(slice metav1.Object) name {
	return name{Namespace: slice.GetNamespace(), Name: slice.GetLabels()[discoveryv1.LabelServiceName]}
}

func (w *world) indexRoute(id routeName, after metav1.Object) {
	if before, ok := w.parsed[id]; ok {
		w.markBackends(before)
		for _, of := range before.Services() {
			unlink(w.routes, cache.NamespacedNameAsObjectName(of), id)
		}
		for _, of := range before.Gateways() {
			unlink(w.children, cache.NamespacedNameAsObjectName(of), id)
		}
		delete(w.parsed, id)
	}
	route, ok := export.RouteOf(after)
	if !ok {
		return
	}
	w.parsed[id] = route
	for _, of := range route.Services() {
		link(w.routes, cache.NamespacedNameAsObjectName(of), id)
	}
	for _, of := range route.Gateways() {
		link(w.children, cache.NamespacedNameAsObjectName(of), id)
	}
	w.markBackends(route)
}

func (w *world) markBackends(route export.Route) {
	for _, of := range route.Services() {
		w.dirty[cache.NamespacedNameAsObjectName(of)] = struct{}{}
	}
}

func link(index map[name]map[routeName]struct{}, of name, id routeName) {
	if index[of] == nil {
		index[of] = make(map[routeName]struct{}, 1)
	}
	index[of][id] = struct{}{}
}

func unlink(index map[name]map[routeName]struct{}, of name, id routeName) {
	delete(index[of], id)
	if len(index[of]) == 0 {
		delete(index, of)
	}
}

// subject is everything that is known of one Service.
type subject struct {
	exported bool
	input    export.Input
	object   *mcsv1beta1.ServiceExport // nil where the label exports it
}

// subject returns what is known of a Service. narrowed says that a Service that is
// not known may be there.
func (w *world) subject(of name, narrowed bool) subject {
	w.mu.Lock()
	defer w.mu.Unlock()
	var s subject
	s.input.Service, _ = w.objects[kindService][of].(*corev1.Service)
	s.object, _ = w.objects[kindExport][of].(*mcsv1beta1.ServiceExport)
	switch {
	case s.object != nil && (s.input.Service != nil || !narrowed):
		s.input.Export, _ = export.ExportOf(s.object)
	case s.input.Service != nil && s.object == nil && s.input.Service.Labels[export.Label] == "true":
		s.input.Export = export.Export{Namespace: of.Namespace, Name: of.Name, Labelled: true}
	default:
		return subject{}
	}
	s.exported = true
	for _, slice := range w.slices[of] {
		s.input.Slices = append(s.input.Slices, slice)
	}
	if w.nodes == nil {
		for _, node := range w.objects[kindNode] {
			w.nodes = append(w.nodes, node.(*corev1.Node)) // put by the watch of nodes
		}
	}
	s.input.Nodes = w.nodes
	seen := make(map[name]struct{})
	for id := range w.routes[of] {
		route := w.parsed[id]
		s.input.Routes = append(s.input.Routes, route)
		for _, parent := range route.Gateways() {
			of := cache.NamespacedNameAsObjectName(parent)
			if _, again := seen[of]; again {
				continue
			}
			seen[of] = struct{}{}
			if gateway, ok := w.objects[kindGateway][of].(*gatewayv1.Gateway); ok {
				s.input.Gateways = append(s.input.Gateways, gateway)
			}
		}
	}
	return s
}

// asked notes whether the verdict on a Service is about the nodes as well.
func (w *world) asked(of name, nodes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if nodes {
		w.onNodes[of] = struct{}{}
	} else {
		delete(w.onNodes, of)
	}
}

// hold reports whether a Service has to be left as it is, because its verdict is about
// objects that cannot be read, and may be others than those that are known. It is looked
// at again when they can be.
func (w *world) hold(of name, service *corev1.Service, v export.Verdict) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.ContainsFunc(w.missing, func(id watched) bool {
		return (id.namespace == "" || id.namespace == of.Namespace) && (id.kind == kindService || service != nil && w.leads(id.kind, of, v))
	}) {
		return false
	}
	w.held[of] = struct{}{}
	return true
}

// leads reports whether objects of a kind belong to a Service with that verdict. Of routes
// and exports it is those that are known: a Service that never had one does not wait for
// them. It is called with mu held.
func (w *world) leads(k kind, of name, v export.Verdict) bool {
	switch k {
	case kindExport:
		return w.objects[k][of] != nil
	case kindNode:
		return v.Nodes
	case kindSlice:
		return v.Slices
	case kindGateway:
		return len(w.routes[of]) > 0
	}
	for route := range w.routes[of] {
		if route.kind == k {
			return true
		}
	}
	return false
}

// next returns the Services to look at, and how reading the cluster goes: what that
// says is true once they have been looked at. There are none while half of a world is
// known: until everything has been read for the first time, of which begun says that
// it has happened, and while watches that have lost touch read everything again.
// Those that cannot are not waited for, and hold up those Services that need them.
func (w *world) next(now time.Time, begun bool) ([]name, standing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.standing(now)
	if s.partial || !begun && !s.current {
		return nil, s
	}
	if !slices.Equal(w.missing, s.missing) {
		w.missing = s.missing
		maps.Copy(w.dirty, w.held)
		clear(w.held)
	}
	batch := make([]name, 0, len(w.dirty))
	for of := range w.dirty {
		batch = append(batch, of)
	}
	clear(w.dirty)
	return batch, s
}

// standing returns how reading the cluster goes. It is called with mu held.
func (w *world) standing(now time.Time) standing {
	doubts := slices.ContainsFunc(w.doubted[:], func(names map[name]struct{}) bool { return len(names) > 0 })
	return w.health.standing(now, doubts)
}

// begin notes that a watch knows nothing yet: it starts, or will be started again.
func (w *world) begin(id watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	once := w.health.once[id]
	if p := w.health.watches[id]; p != nil {
		once = p.once
	}
	w.health.watches[id] = &progress{once: once}
}

// end notes that there is nothing to watch any more.
func (w *world) end(id watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.health.watches[id]; p != nil {
		w.health.once[id] = p.once
		delete(w.health.watches, id)
	}
}

// doubts returns the objects of which it is not known why they are gone, by kind. A
// kind that was not served, and is, has an entry as well.
func (w *world) doubts(found map[kind]string) map[kind]map[name]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	doubts := make(map[kind]map[name]struct{})
	for i, names := range w.doubted {
		k := kind(i)
		if len(names) > 0 || w.health.definition[k].reason != nil && found[k] != "" {
			doubts[k] = maps.Clone(names)
		}
	}
	return doubts
}

// settle drops those of the objects in doubt that have not come back: they were
// deleted.
func (w *world) settle(k kind, gone map[name]struct{}) {
	w.mu.Lock()
	for of := range gone {
		if _, ok := w.doubted[k][of]; ok {
			delete(w.doubted[k], of)
			w.drop(k, of)
		}
	}
	w.health.definition[k] = problem{}
	w.mu.Unlock()
	w.rouse()
}

// unresolved notes why it is not known whether objects were deleted.
func (w *world) unresolved(k kind, reason error, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.health.definition[k].set(reason, now)
}

// keep ends the doubts about objects whose definition goes: they stay.
func (w *world) keep(k kind, names map[name]struct{}, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for of := range names {
		delete(w.doubted[k], of)
	}
	w.health.definition[k].set(removed(k), now)
}

// undefined notes that a kind is not served. Its objects stay, and that they cannot be
// followed is said.
func (w *world) undefined(k kind, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.doubted[k])
	if len(w.objects[k]) > 0 {
		w.health.definition[k].set(removed(k), now)
	}
}

// classRemoved is the class of the reason that a kind is not served any more.
const classRemoved = "removed"

func removed(k kind) error {
	return classed(classRemoved, "%v are not served any more: what is published because of them stays", k)
}
