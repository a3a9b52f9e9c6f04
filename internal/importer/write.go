package importer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

const oneRequest = 10 * time.Second // bounds a request

// isDefinite reports whether an error is an answer that stands until somebody changes something: a
// quota, a missing right, an object that is not valid. Owners need not wait for that.
func isDefinite(err error) bool {
	answer := apierrors.APIStatus(nil)
	if !errors.As(err, &answer) || apierrors.IsUnauthorized(err) || apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) {
		return false
	}
	return answer.Status().Code < http.StatusInternalServerError
}

// plan is what becomes of the objects of a name: those there are to be as those wanted, which are written in
// their order, and the others of the importer go. Without any of either, all stay as they are.
type plan struct {
	there  map[objectKey]object // but for those that stay as they are
	wanted []object
	begun  bool          // more is wanted as soon as these are there, because it refers to them
	again  time.Duration // when to look again although nothing has changed; 0: never

	reason, rule string // why the name has not the objects that it should have, as State and Rule of status.ImportedService

	statuses []statusChange // with ServiceImports
}

// writeName writes what differs between the objects of a name and what they should be. It returns when to look
// again although nothing has changed, or 0 for never, and whether the server has not taken everything.
func (m *Importer) writeName(ctx context.Context, name types.NamespacedName) (again time.Duration, failed bool) {
	m.mu.Lock()
	n := m.names[name]
	if n == nil || !m.listed {
		m.mu.Unlock()
		return 0, false // it comes again once everything has been read
	}
	n.again = false
	m.mu.Unlock()
	p, err := plan{begun: true}, m.ensureAnchor(ctx)
	for p.begun && err == nil {
		p = m.planName(ctx, name, n)
		err = m.writeDifference(ctx, &p)
	}
	if err == nil {
		err = m.writeStatuses(ctx, p.statuses)
	}
	settled := err == nil || isDefinite(err)
	if settled {
		m.noteAnswer("write", nil)
	} else if ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsTooManyRequests(err) {
		m.noteAnswer("write", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !settled {
		return 0, true
	}
	if err != nil {
		p.reason, p.rule = status.ImportRejected, "the API server does not take it: "+m.client.ExplainError(err).Error()
		if apierrors.IsAlreadyExists(err) {
			p.reason, p.rule = status.ImportNameTaken, "there is an object of the name that no importer has made"
		} else if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			p.reason, m.anchored = status.ImportNamespace, false // the ConfigMap may go with the namespace
		}
	}
	m.noteWritten(name, n, p.reason, p.rule)
	return p.again, err != nil
}

// noteWritten records that the server has answered for a name, and why its objects are not those that it
// should have; without a reason, they are. The caller holds mu.
func (m *Importer) noteWritten(name types.NamespacedName, n *importedName, reason, rule string) {
	since := n.refused.Since
	if n.refused.State != reason {
		since = time.Now().UTC()
		if reason != "" {
			m.log.Warn("a service is not written", "object", name.String(), "reason", reason, "rule", rule)
		}
	}
	n.refused = status.ImportedService{Object: name.String(), State: reason, Since: since, Rule: rule}
	if n.again {
		return // it is written once more
	}
	n.changed = time.Time{}
	if len(n.offers) == 0 && len(n.objects) == 0 {
		delete(m.names, name)
	}
	for _, f := range m.owners {
		f.noteWritten(name)
	}
}

// planName returns what becomes of the objects of a name.
func (m *Importer) planName(ctx context.Context, name types.NamespacedName, n *importedName) (p plan) {
	if m.config.Target.MCS {
		return m.planImport(ctx, name, n)
	}
	m.mu.Lock()
	service := n.service(name)
	o, left := m.offerOf(service)
	if o == nil && left == 0 && len(n.offers) > 0 {
		o = n.offers[0]
	}
	var offered packed.Service
	meta := metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, OwnerReferences: []metav1.OwnerReference{m.anchor}, Labels: map[string]string{managedBy: manager}}
	if o != nil {
		offered = o.service
	}
	p.there = maps.Clone(n.objects)
	m.mu.Unlock()
	switch {
	case left > 0:
		return plan{again: left}
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
		noteService(&meta, o.owner, offered)
		ofSlices := *meta.DeepCopy()
		ofSlices.Labels[discoveryv1.LabelServiceName], ofSlices.Labels[discoveryv1.LabelManagedBy] = name.Name, manager
		// The Service comes first: clients see no endpoints of one that could be somebody else's.
		p.wanted = append([]object{newService(meta, ports, m.config.Target.Headless)}, newSlices(ofSlices, ports)...)
	case service != nil:
		p.wanted = []object{service} // and with it its address
	}
	return p
}

// offerOf returns the offer that an object of the importer was written for. Without one, it returns how much
// longer the object stays all the same. The caller holds mu.
func (m *Importer) offerOf(there object) (o *offer, left time.Duration) {
	if !m.isOurs(there) {
		return nil, 0
	}
	noted := there.GetAnnotations()
	for _, f := range m.owners { // without the owner in the configuration, it goes
		if f.Name == noted[ownerKey] {
			if o = f.offers[noted[serviceAnnotation]]; o == nil || o.name != nameOf(there) {
				return nil, f.keptFor()
			}
		}
	}
	return o, 0
}

// ensureAnchor reads the ConfigMap, or makes it, where it may be another than before. Nothing refers to it
// with ServiceImports.
func (m *Importer) ensureAnchor(ctx context.Context) error {
	m.anchoring.Lock()
	defer m.anchoring.Unlock()
	m.mu.Lock()
	sure := m.anchored || m.config.Target.MCS
	m.mu.Unlock()
	if sure {
		return nil
	}
	there, of := new(corev1.ConfigMap), func(r *rest.Request) *rest.Request {
		return r.Namespace(m.config.Target.Namespace).Resource(mapKind).Timeout(oneRequest)
	}
	err := of(m.api[mapKind].Get()).Name(anchor).Do(ctx).Into(there)
	switch {
	case apierrors.IsNotFound(err):
		there.ObjectMeta = metav1.ObjectMeta{Name: anchor, Labels: map[string]string{managedBy: manager}}
		err = of(m.api[mapKind].Post()).Body(there).Do(ctx).Into(there)
	case err == nil && !m.isOurs(there):
		err = fmt.Errorf("the ConfigMap %s is one that no importer has made; remove it, or import into another namespace", anchor)
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.anchored = true; m.anchor.UID != there.UID {
		m.anchor = metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: anchor, UID: there.UID}
		m.enqueueAll() // they refer to the one before
	}
	return nil
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

// put creates an object, or changes the one that is there.
func (m *Importer) put(ctx context.Context, key objectKey, is, wanted object) error {
	switch {
	case is == nil:
		return m.send(ctx, key, m.api[key.kind].Post().Body(wanted), wanted)
	case !m.isOurs(is):
		return apierrors.NewAlreadyExists(corev1.Resource(key.kind), key.name.Name)
	}
	next := withWanted(is, wanted)
	if apiequality.Semantic.DeepEqual(is, next) {
		return nil
	}
	err := m.send(ctx, key, m.api[key.kind].Put().Name(key.name.Name).Body(next), next)
	if apierrors.IsNotFound(err) { // somebody removes it at this moment
		err = apierrors.NewConflict(corev1.Resource(key.kind), key.name.Name, err)
	}
	return err
}

// remove removes an object that was read.
func (m *Importer) remove(ctx context.Context, key objectKey, is object) error {
	options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(is.GetUID()))}
	request := m.api[key.kind].Delete().Namespace(key.name.Namespace).Resource(key.kind).Name(key.name.Name)
	err := request.Body(options).Timeout(oneRequest).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetObject(is)
	return nil
}

// send sends a request that writes, and notes the object that it results in.
func (m *Importer) send(ctx context.Context, key objectKey, request *rest.Request, result object) error {
	if err := request.Namespace(key.name.Namespace).Resource(key.kind).Timeout(oneRequest).Do(ctx).Into(result); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteObject(result, false)
	return nil
}
