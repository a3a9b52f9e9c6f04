package kubernetes

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// TestAPIServer runs sources against one API server, each in a namespace of its own.
func TestAPIServer(t *testing.T) {
	c := startCluster(t)
	type test struct {
		name string
		run  func(*testing.T, *cluster)
	}
	// run runs tests, which may do so beside each other if parallel says so.
	run := func(t *testing.T, parallel bool, tests ...test) {
		t.Helper()
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				if parallel {
					t.Parallel()
				}
				in := *c
				in.TB = t
				test.run(t, &in)
			})
		}
	}
	t.Run("WithoutDefinitions", func(t *testing.T) {
		run(
			t, true,
			test{"Refused", func(t *testing.T, c *cluster) { testOutage(t, c, "refused", refuse, "127.0.0.1:") }},
			test{"Stalled", func(t *testing.T, c *cluster) {
				testOutage(t, c, "stalled", (*realserver.Gate).Stall, "deadline exceeded")
			}},
			test{"Expired", testExpired},
			test{"Credentials", testCredentials},
		)
	})
	run(
		t, false,
		test{"Exports", testExports}, // from here on ServiceExports are served
		test{"Replicas", testReplicas},
		test{"Consumers", testConsumers},
		test{"OtherController", testOtherController},
		test{"Permissions", testPermissions}, // from here on Gateways are served as well
		test{"Gateway", testGateway},
		test{"Definition", testDefinition},
	)
}

func testExports(t *testing.T, c *cluster) {
	c.namespace("shop")
	c.create(labelled(service("shop", "cart", "192.0.2.1")))
	c.create(service("shop", "till", "192.0.2.2"))
	r := c.run(func(config *Config) { config.Namespaces = []string{"shop"} })
	until(t, "the labelled Service", func() bool { return r.names() == "west/shop/cart" && r.back() })
	if !r.has("west/shop/cart", "192.0.2.1") || !r.has("west/shop/cart", "cart.shop.west.fed.example") {
		t.Error(text(r.services["west/shop/cart"]))
	}

	c.moveTo("shop", "cart", "192.0.2.3")
	until(t, "the change", func() bool { return r.has("west/shop/cart", "192.0.2.3") })

	c.must(c.InstallMCS(t.Context(), "v1beta1"))
	c.export("v1beta1", "shop", "till")
	until(t, "the exported Service", func() bool { return r.names() == "west/shop/cart west/shop/till" })
	until(t, "its condition", func() bool { status, _, _ := c.condition("shop", "till", "Ready"); return status == "True" })

	c.export("v1beta1", "shop", "none")
	until(t, "a refusal", func() bool { _, reason, _ := c.condition("shop", "none", "Valid"); return reason == "NoService" })

	c.unexport("v1beta1", "shop", "till")
	until(t, "the Service is withdrawn", func() bool { return r.names() == "west/shop/cart" })
	c.deleteService("shop", "cart")
	until(t, "the other as well", func() bool { return r.names() == "" })
}
