package importer

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

const oneRequest = 10 * time.Second // bounds a request

// errUnread says that a name is written later, once everything has been read.
var errUnread = errors.New("objects are being read")

// anchorName stands for the ConfigMap in the queue.
var anchorName = types.NamespacedName{Name: anchor} //nolint:gochecknoglobals // never changed

// drainQueue writes the names in the queue until it is shut down.
func (m *Importer) drainQueue(ctx context.Context, queue workqueue.TypedRateLimitingInterface[types.NamespacedName]) {
	for {
		name, end := queue.Get()
		if end || ctx.Err() != nil {
			return
		}
		again, err := m.writeName(ctx, name)
		m.noteResult(name, err)
		switch {
		case errors.Is(err, errUnread):
		case err != nil && ctx.Err() == nil:
			queue.AddRateLimited(name)
		case again > 0:
			queue.AddAfter(name, again)
			fallthrough
		default:
			queue.Forget(name)
		}
		queue.Done(name)
	}
}

// noteResult records how a name was written. An answer of the server that another attempt will hardly
// change is one for which owners need not wait.
func (m *Importer) noteResult(name types.NamespacedName, err error) {
	switch {
	case errors.Is(err, errUnread), apierrors.IsConflict(err), apierrors.IsTooManyRequests(err):
		return
	case err != nil && !isDefinite(err):
		m.noteAnswer("write", err)
		return
	}
	m.noteAnswer("write", nil)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch n := m.names[name]; {
	case n == nil:
	case err != nil:
		m.refuse(n, name, status.ImportRejected, "the API server does not take it: "+m.client.ExplainError(err).Error())
	case len(n.offers) == 0 && len(n.objects) == 0:
		delete(m.names, name)
	}
	for _, f := range m.owners {
		f.noteWritten(name)
	}
}

// isDefinite reports whether an error is an answer that stands until somebody changes something: a
// quota, a missing right, an object that is not valid.
func isDefinite(err error) bool {
	answer := apierrors.APIStatus(nil)
	if !errors.As(err, &answer) {
		return false
	}
	code := answer.Status().Code
	return code < http.StatusInternalServerError && code != http.StatusUnauthorized
}

// refuse records why a name has not the objects that it should have. The caller holds mu.
func (m *Importer) refuse(n *importedName, name types.NamespacedName, reason, rule string) {
	since := n.refused.since
	if n.refused.reason != reason {
		since = time.Now().UTC()
		m.log.Warn("a service is not written", "object", name.String(), "reason", reason, "rule", rule)
	}
	n.refused = refusal{since, reason, rule}
}

// plan is what becomes of the objects of a name: those there are to be as those wanted, which are written in
// their order, and the others of the importer go. Without any of either, all stay as they are.
type plan struct {
	there  map[objectKey]object // but for those that stay as they are
	wanted []object
	begun  bool          // more is wanted as soon as these are there, because it refers to them
	again  time.Duration // when to look again although nothing has changed; 0: never

	reason, rule string // why the name has not the objects that it should have, as those of a refusal

	clusterSet // with ServiceImports
}

// writeName writes what differs between the objects of a name and what they should be. It returns when to look
// again although nothing has changed, or 0 for never.
func (m *Importer) writeName(ctx context.Context, name types.NamespacedName) (again time.Duration, err error) {
	owned, err := m.ensureAnchor(ctx, name == anchorName)
	if err != nil || name == anchorName {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[name]
	switch {
	case !m.listed:
		return 0, errUnread
	case n == nil:
		return 0, nil
	}
	since := n.changed
	n.changed = time.Time{} // whatever changes from now on sets it
	m.mu.Unlock()
	p := plan{begun: true}
	for p.begun && err == nil {
		p = m.planName(ctx, name, n, *owned)
		err = m.writeDifference(ctx, &p)
	}
	if err == nil && m.config.Target.MCS {
		err = m.writeStatuses(ctx, name, n, &p)
	}
	switch {
	case apierrors.IsAlreadyExists(err):
		p.reason, p.rule, p.again, err = status.ImportNameTaken, "there is an object of the name that no importer has made", longestPause, nil
	case errors.Is(err, errNoNamespace):
		p.reason, p.rule, p.again, err = status.ImportNamespace, "there is no namespace "+name.Namespace+" in this cluster", longestPause, nil
	}
	m.mu.Lock()
	switch {
	case err != nil:
		n.changed = since
	case p.reason != "":
		m.refuse(n, name, p.reason, p.rule)
	default:
		n.refused = refusal{}
	}
	return p.again, err
}

// planName returns what becomes of the objects of a name. Objects that the ConfigMap owns refer to it as said.
func (m *Importer) planName(ctx context.Context, name types.NamespacedName, n *importedName, owned metav1.OwnerReference) (p plan) {
	if m.config.Target.MCS {
		return m.planImport(ctx, name, n)
	}
	m.mu.Lock()
	until, kept := m.keptUntil(n, n.service(name))
	o, service := m.chooseOffer(n, name), n.service(name)
	var offered packed.Service
	if o != nil {
		offered = o.service
	}
	p.there = maps.Clone(n.objects)
	m.mu.Unlock()
	switch {
	case kept:
		return plan{again: time.Until(until)}
	case o == nil: // nothing is wanted
		return p
	case service != nil && !m.isOurs(service):
		p.reason, p.rule = status.ImportNameTaken, "there is a Service of the name that no importer has made"
		return p
	}
	s := offered.Unpack()
	addresses, again, unknown := m.resolveEndpoints(ctx, o.owner, s)
	p.again = again
	ports := servedPorts(s, addresses)
	switch {
	case unknown != "":
		p.reason, p.rule = status.ImportNoEndpoint, "the host "+unknown+" of an endpoint cannot be looked up"
		if service != nil {
			p.there = nil // what is there stays, for want of an answer
			return p
		}
	case len(ports) == 0:
		p.reason, p.rule = status.ImportNoEndpoint, "no instance has an endpoint with an address"
	}
	switch {
	case len(ports) > 0:
		meta := metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, OwnerReferences: []metav1.OwnerReference{owned}, Labels: map[string]string{managedBy: manager}}
		noteService(&meta, o.owner, offered)
		p.wanted = m.config.Target.serviceObjects(meta, ports)
	case service != nil:
		p.wanted = []object{service} // and with it its address
	}
	return p
}

// chooseOffer returns the offer that has a name, or nil: the one that its objects are of, or else the
// first. The caller holds mu.
func (m *Importer) chooseOffer(n *importedName, name types.NamespacedName) (first *offer) {
	if there := n.service(name); m.isOurs(there) {
		if o := n.offerOf(there); o != nil {
			return o
		}
	}
	for o := range n.offers {
		if first == nil || o.age < first.age {
			first = o
		}
	}
	return first
}

// keptUntil reports whether an object of a name stays although no offer is its own, because its owner
// may still offer the service, and until when. The caller holds mu.
func (m *Importer) keptUntil(n *importedName, there object) (until time.Time, kept bool) {
	if !m.isOurs(there) || n.offerOf(there) != nil {
		return until, false
	}
	i := slices.IndexFunc(m.owners, func(f *followedOwner) bool { return f.Name == there.GetAnnotations()[ownerKey] })
	if i < 0 {
		return until, false // the configuration has it no more
	}
	until = m.owners[i].keptUntil()
	return until, time.Now().Before(until)
}

// writeDifference creates and changes what is wanted, in order, and removes what else there is of the
// importer, Services first.
func (m *Importer) writeDifference(ctx context.Context, p *plan) error {
	for _, w := range p.wanted {
		key := keyOf(w)
		is := p.there[key]
		if delete(p.there, key); is != nil && m.isOurs(is) && isHeadless(is) != isHeadless(w) { // a virtual address cannot be taken away
			if err := m.remove(ctx, key, is); err != nil {
				return err
			}
			is = nil
		}
		if err := m.put(ctx, key, is, w); err != nil {
			return err
		}
	}
	for _, kind := range []string{importKind, serviceKind, sliceKind} {
		for key, is := range p.there {
			if key.kind == kind && m.isOurs(is) {
				if err := m.remove(ctx, key, is); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// isHeadless reports whether an object is a Service without a virtual address.
func isHeadless(o object) bool {
	s, ok := o.(*corev1.Service)
	return ok && s.Spec.ClusterIP == corev1.ClusterIPNone
}

// errNoNamespace says that the namespace of an object does not exist.
var errNoNamespace = errors.New("there is no such namespace")

// put creates an object, or changes the one that is there.
func (m *Importer) put(ctx context.Context, key objectKey, is, wanted object) error {
	switch {
	case is == nil:
		err := m.send(ctx, key, m.api[key.kind].Post().Body(wanted), wanted)
		if apierrors.IsNotFound(err) {
			err = errNoNamespace
		}
		return err
	case !m.isOurs(is):
		return apierrors.NewAlreadyExists(corev1.Resource(key.kind), key.name.Name)
	}
	next := withWanted(is, wanted)
	if apiequality.Semantic.DeepEqual(is, next) {
		return nil
	}
	return m.send(ctx, key, m.api[key.kind].Put().Name(key.name.Name).Body(next), next)
}

// remove removes an object that was read.
func (m *Importer) remove(ctx context.Context, key objectKey, is object) error {
	options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(is.GetUID()))}
	err := m.send(ctx, key, m.api[key.kind].Delete().Name(key.name.Name).Body(options), nil)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetObject(is)
	return nil
}

// send sends a request that writes, and notes the object that it results in, unless that is nil.
func (m *Importer) send(ctx context.Context, key objectKey, request *rest.Request, result object) error {
	ctx, cancel := context.WithTimeout(ctx, oneRequest)
	defer cancel()
	answer := request.Namespace(key.name.Namespace).Resource(key.kind).Do(ctx)
	err := answer.Error()
	if err == nil && result != nil {
		err = answer.Into(result)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && result != nil {
		m.noteObject(result, false)
	}
	return err
}
