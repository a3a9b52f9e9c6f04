package importer

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/hamlet-federation/coredns-federation/internal/status"
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
	m.mu.Lock()
	defer m.mu.Unlock()
	switch n := m.names[name]; {
	case errors.Is(err, errUnread), apierrors.IsConflict(err), apierrors.IsTooManyRequests(err):
		return
	case err != nil && !isDefinite(err):
		m.noteAnswer("write", err)
		return
	case n == nil:
	case err != nil:
		m.refuse(n, name, status.ImportRejected, "the API server does not take it: "+m.client.ExplainError(err).Error())
	case len(n.offers) == 0 && len(n.objects) == 0:
		delete(m.names, name)
	}
	m.noteAnswer("write", nil)
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
	p := &status.ImportProblem{At: time.Now().UTC(), Object: name.String(), Reason: reason, Rule: rule}
	if o := n.holder; o != nil {
		p.Owner, p.Service, p.FQDN = o.owner.Name, o.service.Name(), o.service.FQDN()
	}
	if n.refused != nil && n.refused.Reason == reason {
		p.At = n.refused.At
	} else {
		m.log.Warn("a service is not written", "object", name.String(), "reason", reason, "rule", rule)
	}
	n.refused = p
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
	var refused refusal
	if m.config.Target.MCS {
		again, refused, err = m.writeImport(ctx, name, n)
	} else {
		again, refused, err = m.writeService(ctx, name, n, *owned)
	}
	if apierrors.IsAlreadyExists(err) {
		refused, again, err = refusal{status.ImportNameTaken, "there is an object of the name that no importer has made"}, longestPause, nil
	}
	m.mu.Lock()
	switch {
	case err != nil:
		n.changed = since
	case refused.reason != "":
		m.refuse(n, name, refused.reason, refused.rule)
	default:
		n.refused = nil
	}
	return again, err
}

// refusal is why a name has not the objects that it should have: a reason of package status, and a clause.
type refusal struct{ reason, rule string }

// writeService does the work of writeName for a Service and its EndpointSlices.
func (m *Importer) writeService(ctx context.Context, name types.NamespacedName, n *importedName, owned metav1.OwnerReference) (again time.Duration, refused refusal, err error) {
	m.mu.Lock()
	until, kept := m.keptUntil(n, n.service(name))
	n.holder, n.kept = m.chooseOffer(n, name), kept
	there, o, service := maps.Clone(n.objects), n.holder, n.service(name)
	m.mu.Unlock()
	if kept {
		return time.Until(until), refused, nil
	}
	var wanted []object
	switch {
	case o == nil: // nothing is wanted
	case service != nil && !m.isOurs(service):
		refused = refusal{status.ImportNameTaken, "there is a Service of the name that no importer has made"}
	default:
		if wanted, again, refused.rule = m.composeObjects(ctx, name, o, owned); refused.rule != "" {
			refused.reason = status.ImportNoEndpoint
		}
		if again == unknownHosts {
			again = retryHosts
			if service != nil {
				wanted, there = nil, nil // what is there stays, for want of an answer
			}
		} else if len(wanted) == 0 && service != nil {
			wanted = []object{service} // and with it its address
		}
	}
	return again, refused, m.writeDifference(ctx, there, wanted)
}

// chooseOffer returns the offer that has a name, or nil: the one that its objects are of, or else the
// first. The caller holds mu.
func (m *Importer) chooseOffer(n *importedName, name types.NamespacedName) (first *offer) {
	if there := n.service(name); m.isOurs(there) {
		if o := n.offerOf(there); o != nil {
			return o
		}
	}
	for _, o := range n.offers {
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

// composeObjects returns the objects of an offer, and when the addresses of its hosts are to be looked up
// again: unknownHosts if nothing is known of one. Without objects, the rule says why there are none.
func (m *Importer) composeObjects(ctx context.Context, name types.NamespacedName, o *offer, owned metav1.OwnerReference) (all []object, again time.Duration, rule string) {
	if m.config.Target.MCS {
		return m.composeImport(ctx, name)
	}
	s := o.service.Unpack()
	addresses, again, unknown := m.resolveEndpoints(ctx, o.owner, s)
	if unknown != "" {
		again, rule = unknownHosts, "the host "+unknown+" of an endpoint cannot be looked up"
	}
	ports := servedPorts(s, addresses)
	if len(ports) == 0 {
		return nil, again, cmp.Or(rule, "no instance has an endpoint with an address")
	}
	return m.config.Target.serviceObjects(metaOf(name.Namespace, name.Name, owned, o), ports), again, rule
}

// writeDifference creates and changes what is wanted, in order, and removes what else there is of the
// importer, Services first.
func (m *Importer) writeDifference(ctx context.Context, there map[objectKey]object, wanted []object) error {
	for _, w := range wanted {
		kind := sliceKind
		if service, ok := w.(*corev1.Service); ok {
			kind = serviceKind
			before, _ := there[keyOf(kind, w)].(*corev1.Service)
			if before != nil && m.isOurs(before) && (before.Spec.ClusterIP == corev1.ClusterIPNone) != (service.Spec.ClusterIP == corev1.ClusterIPNone) {
				if err := m.remove(ctx, keyOf(kind, w), before); err != nil { // a virtual address cannot be taken away
					return err
				}
				delete(there, keyOf(kind, w))
			}
		}
		key := keyOf(kind, w)
		if _, err := m.put(ctx, key, there[key], w); err != nil {
			return err
		}
		delete(there, key)
	}
	for _, kind := range []string{importKind, serviceKind, sliceKind} {
		for key, is := range there {
			if key.kind == kind && m.isOurs(is) {
				if err := m.remove(ctx, key, is); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// put creates an object, or changes the one that is there, and returns it.
func (m *Importer) put(ctx context.Context, key objectKey, is, wanted object) (object, error) {
	switch {
	case is == nil:
		return wanted, m.send(ctx, key, m.api[key.kind].Post().Body(wanted), wanted)
	case !m.isOurs(is):
		return nil, apierrors.NewAlreadyExists(corev1.Resource(key.kind), key.name.Name)
	}
	next, err := update(is, wanted)
	if next == nil || err != nil {
		return is, err
	}
	return next, m.send(ctx, key, m.api[key.kind].Put().Name(key.name.Name).Body(next), next)
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
	m.forgetObject(key.kind, is)
	return nil
}

// send sends a request that writes, and notes the object that it results in, unless that is nil.
func (m *Importer) send(ctx context.Context, key objectKey, request *rest.Request, result object) error {
	ctx, cancel := context.WithTimeout(ctx, oneRequest)
	defer cancel()
	code := 0
	answer := request.Namespace(key.name.Namespace).Resource(key.kind).Do(ctx).StatusCode(&code)
	err := answer.Error()
	if err == nil && result != nil {
		err = answer.Into(result)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.codes[strconv.Itoa(code)]++
	if err == nil && result != nil {
		m.noteObject(key.kind, result, false)
	}
	return err
}
