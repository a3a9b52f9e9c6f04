package owner

import "github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"

// The words of these tests.
var (
	service      = registrytest.Service
	expressible  = registrytest.Expressible
	expressibles = registrytest.Expressibles
	catalogOf    = registrytest.Catalog
	set          = registrytest.Set
	upsert       = registrytest.Upsert
	encoded      = registrytest.Encoded
	idOf         = registrytest.ID
	policyOf     = registrytest.Policy
	of           = registrytest.Of
	stripped     = registrytest.Stripped
	show         = registrytest.Show
)
