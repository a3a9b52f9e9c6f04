package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// A release of the former chart is upgraded to this one with the values that it has, and
// rolled back, on a real API server. Pods take up a changed configuration before they are
// replaced, or after the others are rolled back: so each version of the programs takes what
// the other version's chart renders.
func TestUpgrade(t *testing.T) {
	server := realserver.StartAPIServer(t)
	helm, kubectl := helm(t, server.Kubeconfig), kubectl(t, server.Kubeconfig)
	prepare(t, kubectl)
	clone, program := realserver.BuildFormer(t)
	former := filepath.Join(clone, "deploy/chart")
	versions := map[string]command{
		"the former version": newCommand(t, program, ""),
		"this version":       newCommand(t, filepath.Join(programs(t), "federationctl"), ""),
	}
	var upgraded int
	for _, example := range slices.Sorted(maps.Keys(examples(t))) {
		values := filepath.Join(former, "examples", example+".yaml")
		if _, err := os.Stat(values); err != nil {
			continue // it is new
		}
		upgraded++
		t.Run(example, func(t *testing.T) {
			release := []string{"federation", "--namespace=" + namespaceOf(example)}
			manifest := func() string { return helm.must(t, "", append([]string{"get", "manifest"}, release...)...) }
			state := func() string {
				return kubectl.must(t, "", "get", release[1], "deployments,services,configmaps,networkpolicies,serviceaccounts", "-o=jsonpath={range .items[*]}{.kind}/{.metadata.name} {.spec}{.data}{\"\\n\"}{end}",
					"--selector=app.kubernetes.io/instance=federation")
			}
			helm.must(t, "", "install", release[0], former, release[1], "--values="+values)
			before, objectsBefore := manifest(), state()
			helm.must(t, "", "upgrade", release[0], chart, release[1], "--reset-then-reuse-values")
			after := manifest()
			for _, rendered := range []string{before, after} {
				accepted(t, versions, rendered)
			}
			helm.must(t, "", append([]string{"rollback"}, release...)...)
			if diff := cmp.Diff(objectsBefore, state()); diff != "" {
				t.Errorf("rolled back it is another one (-before +after):\n%s", diff)
			}
			helm.must(t, "", append([]string{"uninstall"}, release...)...)
			if left := leftovers(t, kubectl); left != "" {
				t.Errorf("after the release there are\n%s", left)
			}
		})
	}
	if upgraded < 6 {
		t.Errorf("%d examples were upgraded, want 6 at least", upgraded)
	}
}

// While a release is upgraded or rolled back, the Services always have two pods that are
// ready, of both versions for a while. No pod runs here: TestLameduck shows what one that
// ends answers.
func TestRollout(t *testing.T) {
	cluster := realserver.StartCluster(t, realserver.Options{Deployments: true})
	helm, kubectl := helm(t, cluster.Kubeconfig), kubectl(t, cluster.Kubeconfig)
	prepare(t, kubectl)
	clone := filepath.Join(t.TempDir(), "clone")
	must.Get(realserver.CloneFormer(root, clone))(t)
	former := filepath.Join(clone, "deploy/chart")
	images := func(version string) string {
		return fmt.Sprintf("--set=owner.image.digest=,owner.image.tag=%[1]s,dns.image.digest=,dns.image.tag=%[1]s", version)
	}
	helm.must(t, "", "install", "federation", former, "--namespace=federation", "--values="+former+"/examples/both.yaml", images("former"))
	must.Get(cluster.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}))(t)
	r := &rollout{cluster: cluster}
	r.await(t, "former", 0)
	helm.must(t, "", "upgrade", "federation", chart, "--namespace=federation", "--reset-then-reuse-values", images("new"))
	r.await(t, "new", 2)
	helm.must(t, "", "rollback", "federation", "--namespace=federation")
	r.await(t, "former", 2)
}

const node = "node" // of all pods; endpoints without one are left out

// rollout is the scheduler and the kubelet of all pods.
type rollout struct {
	cluster *realserver.Cluster
	pods    int // that were made ready
}

// await makes one pod after another ready, until there are only pods of a version, two of each
// component. Each Service must have so many ready endpoints all the time, and pods of two
// versions at some time, unless it begins with none.
func (r *rollout) await(t *testing.T, version string, least int) {
	t.Helper()
	client, together := r.cluster.Client.CoreV1().Pods("federation"), make(map[string]bool)
	await.Until(t, patience, func() string {
		pods := must.Get(client.List(t.Context(), metav1.ListOptions{}))(t).Items
		all := must.Get(r.cluster.Client.DiscoveryV1().EndpointSlices("federation").List(t.Context(), metav1.ListOptions{}))(t).Items
		versions, endpoints := make(map[string]string), make(map[string]map[string]int)
		var waiting *corev1.Pod
		for i, pod := range pods {
			_, tag, _ := strings.Cut(pod.Spec.Containers[0].Image, ":")
			versions[pod.Name] = tag
			switch {
			case pod.DeletionTimestamp != nil: // its processes have ended
				if err := client.Delete(t.Context(), pod.Name, *metav1.NewDeleteOptions(0)); !apierrors.IsNotFound(err) {
					must.Do(t, err)
				}
			case pod.Status.Phase == corev1.PodPending:
				waiting = &pods[i]
			}
		}
		for _, slice := range all {
			service := slice.Labels[discoveryv1.LabelServiceName]
			if endpoints[service] == nil {
				endpoints[service] = make(map[string]int)
			}
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					endpoints[service][versions[e.TargetRef.Name]]++
				}
			}
		}
		done := len(pods) == 4 && waiting == nil
		for _, service := range []string{"federation-owner", "federation-dns"} {
			var ready int
			for _, n := range endpoints[service] {
				ready += n
			}
			if ready < least {
				t.Fatalf("%s has %d ready endpoints, want %d at least", service, ready, least)
			}
			together[service] = together[service] || endpoints[service]["former"] > 0 && endpoints[service]["new"] > 0
			done = done && ready == 2 && endpoints[service][version] == 2
		}
		if waiting != nil {
			r.pods++
			binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: waiting.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
			must.Do(t, client.Bind(t.Context(), binding, metav1.CreateOptions{}))
			waiting = must.Get(client.Get(t.Context(), waiting.Name, metav1.GetOptions{}))(t)
			waiting.Status = corev1.PodStatus{
				Phase: corev1.PodRunning, PodIP: fmt.Sprintf("192.0.2.%d", r.pods), PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("192.0.2.%d", r.pods)}},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
			}
			must.Get(client.UpdateStatus(t.Context(), waiting, metav1.UpdateOptions{}))(t)
		}
		if !done {
			return fmt.Sprintf("there are %d pods, with the endpoints %v, want 2 of %s for each Service", len(pods), endpoints, version)
		}
		return ""
	})
	if least > 0 && (!together["federation-owner"] || !together["federation-dns"]) {
		t.Errorf("pods of two versions are together in %v, want them in both Services", together)
	}
}

// accepted checks that each version of the programs takes the configuration in what a chart
// renders.
func accepted(t *testing.T, versions map[string]command, rendered string) {
	t.Helper()
	dir, found := t.TempDir(), 0
	for file, check := range map[string]string{"owner.yaml": "lint", "Corefile": "check"} {
		text := fileOf(t, rendered, file)
		if text == "" {
			continue
		}
		found++
		path := filepath.Join(dir, file)
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		for name, program := range versions {
			args := []string{check, path}
			if strings.Contains(program.must(t, "", check, "--help"), "--elsewhere") { // the former version does not mind that they are not here
				args = append(args, "--elsewhere")
			}
			if out, _, err := program.run("", args...); err != nil {
				t.Errorf("%s: %v%s\nin\n%s", name, err, out, strings.TrimSpace(text))
			}
		}
	}
	if found == 0 {
		t.Error("it renders no configuration")
	}
}
