package catalogentry

import (
	"fmt"
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// AddWarnings adds to found what is probably not meant in s, the service of the entry.
func (e *Entry) AddWarnings(s *federation.Service, found *problem.List) {
	warn := func(field, rule string) {
		if found.IsFull() {
			found.More++
			return
		}
		found.Add(problem.Problem{Line: e.LineOf(field), Service: safetext.Quote(s.Name), Field: field, Rule: rule})
	}
	offered, selected := make(map[string]bool), make(map[string]bool)
	for _, endpoint := range s.Endpoints {
		for _, label := range endpoint.Labels {
			offered[label] = true
		}
	}
	everything := false                         // is selected
	labels := make(map[federation.Label]string) // IDs by the names they stand for
	for i, instance := range s.Instances {
		field := fmt.Sprintf("instances[%d]", i)
		matches := false
		for _, label := range instance.EndpointSelector {
			selected[label] = true
			matches = matches || offered[label]
		}
		if !matches {
			// Hamlet: "If there is no matching selector for an Instance, then consumer
			// agent implementors must associate to that Instance all endpoints."
			everything = true
			if len(instance.EndpointSelector) > 0 {
				warn(field+".endpoint_selector", "no endpoint has one of these labels, so the instance gets every endpoint")
			}
		}
		label, err := federation.ParseLabel(instance.ID)
		if err == nil {
			_, err = federation.ParseFQDN(label.String() + "." + s.FQDN.String())
		}
		switch other, taken := labels[label]; {
		case err != nil:
			warn(field+".id", fmt.Sprintf("%s will have no DNS name of its own: %v", safetext.Quote(instance.ID), err))
		case taken:
			warn(field+".id", fmt.Sprintf("%s and %s are one DNS name; one of the two instances will have none",
				safetext.Quote(other), safetext.Quote(instance.ID)))
		default:
			labels[label] = instance.ID
		}
	}
	for j, endpoint := range s.Endpoints {
		if host, _ := endpoint.Address.Host(); host == s.FQDN {
			warn(fmt.Sprintf("endpoints[%d].address", j), "it is the name of this service itself, so clients get no address from it")
		}
		if !everything && !slices.ContainsFunc(endpoint.Labels, func(label string) bool { return selected[label] }) {
			warn(fmt.Sprintf("endpoints[%d]", j), fmt.Sprintf("no instance selects %s, so only the name of the service leads to it",
				endpoint.Address))
		}
	}
}
