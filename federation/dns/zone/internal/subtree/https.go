package subtree

import "github.com/hamlet-federation/coredns-federation/federation"

// Secure is how all addresses of a name speak HTTP over TLS: what one HTTPS record can say
// (RFC 9460 section 9).
type Secure struct {
	HTTP1, HTTP2 bool
	Port         uint16
}

// Secure returns what HTTPS records can say of the fqdn, or of an instance: a protocol that
// each address of the name speaks, at one port. A client takes the port together with any of
// the addresses, and so nothing is said of what some have elsewhere.
func (t *Subtree) Secure(in *Instance) (all []Secure) {
	http1, ok1 := t.portOf(in, federation.HTTPS)
	http2, ok2 := t.portOf(in, federation.HTTP2)
	if ok1 && ok2 && http1 == http2 {
		return []Secure{{HTTP1: true, HTTP2: true, Port: http1}}
	}
	if ok2 {
		all = append(all, Secure{HTTP2: true, Port: http2})
	}
	if ok1 {
		all = append(all, Secure{HTTP1: true, Port: http1})
	}
	return all
}

// portOf returns the only port at which a protocol is spoken, if all addresses of the name
// speak it.
func (t *Subtree) portOf(in *Instance, p federation.Protocol) (port uint16, ok bool) {
	of, speak := t.All(), t.speaking(p)
	switch {
	case in != nil && in.protocol == p:
		of = t.endpointsOf(in)
		speak = of
	case in != nil || t.protocols&(1<<p) == 0:
		return 0, false
	}
	// Both are sorted, and endpoints with one address are neighbours.
	endpoints := t.endpoints()
	for n, i := range of {
		ep := &endpoints[i]
		begins := n == 0 || endpoints[of[n-1]].Address != ep.Address
		if begins && n > 0 && !ok {
			return 0, false
		}
		ok = ok && !begins
		if len(speak) > 0 && speak[0] == i {
			if port != 0 && port != ep.Port {
				return 0, false
			}
			port, ok, speak = ep.Port, true, speak[1:]
		}
	}
	return port, ok
}
