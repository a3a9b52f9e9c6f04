package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	zone       = "consul.fed.example"
	web        = "web." + zone
	ownerID    = "spiffe://owner.example/owner"
	consumerID = "spiffe://consumer.example/coredns"
	nxdomain   = "NXDOMAIN"
	management = "11111111-2222-3333-4444-555555555555" // the token of who may do everything
)

// enabled ends the test here unless these tests are wanted. Otherwise the test runs
// beside the others.
func enabled(t testing.TB) {
	t.Helper()
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("not run: it needs real servers of Consul; make e2e-consul builds and runs them")
	}
	if test, ok := t.(*testing.T); ok {
		test.Parallel()
	}
}

// testShop is a place with an owner and a CoreDNS, beside servers and agents of Consul.
type testShop struct {
	*place.Place

	tool         string // the command consul
	ownerAddress string
	status       string // the address of the owner's status
	owner        *realserver.Process
	dns          *domain.DNS
}

// newShop makes one in which nothing runs yet.
func newShop(t testing.TB) *testShop {
	t.Helper()
	p := place.For(t, map[string]string{"owner": ownerID, "coredns": consumerID, "consul": "spiffe://consul.example/agent"})
	return &testShop{Place: p, tool: must.Get(realserver.FindConsul())(t), ownerAddress: loopback.Address(t), status: loopback.Address(t)}
}

// agent is a server or a client agent of Consul.
type agent struct {
	*realserver.Process

	address    string // of HTTP
	secure     string // of HTTPS; empty for none
	lan, wan   string // of gossip
	dir        string // of its data
	datacenter string
	config     map[string]any
	http       *http.Client
	token      string
}

func portOf(address string) int {
	_, text, _ := net.SplitHostPort(address)
	port, _ := strconv.Atoi(text)
	return port
}

// newAgent returns an agent that has not been started. Extra is put in its configuration.
func (s *testShop) newAgent(t testing.TB, name, datacenter string, extra map[string]any) *agent {
	t.Helper()
	a := &agent{address: loopback.Address(t), lan: loopback.Address(t), wan: loopback.Address(t), dir: s.Path(name + "-data"), datacenter: datacenter, http: http.DefaultClient}
	ports := map[string]any{"http": portOf(a.address), "https": -1, "dns": -1, "grpc": -1, "grpc_tls": -1, "serf_lan": portOf(a.lan), "serf_wan": portOf(a.wan), "server": portOf(loopback.Address(t))}
	a.config = map[string]any{
		"node_name": name, "datacenter": datacenter, "data_dir": a.dir, "bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "ports": ports,
		"disable_update_check": true, "log_level": "warn", "leave_on_terminate": false, "performance": map[string]any{"raft_multiplier": 1},
		"check_update_interval": "0s",
	}
	maps.Copy(a.config, extra)
	a.Process = &realserver.Process{Name: name, Path: s.tool, Dir: s.Dir, Args: []string{"agent", "-config-file", s.Path(name + ".json")}, Ready: a.ready}
	return a
}

// server returns a server of a datacenter of its own.
func (s *testShop) server(t testing.TB, name, datacenter string, extra map[string]any) *agent {
	t.Helper()
	all := map[string]any{"server": true, "bootstrap_expect": 1}
	maps.Copy(all, extra)
	return s.newAgent(t, name, datacenter, all)
}

// client returns a client agent of a server.
func (s *testShop) client(t testing.TB, name string, of *agent, extra map[string]any) *agent {
	t.Helper()
	all := map[string]any{"retry_join": []string{of.lan}, "retry_interval": "1s"}
	maps.Copy(all, extra)
	a := s.newAgent(t, name, of.datacenter, all)
	a.http = of.http
	return a
}

// run starts agents until the test ends.
func (s *testShop) run(t testing.TB, agents ...*agent) {
	t.Helper()
	for _, a := range agents {
		s.Put(t, a.Name+".json", string(must.Get(json.MarshalIndent(a.config, "", "  "))(t)))
		a.StartFor(t)
	}
}

// ready reports why an agent cannot be asked yet.
func (a *agent) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var services map[string][]string
	if err := a.call(ctx, http.MethodGet, "/v1/catalog/services", nil, &services); err != nil {
		return err
	}
	if _, ok := services["consul"]; !ok {
		return errors.New("it does not know its server")
	}
	return nil
}

// call calls the HTTP API.
func (a *agent) call(ctx context.Context, method, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+a.address+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	if a.token != "" {
		request.Header.Set("X-Consul-Token", a.token)
	}
	response, err := a.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, said)
	}
	if answer == nil {
		_, err := io.Copy(io.Discard, response.Body)
		return err
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// put calls the HTTP API with PUT, again while it has no leader.
func (a *agent) put(t testing.TB, path string, body, answer any) {
	t.Helper()
	var err error
	await.Eventually(t, func() string {
		if err = a.call(t.Context(), http.MethodPut, path, body, answer); err != nil {
			return err.Error()
		}
		return ""
	})
}

// fields are those of a registration.
type fields map[string]any

// register registers an instance at an agent, which registers it in the catalog, again and again.
func (a *agent) register(t testing.TB, id, service, address string, port int, more fields) {
	t.Helper()
	all := fields{"ID": id, "Name": service, "Address": address, "Port": port}
	maps.Copy(all, more)
	a.put(t, "/v1/agent/service/register", all, nil)
}

func (a *agent) deregister(t testing.TB, id string) {
	t.Helper()
	a.put(t, "/v1/agent/service/deregister/"+id, nil, nil)
}

// ttl is the field of a check that passes until it is told otherwise.
func ttl(id string) fields {
	return fields{"Check": fields{"CheckID": "check-" + id, "TTL": "1h", "Status": "passing"}}
}

// turn changes what a check of ttl says: pass, warn or fail.
func (a *agent) turn(t testing.TB, id, to string) {
	t.Helper()
	a.put(t, "/v1/agent/check/"+to+"/check-"+id, nil, nil)
}

// serve starts an owner with sources, each in one line of YAML.
func (s *testShop) serve(t testing.TB, sources ...string) {
	t.Helper()
	config := place.Owner{
		Address: s.ownerAddress, Metrics: loopback.Address(t), TLS: s.Files("owner"), Allow: []string{consumerID},
		More: fmt.Sprintf("status: %q\nallow_addresses: [127.0.0.0/8]\ncatalogs:\n- sources:\n  - %s\n", s.status, strings.Join(sources, "\n  - ")),
	}
	s.owner = s.Run(t, "owner", must.Get(place.Program("federationctl"))(t), s.ownerAddress, "serve", "--config", s.Put(t, "owner.yaml", config.Config()))
}

// source returns the source of an agent in one line of YAML, with more keys.
func source(a *agent, more string) string {
	return fmt.Sprintf("consul: {address: \"http://%s\", zone: %s%s}", a.address, zone, more)
}

// startDNS starts a CoreDNS that answers for what the owner publishes.
func (s *testShop) startDNS(t testing.TB) {
	t.Helper()
	address := loopback.Address(t)
	corefile := place.DNS{
		Zone: "fed.example", Address: address, Owners: []string{s.ownerAddress}, OwnerID: ownerID, TLS: s.Files("coredns"),
		Properties: []string{"ttl 5", "allow_addresses 127.0.0.0/8"},
	}
	s.dns = &domain.DNS{Address: address, Corefile: s.Put(t, "Corefile", corefile.Corefile())}
	s.dns.Process = &realserver.Process{
		Name: "coredns", Path: must.Get(place.Program("coredns"))(t), Dir: s.Dir, Args: []string{"-conf", "Corefile"},
		Ready: func(ctx context.Context) error { _, err := s.dns.Ask(ctx, "fed.example", dns.TypeSOA); return err },
	}
	s.dns.StartFor(t)
}

// answers waits until CoreDNS answers with want, in the form of domain.Short.
func (s *testShop) answers(t testing.TB, name string, qtype uint16, want string) {
	t.Helper()
	await.Eventually(t, func() string {
		if got := s.dns.Answer(t.Context(), name, qtype); got != want {
			return fmt.Sprintf("the answer for %s %s is %q, want %q", name, dns.TypeToString[qtype], got, want)
		}
		return ""
	})
}

// probe asks for names all the while, which must be at an address.
func (s *testShop) probe(t testing.TB, address string, names ...string) *domain.Prober {
	t.Helper()
	want := make(map[domain.Question]string)
	for _, name := range names {
		want[domain.Question{Name: name, Type: dns.TypeA}] = "NOERROR " + address
	}
	return domain.Probe(t, s.dns, 1, want)
}

// awaitAway waits until a source is away for a reason that has a part of a text, or with an
// empty text until it is not.
func (s *testShop) awaitAway(t testing.TB, name, part string) {
	t.Helper()
	await.Until(t, 4*time.Minute, func() string {
		var status struct {
			Catalogs []struct {
				Sources []struct {
					Name string `json:"name"`
					Away string `json:"away"`
				} `json:"sources"`
			} `json:"catalogs"`
		}
		response, err := http.Get("http://" + s.status + "/v1/status")
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		if err := json.Unmarshal(text, &status); err != nil {
			return err.Error()
		}
		for _, c := range status.Catalogs {
			for _, src := range c.Sources {
				if src.Name == name && (part == "" && src.Away == "" || part != "" && strings.Contains(src.Away, part)) {
					return ""
				}
			}
		}
		return fmt.Sprintf("no source %s that is away for %q: %s", name, part, text)
	})
}

// secure gives an agent HTTPS with the certificate of the place, and asks for one of clients.
func (s *testShop) secure(t testing.TB, a *agent) {
	t.Helper()
	files := s.Files("consul")
	a.secure = loopback.Address(t)
	a.config["ports"].(map[string]any)["https"] = portOf(a.secure)
	a.config["tls"] = fields{"https": fields{"ca_file": files.CA, "cert_file": files.Cert, "key_file": files.Key, "verify_incoming": true}}
}

// copyDir copies a folder, as who keeps an old backup does.
func copyDir(t testing.TB, from, to string) {
	t.Helper()
	must.Do(t, os.RemoveAll(to))
	must.Do(t, os.CopyFS(to, os.DirFS(from)))
}
