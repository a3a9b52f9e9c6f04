package pods

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

const (
	images    = root + "/bin/image"
	imageUser = 65532
)

// tagOf returns the only tag in the layout of an image.
func tagOf(t *testing.T, layout string) string {
	t.Helper()
	var index struct {
		Manifests []struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"manifests"`
	}
	text := must.Get(os.ReadFile(filepath.Join(layout, "index.json")))(t)
	if err := json.Unmarshal(text, &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index.json of %s is %s", layout, text)
	}
	return index.Manifests[0].Annotations["org.opencontainers.image.ref.name"]
}

// container is what a runtime makes of an image. It drops all capabilities and permits
// no new ones, and the root is read-only.
type container struct {
	bundle string // folder of runc
	id     string
}

// newContainer unpacks one of our images, and configures its container: the arguments of the
// entry point, the pod whose network it gets, and what of the machine it sees at the
// paths that are the keys. The function change, if any, changes the configuration as it
// likes.
func newContainer(t *testing.T, image, id string, args []string, in *pod, mounts map[string]string, change func(config map[string]any)) *container {
	t.Helper()
	layout, unpacked := filepath.Join(images, image), filepath.Join(t.TempDir(), "bundle")
	mustRun(t, "umoci", "unpack", "--image", layout+":"+tagOf(t, layout), unpacked)
	c := &container{bundle: t.TempDir(), id: id}
	var config map[string]any
	must.Do(t, json.Unmarshal([]byte(readAll(t, filepath.Join(unpacked, "config.json"))), &config))
	config["root"] = map[string]any{"path": filepath.Join(unpacked, "rootfs"), "readonly": true}
	process := config["process"].(map[string]any)
	process["terminal"], process["noNewPrivileges"], process["capabilities"] = false, true, map[string]any{}
	entry := process["args"].([]any)
	for _, arg := range args {
		entry = append(entry, arg)
	}
	process["args"] = entry
	for inside, outside := range mounts {
		config["mounts"] = append(config["mounts"].([]any), map[string]any{
			"destination": inside, "source": outside, "type": "bind", "options": []string{"bind"},
		})
	}
	system := config["linux"].(map[string]any)
	system["cgroupsPath"] = "/" + os.Getenv(groupVariable) + "/" + id
	for _, namespace := range system["namespaces"].([]any) {
		if n := namespace.(map[string]any); n["type"] == "network" {
			n["path"] = "/run/netns/" + in.name
		}
	}
	if change != nil {
		change(config)
	}
	must.Do(t, os.WriteFile(filepath.Join(c.bundle, "config.json"), must.Get(json.Marshal(config))(t), 0o600))
	return c
}

func (c *container) command() *exec.Cmd {
	return exec.Command("runc", "run", "--bundle", c.bundle, c.id)
}

// start runs the container until the end of the test.
func (c *container) start(t *testing.T) *process {
	t.Helper()
	return startProcess(t, "the container "+c.id, c.command(), (*exec.Cmd).Start)
}

// mustEnd runs a container that ends by itself, and returns what it printed and
// whether its exit code is 0.
func (c *container) mustEnd(t *testing.T) (printed string, ok bool) {
	t.Helper()
	var p testlog.Buffer
	cmd := c.command()
	cmd.Stdout, cmd.Stderr = &p, &p
	must.Do(t, cmd.Start())
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Signal(syscall.SIGTERM) }) // runc passes it on
	defer timer.Stop()
	err := cmd.Wait()
	return p.String(), err == nil
}

// firstPort sets the first port of the network namespace that every user may listen
// on: 0 is what containerd and Docker set, and 1024 what the kernel begins with.
func firstPort(port string) func(config map[string]any) {
	return func(config map[string]any) {
		config["linux"].(map[string]any)["sysctl"] = map[string]string{"net.ipv4.ip_unprivileged_port_start": port}
	}
}

// bindService adds the capability to listen on any port, as Kubernetes does that was
// asked to: it makes none ambient.
func bindService(config map[string]any) {
	firstPort("1024")(config)
	capability := []string{"CAP_NET_BIND_SERVICE"}
	config["process"].(map[string]any)["capabilities"] = map[string]any{
		"bounding": capability, "permitted": capability, "effective": capability, "inheritable": capability,
	}
}

// forImage makes a folder, and what is in it, the image's user's, and returns it.
func forImage(t *testing.T, folder string) string {
	t.Helper()
	mustRun(t, "chown", "-R", fmt.Sprintf("%d:%d", imageUser, imageUser), folder)
	mustRun(t, "chmod", "u+rwX", folder)
	return folder
}

// The images run as a user that is not root, without any capability and with a
// read-only root, and do there what they are for.
func TestImage(t *testing.T) {
	need(t, "runc", "umoci")
	newBridge(t)
	ownerPod, dnsPod := newPod(t, "owner", ownerAddress), newPod(t, "dns", clusterDNS)
	files := certificates(t, ownerAddress)
	config := filepath.Dir(files.owner.Cert)
	writeBelow(t, config, "catalog.yaml", readAll(t, catalog))
	inside := func(path string) string { return "/config/" + filepath.Base(path) }
	corefile := fmt.Sprintf(`%s:53 {
    federation {
        owner %s:8008
        tls %s %s %s
        persist FILE
    }
}
`, federationZone, ownerAddress, inside(files.consumer.Cert), inside(files.consumer.Key), inside(files.consumer.CA))
	writeBelow(t, config, "Corefile", strings.Replace(corefile, "FILE", "/var/lib/federation/owner", 1))
	writeBelow(t, config, "Corefile.root", strings.Replace(corefile, "FILE", "/owner", 1))
	mounts := map[string]string{"/config": forImage(t, config)}
	withState := maps.Clone(mounts)
	state := t.TempDir()
	withState["/var/lib/federation"] = forImage(t, state)

	t.Run("help", func(t *testing.T) {
		printed, ok := newContainer(t, "federationctl", "help", []string{"--help"}, ownerPod, nil, nil).mustEnd(t)
		if !ok || !strings.Contains(printed, "Usage:") {
			t.Errorf("--help printed %s", printed)
		}
	})
	t.Run("write to the root", func(t *testing.T) {
		printed, ok := newContainer(t, "federationctl", "pki", []string{"pki", "/certificates"}, ownerPod, nil, nil).mustEnd(t)
		if ok || !strings.Contains(printed, "read-only file system") {
			t.Errorf("pki printed %s", printed)
		}
		printed, ok = newContainer(t, "coredns", "persist", []string{"-conf", "/config/Corefile.root"}, dnsPod, mounts, firstPort("0")).mustEnd(t)
		if ok || !strings.Contains(printed, "read-only file system") {
			t.Errorf("CoreDNS, which is to persist to the root, printed %s", printed)
		}
	})
	for name, change := range map[string]func(map[string]any){"nothing": firstPort("1024"), "capability": bindService} {
		t.Run("port 53 with "+name, func(t *testing.T) {
			printed, ok := newContainer(t, "coredns", name, []string{"-conf", "/config/Corefile"}, dnsPod, withState, change).mustEnd(t)
			if ok || !strings.Contains(printed, "bind: permission denied") {
				t.Errorf("CoreDNS printed %s", printed)
			}
		})
	}
	t.Run("serve", func(t *testing.T) {
		owner := newContainer(t, "federationctl", "owner", []string{
			"serve", "--catalog", "/config/catalog.yaml",
			"--cert", inside(files.owner.Cert), "--key", inside(files.owner.Key), "--ca", inside(files.owner.CA), "--allow-any",
		}, ownerPod, mounts, nil)
		dns := newContainer(t, "coredns", "coredns", []string{"-conf", "/config/Corefile"}, dnsPod, withState, firstPort("0"))
		server := &dnsServer{process: dns.start(t), address: clusterDNS + ":53"}
		awaitAnswer(t, "shop.fed.example.", owner.start(t), server)
		for _, c := range []*container{owner, dns} {
			checkProcess(t, c)
		}
		eventually(t, func() string {
			if _, err := os.Stat(filepath.Join(state, "owner")); err != nil {
				return err.Error()
			}
			return ""
		})
	})
}

// checkProcess checks what the kernel says of the process of a container.
func checkProcess(t *testing.T, c *container) {
	t.Helper()
	var state struct {
		PID int `json:"pid"`
	}
	must.Do(t, json.Unmarshal([]byte(mustRun(t, "runc", "state", c.id)), &state))
	status := readAll(t, fmt.Sprintf("/proc/%d/status", state.PID))
	for _, want := range []string{
		fmt.Sprintf(`Uid:(\t%d){4}`, imageUser), fmt.Sprintf(`Gid:(\t%d){4}`, imageUser), `Groups:\s*`,
		`CapPrm:\t0+`, `CapEff:\t0+`, `CapBnd:\t0+`, `CapAmb:\t0+`, `NoNewPrivs:\t1`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(status) {
			t.Errorf("status of %s has no line %s:\n%s", c.id, want, status)
		}
	}
	for line := range strings.Lines(readAll(t, fmt.Sprintf("/proc/%d/mounts", state.PID))) {
		fields := strings.Fields(line)
		if fields[1] == "/" && !strings.HasPrefix(fields[3], "ro,") {
			t.Errorf("root of %s: %s", c.id, line)
		}
	}
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return string(text)
}
