package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
    log . "{name} {type} {rcode}"
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
    log . "{name} {type} {rcode}"
    KUBERNETES
    cache 30
    forward . ` + upstreamDNS + `
}
` + federationZone + `:53 {
    errors
    log . "{name} {type} {rcode}"
    cache 30
    forward . ` + federationDNS + `
}
`,
		beside: federationZone + `:53 {
    errors
    log . "{name} {type} {rcode}"
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
	upstream := startDNS(t, newPod(t, "upstream", upstreamDNS), `.:53 {
    log . "{name} {type} {rcode}"
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
						mark := len(cluster.log.String())
						got := program.lookUp(t, application, lookup.name)
						if want := lookup.name + " " + lookup.want; got != want {
							t.Errorf("the pod got %q, want %q", got, want)
						}
						t.Logf("%s: %d queries of the pod", got, awaitQuestions(t, cluster, mark, lookup.name))
					}
				})
			}
			if r.beside != "" {
				checkZone(t, questions(beside.log.String()))
			}
			for _, q := range questions(upstream.log.String()) {
				if q.name != "absent." {
					t.Errorf("%s %s was asked outside of the cluster", q.name, q.kind)
				}
			}
		})
	}
}

// startAPIServer starts an API server with the Service web, and returns the path of a
// kubeconfig for pods.
func startAPIServer(t *testing.T) string {
	t.Helper()
	return createObjects(t, realserver.StartAPIServer(t))
}

// createObjects creates the Service web, and returns the path of a kubeconfig for pods.
func createObjects(t *testing.T, server *realserver.APIServer) string {
	t.Helper()
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

// question is a line of CoreDNS's log: what was asked, and the code of the answer.
type question struct{ name, kind, code string }

// questions returns what a log shows.
func questions(log string) (found []question) {
	for line := range strings.Lines(log) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "[INFO] ")
		if fields := strings.Fields(text); ok && len(fields) == 3 && strings.HasSuffix(fields[0], ".") {
			found = append(found, question{fields[0], fields[1], fields[2]})
		}
	}
	return found
}

// awaitQuestions waits until the log of the cluster's DNS has, from the octet mark on,
// what a resolver must ask for a name, and nothing else, and returns how many queries
// that were. The name has fewer dots than ndots, so each search domain comes first,
// unless it ends in a dot; and it is asked for both kinds of address until one of the
// names exists.
func awaitQuestions(t *testing.T, server *dnsServer, mark int, name string) (queries int) {
	t.Helper()
	want := make(map[question]bool)
	for _, candidate := range candidates(name) {
		code := "NXDOMAIN"
		if exists(candidate) {
			code = "NOERROR"
		}
		want[question{candidate, "A", code}] = true
		want[question{candidate, "AAAA", code}] = true
		if code == "NOERROR" {
			break
		}
	}
	eventually(t, func() string { // CoreDNS logs a query when it has answered it
		log := server.log.String()
		got, asked := make(map[question]bool), questions(log[mark:])
		earlier := questions(log[:mark])
		for _, q := range asked {
			// A resolver that has waited too long asks again, and what was asked before may be
			// logged only now: for another name, or for this one.
			if want[q] || strings.HasPrefix(q.name, strings.TrimSuffix(name, ".")+".") && !slices.Contains(earlier, q) {
				got[q] = true
			}
		}
		queries = len(asked)
		return cmp.Diff(sorted(want), sorted(got))
	})
	return queries
}

// candidates returns the names that a resolver tries for a name of less than five dots.
func candidates(name string) []string {
	if strings.HasSuffix(name, ".") {
		return []string{name}
	}
	var names []string
	for _, domain := range []string{podNamespace + ".svc.cluster.local.", "svc.cluster.local.", "cluster.local."} {
		names = append(names, name+"."+domain)
	}
	return append(names, name+".")
}

// exists reports whether a name, with its last dot, is one of a service.
func exists(name string) bool {
	return slices.Contains([]string{
		"web." + podNamespace + ".svc.cluster.local.", "shop.fed.example.", "primary.stock.db.fed.example.",
	}, name)
}

func sorted(set map[question]bool) []string {
	var lines []string
	for q := range maps.Keys(set) {
		lines = append(lines, q.name+" "+q.kind+" "+q.code)
	}
	slices.Sort(lines)
	return lines
}

// checkZone checks that the CoreDNS beside the cluster's DNS was asked for names of
// its zone only: search domains do not reach it.
func checkZone(t *testing.T, asked []question) {
	t.Helper()
	for _, q := range asked {
		if !dns.IsSubDomain(federationZone+".", q.name) {
			t.Errorf("the CoreDNS beside the cluster's DNS was asked for %s %s", q.name, q.kind)
		}
	}
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
		if err := compilePod(compiler.command, path); errors.Is(err, exec.ErrNotFound) {
			t.Logf("%s is not tested: %v", compiler.name, err)
			continue
		} else if err != nil {
			t.Fatal(err)
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

// compilePod compiles the program of a pod, for a root without libraries.
func compilePod(compiler, to string) error {
	out, err := exec.Command(compiler, "-static", "-O1", "-Wall", "-Wextra", "-o", to, "testdata/pod.c").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", compiler, err, out)
	}
	return nil
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
	return inOrder(log.String())
}

// inOrder returns a line of the program of a pod with its addresses sorted.
func inOrder(line string) string {
	fields := strings.Fields(line)
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
