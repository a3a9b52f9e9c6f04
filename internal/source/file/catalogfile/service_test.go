package catalogfile

import (
	"fmt"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// service returns a service in the given version. Equal arguments make equal
// services.
func service(name string, version int) *federation.Service {
	s := services.At(name+".example.org", "192.0.2.1")
	s.Description = fmt.Sprintf("version %d", version)
	return s
}
