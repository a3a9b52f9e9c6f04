package catalogfile

import (
	"fmt"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// service returns a service in the given version. Equal arguments make equal
// services.
func service(name string, version int) *federation.Service {
	fqdn, err := federation.ParseFQDN(name + ".example.org")
	if err != nil {
		panic(err)
	}
	address, err := federation.ParseAddress("192.0.2.1")
	if err != nil {
		panic(err)
	}
	return &federation.Service{
		Name:        name,
		FQDN:        fqdn,
		Description: fmt.Sprintf("version %d", version),
		Endpoints:   []federation.Endpoint{{Address: address, Port: 443}},
		Instances:   []federation.Instance{{ID: "i1", Protocol: federation.HTTPS}},
	}
}

// catalogFile spells services of those names, "web 2" with the description 2.
func catalogFile(services ...string) string {
	var b strings.Builder
	b.WriteString("services:\n")
	if len(services) == 0 {
		return "services: []\n"
	}
	for _, s := range services {
		name, version, _ := strings.Cut(s, " ")
		b.WriteString("- name: " + name + "\n  fqdn: " + name + ".example.org\n  description: version " + version + "\n" + rest)
	}
	return b.String()
}
