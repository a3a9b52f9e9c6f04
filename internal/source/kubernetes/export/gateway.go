package export

import (
	"fmt"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// gatewayEntrance is a way to a port of the Service: an address of a Gateway and a listener there.
type gatewayEntrance struct {
	address  federation.Address
	listener *gatewayv1.Listener
	gateway  *gatewayv1.Gateway
	protocol federation.Protocol // that a client speaks there
}

// gatewayEndpoints returns the addresses of Gateways, with the ports of the listeners through which
// routes lead to the Service, or why there are none.
//
// The controller of the Gateway has decided whether a route is attached and whether it may refer to
// the Service, because it knows the ReferenceGrants and the labels of namespaces. Its decision is
// in the status of the route, and nothing else is asked.
func (t *translation) gatewayEndpoints() (endpointSet, string) {
	entrances := make([][]gatewayEntrance, len(t.ports))
	var reasons []string
	for _, route := range t.Routes {
		ports := t.leadsTo(route)
		if len(ports) == 0 {
			continue
		}
		ways, reason := t.routeEntrances(route)
		if reason != "" {
			reasons = append(reasons, reason)
		}
		for _, p := range ports {
			for _, way := range ways {
				way.protocol = spokenProtocol(route.Kind, way.listener, t.ports[p].protocol)
				entrances[p] = append(entrances[p], way)
			}
		}
	}
	found := make(endpointSet)
	for i := range t.ports {
		t.addEntrances(&t.ports[i], entrances[i], found)
	}
	slices.Sort(reasons)
	if len(reasons) == 0 {
		reasons = []string{"no route leads to the Service"}
	}
	return found, strings.Join(slices.Compact(reasons), ", ")
}

// addEntrances adds the entrances of the port. All of them speak one protocol, because an instance
// has one; entrances that speak another protocol are left out.
func (t *translation) addEntrances(p *publishedPort, ways []gatewayEntrance, found endpointSet) {
	if len(ways) == 0 {
		return
	}
	order := protocolPreference(p.protocol)
	best := slices.MinFunc(ways, func(a, b gatewayEntrance) int {
		return slices.Index(order, a.protocol) - slices.Index(order, b.protocol)
	}).protocol
	for _, way := range ways {
		if way.protocol == best {
			found.addEndpoint(way.address, way.listener.Port, p.id)
			continue
		}
		t.warnf(MixedListeners, "listener %s of the Gateway %s/%s is left out for port %s of the Service %s: it speaks %s, and another one %s",
			way.listener.Name, way.gateway.Namespace, way.gateway.Name, p.id, t.serviceName(), way.protocol, best)
	}
	p.protocol = best
}

// leadsTo returns the indexes of those ports of the Service to which the route sends traffic.
func (t *translation) leadsTo(route *Route) (ports []int) {
	for i := range t.ports {
		if slices.ContainsFunc(route.Backends, func(b gatewayv1.BackendRef) bool {
			name, ok := serviceOf(b, route.Namespace)
			return ok && name.Name == t.Service.Name && name.Namespace == t.Service.Namespace && b.Port != nil && *b.Port == t.ports[i].spec.Port
		}) {
			ports = append(ports, i)
		}
	}
	return ports
}

// routeEntrances returns the addresses and listeners that the route is attached to, or why there
// are none.
func (t *translation) routeEntrances(route *Route) (ways []gatewayEntrance, reason string) {
	shown := fmt.Sprintf("%s %s/%s", route.Kind, route.Namespace, route.Name)
	var reasons []string
	for _, parent := range route.Parents {
		name, ok := gatewayOf(parent, route.Namespace)
		if !ok {
			continue
		}
		i := slices.IndexFunc(t.Gateways, func(g *gatewayv1.Gateway) bool {
			return g.Namespace == name.Namespace && g.Name == name.Name && g.DeletionTimestamp == nil
		})
		if i < 0 {
			reasons = append(reasons, fmt.Sprintf("there is no Gateway %s, which %s names", name, shown))
			continue
		}
		gateway := t.Gateways[i]
		if !route.isAccepted(parent, route.Namespace != t.Service.Namespace) {
			reasons = append(reasons, fmt.Sprintf("the Gateway %s does not accept %s, or it may not refer to the Service", name, shown))
			continue
		}
		listeners := t.attachedListeners(route, parent, gateway)
		addresses := t.gatewayAddresses(gateway)
		switch {
		case len(listeners) == 0:
			reasons = append(reasons, fmt.Sprintf("%s is attached to no listener of the Gateway %s that is in service", shown, name))
		case len(addresses) == 0:
			reasons = append(reasons, fmt.Sprintf("the Gateway %s has no address", name))
		}
		for _, l := range listeners {
			for _, address := range addresses {
				ways = append(ways, gatewayEntrance{address: address, listener: l, gateway: gateway})
			}
		}
	}
	if len(ways) > 0 {
		return ways, ""
	}
	if len(reasons) == 0 {
		return nil, shown + " names no Gateway"
	}
	return nil, slices.Min(reasons)
}

func (t *translation) gatewayAddresses(gateway *gatewayv1.Gateway) (found []federation.Address) {
	name := gateway.Namespace + "/" + gateway.Name
	for _, a := range gateway.Status.Addresses {
		if a.Type != nil && *a.Type != gatewayv1.IPAddressType && *a.Type != gatewayv1.HostnameAddressType {
			t.warnf(InvalidAddress, "an address of the Gateway %s is left out for the Service %s: it is of type %s", name, t.serviceName(), safetext.Quote(string(*a.Type)))
			continue
		}
		if address, ok := t.parseAddress(a.Value, "the Gateway ", name); ok {
			found = append(found, address)
		}
	}
	return found
}

// attachedListeners returns those listeners of the gateway that the route is attached to by the
// parent. No status says that for a parent without the name of a listener. So the rules of the
// Gateway API decide, except for namespaces that are selected by labels, which are not known here.
func (t *translation) attachedListeners(route *Route, parent gatewayv1.ParentReference, gateway *gatewayv1.Gateway) []*gatewayv1.Listener {
	var certain, unsure []*gatewayv1.Listener
	for i := range gateway.Spec.Listeners {
		l := &gateway.Spec.Listeners[i]
		if parent.Port != nil && *parent.Port != l.Port || spokenProtocol(route.Kind, l, federation.TCP) == 0 || !inService(gateway, l.Name) {
			continue
		}
		if parent.SectionName != nil {
			if *parent.SectionName == l.Name {
				return []*gatewayv1.Listener{l} // the route is accepted here
			}
			continue
		}
		if !takesKind(l, route.Kind) || !takesHost(l, route.Hostnames) {
			continue
		}
		switch from := fromOf(l); {
		case from == gatewayv1.NamespacesFromAll, from == gatewayv1.NamespacesFromSame && route.Namespace == gateway.Namespace:
			certain = append(certain, l)
		case from == gatewayv1.NamespacesFromSelector:
			unsure = append(unsure, l)
		}
	}
	if len(certain) == 0 && len(unsure) == 1 {
		return unsure // since the route is accepted somewhere
	}
	for _, l := range unsure {
		t.warnf(AmbiguousListener, "listener %s of the Gateway %s/%s is left out for the Service %s: give %s %s/%s its name as sectionName to say that it is attached there",
			l.Name, gateway.Namespace, gateway.Name, t.serviceName(), route.Kind, route.Namespace, route.Name)
	}
	return certain
}
