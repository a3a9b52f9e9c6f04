package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	root      = "../../../.."                                       // of the repository
	images    = root + "/bin/image"                                 // layouts
	catalog   = root + "/corefile-examples/quickstart/catalog.yaml" // of the other cluster
	imageUser = 65532

	bridge       = "pods0"
	nodeAddress  = "10.244.0.1"
	ownerAddress = "10.244.0.2" // of the other cluster
	dnsAddress   = "10.244.0.10"
	appAddress   = "10.244.0.100"
)

// resolvConf is what a kubelet writes for a pod with dnsPolicy ClusterFirst, the
// default, without the domains of the node.
const resolvConf = "search team.svc.cluster.local svc.cluster.local cluster.local\nnameserver " + dnsAddress + "\noptions ndots:5\n"

// corefile is that of the cluster's DNS, which knows no names but those of owners.
const corefile = `fed.example:53 {
    federation {
        owner ` + ownerAddress + `:8008
        tls /config/consumer.pem /config/consumer-key.pem /config/ca.pem
        persist /var/lib/federation/owner
    }
}
.:53 {
    template ANY ANY . {
        rcode NXDOMAIN
    }
}
`

// lookups are names that a pod asks for, and what it gets.
var lookups = []struct{ name, want string }{
	{"shop.fed.example", "192.0.2.10 198.51.100.20 2001:db8::10"},
	{"shop.fed.example.", "192.0.2.10 198.51.100.20 2001:db8::10"},
	{"primary.stock.db.fed.example", "2001:db8:40::1 203.0.113.40"},
	{"absent.fed.example", "none"},
	{"absent", "none"},
}

// The images run as a user that is not root, without any capability and with a
// read-only root; and a pod finds services of another cluster through them, whichever
// resolver it has.
func TestPods(t *testing.T) {
	if unfit != nil {
		t.Skip(unfit)
	}
	mustRun(t, "ip", "link", "add", bridge, "address", macOf(nodeAddress), "type", "bridge")
	mustRun(t, "ip", "addr", "add", nodeAddress+"/24", "dev", bridge)
	mustRun(t, "ip", "link", "set", bridge, "up")
	newPod(t, "owner", ownerAddress)
	newPod(t, "dns", dnsAddress)
	newPod(t, "app", appAddress)

	config, state := t.TempDir(), t.TempDir()
	authority := must.Get(mtls.NewAuthority("test", 24*time.Hour))(t)
	for _, leaf := range []mtls.Leaf{
		{Name: "owner", IPs: []netip.Addr{netip.MustParseAddr(ownerAddress)}}, {Name: "consumer", DNSNames: []string{"consumer.example"}},
	} {
		in := func(name string) string { return filepath.Join(config, name) }
		files := mtls.Files{Cert: in(leaf.Name + ".pem"), Key: in(leaf.Name + "-key.pem"), CA: in("ca.pem")}
		must.Do(t, must.Get(authority.Issue(leaf))(t).WriteFiles(files))
	}
	write(t, config, "catalog.yaml", readAll(t, catalog))
	write(t, config, "Corefile", corefile)
	mustRun(t, "chown", "-R", fmt.Sprintf("%d:%[1]d", imageUser), config, state)

	startContainer(t, "federationctl", "owner", map[string]string{"/config": config}, "serve", "--catalog", "/config/catalog.yaml",
		"--cert", "/config/owner.pem", "--key", "/config/owner-key.pem", "--ca", "/config/ca.pem", "--allow-any")
	startContainer(t, "coredns", "dns", map[string]string{"/config": config, "/var/lib/federation": state}, "-conf", "/config/Corefile")
	server := domain.DNS{Address: dnsAddress + ":53"}
	await.Eventually(t, func() string {
		if got := server.Answer(t.Context(), "shop.fed.example", dns.TypeA); got != "NOERROR 192.0.2.10 198.51.100.20" {
			return "the cluster's DNS answers " + got
		}
		return ""
	})
	checkProcess(t, "owner")
	checkProcess(t, "dns")
	await.Eventually(t, func() string {
		if _, err := os.Stat(filepath.Join(state, "owner")); err != nil {
			return err.Error()
		}
		return ""
	})
	for name, program := range resolvers(t) {
		t.Run(name, func(t *testing.T) {
			for _, lookup := range lookups {
				if got, want := lookUp(t, program, lookup.name), lookup.name+" "+lookup.want; got != want {
					t.Errorf("the pod got %q, want %q", got, want)
				}
			}
		})
	}
}

// mustRun runs a command, and returns what it printed.
func mustRun(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// macOf returns the MAC address that a container network gives to an IPv4 address. Without
// an address of its own a bridge takes that of one of its ports, and another one when a pod
// comes: what others then send to the address that they know is lost.
func macOf(address string) string {
	ip := netip.MustParseAddr(address).As4()
	return fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", ip[0], ip[1], ip[2], ip[3])
}

// newPod makes a network namespace with an address on the bridge. It ends with the sandbox.
func newPod(t *testing.T, name, address string) {
	t.Helper()
	mustRun(t, "ip", "netns", "add", name)
	mustRun(t, "ip", "link", "add", "to-"+name, "type", "veth", "peer", "name", "eth0", "netns", name)
	mustRun(t, "ip", "link", "set", "to-"+name, "master", bridge, "up")
	mustRun(t, "ip", "-n", name, "link", "set", "eth0", "address", macOf(address))
	mustRun(t, "ip", "-n", name, "addr", "add", address+"/24", "dev", "eth0")
	mustRun(t, "ip", "-n", name, "link", "set", "eth0", "up")
	mustRun(t, "ip", "-n", name, "link", "set", "lo", "up")
}

// startContainer unpacks one of our images, and runs it in a pod as a runtime does, until the end
// of the test: it drops all capabilities and permits no new ones, the root is read-only, and
// every user may listen on any port. Mounts say what of the machine it sees at the paths
// that are the keys.
func startContainer(t *testing.T, image, pod string, mounts map[string]string, args ...string) {
	t.Helper()
	layout, bundle := filepath.Join(images, image), filepath.Join(t.TempDir(), "bundle")
	var index struct {
		Manifests []struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"manifests"`
	}
	if err := json.Unmarshal([]byte(readAll(t, filepath.Join(layout, "index.json"))), &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index.json of %s has %d images, %v", layout, len(index.Manifests), err)
	}
	mustRun(t, "umoci", "unpack", "--image", layout+":"+index.Manifests[0].Annotations["org.opencontainers.image.ref.name"], bundle)
	var config map[string]any
	must.Do(t, json.Unmarshal([]byte(readAll(t, filepath.Join(bundle, "config.json"))), &config))
	config["root"].(map[string]any)["readonly"] = true
	process := config["process"].(map[string]any)
	process["terminal"], process["noNewPrivileges"], process["capabilities"] = false, true, map[string]any{}
	for _, arg := range args {
		process["args"] = append(process["args"].([]any), arg)
	}
	for inside, outside := range mounts {
		config["mounts"] = append(config["mounts"].([]any), map[string]any{
			"destination": inside, "source": outside, "type": "bind", "options": []string{"bind"},
		})
	}
	system := config["linux"].(map[string]any)
	system["cgroupsPath"] = "/" + os.Getenv(groupVariable) + "/" + pod
	system["sysctl"] = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
	for _, namespace := range system["namespaces"].([]any) {
		if n := namespace.(map[string]any); n["type"] == "network" {
			n["path"] = "/run/netns/" + pod
		}
	}
	write(t, bundle, "config.json", string(must.Get(json.Marshal(config))(t)))
	runc := &realserver.Process{
		Name: pod, Path: must.Get(exec.LookPath("runc"))(t), Dir: t.TempDir(), Args: []string{"run", "--bundle", bundle, pod},
		Ready: func(ctx context.Context) error { return exec.CommandContext(ctx, "runc", "state", pod).Run() },
	}
	runc.StartFor(t)
}

// checkProcess checks what the kernel says of the process of a container.
func checkProcess(t *testing.T, container string) {
	t.Helper()
	var state struct {
		PID int `json:"pid"`
	}
	must.Do(t, json.Unmarshal([]byte(mustRun(t, "runc", "state", container)), &state))
	status := readAll(t, fmt.Sprintf("/proc/%d/status", state.PID))
	for _, want := range []string{
		fmt.Sprintf(`Uid:(\t%d){4}`, imageUser), fmt.Sprintf(`Gid:(\t%d){4}`, imageUser), `Groups:\s*`,
		`CapPrm:\t0+`, `CapEff:\t0+`, `CapBnd:\t0+`, `CapAmb:\t0+`, `NoNewPrivs:\t1`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(status) {
			t.Errorf("status of %s has no line %s:\n%s", container, want, status)
		}
	}
	for line := range strings.Lines(readAll(t, fmt.Sprintf("/proc/%d/mounts", state.PID))) {
		fields := strings.Fields(line)
		if fields[1] == "/" && !strings.HasPrefix(fields[3], "ro,") {
			t.Errorf("root of %s: %s", container, line)
		}
	}
}

// resolvers returns the root of a pod for each resolver that pods commonly have, with a
// program that looks names up.
func resolvers(t *testing.T) map[string]string {
	t.Helper()
	roots := make(map[string]string)
	add := func(name, program string) {
		t.Helper()
		roots[name] = t.TempDir()
		write(t, roots[name], "etc/resolv.conf", resolvConf)
		write(t, roots[name], "etc/nsswitch.conf", "hosts: files dns\n")
		write(t, roots[name], "etc/hosts", "127.0.0.1 localhost\n")
		write(t, roots[name], "program", readAll(t, program))
	}
	add("Go", must.Get(os.Executable())(t))
	for name, compiler := range map[string]string{"glibc": "gcc", "musl": "musl-gcc"} {
		path := filepath.Join(t.TempDir(), "pod")
		out, err := exec.Command(compiler, "-static", "-O1", "-Wall", "-Wextra", "-o", path, "testdata/pod.c").CombinedOutput()
		switch {
		case errors.Is(err, exec.ErrNotFound):
			t.Logf("%s is not tested: %v", name, err)
		case err != nil:
			t.Fatalf("%s: %v\n%s", name, err, out)
		default:
			add(name, path)
		}
	}
	return roots
}

// lookUp runs the program of a root in a pod, and returns the name with its addresses in order.
func lookUp(t *testing.T, root, name string) string {
	t.Helper()
	fields := strings.Fields(mustRun(t, "ip", "netns", "exec", "app", "env", roleVariable+"="+roleResolve, "chroot", root, "/program", name))
	if len(fields) > 1 {
		slices.Sort(fields[1:])
	}
	return strings.Join(slices.Compact(fields), " ")
}

// resolve prints names and their addresses, as testdata/pod.c does, with Go's resolver.
func resolve(names []string, out io.Writer) {
	resolver := net.Resolver{PreferGo: true}
	for _, name := range names {
		addresses, err := resolver.LookupNetIP(context.Background(), "ip", name)
		fmt.Fprint(out, name)
		var missing *net.DNSError
		switch {
		case errors.As(err, &missing) && missing.IsNotFound:
			fmt.Fprint(out, " none")
		case err != nil:
			fmt.Fprint(out, " error: ", err)
		}
		for _, address := range addresses {
			fmt.Fprint(out, " ", address.Unmap())
		}
		fmt.Fprintln(out)
	}
}

func write(t *testing.T, folder, name, text string) {
	t.Helper()
	path := filepath.Join(folder, name)
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, []byte(text), 0o755))
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return string(text)
}
