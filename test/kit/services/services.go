// Package services builds the services that tests publish.
package services

import (
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// FQDN returns a name that the test spells out.
func FQDN(name string) federation.FQDN { return must.Value(federation.ParseFQDN(name)) }

// At returns a service with one endpoint, named after the first label of its FQDN.
func At(fqdn, address string) *federation.Service {
	label, _, _ := strings.Cut(fqdn, ".")
	return &federation.Service{
		Name: label, FQDN: FQDN(fqdn),
		Endpoints: []federation.Endpoint{{Address: must.Value(federation.ParseAddress(address)), Port: 443}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	}
}
