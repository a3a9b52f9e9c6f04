package deploy

import (
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// prepare makes the namespaces of the examples. In all of them a pod that is not
// restricted is refused.
func prepare(t *testing.T, kubectl command) {
	t.Helper()
	kubectl.must(t, "", "label", "namespace", "kube-system", "pod-security.kubernetes.io/enforce=restricted")
	for _, namespace := range []string{"federation", "shop", "pay"} {
		kubectl.must(t, "", "create", "namespace", namespace)
		kubectl.must(t, "", "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
	}
}

// One API server has all that needs one.
func TestAPIServer(t *testing.T) {
	helm, kubectl, server := helm(t, ""), kubectl(t, ""), realserver.StartAPIServer(t)
	for _, c := range []*command{&helm, &kubectl} {
		c.env = append(c.env, "KUBECONFIG="+server.Kubeconfig)
	}
	prepare(t, kubectl)
	t.Run("Manifests", func(t *testing.T) { testManifests(t, helm, kubectl) })
	t.Run("Upgrade", func(t *testing.T) { testUpgrade(t, helm, kubectl) })
	t.Run("Corefiles", func(t *testing.T) { testCorefiles(t, helm, kubectl, server) })
}

// testManifests has the API server take everything that the chart and the overlays render, with no
// warning and no unknown field, and the pods of their Deployments as restricted ones.
func testManifests(t *testing.T, helm, kubectl command) {
	rendered := make(map[string]string)
	for example := range examples(t) {
		rendered["chart with "+example] = helm.template(t, example)
	}
	for recipe := range recipes {
		for name, dir := range map[string]string{recipe: filepath.Join(manifests, "overlays", recipe), recipe + " with spire": withSpire(t, recipe)} {
			rendered["overlay "+name] = kubectl.must(t, "", "kustomize", dir)
		}
	}
	for name, text := range rendered {
		t.Run(name, func(t *testing.T) {
			apply := []string{"apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"}
			_, warnings, err := kubectl.run(text, apply...)
			if err != nil || warnings != "" {
				t.Errorf("%v%s", err, warnings)
			}
			for _, deployment := range ofKind(objects(t, text), "Deployment") {
				pod := must.Get(yaml.Marshal(object{
					"apiVersion": "v1", "kind": "Pod", "spec": at(deployment, "spec", "template", "spec"),
					"metadata": object{"name": "pod", "namespace": at(deployment, "metadata", "namespace")},
				}))(t)
				if _, warnings, err := kubectl.run(string(pod), apply...); err != nil || warnings != "" {
					t.Errorf("pod: %v%s", err, warnings)
				}
			}
		})
	}
	t.Run("a pod that is not restricted is refused", func(t *testing.T) {
		_, _, err := kubectl.run("", "run", "pod", "--image=registry.example/coredns", "--namespace=federation", "--dry-run=server")
		if err == nil || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) {
			t.Errorf("error is %v", err)
		}
	})
}
