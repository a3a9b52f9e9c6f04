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

// CatalogFile spells a catalog file of services of those names, "web 2" with the description 2.
func CatalogFile(services ...string) string {
	if len(services) == 0 {
		return "services: []\n"
	}
	var b strings.Builder
	b.WriteString("services:\n")
	for _, s := range services {
		name, version, _ := strings.Cut(s, " ")
		b.WriteString("- name: " + name + "\n  fqdn: " + name + ".example.org\n  description: version " + version + `
  endpoints: [{address: 192.0.2.1, port: 80}]
  instances: [{id: i1, protocol: TCP}]
`)
	}
	return b.String()
}
