package kubernetes

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	tcpRoute = `
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: TCPRoute
metadata: {namespace: gateway, name: a}
spec:
  parentRefs: [{name: edge, sectionName: tcp}]
  rules: [{backendRefs: [{name: a, port: 80}]}]
status:
  parents: [{parentRef: {name: edge, sectionName: tcp}, conditions: [{type: Accepted, status: "True"}, {type: ResolvedRefs, status: "True"}]}]
`
	edge = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: gateway, name: edge}
spec:
  listeners: [{name: tcp, port: 8443, protocol: TCP}]
status:
  addresses: [{type: IPAddress, value: 198.51.100.1}]
  listeners: [{name: tcp, conditions: [{type: Programmed, status: "True"}]}]
`
)

// testGateway follows a Gateway and a route of a version that is not v1.
func testGateway(t *testing.T, c *cluster) {
	c.namespace("gateway")
	s := labelled(service("gateway", "a", "192.0.2.1"))
	c.create(s)
	r := c.run(func(config *Config) { config.Namespaces = []string{"gateway"} })
	until(t, "the Service", func() bool { return r.has("west/gateway/a", "192.0.2.1") && r.back() })
	c.must(c.Apply(t.Context(), tcpRoute+"---"+edge))
	until(t, "the address of the Gateway", func() bool { return r.has("west/gateway/a", "198.51.100.1") && r.has("west/gateway/a", "8443") })
	c.must(c.Delete(t.Context(), tcpRoute))
	until(t, "the next kind of endpoints", func() bool { return r.has("west/gateway/a", "192.0.2.1") })
	r.withdrew(t)
}

// testDefinition has ServiceExports served no more, and then again in another version, and an
// export deleted before and meanwhile. What nobody can ask for stays.
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

	const missing = "missing=[serviceexports.multicluster.x-k8s.io"
	const unserved = `[{"op":"replace","path":"/spec/versions/0/served","value":false},{"op":"replace","path":"/spec/versions/1/served","value":false}]`
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	_, err := c.Dynamic.Resource(definitions).Patch(t.Context(), realserver.ServiceExports, types.JSONPatchType, []byte(unserved), metav1.PatchOptions{})
	c.must(err)
	until(t, "what is served no more", func() bool { return r.awayFor("not served by the cluster any more") })
	c.moveTo("definition", "a", "192.0.2.2")
	until(t, "a change of what stays", func() bool { return r.has("west/definition/a", "192.0.2.2") })
	r.withdrew(t, "west/definition/c")
	until(t, "the line", func() bool { return strings.Contains(r.log.String(), missing) })

	other := c.run(func(config *Config) { config.Namespaces = []string{"definition"} })
	until(t, "a cluster without", func() bool { return other.back() && other.names() == "" })

	c.must(c.Uninstall(t.Context(), realserver.ServiceExports))
	c.must(c.InstallMCS(t.Context(), "v1alpha1"))
	c.export("v1alpha1", "definition", "a")
	until(t, "what is served again", r.back)
	until(t, "what was exported again", func() bool { return r.names() == "west/definition/a" && other.names() == "west/definition/a" })
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := strings.Count(r.log.String(), missing); n != 1 {
		t.Errorf("the removal was logged %d times", n)
	}
	if _, ok := r.refused[string(export.NoAddress)]; ok {
		t.Errorf("refused: %v", r.refused)
	}
}
