package importing

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/sandbox"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// sandboxVariable is set in the namespaces of the test.
const sandboxVariable = "E2E_IMPORT_SANDBOX"

// Short names: see there.
var (
	eventually = await.Eventually
	answers    = domain.AwaitAnswer
)

// shared is what the tests share.
var shared domain.Shared

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(sandboxVariable) != "":
		if err := furnish(); err != nil {
			fmt.Fprintln(os.Stderr, "sandbox:", err)
			os.Exit(1)
		}
	case os.Getenv("REAL_SERVERS") == "required" && os.Getuid() == 0:
		os.Exit(sandbox.Run(sandbox.Namespaces, sandboxVariable+"=1"))
	}
	shared.Main(m)
}

// The addresses of the machine in its namespace: that of a node, and those at which what west
// exports is served.
const (
	nodeAddress      = "10.244.0.1"
	endpointAddress  = "10.244.0.7"
	endpointAddress6 = "fd00:244::7"
)

// furnish makes the namespaces that this process is in usable. There are the addresses, and a route to
// virtual ones, as on a node.
func furnish() error {
	if err := sandbox.Furnish(); err != nil {
		return err
	}
	ip := exec.Command("ip", "-batch", "-")
	ip.Stdin = strings.NewReader(strings.Join([]string{
		"addr add " + nodeAddress + "/32", "addr add " + endpointAddress + "/32", "addr add " + endpointAddress6 + "/128",
		"route add 10.96.0.0/12", "route add fd00:96::/112", "",
	}, " dev lo\n"))
	if out, err := ip.CombinedOutput(); err != nil {
		return fmt.Errorf("ip -batch: %w: %s", err, out)
	}
	return nil
}

// two returns the shared domains: west, which exports, and east, which has virtual addresses of both
// families, and writes down the requests of importers.
func two(t testing.TB) (west, east *domain.Domain) {
	t.Helper()
	args := append(auditArgs(t), "--service-cluster-ip-range=10.96.0.0/12,fd00:96::/112")
	all := shared.Get(t, "e2e-import", domain.Options{Name: "west"}, domain.Options{Name: "east", API: args})
	return all[0], all[1]
}

// auditArgs have an API server write down the requests of importers, for site.requests.
func auditArgs(t testing.TB) []string {
	t.Helper()
	return []string{"--audit-policy-file=" + must.Get(filepath.Abs("testdata/audit.yaml"))(t), "--audit-log-path=audit.log"}
}

// The identities of the owner of a site, of its importer, and of a program that registers.
const (
	ownerID    = "spiffe://fed.example/owner"
	importerID = "spiffe://east.example/coredns" // whom the owners of west serve as well
	programID  = "spiffe://fed.example/program"
)

// site is a namespace of a cluster that an importer writes to, an owner with a catalog file, and a
// watcher of the namespace.
type site struct {
	*place.Place
	options

	cluster   *realserver.Cluster
	namespace string
	zone      string              // of the owner
	owner     *realserver.Process // nil with an address of the options
	watch     *watcher
	now       catalog // that the owner publishes
}

// options are those of a site.
type options struct {
	retention time.Duration // default 1m
	owners    string        // of the importer, beside the owner of the site; in YAML
	more      string        // keys below kubernetes
	sources   string        // of the owner of the site, beside the file; in YAML
	address   string        // of an owner that the test runs itself; default: the owner is started here
}

// importer is a running federationctl import.
type importer struct {
	*realserver.Process

	status, metrics string
}

// newSite starts an owner with a catalog, and watches a namespace of its own. The importer is not
// started.
func newSite(t testing.TB, cluster *realserver.Cluster, namespace string, now catalog, o options) *site {
	t.Helper()
	s := &site{options: o, cluster: cluster, namespace: namespace, zone: namespace + ".example", now: now}
	s.Place = must.Get(shared.Domains[0].Place.In(t.TempDir(), map[string]string{"owner": ownerID, "importer": importerID, "program": programID}))(t)
	s.populate(t)
	must.Do(t, cluster.WriteKubeconfig(t.Context(), s.Path("kubeconfig"), "default", "importer-"+namespace, time.Hour))
	if s.address == "" {
		s.address = loopback.Address(t)
		s.Put(t, "catalog.yaml", now.text(s.zone))
		config := place.Owner{
			Address: s.address, TLS: s.Files("owner"), Allow: []string{importerID},
			More: "catalogs:\n- sources:\n  - file: {path: catalog.yaml, max_withdraw: off}\n" + o.sources,
		}
		s.owner = s.Run(t, "owner", must.Get(place.Program("federationctl"))(t), s.address, "serve", "--config", s.Put(t, "owner.yaml", config.Config()))
	}
	s.watch = watch(t, cluster, namespace, now)
	return s
}

// populate makes the namespace, with objects of others and with what the manifests let an importer do.
func (s *site) populate(t testing.TB) {
	t.Helper()
	s.apply(t, read(t, "testdata/namespace.yaml"))
	role := regexp.MustCompile(`(?s)apiVersion: \S+\nkind: Role\n.*?\n---`).FindString(read(t, "../../../../deploy/kubernetes/base/import/manifests.yaml"))
	s.apply(t, strings.ReplaceAll(role, "namespace: federation\n", "namespace: NAMESPACE\n"))
	s.apply(t, read(t, "testdata/binding.yaml"))
}

func read(t testing.TB, path string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(path))(t))
}

// apply applies objects in the cluster; NAMESPACE is the namespace.
func (s *site) apply(t testing.TB, text string) {
	t.Helper()
	must.Do(t, s.cluster.Apply(t.Context(), strings.ReplaceAll(text, "NAMESPACE", s.namespace)))
}

// remove is apply for what is to go.
func (s *site) remove(t testing.TB, text string) {
	t.Helper()
	must.Do(t, s.cluster.Delete(t.Context(), strings.ReplaceAll(text, "NAMESPACE", s.namespace)))
}

// start starts one more importer, with the name of its files.
func (s *site) start(t testing.TB, name string) *importer {
	t.Helper()
	i := &importer{status: loopback.Address(t), metrics: loopback.Address(t)}
	must.Do(t, os.MkdirAll(s.Path(name), 0o700))
	file := s.Put(t, name+".yaml", fmt.Sprintf(`identity: {files: {cert: importer.pem, key: importer-key.pem, ca: ca.pem}}
owners:
- {name: %s, addresses: [%q], owner_ids: [%s], zones: [%s], retention: %v, settle: 1s}
%skubernetes:
  kubeconfig: kubeconfig
  namespace: %s
%spersist: %s
status: %s
metrics: %s
`, s.namespace, s.address, ownerID, s.zone, cmp.Or(s.retention, time.Minute), s.owners, s.namespace, s.more, name, i.status, i.metrics))
	i.Process = s.Run(t, name, must.Get(place.Program("federationctl"))(t), i.metrics, "import", file)
	return i
}

// says waits until what an importer says of itself contains texts, in JSON.
func (i *importer) says(t testing.TB, texts ...string) {
	t.Helper()
	eventually(t, func() string {
		got, err := fetch(t.Context(), "http://"+i.status+"/v1/status")
		for _, text := range texts {
			if !strings.Contains(got, text) {
				return fmt.Sprintf("the status of %s is\n%s, %v\nwithout %s", i.Name, got, err, text)
			}
		}
		return ""
	})
}

// fetch returns what is at a URL.
func fetch(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.100s", response.Status, text)
	}
	return string(text), err
}

// publish changes the catalog of the owner. An endpoint of the old one may be there until settle.
func (s *site) publish(t testing.TB, now catalog) {
	t.Helper()
	s.watch.allow(now)
	for name := range s.now {
		if now[name] == nil {
			s.watch.release(name)
		}
	}
	s.now = now
	s.Put(t, "catalog.yaml", now.text(s.zone))
}

// settle waits until the objects are those of the catalog. From then on there may be no others.
func (s *site) settle(t testing.TB) {
	t.Helper()
	eventually(t, func() string { return s.watch.differs(s.now) })
	s.watch.restrict(s.now)
}

// change is publish and settle.
func (s *site) change(t testing.TB, now catalog) {
	t.Helper()
	s.publish(t, now)
	s.settle(t)
}

// requests returns how many requests of the importer the API server has answered so far, by verb
// and resource.
func (s *site) requests(t testing.TB) map[string]int {
	t.Helper()
	file := must.Get(os.Open(filepath.Join(s.cluster.API.Dir, "audit.log")))(t)
	defer file.Close()
	counts := make(map[string]int)
	for lines := bufio.NewReader(file); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return counts
		}
		var event struct {
			Verb string `json:"verb"`
			User struct {
				Name string `json:"username"`
			} `json:"user"`
			Ref struct {
				Resource string `json:"resource"`
			} `json:"objectRef"`
		}
		must.Do(t, json.Unmarshal(line, &event))
		if event.User.Name == "system:serviceaccount:default:importer-"+s.namespace {
			counts[event.Verb+" "+event.Ref.Resource]++
		}
	}
}

// since returns what was asked since an earlier result of requests, without the lease, and how many requests
// that are. Verbs that are left out are not counted.
func (s *site) since(t testing.TB, before map[string]int, leftOut ...string) (more map[string]int, sum int) {
	t.Helper()
	more = s.requests(t)
	for what, n := range before {
		more[what] -= n
	}
	maps.DeleteFunc(more, func(what string, n int) bool {
		verb, resource, _ := strings.Cut(what, " ")
		return n == 0 || resource == "leases" || slices.Contains(leftOut, verb)
	})
	for _, n := range more {
		sum += n
	}
	return more, sum
}

// passes waits for so long: what is shown is that nothing happens.
func passes(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// catalog is what an owner publishes: endpoints by the names of services.
type catalog map[string][]string

// services returns a catalog of n services.
func services(n int) catalog {
	c := make(catalog)
	for i := range n {
		c[fmt.Sprintf("s%d", i)] = []string{fmt.Sprintf("10.%d.%d.%d:443", i>>16&255, i>>8&255, i&255)}
	}
	return c
}

// with returns a copy with more services.
func (c catalog) with(more catalog) catalog {
	c = maps.Clone(c)
	maps.Copy(c, more)
	return c
}

// without returns a copy with fewer.
func (c catalog) without(fewer ...string) catalog {
	c = maps.Clone(c)
	maps.DeleteFunc(c, func(name string, _ []string) bool { return slices.Contains(fewer, name) })
	return c
}

func (c catalog) names() []string { return slices.Collect(maps.Keys(c)) }

// text is the catalog file.
func (c catalog) text(zone string) string {
	var text strings.Builder
	text.WriteString("services:\n")
	for name, endpoints := range c {
		fmt.Fprintf(&text, "- {name: %s, fqdn: %[1]s.%s, instances: [{id: main, protocol: HTTPS}], endpoints: [", name, zone)
		for _, endpoint := range endpoints {
			address, port, _ := strings.Cut(endpoint, ":")
			fmt.Fprintf(&text, "{address: %s, port: %s},", address, port)
		}
		text.WriteString("]}\n")
	}
	return text.String()
}
