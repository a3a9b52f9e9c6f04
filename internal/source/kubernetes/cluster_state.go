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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/kube"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
)

// objectName is the namespace and the name of an object.
type objectName = types.NamespacedName

// kindName names an object among those of all kinds.
type kindName struct {
	kind objectKind
	name objectName
}

// referenceIndex has, by the name of an object, the objects that refer to it.
type referenceIndex map[objectName]map[kindName]metav1.Object

// updateReferences updates the index after an object has changed that referred to before and now
// refers to after.
func (x referenceIndex) updateReferences(id kindName, object metav1.Object, before, after []objectName) {
	for _, of := range before {
		delete(x[of], id)
		if len(x[of]) == 0 {
			delete(x, of)
		}
	}
	for _, of := range after {
		if x[of] == nil {
			x[of] = make(map[kindName]metav1.Object, 1)
		}
		x[of][id] = object
	}
}

// clusterState keeps what is known of a cluster: trimmed objects, indexes from them to the Services
// that they belong to, and the Services that have to be evaluated again because something has
// changed. Watches put objects in, and the publisher takes the marked Services out, both under mu.
// The state outlives connections and watches, so that a new watch changes only what is different.
// Its size follows the cluster, and objects are trimmed because there may be many. It keeps no
// Services that it publishes: the publisher does.
type clusterState struct {
	wake chan struct{} // has a token when the publisher has something to do

	mu       sync.Mutex
	objects  [kinds]map[objectName]metav1.Object
	parts    referenceIndex       // EndpointSlices and routes, by Service
	children referenceIndex       // routes, by Gateway
	nodes    []*corev1.Node       // never changed, only replaced
	onNodes  sets.Set[objectName] // Services whose verdict is about the nodes as well
	dirty    sets.Set[objectName] // Services to evaluate again
	health   clusterHealth
}

func newClusterState(grace time.Duration) *clusterState {
	w := &clusterState{
		wake: make(chan struct{}, 1), parts: make(referenceIndex), children: make(referenceIndex), onNodes: sets.New[objectName](), dirty: sets.New[objectName](),
		health: clusterHealth{grace: grace, watches: make(map[watchID]watchProgress)},
	}
	for k := range kinds {
		w.objects[k] = make(map[objectName]metav1.Object)
	}
	return w
}

func nameOf(object metav1.Object) objectName {
	return objectName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// putObject stores an object that is new or has changed. The caller holds mu.
func (w *clusterState) putObject(k objectKind, object metav1.Object) {
	of := nameOf(object)
	before := w.objects[k][of]
	w.objects[k][of] = object
	if before == nil || !equalButVersion(before, object) {
		w.reindexObject(kindName{k, of}, before, object)
	}
}

// equalButVersion reports whether two trimmed objects differ at most in their version.
func equalButVersion(a, b metav1.Object) bool {
	version := b.GetResourceVersion()
	b.SetResourceVersion(a.GetResourceVersion())
	same := apiequality.Semantic.DeepEqual(a, b)
	b.SetResourceVersion(version)
	return same
}

// removeObject removes an object. The caller holds mu.
func (w *clusterState) removeObject(k objectKind, of objectName) {
	if before, ok := w.objects[k][of]; ok {
		delete(w.objects[k], of)
		w.reindexObject(kindName{k, of}, before, nil)
	}
}

// reindexObject updates the indexes after an object has changed, and marks the Services that it
// belongs to. The caller holds mu.
func (w *clusterState) reindexObject(id kindName, before, after metav1.Object) {
	switch id.kind {
	case kindService, kindExport:
		w.dirty.Insert(id.name)
	case kindNode:
		w.nodes = nil
		maps.Copy(w.dirty, w.onNodes)
	case kindGateway:
		for _, route := range w.children[id.name] {
			w.dirty.Insert(servicesOf(route)...)
		}
	default:
		w.parts.updateReferences(id, after, servicesOf(before), servicesOf(after))
		w.children.updateReferences(id, after, gatewaysOf(before), gatewaysOf(after))
		w.dirty.Insert(servicesOf(before)...)
		w.dirty.Insert(servicesOf(after)...)
	}
}

// servicesOf returns the Services that an EndpointSlice or a route refers to.
func servicesOf(object metav1.Object) []objectName {
	switch o := object.(type) {
	case *discoveryv1.EndpointSlice:
		return []objectName{{Namespace: o.Namespace, Name: o.Labels[discoveryv1.LabelServiceName]}}
	case *export.Route:
		return o.Services()
	}
	return nil
}

// gatewaysOf returns the Gateways that a route refers to.
func gatewaysOf(object metav1.Object) []objectName {
	if route, ok := object.(*export.Route); ok {
		return route.Gateways()
	}
	return nil
}

// exportInput returns what is known of a Service, and whether it is exported. With narrowed, a
// Service may exist although it is not known.
func (w *clusterState) exportInput(of objectName, narrowed bool) (in export.Input, exported bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in.Service, _ = w.objects[kindService][of].(*corev1.Service)
	in.Export, _ = w.objects[kindExport][of].(*mcsv1beta1.ServiceExport)
	if in.Service == nil && (in.Export == nil || narrowed) || in.Export == nil && in.Service.Labels[export.Label] != "true" {
		return export.Input{}, false
	}
	if w.nodes == nil {
		for _, node := range w.objects[kindNode] {
			w.nodes = append(w.nodes, node.(*corev1.Node)) // put by the watch of nodes
		}
	}
	in.Nodes = w.nodes
	for _, object := range w.parts[of] {
		switch o := object.(type) {
		case *discoveryv1.EndpointSlice:
			in.Slices = append(in.Slices, o)
		case *export.Route:
			in.Routes = append(in.Routes, o)
			for _, parent := range o.Gateways() {
				gateway, ok := w.objects[kindGateway][parent].(*gatewayv1.Gateway)
				if ok && !slices.Contains(in.Gateways, gateway) {
					in.Gateways = append(in.Gateways, gateway)
				}
			}
		}
	}
	return in, true
}

// deferIfMissing reports whether a Service has to stay as it is, because its verdict depends on
// objects of missing watches: these cannot be read, and may have changed. The Service is then
// marked again for the next change, and for when the objects can be read. Known says that the
// Service is known. For a Service that does not stay, deferIfMissing records whether its verdict
// depends on the nodes.
func (w *clusterState) deferIfMissing(of objectName, missing []watchID, known bool, v export.Verdict) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := slices.ContainsFunc(missing, func(id watchID) bool {
		return (id.namespace == "" || id.namespace == of.Namespace) && (id.kind == kindService || known && w.dependsOnKind(id.kind, of, v))
	})
	switch {
	case held:
		w.dirty.Insert(of)
	case v.Nodes:
		w.onNodes.Insert(of)
	default:
		w.onNodes.Delete(of)
	}
	return held
}

// dependsOnKind reports whether objects of a kind belong to a Service with that verdict. Of routes
// and exports only known ones count, so that a Service that never had one does not wait for them.
// The caller holds mu.
func (w *clusterState) dependsOnKind(k objectKind, of objectName, v export.Verdict) bool {
	switch k {
	case kindExport:
		return w.objects[k][of] != nil
	case kindNode:
		return v.Nodes
	case kindSlice:
		return v.Slices
	}
	for id := range w.parts[of] {
		if id.kind == k || k == kindGateway && id.kind != kindSlice {
			return true
		}
	}
	return false
}

// takeDirty returns the marked Services, and the health of reading the cluster, which is true once
// these Services have been published. It returns no Services while only half of the cluster is
// known: until everything has been read for the first time, as begun says, and while watches that
// have lost touch read everything again. It does not wait for watches that cannot read: they only
// hold up the Services that need them.
func (w *clusterState) takeDirty(now time.Time, begun bool) (sets.Set[objectName], healthSummary) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.health.summaryAt(now)
	if s.partial || !begun && !s.current {
		return nil, s
	}
	batch := w.dirty
	w.dirty = sets.New[objectName]()
	return batch, s
}

// noteWatchBegun records that a watch starts, or will be started again, and so has read nothing
// yet.
func (w *clusterState) noteWatchBegun(id watchID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.health.watches[id] = watchProgress{once: w.health.watches[id].once, begun: true}
}

// noteNotServed records that a kind is not served any more, so that there is nothing to watch. Its
// objects stay, and the health says that they cannot be followed.
func (w *clusterState) noteNotServed(id watchID, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.health.watches[id]
	p.begun, p.synced = false, false
	if len(w.objects[id.kind]) > 0 {
		p.problem.noteOutcome(kube.ClassErrorf("removed", "%v are not served by the cluster any more; services that they published stay", id.kind), now)
	}
	w.health.watches[id] = p
}

// noteAttempt records how an attempt of a watch ended, where nil is success, and reports whether
// that is news.
func (w *clusterState) noteAttempt(id watchID, err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.health.watches[id]
	news := p.problem.noteOutcome(err, time.Now())
	w.health.watches[id] = p
	return news
}
