package export

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// endpointKey is where a port of the Service is reached.
type endpointKey struct {
	address federation.Address
	port    uint16
}

// endpointSet is endpoints, with the labels of each.
type endpointSet map[endpointKey]sets.Set[string]

// addEndpoint notes that an endpoint has the labels. What is no port number is passed over.
func (p endpointSet) addEndpoint(address federation.Address, port int32, labels ...string) {
	if port < 1 || port > math.MaxUint16 {
		return
	}
	at := endpointKey{address, uint16(port)}
	if p[at] == nil {
		p[at] = make(sets.Set[string], len(labels))
	}
	p[at].Insert(labels...)
}

// sortedEndpoints returns the endpoints by address, IPv4 first and hosts last, and by port.
func (p endpointSet) sortedEndpoints() []federation.Endpoint {
	found := make([]federation.Endpoint, 0, len(p))
	for at, labels := range p {
		found = append(found, federation.Endpoint{Address: at.address, Port: at.port, Labels: sets.List(labels)})
	}
	slices.SortFunc(found, func(a, b federation.Endpoint) int {
		return cmp.Or(compareAddresses(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
	})
	return found
}

// cutEndpoints leaves out addresses, each with all of its ports, where there are more endpoints or names
// than a service may have. The least are kept, so that few change when one comes or goes.
func (t *translation) cutEndpoints() {
	if len(t.found) <= limits.Endpoints && len(t.found.allLabels()) <= limits.Instances {
		return
	}
	all, kept, labels := t.found.sortedEndpoints(), 0, sets.New[string]()
	for n := 1; n <= len(all); n++ {
		labels.Insert(all[n-1].Labels...)
		if n > limits.Endpoints || len(labels) > limits.Instances {
			break
		}
		if n == len(all) || all[n].Address != all[n-1].Address {
			kept = n // whole addresses
		}
	}
	if kept == 0 {
		return // one address alone is too large
	}
	for _, e := range all[kept:] {
		delete(t.found, endpointKey{e.Address, e.Port})
	}
	t.warnf(TooManyEndpoints, "the Service %s has more endpoints than the %d that can be published; those of the least addresses are", t.serviceName(), limits.Endpoints)
}

// allLabels returns the labels of all endpoints, which are the names of instances.
func (p endpointSet) allLabels() sets.Set[string] {
	labels := sets.New[string]()
	for _, of := range p {
		maps.Copy(labels, of)
	}
	return labels
}

func compareAddresses(a, b federation.Address) int {
	aIP, aOK := a.IP()
	bIP, bOK := b.IP()
	switch {
	case aOK && bOK:
		return aIP.Compare(bIP)
	case aOK:
		return -1
	case bOK:
		return 1
	}
	return cmp.Compare(a.String(), b.String())
}

// findEndpoints finds those of the first kind that has any.
func (t *translation) findEndpoints() *Finding {
	order := t.Order
	if len(order) == 0 {
		order = EndpointKinds()
	}
	kinds := t.lookups()
	var reasons []string
	for _, kind := range order {
		look, ok := kinds[kind]
		if !ok {
			continue
		}
		found, why := look()
		if len(found) > 0 {
			t.found, t.verdict.Kind = found, kind
			return nil
		}
		reasons = append(reasons, string(kind)+": "+why)
	}
	return refusef(NoAddress, "the Service %s is reached by no kind of endpoints (%s)", t.serviceName(), strings.Join(reasons, "; "))
}

// lookups returns how the endpoints of each kind are found for the ports. They return no endpoints
// where there are none, and why.
func (t *translation) lookups() map[EndpointKind]func() (endpointSet, string) {
	return map[EndpointKind]func() (endpointSet, string){
		Gateway: t.gatewayEndpoints, LoadBalancer: t.loadBalancer, ExternalIPs: t.externalIPs, NodePorts: t.nodePorts, Pods: t.podEndpoints,
	}
}

// parseAddress parses an address of a thing with a name, or of one without. It warns of
// what is none.
func (t *translation) parseAddress(text, thing, name string) (federation.Address, bool) {
	address, err := federation.ParseAddress(text)
	if err != nil {
		t.warnf(InvalidAddress, "an address of %s%s is left out for the Service %s: %v: %s", thing, name, t.serviceName(), err, safetext.Quote(text))
	}
	return address, err == nil
}

func (t *translation) loadBalancer() (endpointSet, string) {
	if t.Service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil, "the Service is not of type LoadBalancer"
	}
	ingresses := t.Service.Status.LoadBalancer.Ingress
	if len(ingresses) == 0 {
		return nil, "it has no address yet"
	}
	found := make(endpointSet)
	for i := range ingresses {
		// The ipMode says how the nodes of the cluster itself treat the address. From
		// outside it is the same.
		address, ok := t.parseAddress(cmp.Or(ingresses[i].IP, ingresses[i].Hostname), "the load balancer", "")
		if !ok {
			continue
		}
		for _, p := range t.ports {
			if !slices.ContainsFunc(ingresses[i].Ports, func(s corev1.PortStatus) bool {
				return s.Error != nil && s.Port == p.spec.Port && isOneProtocol(s.Protocol, p.spec.Protocol)
			}) {
				found.addEndpoint(address, p.spec.Port, p.id)
			}
		}
	}
	return found, "its addresses serve no port, or are none"
}

// isHeadless reports whether the cluster forwards nothing to the Service: it has no
// address of its own.
func (t *translation) isHeadless() bool { return t.Service.Spec.ClusterIP == corev1.ClusterIPNone }

func (t *translation) externalIPs() (endpointSet, string) {
	if len(t.Service.Spec.ExternalIPs) == 0 {
		return nil, "the Service has none"
	}
	if t.isHeadless() {
		return nil, "the Service is headless, and so nothing forwards them"
	}
	found := make(endpointSet)
	for _, text := range t.Service.Spec.ExternalIPs {
		if address, ok := t.parseAddress(text, "spec.externalIPs", ""); ok {
			for _, p := range t.ports {
				found.addEndpoint(address, p.spec.Port, p.id)
			}
		}
	}
	return found, "none is an address"
}

func (t *translation) nodePorts() (endpointSet, string) {
	if s := t.Service.Spec; s.Type != corev1.ServiceTypeNodePort && s.Type != corev1.ServiceTypeLoadBalancer ||
		!slices.ContainsFunc(t.ports, func(p publishedPort) bool { return p.spec.NodePort != 0 }) {
		return nil, "the Service has no node ports"
	}
	t.verdict.Nodes = true
	nodes, why := t.forwardingNodes()
	// A node with an address for outside is not mixed with others: peers may not reach
	// those.
	found := make(endpointSet)
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		for _, node := range nodes {
			for _, a := range node.Status.Addresses {
				if a.Type != kind {
					continue
				}
				address, ok := t.parseAddress(a.Address, "the node ", node.Name)
				if !ok || !t.hasFamily(address) {
					continue
				}
				for _, p := range t.ports {
					found.addEndpoint(address, p.spec.NodePort, p.id)
				}
			}
		}
		if len(found) > 0 {
			return found, ""
		}
	}
	return nil, cmp.Or(why, "its nodes have no ExternalIP and no InternalIP of its IP families")
}

// exclude is the label of nodes that take no traffic from outside.
const exclude = corev1.LabelNodeExcludeBalancers

// forwardingNodes returns the nodes that forward to the Service, or why there is none.
func (t *translation) forwardingNodes() (nodes []*corev1.Node, why string) {
	candidates := slices.DeleteFunc(slices.Clone(t.Nodes), func(n *corev1.Node) bool {
		_, excluded := n.Labels[exclude]
		return excluded || n.DeletionTimestamp != nil
	})
	// Where no node is ready it is rather their control plane that does not hear of them:
	// nothing is better than another then.
	blind := !slices.ContainsFunc(candidates, isReady)
	nodes = slices.DeleteFunc(candidates, func(n *corev1.Node) bool { return !blind && !isReady(n) })
	why = "no node takes traffic from outside"
	if t.Service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		with := sets.New[string]()
		t.eachEndpoint(blind || t.Service.Spec.PublishNotReadyAddresses, func(_ *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint) {
			with.Insert(ptr.Deref(e.NodeName, ""))
		})
		if len(nodes) > 0 {
			why = "its externalTrafficPolicy is Local, and no node that takes traffic from outside has a ready endpoint"
		}
		nodes = slices.DeleteFunc(nodes, func(n *corev1.Node) bool { return !with.Has(n.Name) })
	}
	if len(nodes) > 0 {
		why = ""
	}
	return nodes, why
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// hasFamily reports whether the Service has the IP family of the address: node ports
// are open for no other.
func (t *translation) hasFamily(address federation.Address) bool {
	ip, ok := address.IP()
	return ok && (len(t.Service.Spec.IPFamilies) == 0 || slices.Contains(t.Service.Spec.IPFamilies, familyOf(ip)))
}

func familyOf(ip netip.Addr) corev1.IPFamily {
	if ip.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

func (t *translation) podEndpoints() (endpointSet, string) {
	switch {
	case !t.isHeadless():
		return nil, "the Service is not headless"
	case !t.RoutablePods:
		return nil, "the Service is headless, and the pods of the cluster are not configured to be routable"
	}
	found := make(endpointSet)
	t.eachEndpoint(t.Service.Spec.PublishNotReadyAddresses, func(slice *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint) {
		if len(e.Addresses) == 0 {
			return
		}
		// The API defines no meaning for a second address.
		address, ok := t.parseAddress(e.Addresses[0], "an endpoint", "")
		if !ok {
			return
		}
		labels := make([]string, 1, 2)
		if id, ok := t.podID(e); ok {
			labels = append(labels, id)
		}
		for _, p := range t.ports {
			if number, ok := numberIn(slice, &p.spec); ok {
				labels[0] = p.id
				found.addEndpoint(address, number, labels...)
			}
		}
	})
	return found, "no pod is ready and has one of its TCP ports"
}

// podID returns the ID of the instance of a pod, and whether it has one.
func (t *translation) podID(e *discoveryv1.Endpoint) (string, bool) {
	if e.Hostname == nil || *e.Hostname == "" {
		return "", false
	}
	id := *e.Hostname
	switch {
	case !isLabel(id):
		t.warnf(InvalidID, "a pod of the Service %s has the hostname %s, which is no DNS label, so the pod has no name of its own", t.serviceName(), safetext.Quote(id))
	case slices.ContainsFunc(t.ports, func(p publishedPort) bool { return p.id == id }):
		t.warnf(DuplicateID, "a pod of the Service %s has the hostname %s, which is the name of a port, so the pod has no name of its own", t.serviceName(), id)
	default:
		return id, true
	}
	return "", false
}

// numberIn returns the number that the Service's port has in the slice. It differs
// between slices where pods have different numbers for one named port.
func numberIn(slice *discoveryv1.EndpointSlice, port *corev1.ServicePort) (int32, bool) {
	for _, p := range slice.Ports {
		if p.Port != nil && isOneProtocol(ptr.Deref(p.Protocol, ""), port.Protocol) && ptr.Deref(p.Name, "") == port.Name {
			return *p.Port, true
		}
	}
	return 0, false
}

// eachEndpoint calls f for every endpoint of the Service that takes new connections, or for all of
// them. An endpoint that terminates is not ready, even while it still serves.
func (t *translation) eachEndpoint(all bool, f func(*discoveryv1.EndpointSlice, *discoveryv1.Endpoint)) {
	t.verdict.Slices = true
	for _, slice := range t.Slices {
		if slice.Namespace != t.Service.Namespace || slice.Labels[discoveryv1.LabelServiceName] != t.Service.Name {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			// "A nil value should be interpreted as 'true'."
			if ptr.Deref(e.Conditions.Ready, true) || all {
				f(slice, e)
			}
		}
	}
}
