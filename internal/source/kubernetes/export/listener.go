package export

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// inService reports whether no controller says that the listener is out of service.
func inService(gateway *gatewayv1.Gateway, listener gatewayv1.SectionName) bool {
	return !slices.ContainsFunc(gateway.Status.Listeners, func(s gatewayv1.ListenerStatus) bool {
		return s.Name == listener &&
			(meta.IsStatusConditionFalse(s.Conditions, string(gatewayv1.ListenerConditionAccepted)) ||
				meta.IsStatusConditionFalse(s.Conditions, string(gatewayv1.ListenerConditionProgrammed)))
	})
}

// takesKind reports whether the listener allows routes of the kind.
func takesKind(l *gatewayv1.Listener, kind gatewayv1.Kind) bool {
	return l.AllowedRoutes == nil || len(l.AllowedRoutes.Kinds) == 0 ||
		slices.ContainsFunc(l.AllowedRoutes.Kinds, func(k gatewayv1.RouteGroupKind) bool {
			return k.Kind == kind && ptr.Deref(k.Group, gatewayv1.GroupName) == gatewayv1.GroupName
		})
}

// fromOf returns the namespaces whose routes the listener accepts.
func fromOf(l *gatewayv1.Listener) gatewayv1.FromNamespaces {
	if l.AllowedRoutes == nil || l.AllowedRoutes.Namespaces == nil {
		return gatewayv1.NamespacesFromSame
	}
	return ptr.Deref(l.AllowedRoutes.Namespaces.From, gatewayv1.NamespacesFromSame)
}

// takesHost reports whether the listener and a route with these hostnames have a host in common.
func takesHost(l *gatewayv1.Listener, hostnames []gatewayv1.Hostname) bool {
	own := string(ptr.Deref(l.Hostname, ""))
	return own == "" || len(hostnames) == 0 ||
		slices.ContainsFunc(hostnames, func(h gatewayv1.Hostname) bool { return coversHost(own, string(h)) || coversHost(string(h), own) })
}

// coversHost reports whether name is equal to pattern, or ends in what follows the "*" of the
// pattern.
func coversHost(pattern, name string) bool {
	suffix, wild := strings.CutPrefix(pattern, "*")
	return strings.EqualFold(pattern, name) ||
		wild && len(name) > len(suffix) && strings.EqualFold(name[len(name)-len(suffix):], suffix)
}

// protocolPreference returns the protocols in the order in which one is chosen for a port behind
// listeners that speak several: first the port's own protocol over TLS, then encrypted protocols,
// then the most specific.
func protocolPreference(backend federation.Protocol) []federation.Protocol {
	return []federation.Protocol{
		overTLS(backend),
		federation.HTTPS, federation.MTLS, federation.TLS, federation.GRPC, federation.HTTP2, federation.MONGO, federation.HTTP, federation.TCP,
	}
}

// overTLS returns what a client speaks that speaks p inside of TLS. The other protocols of the
// federation do not say whether they use TLS.
func overTLS(p federation.Protocol) federation.Protocol {
	switch p {
	case federation.HTTP:
		return federation.HTTPS
	case federation.TCP:
		return federation.TLS
	}
	return p
}

// spokenProtocol returns what a client speaks at a listener to get through a route to a port that
// speaks backend, or 0 where the listener accepts no such route. A gateway speaks HTTP itself, and
// passes on what comes by TCP and TLS (Gateway API, 'TLS Configuration').
func spokenProtocol(kind gatewayv1.Kind, l *gatewayv1.Listener, backend federation.Protocol) federation.Protocol {
	passthrough := l.TLS != nil && l.TLS.Mode != nil && *l.TLS.Mode == gatewayv1.TLSModePassthrough
	switch {
	case kind == httpRoute && l.Protocol == gatewayv1.HTTPProtocolType && backend != federation.GRPC:
		return federation.HTTP
	case kind == httpRoute && l.Protocol == gatewayv1.HTTPSProtocolType && backend != federation.GRPC:
		return federation.HTTPS
	case (kind == httpRoute || kind == grpcRoute) && (l.Protocol == gatewayv1.HTTPProtocolType || l.Protocol == gatewayv1.HTTPSProtocolType):
		return federation.GRPC
	case kind == tlsRoute && l.Protocol == gatewayv1.TLSProtocolType,
		kind == tcpRoute && l.Protocol == gatewayv1.TLSProtocolType && !passthrough:
		return overTLS(backend)
	case kind == tcpRoute && l.Protocol == gatewayv1.TCPProtocolType:
		return backend
	}
	return 0
}
