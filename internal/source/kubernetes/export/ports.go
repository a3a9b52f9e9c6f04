package export

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// numbered is how the ID of a port without a name begins.
const numbered = "port-"

// publishedPort is a port of the Service that is published.
type publishedPort struct {
	spec     corev1.ServicePort
	id       string // of its instance, and the label of its endpoints
	protocol federation.Protocol
	metadata []federation.Pair
}

// findPorts sets ports, in the order of the Service.
func (t *translation) findPorts() *Finding {
	all := t.Service.Spec.Ports
	ids := make(map[string]bool, len(all))
	unsupported := 0
	for i := range all {
		p := &all[i]
		if p.Protocol != corev1.ProtocolTCP && p.Protocol != "" {
			unsupported++
			t.warnf(UnsupportedPort, "port %s of the Service %s speaks %s, which the federation cannot express, so the port is left out", shownPort(p), t.serviceName(), safetext.Quote(string(p.Protocol)))
			continue
		}
		if id, ok := t.portID(p, ids); ok {
			ids[id] = true
			t.ports = append(t.ports, publishedPort{spec: *p, id: id, protocol: protocolOf(p)})
		}
	}
	switch {
	case len(t.ports) > 0:
		return nil
	case len(all) > 0 && unsupported == len(all):
		return refusef(UDPOnly, "all ports of the Service %s are UDP or SCTP, and the federation knows TCP only", t.serviceName())
	}
	return refusef(NoPort, "the Service %s has no port", t.serviceName())
}

// portID returns the ID of the port's instance: its name, or its number where the name is missing
// or cannot be used. It reports whether there is an ID that is not taken.
func (t *translation) portID(p *corev1.ServicePort, taken map[string]bool) (id string, ok bool) {
	id = numbered + strconv.Itoa(int(p.Port))
	if p.Name != "" {
		switch {
		case !isLabel(p.Name):
			t.warnf(InvalidID, "port %s of the Service %s has a name that is no DNS label, so it is called %s", shownPort(p), t.serviceName(), id)
		case taken[p.Name]:
			t.warnf(DuplicateID, "port %s of the Service %s has the name of another port, so it is called %s", shownPort(p), t.serviceName(), id)
		default:
			return p.Name, true
		}
	}
	if taken[id] || !isLabel(id) {
		t.warnf(DuplicateID, "port %s of the Service %s is left out: another port is called %s already", shownPort(p), t.serviceName(), id)
		return "", false
	}
	return id, true
}

func shownPort(p *corev1.ServicePort) string {
	if p.Name == "" {
		return strconv.Itoa(int(p.Port))
	}
	return safetext.Quote(p.Name)
}

// isLabel reports whether the instance with this ID has exactly the ID as its label in DNS.
func isLabel(id string) bool {
	label, err := federation.ParseLabel(id)
	return err == nil && label.String() == id
}

// protocols are the values of appProtocol, and the first parts of the names of ports,
// that are known: those of Kubernetes ('Application protocol') and of Istio
// ('Explicit protocol selection'), and the words of the federation.
var protocols = map[string]federation.Protocol{
	"http":              federation.HTTP,
	"https":             federation.HTTPS,
	"grpc":              federation.GRPC,
	"grpc-web":          federation.HTTP, // gRPC in HTTP/1.1, for browsers
	"http2":             federation.HTTP2,
	"h2c":               federation.HTTP2,
	"mongo":             federation.MONGO,
	"mongodb":           federation.MONGO, // as DNS-SD has it
	"tcp":               federation.TCP,
	"tls":               federation.TLS,
	"mtls":              federation.MTLS,
	"kubernetes.io/h2c": federation.HTTP2,
	"kubernetes.io/ws":  federation.HTTP,
	"kubernetes.io/wss": federation.HTTPS,
}

func protocolOf(p *corev1.ServicePort) federation.Protocol {
	if p.AppProtocol != nil {
		if found, ok := protocols[strings.ToLower(*p.AppProtocol)]; ok {
			return found
		}
	}
	first, rest, _ := strings.Cut(strings.ToLower(p.Name), "-")
	if first == "grpc" && (rest == "web" || strings.HasPrefix(rest, "web-")) {
		first = "grpc-web" // as Istio reads it
	}
	if found, ok := protocols[first]; ok {
		return found
	}
	return federation.TCP
}
