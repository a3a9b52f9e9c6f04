package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	root     = "../../../.."                                       // of the repository
	binaries = root + "/bin/image/binaries/linux-amd64"            // what is in the images
	catalog  = root + "/corefile-examples/quickstart/catalog.yaml" // of the other cluster
)

// The addresses of the pods.
const (
	ownerAddress      = "10.244.0.2"  // the owner of the other cluster
	clusterDNS        = "10.244.0.10" // what the resolv.conf of a pod names
	upstreamDNS       = "10.244.0.8"  // what the cluster's DNS asks for the names of others; it knows none
	federationDNS     = "10.244.0.53" // CoreDNS with the plugin, beside the cluster's DNS
	applicationPod    = "10.244.0.100"
	serviceAddress    = "10.96.0.80" // of web.team.svc.cluster.local
	podNamespace      = "team"
	apiServerPort     = "6443" // of nodeAddress
	federationZone    = "fed.example"
	shopAddresses     = "192.0.2.10 198.51.100.20 2001:db8::10"
	databaseAddresses = "2001:db8:40::1 203.0.113.40"
)

// resolvConf is what a kubelet writes for a pod with dnsPolicy ClusterFirst, the
// default, without the domains of the node.
var resolvConf = fmt.Sprintf("search %s.svc.cluster.local svc.cluster.local cluster.local\nnameserver %s\noptions ndots:5\n", podNamespace, clusterDNS)

// recipe is a way of putting federation into a cluster's DNS. In its Corefiles
// KUBERNETES and FEDERATION stand for the plugins with the properties of this test.
type recipe struct {
	name    string
	cluster string // the Corefile of the cluster's DNS
	beside  string // the Corefile of the CoreDNS beside it, or "" where there is none
}

var recipes = []recipe{
	{
		name: "the cluster's DNS has the plugin",
		cluster: `.:53 {
    errors
    KUBERNETES
    FEDERATION
    cache 30
    forward . ` + upstreamDNS + `
}
`,
	},
	{
		name: "a CoreDNS with the plugin beside the cluster's DNS",
		cluster: `.:53 {
    errors
    KUBERNETES
    cache 30
    forward . ` + upstreamDNS + `
}
` + federationZone + `:53 {
    errors
    cache 30
    forward . ` + federationDNS + `
}
`,
		beside: federationZone + `:53 {
    errors
    FEDERATION
}
`,
	},
}

// lookups are names that a pod asks for, and what it gets.
var lookups = []struct{ name, want string }{
	{"web", serviceAddress},
	{"web." + podNamespace, serviceAddress},
	{"web." + podNamespace + ".svc.cluster.local", serviceAddress},
	{"shop.fed.example", shopAddresses},
	{"shop.fed.example.", shopAddresses},
	{"primary.stock.db.fed.example", databaseAddresses},
	{"absent.fed.example", "none"},
	{"absent", "none"},
}

// A pod finds services of its own cluster and of another one, whichever resolver it
// has and however federation is put into the cluster's DNS.
func TestPodResolves(t *testing.T) {
	need(t)
	programs := podPrograms(t)
	newBridge(t)
	files := certificates(t, ownerAddress)
	owner := startOwner(t, newPod(t, "owner", ownerAddress), files)
	kubeconfig := startAPIServer(t)
	startDNS(t, newPod(t, "upstream", upstreamDNS), `.:53 {
    template ANY ANY . {
        rcode NXDOMAIN
    }
}
`, files, "")
	application := newPod(t, "app", applicationPod)
	for _, r := range recipes {
		t.Run(r.name, func(t *testing.T) {
			cluster := startDNS(t, newPod(t, "dns", clusterDNS), r.cluster, files, kubeconfig)
			beside := cluster
			if r.beside != "" {
				beside = startDNS(t, newPod(t, "fed", federationDNS), r.beside, files, "")
			}
			awaitAnswer(t, "shop.fed.example.", owner, cluster, beside)
			awaitAnswer(t, "web."+podNamespace+".svc.cluster.local.", cluster)
			for _, program := range programs {
				t.Run(program.name, func(t *testing.T) {
					application.root = program.root
					for _, lookup := range lookups {
						got, want := program.lookUp(t, application, lookup.name), lookup.name+" "+lookup.want
						if got != want {
							t.Errorf("the pod got %q, want %q", got, want)
						}
					}
				})
			}
		})
	}
}

// startAPIServer starts an API server with the Service web, and returns the path of a
// kubeconfig for pods.
func startAPIServer(t *testing.T) string {
	t.Helper()
	server := realserver.StartAPIServer(t)
	create := func(path string, object map[string]any) {
		must.Do(t, server.Create(t.Context(), path, object))
	}
	create("/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": podNamespace}})
	create("/api/v1/namespaces/"+podNamespace+"/services", map[string]any{
		"metadata": map[string]any{"name": "web"},
		"spec":     map[string]any{"clusterIP": serviceAddress, "ports": []any{map[string]any{"port": 80}}},
	})
	return forPods(t, server)
}

// forPods makes the API server, which listens on loopback, reachable for pods, and
// returns the path of a kubeconfig with its address there.
func forPods(t *testing.T, server *realserver.APIServer) string {
	t.Helper()
	address := net.JoinHostPort(nodeAddress.String(), apiServerPort)
	realserver.StartGateAt(t, address, strings.TrimPrefix(server.URL, "https://"))
	config := must.Get(clientcmd.LoadFromFile(server.Kubeconfig))(t)
	// The certificate is for the address on loopback.
	host, _, _ := net.SplitHostPort(strings.TrimPrefix(server.URL, "https://"))
	for _, cluster := range config.Clusters {
		cluster.Server, cluster.TLSServerName = "https://"+address, host
	}
	if err := clientcmdapi.FlattenConfig(config); err != nil { // pods do not see the file of the authority
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*config, path))
	return path
}

// certificates returns the files of an owner with that address and of a consumer,
// which has no other name than consumer.
type certificateFiles struct{ owner, consumer mtls.Files }

func certificates(t *testing.T, address string) certificateFiles {
	t.Helper()
	authority := must.Get(mtls.NewAuthority("test", 24*time.Hour))(t)
	dir := t.TempDir()
	issue := func(name string, leaf mtls.Leaf) mtls.Files {
		leaf.Name = name
		issued := must.Get(authority.Issue(leaf))(t)
		files := mtls.Files{Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+"-key.pem"), CA: filepath.Join(dir, "ca.pem")}
		must.Do(t, issued.WriteFiles(files))
		return files
	}
	return certificateFiles{
		owner:    issue("owner", mtls.Leaf{IPs: []netip.Addr{netip.MustParseAddr(address)}}),
		consumer: issue("consumer", mtls.Leaf{DNSNames: []string{"consumer.example"}}),
	}
}

// startOwner starts an owner of the sample catalog in a pod.
func startOwner(t *testing.T, in *pod, files certificateFiles) *process {
	t.Helper()
	return startProcess(t, "the owner", exec.Command(binaries+"/federationctl", "serve", "--catalog", catalog,
		"--cert", files.owner.Cert, "--key", files.owner.Key, "--ca", files.owner.CA, "--allow-any"), in.start)
}

// dnsServer is a CoreDNS in a pod.
type dnsServer struct {
	*process
	address string
}

// startDNS starts CoreDNS in a pod. The kubeconfig may be empty where the Corefile
// does not have KUBERNETES.
func startDNS(t *testing.T, in *pod, corefile string, files certificateFiles, kubeconfig string) *dnsServer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "Corefile")
	must.Do(t, os.WriteFile(path, []byte(fillIn(corefile, files.consumer, kubeconfig)), 0o600))
	p := startProcess(t, "CoreDNS in the pod "+in.name, exec.Command(binaries+"/coredns", "-conf", path), in.start)
	return &dnsServer{process: p, address: net.JoinHostPort(in.address.String(), "53")}
}

// fillIn returns a Corefile with KUBERNETES and FEDERATION replaced.
func fillIn(corefile string, files mtls.Files, kubeconfig string) string {
	return strings.NewReplacer(
		"KUBERNETES", "kubernetes cluster.local in-addr.arpa ip6.arpa {\n        kubeconfig "+kubeconfig+"\n    }",
		"FEDERATION", fmt.Sprintf("federation %s {\n        owner %s:8008\n        tls %s %s %s\n    }", federationZone, ownerAddress, files.Cert, files.Key, files.CA),
	).Replace(corefile)
}

// awaitAnswer waits until every server has an address for a name, while no process
// ends.
func awaitAnswer(t *testing.T, name string, servers ...interface{ mustLive(*testing.T) }) {
	t.Helper()
	client := dns.Client{Timeout: 5 * time.Second}
	query := new(dns.Msg).SetQuestion(name, dns.TypeA)
	eventually(t, func() string {
		for _, s := range servers {
			s.mustLive(t)
			server, ok := s.(*dnsServer)
			if !ok {
				continue
			}
			reply, _, err := client.Exchange(query, server.address)
			if err != nil {
				return err.Error()
			}
			if len(reply.Answer) == 0 {
				return fmt.Sprintf("%s has no address for %s: %s", server.name, name, dns.RcodeToString[reply.Rcode])
			}
		}
		return ""
	})
}

// podProgram is a program that looks names up, and the root of a pod that has it.
type podProgram struct {
	name, root string
	env        []string
}

// podPrograms returns a program for each resolver that pods commonly have.
func podPrograms(t *testing.T) []podProgram {
	t.Helper()
	programs := []podProgram{{name: "Go", env: []string{roleVariable + "=" + roleResolve}}}
	self := must.Get(os.Executable())(t)
	paths := []string{self}
	for _, compiler := range []struct{ name, command string }{{"glibc", "gcc"}, {"musl", "musl-gcc"}} {
		path := filepath.Join(t.TempDir(), "pod")
		out, err := exec.Command(compiler.command, "-static", "-O1", "-Wall", "-Wextra", "-o", path, "testdata/pod.c").CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			t.Logf("%s is not tested: %v", compiler.name, err)
			continue
		} else if err != nil {
			t.Fatalf("%s: %v\n%s", compiler.name, err, out)
		}
		programs, paths = append(programs, podProgram{name: compiler.name}), append(paths, path)
	}
	for i := range programs {
		programs[i].root = t.TempDir()
		for name, text := range map[string]string{
			"etc/resolv.conf": resolvConf, "etc/nsswitch.conf": "hosts: files dns\n", "etc/hosts": "127.0.0.1 localhost\n",
		} {
			writeBelow(t, programs[i].root, name, text)
		}
		text := must.Get(os.ReadFile(paths[i]))(t)
		writeBelow(t, programs[i].root, "program", string(text))
	}
	return programs
}

func writeBelow(t *testing.T, folder, name, text string) {
	t.Helper()
	path := filepath.Join(folder, name)
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, []byte(text), 0o755))
}

// lookUp runs the program in a pod, and returns the name with its addresses in order.
func (p podProgram) lookUp(t *testing.T, in *pod, name string) string {
	t.Helper()
	cmd := exec.Command("/program", name)
	cmd.Env = p.env
	var log testlog.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	must.Do(t, in.start(cmd))
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, &log)
	}
	fields := strings.Fields(log.String())
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
