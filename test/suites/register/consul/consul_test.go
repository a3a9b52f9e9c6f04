package consul

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
)

// What is registered at an agent resolves by name, SRV and TXT, turns with its health, and goes with it.
func TestLife(t *testing.T) {
	enabled(t)
	s := newShop(t)
	server := s.server(t, "server", "dc1", nil)
	client := s.client(t, "client", server, nil)
	s.run(t, server, client)
	s.serve(t, source(client, ", instances: tags"))
	s.startDNS(t)
	s.answers(t, web, dns.TypeA, nxdomain)

	more := ttl("web-1")
	more["Tags"], more["Meta"] = []string{"v1", "http"}, map[string]string{"team": "shop", "host": "a"}
	client.register(t, "web-1", "web", "192.0.2.1", 8080, more)
	s.answers(t, web, dns.TypeA, "NOERROR 192.0.2.1")
	more = ttl("web-2")
	more["Tags"], more["Meta"] = []string{"v2", "http"}, map[string]string{"team": "shop", "host": "b"}
	client.register(t, "web-2", "web", "192.0.2.2", 8080, more)
	s.answers(t, web, dns.TypeA, "NOERROR 192.0.2.1 192.0.2.2")
	s.answers(t, "v1."+web, dns.TypeA, "NOERROR 192.0.2.1")
	s.answers(t, "v2."+web, dns.TypeA, "NOERROR 192.0.2.2")
	s.answers(t, "default."+web, dns.TypeA, "NOERROR 192.0.2.1 192.0.2.2")
	s.answers(t, "_http._tcp."+web, dns.TypeSRV, "NOERROR 0 100 8080 192-0-2-1.addr."+web+". 0 100 8080 192-0-2-2.addr."+web+".")
	client.register(t, "db", "db", "", 5432, nil) // at the address of the node
	s.answers(t, "db."+zone, dns.TypeA, "NOERROR 127.0.0.1")

	client.turn(t, "web-1", "fail")
	s.answers(t, web, dns.TypeA, "NOERROR 192.0.2.2")
	s.answers(t, "v1."+web, dns.TypeA, nxdomain)
	client.turn(t, "web-2", "warn")
	s.answers(t, web, dns.TypeA, nxdomain)
	client.turn(t, "web-1", "pass")
	s.answers(t, web, dns.TypeA, "NOERROR 192.0.2.1")
	client.turn(t, "web-2", "pass")
	s.answers(t, web, dns.TypeA, "NOERROR 192.0.2.1 192.0.2.2")
	client.put(t, "/v1/agent/maintenance?enable=true", nil, nil)
	s.answers(t, web, dns.TypeA, nxdomain)
	s.answers(t, "db."+zone, dns.TypeA, nxdomain)
	client.put(t, "/v1/agent/maintenance?enable=false", nil, nil)
	s.answers(t, web, dns.TypeA, "NOERROR 192.0.2.1 192.0.2.2")

	for _, name := range []string{"web app", "a.b", "_x"} {
		client.register(t, name, name, "192.0.2.9", 80, nil)
	}
	client.register(t, "web-sidecar", "web-sidecar-proxy", "192.0.2.1", 21000, fields{"Kind": "connect-proxy", "Proxy": fields{"DestinationServiceName": "web"}})
	client.deregister(t, "web-1")
	s.answers(t, web, dns.TypeA, "NOERROR 192.0.2.2")
	client.deregister(t, "web-2")
	s.answers(t, web, dns.TypeA, nxdomain)
	s.answers(t, "db."+zone, dns.TypeA, "NOERROR 127.0.0.1")
	s.answers(t, "web-sidecar-proxy."+zone, dns.TypeA, nxdomain)
	s.awaitAway(t, "consul:consul", "")
}

// The owner asks for as little as its token may read. One that is revoked takes nothing away, and the next one
// is used as soon as it is in the file. A token that may read nothing is no empty catalog.
func TestACL(t *testing.T) {
	enabled(t)
	s := newShop(t)
	server := s.server(t, "server", "dc1", map[string]any{
		"acl": fields{"enabled": true, "default_policy": "deny", "tokens": fields{"initial_management": management, "agent": management}},
	})
	server.token = management
	s.run(t, server)
	policy := func(name, rules string) {
		server.put(t, "/v1/acl/policy", fields{"Name": name, "Rules": rules}, nil)
	}
	policy("nothing", `key "x" { policy = "read" }`)
	policy("owner", `node_prefix "" { policy = "read" }
service_prefix "shop-" { policy = "read" }
service "consul" { policy = "read" }`)
	token := func(policy string) (secret, accessor string) {
		var made struct{ AccessorID, SecretID string }
		server.put(t, "/v1/acl/token", fields{"Policies": []fields{{"Name": policy}}}, &made)
		return made.SecretID, made.AccessorID
	}
	server.register(t, "shop-web", "shop-web", "192.0.2.1", 80, nil)
	server.register(t, "secret", "secret", "192.0.2.2", 80, nil)
	useless, _ := token("nothing")
	file := s.Put(t, "token", useless)
	s.serve(t, source(server, fmt.Sprintf(", token_file: %q", file)))
	s.startDNS(t)
	s.awaitAway(t, "consul:consul", "the token may read no service")
	name := "shop-web." + zone
	s.answers(t, name, dns.TypeA, "SERVFAIL")

	secret, accessor := token("owner")
	s.Put(t, "token", secret)
	s.answers(t, name, dns.TypeA, "NOERROR 192.0.2.1")
	s.answers(t, "secret."+zone, dns.TypeA, nxdomain)
	prober := s.probe(t, "192.0.2.1", name)
	must.Do(t, server.call(t.Context(), http.MethodDelete, "/v1/acl/token/"+accessor, nil, nil))
	s.awaitAway(t, "consul:consul", "it refuses the token (403: ")
	s.Put(t, "token", "00000000-0000-0000-0000-000000000000")
	secret, _ = token("owner")
	s.Put(t, "token", secret+"\n")
	s.awaitAway(t, "consul:consul", "")
	policy = func(name, rules string) {
		var all []struct{ ID, Name string }
		must.Do(t, server.call(t.Context(), http.MethodGet, "/v1/acl/policies", nil, &all))
		for _, p := range all {
			if p.Name == name {
				server.put(t, "/v1/acl/policy/"+p.ID, fields{"Name": name, "Rules": rules}, nil)
			}
		}
	}
	policy("owner", `node_prefix "" { policy = "read" }`) // and services no more
	s.awaitAway(t, "consul:consul", "the token may read no service")
	prober.Check(t)
	policy("owner", `node_prefix "" { policy = "read" }
service_prefix "" { policy = "read" }`)
	s.answers(t, "secret."+zone, dns.TypeA, "NOERROR 192.0.2.2")
	prober.Check(t)
}

// An agent is asked over TLS by its authority, and shown a certificate, by HTTP/2: more services than an agent takes
// connections are each answered as soon as they change.
func TestTLS(t *testing.T) {
	enabled(t)
	const services = 300
	s := newShop(t)
	server := s.server(t, "server", "dc1", nil)
	s.secure(t, server)
	s.run(t, server)
	for i := range services {
		server.put(t, "/v1/catalog/register", fields{"Node": "n", "Address": "192.0.2.1", "Service": fields{"Service": fmt.Sprintf("s%d", i), "Port": 80}}, nil)
	}
	files := s.Files("coredns")
	s.serve(t, fmt.Sprintf("consul: {address: \"https://%s\", zone: %s, tls: {ca: %q, cert: %q, key: %q}}", server.secure, zone, files.CA, files.Cert, files.Key))
	s.startDNS(t)
	for i := range services {
		s.answers(t, fmt.Sprintf("s%d.%s", i, zone), dns.TypeA, "NOERROR 192.0.2.1")
	}
	for i := range 20 {
		server.put(t, "/v1/catalog/register", fields{"Node": "n", "Address": "192.0.2.1", "Service": fields{"Service": fmt.Sprintf("s%d", i), "Port": 80, "Address": "192.0.2.7"}}, nil)
		begun := time.Now()
		s.answers(t, fmt.Sprintf("s%d.%s", i, zone), dns.TypeA, "NOERROR 192.0.2.7")
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("a change is answered after %v", took)
		}
	}
	s.awaitAway(t, "consul:consul", "")
}

// Two datacenters that are joined over WAN are two sources, which are read through one server. The
// loss of one takes nothing away, and is said of that one only.
func TestDatacenters(t *testing.T) {
	enabled(t)
	s := newShop(t)
	one := s.server(t, "one", "dc1", nil)
	two := s.server(t, "two", "dc2", map[string]any{"retry_join_wan": []string{one.wan}, "retry_interval_wan": "1s"})
	s.run(t, one, two)
	one.register(t, "web", "web", "192.0.2.1", 80, nil)
	two.register(t, "web", "web", "192.0.2.2", 80, nil)
	s.serve(t, source(one, ""), strings.ReplaceAll(source(one, ", datacenter: dc2"), zone, "dc2."+zone))
	s.startDNS(t)
	s.answers(t, web, dns.TypeA, "NOERROR 192.0.2.1")
	s.answers(t, "web.dc2."+zone, dns.TypeA, "NOERROR 192.0.2.2")
	prober := s.probe(t, "192.0.2.2", "web.dc2."+zone)
	two.Kill()
	s.awaitAway(t, "consul:consul/dc2", "500")
	s.awaitAway(t, "consul:consul", "")
	one.register(t, "web", "web", "192.0.2.3", 80, nil)
	s.answers(t, web, dns.TypeA, "NOERROR 192.0.2.3")
	must.Do(t, two.Start(t.Context()))
	s.awaitAway(t, "consul:consul/dc2", "")
	prober.Check(t)
}

// An agent that is killed, and a server that is, take nothing away, and both are followed again when they are
// back. What changed meanwhile is answered.
func TestKilled(t *testing.T) {
	enabled(t)
	s := newShop(t)
	server := s.server(t, "server", "dc1", nil)
	client, beside := s.client(t, "client", server, nil), s.client(t, "beside", server, nil)
	s.run(t, server, client, beside)
	beside.register(t, "web", "web", "192.0.2.1", 80, nil)
	beside.register(t, "db", "db", "192.0.2.1", 80, nil)
	s.serve(t, source(client, ""))
	s.startDNS(t)
	s.answers(t, web, dns.TypeA, "NOERROR 192.0.2.1")
	s.answers(t, "db."+zone, dns.TypeA, "NOERROR 192.0.2.1")
	prober := s.probe(t, "192.0.2.1", web)

	client.Kill()
	s.awaitAway(t, "consul:consul", "connection refused")
	beside.register(t, "db", "db", "192.0.2.2", 80, nil)
	must.Do(t, client.Start(t.Context()))
	s.answers(t, "db."+zone, dns.TypeA, "NOERROR 192.0.2.2")
	s.awaitAway(t, "consul:consul", "")

	server.Kill()
	s.awaitAway(t, "consul:consul", "500")
	must.Do(t, server.Start(t.Context()))
	s.awaitAway(t, "consul:consul", "")
	beside.register(t, "db", "db", "192.0.2.3", 80, nil)
	s.answers(t, "db."+zone, dns.TypeA, "NOERROR 192.0.2.3")
	prober.Check(t)
}

// A server that begins anew without its data, or with those of a backup, takes nothing away that is registered
// again: by agents for what runs beside them, and by a program for what has no agent.
func TestServerBegunAnew(t *testing.T) {
	for _, backup := range []bool{false, true} {
		t.Run(map[bool]string{false: "empty", true: "old"}[backup], func(t *testing.T) {
			enabled(t)
			s := newShop(t)
			server := s.server(t, "server", "dc1", nil)
			client := s.client(t, "client", server, nil)
			s.run(t, server, client)
			client.register(t, "web", "web", "192.0.2.9", 80, nil)
			must.Do(t, server.Stop())
			copyDir(t, server.dir, s.Path("backup"))
			must.Do(t, server.Start(t.Context()))
			client.register(t, "web", "web", "192.0.2.1", 80, nil) // at another address since
			orphan := fields{"Node": "n", "Address": "192.0.2.1", "Service": fields{"Service": "orphan", "Port": 80}}
			server.put(t, "/v1/catalog/register", orphan, nil)
			for range 100 { // which move the index
				server.put(t, "/v1/kv/x", "y", nil)
			}
			client.register(t, "db", "db", "192.0.2.1", 80, nil)
			s.serve(t, source(client, ""))
			s.startDNS(t)
			names := []string{web, "db." + zone, "orphan." + zone}
			for _, name := range names {
				s.answers(t, name, dns.TypeA, "NOERROR 192.0.2.1")
			}
			prober := s.probe(t, "192.0.2.1", names...)

			server.Kill()
			s.awaitAway(t, "consul:consul", "500")
			if backup {
				copyDir(t, s.Path("backup"), server.dir)
			} else {
				copyDir(t, t.TempDir(), server.dir)
			}
			must.Do(t, server.Start(t.Context()))
			s.awaitAway(t, "consul:consul", "went back")
			await.Until(t, 4*time.Minute, func() string { // the agent registers again
				var services map[string][]string
				if err := server.call(t.Context(), http.MethodGet, "/v1/catalog/services", nil, &services); err != nil {
					return err.Error()
				}
				if services["web"] == nil || services["db"] == nil {
					return fmt.Sprintf("the server has %v", services)
				}
				return ""
			})
			s.awaitAway(t, "consul:consul", "went back")
			server.put(t, "/v1/catalog/register", orphan, nil)
			s.awaitAway(t, "consul:consul", "")
			prober.Check(t)
			client.deregister(t, "db")
			s.answers(t, "db."+zone, dns.TypeA, nxdomain)
		})
	}
}

// Clients that ask Consul's own DNS get the services of others, where CoreDNS is a recursor of the agent.
func TestRecursors(t *testing.T) {
	enabled(t)
	s := newShop(t)
	s.Put(t, "catalog.yaml", "services:\n- {name: web, fqdn: web.partner.fed.example, endpoints: [{address: 192.0.2.1, port: 443}], instances: [{id: v1, protocol: HTTPS}]}\n")
	s.serve(t, "file: {path: catalog.yaml}")
	s.startDNS(t)
	s.answers(t, "web.partner.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	server := s.server(t, "server", "dc1", map[string]any{"recursors": []string{s.dns.Address}})
	own := loopback.Address(t)
	server.config["ports"].(map[string]any)["dns"] = portOf(own)
	s.run(t, server)
	server.register(t, "web", "web", "192.0.2.9", 80, nil)
	consul := &domain.DNS{Address: own}
	for _, q := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"web.service.consul", dns.TypeA, "NOERROR 192.0.2.9"},
		{"web.partner.fed.example", dns.TypeA, "NOERROR 192.0.2.1"},
		{"web.partner.fed.example", dns.TypeSRV, "NOERROR 0 100 443 192-0-2-1.addr.web.partner.fed.example."},
		{"web.partner.fed.example", dns.TypeAAAA, "NOERROR"},
		{"nope.partner.fed.example", dns.TypeA, nxdomain},
	} {
		await.Eventually(t, func() string {
			if got := consul.Answer(t.Context(), q.name, q.qtype); got != q.want {
				return fmt.Sprintf("Consul answers %s %s with %q, want %q", q.name, dns.TypeToString[q.qtype], got, q.want)
			}
			return ""
		})
	}
}
