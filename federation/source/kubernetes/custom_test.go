package kubernetes

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
)

// testGateway follows a Gateway and a route of a version that is not v1.
func testGateway(t *testing.T, c *cluster) {
	c.namespace("gateway")
	s := labelled(service("gateway", "a", "192.0.2.1"))
	c.create(s)
	r := c.run(func(config *Config) { config.Namespaces = []string{"gateway"} })
	until(t, "the Service", func() bool { return r.has("west/gateway/a", "192.0.2.1") && r.back() })
	create := func(version, plural string, object map[string]any) {
		t.Helper()
		gvr := schema.GroupVersionResource{Group: gatewayGroup, Version: version, Resource: plural}
		object["apiVersion"] = gatewayGroup + "/" + version
		_, err := c.dynamic.Resource(gvr).Namespace("gateway").Create(t.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
		c.must(err)
	}
	yes := func(kinds ...string) (conditions []any) {
		for _, kind := range kinds {
			conditions = append(conditions, map[string]any{
				"type": kind, "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z",
			})
		}
		return conditions
	}
	parent := map[string]any{"name": "edge", "sectionName": "tcp"}
	create("v1alpha2", "tcproutes", map[string]any{
		"kind": "TCPRoute", "metadata": map[string]any{"name": "a"},
		"spec": map[string]any{
			"parentRefs": []any{parent},
			"rules":      []any{map[string]any{"backendRefs": []any{map[string]any{"name": "a", "port": int64(80)}}}},
		},
		"status": map[string]any{"parents": []any{map[string]any{
			"parentRef": parent, "controllerName": "example.org/test", "conditions": yes("Accepted", "ResolvedRefs"),
		}}},
	})
	create("v1", "gateways", map[string]any{
		"kind": "Gateway", "metadata": map[string]any{"name": "edge"},
		"spec": map[string]any{
			"gatewayClassName": "test",
			"listeners":        []any{map[string]any{"name": "tcp", "port": int64(8443), "protocol": "TCP"}},
		},
		"status": map[string]any{
			"addresses":  []any{map[string]any{"type": "IPAddress", "value": "198.51.100.1"}},
			"conditions": yes("Accepted", "Programmed"),
			"listeners": []any{map[string]any{
				"name": "tcp", "attachedRoutes": int64(1), "supportedKinds": []any{}, "conditions": yes("Accepted", "Programmed", "ResolvedRefs"),
			}},
		},
	})
	until(t, "the address of the Gateway", func() bool { return r.has("west/gateway/a", "198.51.100.1") && r.has("west/gateway/a", "8443") })
	c.must(c.dynamic.Resource(schema.GroupVersionResource{Group: gatewayGroup, Version: "v1alpha2", Resource: "tcproutes"}).
		Namespace("gateway").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	until(t, "the next kind of endpoints", func() bool { return r.has("west/gateway/a", "192.0.2.1") })
	r.withdrew(t)
}

// testDefinition has the definition of ServiceExports removed, created again in another
// version, and an export deleted before and after.
func testDefinition(t *testing.T, c *cluster) {
	c.namespace("definition")
	for _, name := range []string{"a", "b", "c"} {
		c.create(service("definition", name, "192.0.2.1"))
		c.export("v1beta1", "definition", name)
	}
	r := c.run(func(config *Config) { config.Namespaces = []string{"definition"} })
	until(t, "everything", func() bool {
		return r.names() == "west/definition/a west/definition/b west/definition/c" && r.back()
	})
	c.unexport("v1beta1", "definition", "c")
	until(t, "a deletion", func() bool { return r.names() == "west/definition/a west/definition/b" })

	name := kindExport.String()
	c.must(c.dynamic.Resource(definitions).Delete(t.Context(), name, metav1.DeleteOptions{}))
	until(t, "what is served no more", func() bool { return r.awayFor("not served any more") })
	until(t, "the definition is gone", func() bool {
		_, err := c.dynamic.Resource(definitions).Get(t.Context(), name, metav1.GetOptions{})
		return err != nil
	})
	c.moveTo("definition", "a", "192.0.2.2")
	until(t, "a change of what stays", func() bool { return r.has("west/definition/a", "192.0.2.2") })
	r.withdrew(t, "west/definition/c")
	until(t, "the line", func() bool { return strings.Contains(r.log.String(), "the cluster serves fewer resources") })

	other := c.run(func(config *Config) { config.Namespaces = []string{"definition"} })
	until(t, "a cluster without", func() bool { return other.back() && other.names() == "" })

	c.define(mcs(t, "v1alpha1"))
	c.export("v1alpha1", "definition", "a")
	until(t, "what is served again", r.back)
	until(t, "what was exported again", func() bool { return r.names() == "west/definition/a" && other.names() == "west/definition/a" })
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := strings.Count(r.log.String(), "the cluster serves fewer resources"); n != 1 {
		t.Errorf("the removal was logged %d times", n)
	}
	if _, ok := r.refused[string(export.NoAddress)]; ok {
		t.Errorf("refused: %v", r.refused)
	}
}
