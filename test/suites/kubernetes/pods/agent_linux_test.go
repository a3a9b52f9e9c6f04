package pods

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	syncEvery  = 50 * time.Millisecond
	proxyDelay = time.Second // until a node follows a change of endpoints
)

// agent does for the pods of a release what a scheduler, a kubelet and kube-proxy do: it starts
// them, probes them, ends them, and says where their Services lead. Its methods are for the
// goroutine of the test, but for pick.
type agent struct {
	cluster  *realserver.Cluster
	owners   *realserver.Gate      // the Service of the owner
	unpacked map[string]string     // folders of images, by name
	members  map[types.UID]*member // all pods that there have been
	synced   time.Time

	mu    sync.Mutex
	views []view // the first one is in force, and the others follow
	next  int
}

// view is where Services lead from some time on.
type view struct {
	since     time.Time
	endpoints map[string][]endpoint // by Service
}

type endpoint struct{ address, version string }

// versions counts the endpoints of a Service by version.
func (v view) versions(service string) map[string]int {
	counts := make(map[string]int)
	for _, e := range v.endpoints[service] {
		counts[e.version]++
	}
	return counts
}

// member is a pod that runs.
type member struct {
	*process

	address         string
	version         string
	readiness, life probe
	reported        bool // ready, to the API server
	ending          bool
}

// newAgent makes a node for images, which are in the folders by tag.
func newAgent(t *testing.T, cluster *realserver.Cluster, folders map[string]string) *agent {
	t.Helper()
	a := &agent{
		cluster: cluster, unpacked: make(map[string]string), members: make(map[types.UID]*member),
		owners: realserver.StartGateAt(t, nodeAddress.String()+":8008", ""),
	}
	for tag, folder := range folders {
		for _, name := range []string{"federationctl", "coredns"} {
			a.unpacked["localhost/"+name+":"+tag] = unpack(t, filepath.Join(folder, name))
		}
	}
	must.Get(cluster.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{}))(t)
	return a
}

// await is the agent until each Service leads to two pods of a version, and there are no others.
// It returns the Services that have led to two versions meanwhile.
func (a *agent) await(t *testing.T, version string) (together map[string]bool) {
	t.Helper()
	together = make(map[string]bool)
	await.Until(t, 6*time.Minute, func() string {
		pods := a.sync(t)
		now, done := a.view(), pods == 4
		for _, service := range []string{ownerService, dnsService} {
			counts := now.versions(service)
			together[service] = together[service] || len(counts) > 1
			done = done && len(counts) == 1 && counts[version] == 2
		}
		if !done {
			return fmt.Sprintf("there are %d pods, and Services lead to %v, want 2 pods of %s each", pods, now.endpoints, version)
		}
		return ""
	})
	return together
}

// awaitBoth is await for a change of versions.
func (a *agent) awaitBoth(t *testing.T, version string) {
	t.Helper()
	if together := a.await(t, version); !together[ownerService] || !together[dnsService] {
		t.Errorf("until all pods were %s, Services led to two versions: %v, want both", version, together)
	}
}

// sync does what is to be done now, and returns how many pods there are.
func (a *agent) sync(t *testing.T) (pods int) {
	t.Helper()
	timer := time.NewTimer(time.Until(a.synced.Add(syncEvery)))
	defer timer.Stop()
	<-timer.C // spares the API server
	client := a.cluster.Client.CoreV1().Pods(releaseNamespace)
	list := must.Get(client.List(t.Context(), metav1.ListOptions{}))(t).Items
	for i := range list {
		p := &list[i]
		m := a.members[p.UID]
		switch {
		case p.DeletionTimestamp != nil:
			if m == nil || m.hasEnded(t, p) {
				if err := client.Delete(t.Context(), p.Name, *metav1.NewDeleteOptions(0)); !apierrors.IsNotFound(err) {
					must.Do(t, err)
				}
			}
		case m == nil:
			a.start(t, p)
		default:
			a.probe(t, m, p)
		}
	}
	a.follow(t)
	a.synced = time.Now()
	return len(list)
}

// follow notes where Services are to lead after the delay, and has that of the owner lead there.
func (a *agent) follow(t *testing.T) {
	t.Helper()
	v := view{time.Now().Add(proxyDelay), make(map[string][]endpoint)}
	for _, slice := range must.Get(a.cluster.Client.DiscoveryV1().EndpointSlices(releaseNamespace).List(t.Context(), metav1.ListOptions{}))(t).Items {
		service := slice.Labels[discoveryv1.LabelServiceName]
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && *e.Conditions.Ready {
				v.endpoints[service] = append(v.endpoints[service], endpoint{e.Addresses[0], a.members[e.TargetRef.UID].version})
			}
		}
	}
	a.mu.Lock()
	a.views = append(a.views, v)
	a.mu.Unlock()
	var owners []string
	for _, e := range a.view().endpoints[ownerService] {
		owners = append(owners, net.JoinHostPort(e.address, "8008"))
	}
	a.owners.Lead(owners...)
}

// view returns where Services lead now.
func (a *agent) view() view {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for len(a.views) > 1 && !a.views[1].since.After(now) {
		a.views = a.views[1:]
	}
	if len(a.views) == 0 || a.views[0].since.After(now) {
		return view{}
	}
	return a.views[0]
}

// start starts a pod on the node.
func (a *agent) start(t *testing.T, p *corev1.Pod) {
	t.Helper()
	core := a.cluster.Client.CoreV1()
	must.Do(t, core.Pods(releaseNamespace).Bind(t.Context(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: nodeName},
	}, metav1.CreateOptions{}))
	if len(p.Spec.Containers) != 1 || len(p.Spec.InitContainers) > 0 || p.Spec.Containers[0].Lifecycle != nil {
		t.Fatalf("the pod %s has more than one container, or hooks, which are not run here", p.Name)
	}
	c := p.Spec.Containers[0]
	number := len(a.members) + 101
	network := newPod(t, fmt.Sprintf("pod%d", number), fmt.Sprintf("10.244.0.%d", number))
	sources, mounts := make(map[string]string), make(map[string]string)
	for _, v := range p.Spec.Volumes {
		sources[v.Name] = a.volume(t, v)
	}
	for _, m := range c.VolumeMounts {
		mounts[m.MountPath] = sources[m.Name]
	}
	mounts["/etc/resolv.conf"] = filepath.Join(t.TempDir(), "resolv.conf") // of the node
	must.Do(t, os.WriteFile(mounts["/etc/resolv.conf"], []byte("nameserver "+upstreamDNS+"\n"), 0o644))
	runtime := containerOf(t, a.unpacked[c.Image], network.name, c.Args, network, mounts, func(config map[string]any) {
		sysctls := make(map[string]string)
		for _, s := range p.Spec.SecurityContext.Sysctls {
			sysctls[s.Name] = s.Value
		}
		config["linux"].(map[string]any)["sysctl"] = sysctls
		process := config["process"].(map[string]any)
		for _, e := range c.Env {
			process["env"] = append(process["env"].([]any), e.Name+"="+e.Value)
		}
	})
	_, version, _ := strings.Cut(c.Image, ":")
	address := network.address.String()
	a.members[p.UID] = &member{
		process: runtime.start(t), address: address, version: version,
		readiness: newProbe(c.ReadinessProbe, c, address), life: newProbe(c.LivenessProbe, c, address),
	}
}

// volume returns a folder with what is in a volume. An emptyDir is empty; so is what has the
// token of a service account here, as nobody needs one.
func (a *agent) volume(t *testing.T, v corev1.Volume) string {
	t.Helper()
	core, dir, files := a.cluster.Client.CoreV1(), t.TempDir(), make(map[string]string)
	switch {
	case v.ConfigMap != nil:
		maps.Copy(files, must.Get(core.ConfigMaps(releaseNamespace).Get(t.Context(), v.ConfigMap.Name, metav1.GetOptions{}))(t).Data)
	case v.Secret != nil:
		for name, text := range must.Get(core.Secrets(releaseNamespace).Get(t.Context(), v.Secret.SecretName, metav1.GetOptions{}))(t).Data {
			files[name] = string(text)
		}
	}
	for name, text := range files {
		writeBelow(t, dir, name, text)
	}
	return forImage(t, dir)
}

// probe probes a pod, and tells the API server whether it is ready.
func (a *agent) probe(t *testing.T, m *member, p *corev1.Pod) {
	t.Helper()
	m.mustLive(t)
	if m.life.run(); m.life.failures >= m.life.FailureThreshold {
		t.Fatalf("%s would be started anew: %s has failed %d times", m.name, m.life.url, m.life.failures)
	}
	ready := m.readiness.run()
	if p.Status.Phase == corev1.PodRunning && ready == m.reported {
		return
	}
	state := corev1.ConditionFalse
	if ready {
		state = corev1.ConditionTrue
	}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: m.address, PodIPs: []corev1.PodIP{{IP: m.address}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: state, LastTransitionTime: metav1.Now()}},
	}
	_, err := a.cluster.Client.CoreV1().Pods(releaseNamespace).UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) { // it was deleted just now, say
		return
	}
	must.Do(t, err)
	m.reported = ready
}

// hasEnded ends a pod that is deleted, and reports whether it has ended.
func (m *member) hasEnded(t *testing.T, p *corev1.Pod) bool {
	t.Helper()
	select {
	case <-m.done:
		return true
	default:
	}
	switch {
	case !m.ending:
		m.ending = true
		must.Do(t, m.cmd.Process.Signal(syscall.SIGTERM)) // runc passes it on
	case time.Now().After(p.DeletionTimestamp.Time): // which is after the grace period
		t.Fatalf("%s does not end in its grace period of %d s", m.name, *p.DeletionGracePeriodSeconds)
	}
	return false
}

// probe is one of a kubelet.
type probe struct {
	*corev1.Probe

	url      string
	due      time.Time
	failures int32 // since the last success
	ok       bool
}

func newProbe(p *corev1.Probe, c corev1.Container, address string) probe {
	port := p.HTTPGet.Port.String()
	for _, named := range c.Ports {
		if named.Name == p.HTTPGet.Port.StrVal {
			port = strconv.Itoa(int(named.ContainerPort))
		}
	}
	url := "http://" + net.JoinHostPort(address, port) + p.HTTPGet.Path
	return probe{Probe: p, url: url, due: time.Now().Add(time.Duration(p.InitialDelaySeconds) * time.Second)}
}

// run probes if it is time to, and returns the state.
func (p *probe) run() bool {
	if time.Now().Before(p.due) {
		return p.ok
	}
	p.due = time.Now().Add(time.Duration(p.PeriodSeconds) * time.Second)
	client := http.Client{Timeout: time.Duration(p.TimeoutSeconds) * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(p.url)
	if err == nil {
		_ = response.Body.Close()
	}
	if err == nil && response.StatusCode < http.StatusBadRequest {
		p.failures, p.ok = 0, true
	} else if p.failures++; p.failures >= p.FailureThreshold {
		p.ok = false
	}
	return p.ok
}

// pick returns the next endpoint of a Service.
func (a *agent) pick(service string) (endpoint, bool) {
	all := a.view().endpoints[service]
	if len(all) == 0 {
		return endpoint{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next++
	return all[a.next%len(all)], true
}
