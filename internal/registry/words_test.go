package registry_test

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

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
	drain        = registrytest.Drain
	sumOf        = registrytest.SumOf
	resumeAs     = registrytest.ResumeAs
)

const (
	maxMessage = registrytest.MaxMessage

	consumerID = "spiffe://consumer.example/consumer"
	strangerID = "spiffe://consumer.example/stranger"
)

// as returns the consumer with that identity.
func as(tb testing.TB, id string) registry.Consumer {
	tb.Helper()
	return registry.Consumer{IDs: []federation.ID{idOf(tb, id)}}
}
