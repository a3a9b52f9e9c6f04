package kubernetes

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestExports(t *testing.T) {
	c := startCluster(t)
	c.namespace("shop")
	c.create(labelled(service("shop", "cart", "192.0.2.1")))
	c.create(service("shop", "till", "192.0.2.2"))
	r := c.run(nil)
	await(t, "the labelled Service", func() bool { return r.names() == "west/shop/cart" && r.back() })
	if !r.has("west/shop/cart", "192.0.2.1") || !r.has("west/shop/cart", "cart.shop.west.fed.example") {
		t.Error(text(r.services["west/shop/cart"]))
	}

	c.moveTo("shop", "cart", "192.0.2.3")
	await(t, "the change", func() bool { return r.has("west/shop/cart", "192.0.2.3") })

	c.define(mcs(t, "v1beta1"))
	c.export("v1beta1", "shop", "till")
	await(t, "the exported Service", func() bool { return r.names() == "west/shop/cart west/shop/till" })
	await(t, "its condition", func() bool { status, _, _ := c.condition("shop", "till", "Ready"); return status == "True" })

	c.export("v1beta1", "shop", "none")
	await(t, "a refusal", func() bool { _, reason, _ := c.condition("shop", "none", "Valid"); return reason == "NoService" })
	events := func() (reasons []string) {
		list, err := c.core.EventsV1().Events("shop").List(t.Context(), metav1.ListOptions{})
		c.must(err)
		for _, e := range list.Items {
			reasons = append(reasons, e.Regarding.Kind+" "+e.Regarding.Name+" "+e.Reason)
		}
		return reasons
	}
	await(t, "an Event", func() bool { return strings.Join(events(), ",") == "ServiceExport none NoService" })

	c.unexport("v1beta1", "shop", "till")
	await(t, "the Service is withdrawn", func() bool { return r.names() == "west/shop/cart" })
	c.deleteService("shop", "cart")
	await(t, "the other as well", func() bool { return r.names() == "" })
	t.Log(r.requests.all())
}
