package pods

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	// toolsVariable lists the paths, from the root of the repository and with spaces, of
	// the pinned kubelet, containerd, containerd-shim-runc-v2 and ctr.
	toolsVariable = "E2E_PODS_TOOLS"

	plugins   = "/usr/lib/cni"       // of Debian's containernetworking-plugins
	nodeName  = "10.244.0.1"         // the API server finds the kubelet by it
	podImage  = "localhost/pod:test" // testdata/pod.c
	nodeFiles = "/run/node"          // in the sandbox's own /run, and so in memory
)

// containerdConfig is of a containerd that keeps its files in nodeFiles, and works
// where it may not make processes less likely to be killed for memory, where
// an overlay cannot lie on an overlay, and without AppArmor.
const containerdConfig = `version = 3
root = "` + nodeFiles + `/containerd"
state = "` + nodeFiles + `/containerd-state"
[grpc]
  address = "` + nodeFiles + `/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "native"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "` + podImage + `"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["` + plugins + `"]
    conf_dir = "` + nodeFiles + `/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    SystemdCgroup = false
[plugins.'io.containerd.internal.v1.opt']
  path = "` + nodeFiles + `/opt"
`

// network gives pods addresses on the bridge, behind those that this test gives.
const network = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{
  "type": "bridge", "bridge": "` + bridge + `", "isGateway": true,
  "ipam": {"type": "host-local", "dataDir": "` + nodeFiles + `/addresses",
    "ranges": [[{"subnet": "10.244.0.0/24", "gateway": "10.244.0.1", "rangeStart": "10.244.0.150", "rangeEnd": "10.244.0.250"}]]}}]}
`

// kubeletConfig takes the root of the control groups.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 10.244.0.1
healthzBindAddress: 127.0.0.1
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /%s
enforceNodeAllocatable: []
evictionHard: {memory.available: 1Mi}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
containerRuntimeEndpoint: unix://` + nodeFiles + `/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
clusterDomain: cluster.local
clusterDNS: [10.244.0.1]
resolvConf: ` + nodeFiles + `/resolv.conf
podLogsDir: ` + nodeFiles + `/logs
failSwapOn: false
`

// needKubelet skips or fails the test where there can be no kubelet, or shall be none.
func needKubelet(t *testing.T) {
	t.Helper()
	need(t)
	mode := os.Getenv(variable)
	if mode == byNamespaces {
		t.Skip("PODS=namespaces: pods are namespaces only")
	}
	var missing []string
	tools := strings.Fields(os.Getenv(toolsVariable))
	if len(tools) == 0 {
		t.Skip("run make e2e-pods")
	}
	for i := range tools {
		tools[i] = filepath.Join(root, tools[i])
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		runc = "runc"
	}
	for _, path := range append(tools, runc, plugins+"/bridge", plugins+"/host-local") {
		if _, err := os.Stat(path); err != nil {
			missing = append(missing, path)
		}
	}
	if len(missing) == 0 {
		t.Log("pods are made by a kubelet and containerd")
		return
	}
	why := fmt.Sprintf("pods are namespaces only, without a kubelet, as this is missing: %s (make e2e-pods PODS=%s builds what can be built)",
		strings.Join(missing, ", "), byKubelet)
	if mode == byKubelet {
		t.Fatal(why)
	}
	t.Skip(why)
}

// Real pods, of a kubelet and containerd, find services of their own cluster and of
// another one; CoreDNS is a pod as well, from the image.
func TestKubelet(t *testing.T) {
	needKubelet(t)
	newBridge(t)
	files := certificates(t, ownerAddress)
	owner := startOwner(t, newPod(t, "owner", ownerAddress), files)
	n := startNode(t)
	kubeconfig := createObjects(t, n.api)
	config := forImage(t, filepath.Dir(files.consumer.Cert))
	inside := files.consumer
	for _, path := range []*string{&inside.Cert, &inside.Key, &inside.CA} {
		*path = "/config/" + filepath.Base(*path)
	}
	writeBelow(t, config, "kubeconfig", readAll(t, kubeconfig))
	var names, want []string
	for _, lookup := range lookups {
		if lookup.name != "absent" { // the cluster's DNS has nobody to ask
			names, want = append(names, lookup.name), append(want, lookup.name+" "+lookup.want)
		}
	}
	for i, r := range recipes {
		t.Run(r.name, func(t *testing.T) {
			corefile := func(name, text string) string {
				file := fmt.Sprintf("%s-%d", name, i)
				writeBelow(t, config, file, fillIn(text, inside, "/config/kubeconfig"))
				forImage(t, config)
				return file
			}
			servers := []interface{ mustLive(*testing.T) }{owner}
			cluster := strings.ReplaceAll(r.cluster, "forward . "+upstreamDNS, "")
			if r.beside != "" {
				address := n.createDNS(t, corefile("beside", r.beside), config)
				servers = append(servers, &dnsServer{process: n.kubelet, address: address + ":53"})
				cluster = strings.ReplaceAll(cluster, federationDNS, address)
			}
			address := n.createDNS(t, corefile("cluster", cluster), config)
			server := &dnsServer{process: n.kubelet, address: address + ":53"}
			awaitAnswer(t, "shop.fed.example.", append(servers, server)...)
			awaitAnswer(t, "web."+podNamespace+".svc.cluster.local.", server)
			n.dns.Store(&server.address)
			got := n.runPod(t, fmt.Sprintf("lookup-%d", i), names)
			if !slices.Equal(got, want) {
				t.Errorf("the pod got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			t.Logf("the pod got\n%s", strings.Join(got, "\n"))
		})
	}
	checkResolvConf(t)
}

// checkResolvConf checks what the kubelet has written for the pods that look up.
func checkResolvConf(t *testing.T) {
	t.Helper()
	written, _ := filepath.Glob(nodeFiles + "/containerd/*/sandboxes/*/resolv.conf")
	want := strings.Replace(resolvConf, clusterDNS, nodeAddress.String(), 1)
	if !slices.ContainsFunc(written, func(path string) bool { return readAll(t, path) == want }) {
		for _, path := range written {
			t.Logf("%s:\n%s", path, readAll(t, path))
		}
		t.Errorf("no pod has the resolv.conf\n%s", want)
	}
}

// node is a kubelet, with what it needs.
type node struct {
	api     *realserver.APIServer
	kubelet *process
	dns     atomic.Pointer[string] // what answers at clusterDNS of kubeletConfig
}

// startNode starts an API server, containerd with the images, and a kubelet. All files
// are in memory, and so are those that programs of the node write to /var.
func startNode(t *testing.T) *node {
	t.Helper()
	for _, folder := range []string{"/var/lib", "/var/log"} {
		must.Do(t, unix.Mount("tmpfs", folder, "tmpfs", 0, "mode=755"))
		t.Cleanup(func() { _ = unix.Unmount(folder, unix.MNT_DETACH) })
	}
	keepSettings(t)
	group := os.Getenv(groupVariable)
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	for _, path := range append(hierarchies, "/sys/fs/cgroup/cgroup.procs") {
		if _, err := os.Stat(path); err == nil {
			must.Do(t, os.MkdirAll(filepath.Join(filepath.Dir(path), group), 0o755))
		}
	}
	tools := make(map[string]string)
	for path := range strings.FieldsSeq(os.Getenv(toolsVariable)) {
		absolute := must.Get(filepath.Abs(filepath.Join(root, path)))(t)
		name := filepath.Base(path)
		name = name[:strings.LastIndex(name, "-v")]
		tools[name] = filepath.Join(nodeFiles, "bin", name)
		must.Do(t, os.MkdirAll(nodeFiles+"/bin", 0o755))
		must.Do(t, os.Symlink(absolute, tools[name]))
	}
	t.Setenv("PATH", nodeFiles+"/bin:"+os.Getenv("PATH")) // containerd finds the shim there
	for name, text := range map[string]string{
		"containerd.toml": containerdConfig, "cni/10-pods.conflist": network, "resolv.conf": "",
		"kubelet.yaml": fmt.Sprintf(kubeletConfig, group),
	} {
		writeBelow(t, nodeFiles, name, text)
	}
	n := &node{api: realserver.StartAPIServer(t)}
	containerd := startProcess(t, "containerd", exec.Command(tools["containerd"], "--config", nodeFiles+"/containerd.toml"), (*exec.Cmd).Start)
	ctr := []string{"--address", nodeFiles + "/containerd.sock", "--namespace", "k8s.io"}
	eventually(t, func() string {
		containerd.mustLive(t)
		if out, err := exec.Command(tools["ctr"], append(ctr, "version")...).CombinedOutput(); err != nil {
			return string(out)
		}
		return ""
	})
	for _, archive := range []string{images + "/coredns.tar", podArchive(t)} {
		mustRun(t, tools["ctr"], append(ctr, "images", "import", "--local", "--snapshotter", "native", archive)...)
	}
	n.kubelet = startProcess(t, "the kubelet", exec.Command(tools["kubelet"], "--config", nodeFiles+"/kubelet.yaml",
		"--kubeconfig", n.api.Kubeconfig, "--root-dir", nodeFiles+"/kubelet", "--cert-dir", nodeFiles+"/kubelet-certificates",
		"--hostname-override", nodeName, "--node-ip", nodeAddress.String()), (*exec.Cmd).Start)
	n.serveDNS(t)
	return n
}

// keepSettings keeps a kubelet from changing settings of the kernel that are those of
// the whole machine: it finds files in their place.
func keepSettings(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	} {
		setting := "/proc/sys/" + name
		writeBelow(t, nodeFiles, "settings/"+name, readAll(t, setting))
		must.Do(t, unix.Mount(filepath.Join(nodeFiles, "settings", name), setting, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(setting, unix.MNT_DETACH) })
	}
}

// serveDNS stands for kube-proxy: what comes to the address of the cluster's DNS goes
// on to the pod of the recipe that is tested.
func (n *node) serveDNS(t *testing.T) {
	t.Helper()
	conn := must.Get(net.ListenPacket("udp", nodeAddress.String()+":53"))(t)
	client := dns.Client{Timeout: 5 * time.Second}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		if reply, _, err := client.Exchange(query, *n.dns.Load()); err == nil {
			_ = w.WriteMsg(reply)
		}
	})}
	done := make(chan error, 1)
	go func() { done <- server.ActivateAndServe() }()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
}

// podArchive writes the image podImage, and returns the path of the archive. It is
// written by hand as the library for images is in another module.
func podArchive(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	must.Do(t, compilePod("gcc", program))
	layer := tarOf(t, "program", []byte(readAll(t, program)), "etc/nsswitch.conf", []byte("hosts: files dns\n"))
	config := marshal(t, map[string]any{
		"os": "linux", "architecture": "amd64", "config": map[string]any{"Entrypoint": []string{"/program"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	manifest := marshal(t, []any{map[string]any{"Config": "config.json", "RepoTags": []string{podImage}, "Layers": []string{"layer.tar"}}})
	path := filepath.Join(t.TempDir(), "pod.tar")
	must.Do(t, os.WriteFile(path, tarOf(t, "manifest.json", manifest, "config.json", config, "layer.tar", layer), 0o600))
	return path
}

// tarOf returns an archive of names, each followed by its content.
func tarOf(t *testing.T, files ...any) []byte {
	t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for i := 0; i < len(files); i += 2 {
		content := files[i+1].([]byte)
		must.Do(t, w.WriteHeader(&tar.Header{Name: files[i].(string), Mode: 0o755, Size: int64(len(content))}))
		must.Get(w.Write(content))(t)
	}
	must.Do(t, w.Close())
	return buffer.Bytes()
}

func marshal(t *testing.T, value any) []byte {
	t.Helper()
	text := must.Get(json.Marshal(value))(t)
	return text
}

// createDNS creates a pod of CoreDNS with a Corefile of the folder config, as the
// strictest of the pod security standards has it, and returns its address.
func (n *node) createDNS(t *testing.T, corefile, config string) string {
	t.Helper()
	n.create(t, corefile, map[string]any{
		"securityContext": map[string]any{"runAsNonRoot": true, "seccompProfile": map[string]any{"type": "RuntimeDefault"}},
		"volumes":         []any{map[string]any{"name": "config", "hostPath": map[string]any{"path": config}}},
		"containers": []any{map[string]any{
			"name": "coredns", "image": "localhost/coredns:" + tagOf(t, images+"/coredns"), "imagePullPolicy": "Never",
			"args": []string{"-conf", "/config/" + corefile},
			"securityContext": map[string]any{
				"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false, "capabilities": map[string]any{"drop": []string{"ALL"}},
			},
			"volumeMounts": []any{map[string]any{"name": "config", "mountPath": "/config", "readOnly": true}},
		}},
	})
	t.Cleanup(func() {
		if log, err := n.api.Get(context.Background(), podsPath+"/"+corefile+"/log"); t.Failed() {
			t.Logf("log of the pod %s: %v\n%s", corefile, err, log)
		}
	})
	return n.await(t, corefile, "Running").PodIP
}

// runPod runs a pod that looks names up, and returns what it printed, with the
// addresses of each name in order.
func (n *node) runPod(t *testing.T, name string, names []string) (lines []string) {
	t.Helper()
	n.create(t, name, map[string]any{
		"restartPolicy": "Never",
		"containers":    []any{map[string]any{"name": "lookup", "image": podImage, "imagePullPolicy": "Never", "args": names}},
	})
	n.await(t, name, "Succeeded")
	log := must.Get(n.api.Get(t.Context(), podsPath+"/"+name+"/log"))(t)
	for line := range strings.Lines(string(log)) {
		lines = append(lines, inOrder(line))
	}
	return lines
}

const podsPath = "/api/v1/namespaces/" + podNamespace + "/pods"

// create creates a pod on the node.
func (n *node) create(t *testing.T, name string, spec map[string]any) {
	t.Helper()
	spec["nodeName"], spec["automountServiceAccountToken"] = nodeName, false // there is no scheduler, and no controller
	spec["tolerations"] = []any{map[string]any{"operator": "Exists"}}
	must.Do(t, n.api.Create(t.Context(), podsPath, map[string]any{"metadata": map[string]any{"name": name}, "spec": spec}))
}

type podStatus struct {
	Phase             string          `json:"phase"`
	PodIP             string          `json:"podIP"` //nolint:tagliatelle // the name in Kubernetes
	ContainerStatuses json.RawMessage `json:"containerStatuses"`
}

// await waits until a pod is in a phase.
func (n *node) await(t *testing.T, name, phase string) podStatus {
	t.Helper()
	var object struct {
		Status podStatus `json:"status"`
	}
	eventually(t, func() string {
		n.kubelet.mustLive(t)
		text, err := n.api.Get(t.Context(), podsPath+"/"+name)
		if err != nil {
			return err.Error()
		}
		must.Do(t, json.Unmarshal(text, &object))
		if object.Status.Phase != phase {
			return fmt.Sprintf("the pod %s is %s: %s", name, object.Status.Phase, object.Status.ContainerStatuses)
		}
		return ""
	})
	return object.Status
}
