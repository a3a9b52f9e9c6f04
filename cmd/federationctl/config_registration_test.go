package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// shopRules let the partner register one service, and the consumer nothing.
const shopRules = `rules:
- name: shop
  providers: ["` + partnerID + `"]
  services: [shop.fed.example]
  addresses: [192.0.2.0/24]
`

// registrations has a registration in each of two catalogs: one on a port of its own, and
// one on that of the owner.
var registrations = strings.Replace(ownerText, "file: {path: catalog.yaml}",
	`registration: {rules: rules.yaml, listen: "127.0.0.1:0", convergence: 1s}`, 1) + `- server_name: b.owner.example
  sources:
  - registration: {name: b, rules: rules.yaml, convergence: 1s}
`

// serveRegistrations starts an owner in whose default catalog programs can register. It
// returns the address of the port for that.
func serveRegistrations(t *testing.T, text string, files map[string]string) (c *configured, port string) {
	t.Helper()
	dir := partiesIn(t)
	for name, content := range files {
		write(t, filepath.Join(dir, name), content)
	}
	c = &configured{dir: dir, file: write(t, filepath.Join(dir, "owner.yaml"), text)}
	c.running = &running{t: t}
	c.start(&port)
	return c, port
}

// start starts the owner, and sets its addresses and, if it is not nil, that of its port
// for providers.
func (c *configured) start(port *string) {
	c.t.Helper()
	text := must.Get(os.ReadFile(c.file))(c.t)
	var status *string
	if bytes.HasPrefix(text, []byte("status: ")) {
		status = &c.status
	}
	c.running = background(c.t, "serve", "--config", c.file)
	for _, want := range []struct {
		format string
		into   *string
	}{{"serving " + c.file + " on %s", &c.address}, {"registration:registration on %s", port}, {"metrics on %s", &c.web}, {"status on %s", status}} {
		if want.into == nil {
			continue
		}
		must.Get(fmt.Sscanf(c.line(), want.format, want.into))(c.t)
	}
	c.web = strings.TrimSuffix(c.web, "metrics")
}

// on returns the owner at another of its addresses.
func (c *configured) on(address string) *configured {
	other := *c
	other.address = address
	return &other
}

// enrolled is the stream of a provider.
type enrolled struct {
	t *testing.T
	registrationv1.RegistrationService_RegisterClient
}

// enroll opens the stream of a provider as that party.
func (c *configured) enroll(party, serverName string) *enrolled {
	c.t.Helper()
	stream := must.Get(registrationv1.NewRegistrationServiceClient(c.as(party, serverName)).Register(c.t.Context()))(c.t)
	e := &enrolled{c.t, stream}
	e.send(&registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Open{Open: &registrationv1.Open{Version: 1}}})
	return e
}

func (e *enrolled) send(m *registrationv1.RegisterRequest) {
	e.t.Helper()
	if err := e.Send(m); err != nil && err != io.EOF { //nolint:errorlint // of gRPC, as it is: Recv says why
		e.t.Fatal(err)
	}
}

func (e *enrolled) active(service string) {
	e.t.Helper()
	active := &registrationv1.Active{Service: service, Node: "https://192.0.2.7"}
	e.send(&registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Active{Active: active}})
}

// hears returns the next message but the first Open in words, or how the stream ends.
func (e *enrolled) hears() string {
	e.t.Helper()
	for {
		m, err := e.Recv()
		switch {
		case err != nil:
			return status.Code(err).String() + ": " + status.Convert(err).Message()
		case m.GetGranted() != nil:
			return "granted " + m.GetGranted().GetUri()
		case m.GetRefused() != nil:
			return "refused " + m.GetRefused().GetRule()
		case m.GetOpen() == nil:
			return fmt.Sprintf("%T", m.GetMessage())
		}
	}
}

func (e *enrolled) expect(want string) {
	e.t.Helper()
	if got := e.hears(); got != want {
		e.t.Errorf("the provider hears %q, expected %q", got, want)
	}
}

// TestConfigRegistration registers on a port for providers, which leads to one
// registration whatever the server name, and on that of the owner, where the server name
// chooses the catalog. A provider need not be one that may subscribe.
func TestConfigRegistration(t *testing.T) {
	t.Parallel()
	c, port := serveRegistrations(t, registrations, map[string]string{"rules.yaml": shopRules})
	own := c.on(port).enroll("partner", "any.example")
	own.active("shop.fed.example")
	own.expect("granted https://192.0.2.7:443")
	own.active("other.fed.example")
	own.expect("refused no-rule")
	atOwner := c.enroll("partner", "B.owner.example")
	atOwner.active("shop.fed.example")
	atOwner.expect("granted https://192.0.2.7:443")
	c.gets(c.as("consumer", "owner.example"), "UPSERT registration/shop.fed.example")
	c.gets(c.as("consumer", "b.owner.example"), "UPSERT b/shop.fed.example")

	stranger := c.on(port).enroll("consumer", "owner.example")
	stranger.active("shop.fed.example")
	stranger.expect("refused no-rule")
	c.enroll("partner", "owner.example").expect(`Unimplemented: nothing can be registered on this port in the catalog (default), to which the server name "owner.example" of your handshake leads`)
	if code := subscribe(t, c.as("partner", "owner.example")).ends(); code != codes.Unauthenticated {
		t.Errorf("a provider that allow does not name subscribes with %v, expected Unauthenticated", code)
	}
	if code := subscribe(t, c.on(port).as("consumer", "owner.example")).ends(); code != codes.Unimplemented {
		t.Errorf("a consumer on the port for providers gets %v, expected Unimplemented", code)
	}
	for service, want := range map[string]codes.Code{"": codes.OK, "federation.registration.v1.RegistrationService": codes.OK, "other": codes.NotFound} {
		for _, at := range []*configured{c, c.on(port)} {
			_, err := healthpb.NewHealthClient(at.as("partner", "owner.example")).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			if status.Code(err) != want {
				t.Errorf("health of %q at %s is %v, expected %v", service, at.address, err, want)
			}
		}
	}
	c.metrics(map[string]float64{
		`registration_nodes{source="registration:registration"}`:                        1,
		`registration_providers{source="registration:registration"}`:                    2,
		`registration_granted_total{source="registration:registration"}`:                1,
		`registration_refused_total{rule="no-rule",source="registration:registration"}`: 2,
		`registration_nodes{catalog="b.owner.example",source="registration:b"}`:         1,
		`registration_convergence_seconds{source="registration:registration"}`:          0,
		`registration_store_away{source="registration:registration"}`:                   0,
		`file_broken{file="rules"}`:                                                     0,
	})
	c.shows("", `"registration":{"address":"`+port+`","nodes":1,"providers":2`)
	c.shows("", `"registration":{"address":"`+c.address+`","nodes":1,"providers":1`)

	gone := &registrationv1.Clear{Service: "shop.fed.example", Node: "https://192.0.2.7"}
	own.send(&registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Clear{Clear: gone}})
	c.metrics(map[string]float64{
		`registration_nodes{source="registration:registration"}`: 0, `registration_cleared_total{source="registration:registration"}`: 1,
		`services`: 0, `services{catalog="b.owner.example"}`: 1,
	})
	if code := c.stop(); code != exitDone {
		t.Errorf("serve ended with exit code %d; standard error:\n%s", code, c.errs)
	}
}

// TestConfigRegistrationRefused starts owners whose registrations cannot be opened.
func TestConfigRegistrationRefused(t *testing.T) {
	t.Chdir(partiesIn(t))
	listener := must.Get(new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	taken := listener.Addr().String()
	write(t, "rules.yaml", shopRules)
	write(t, "broken.yaml", "rules: [5]\n")
	must.Do(t, os.WriteFile("password", nil, 0o600))
	for _, tt := range []struct{ old, new, want string }{
		{"127.0.0.1:0\", convergence", taken + "\", convergence", "source registration:registration: listen tcp " + taken + ": bind: address already in use; see catalogs[0].sources[0].registration.listen in owner.yaml\n"},
		{"rules.yaml", "broken.yaml", "source registration:registration: rules file broken.yaml: line 1: rules[0]: must be a mapping, not \"5\"; see catalogs[0].sources[0].registration in owner.yaml\n"},
		{"convergence", "store: {etcd: {endpoints: [\"https://a:1\"], username: a, password_file: password}}, convergence", "source registration:registration: password of etcd: password is empty; see catalogs[0].sources[0].registration in owner.yaml\n"},
	} {
		write(t, "owner.yaml", strings.Replace(registrations, tt.old, tt.new, 1))
		code, _, stderr := ctl(t, "serve", "--config", "owner.yaml")
		// The rules that were in order have been applied.
		stderr = regexp.MustCompile(`time=.*\n`).ReplaceAllString(stderr, "")
		if code != exitFailed || stderr != "federationctl: "+tt.want {
			t.Errorf("exit code %d, standard error\n%s\nexpected\n%s", code, stderr, tt.want)
		}
	}
}

// TestConfigNSM has a registry that nobody can reach.
func TestConfigNSM(t *testing.T) {
	for _, keys := range []string{"", ", tls: none"} {
		text := strings.Replace(ownerText, "- file:", "- nsm: {registry: \"tcp://127.0.0.1:1\", zone: nsm.fed.example"+keys+"}\n  - file:", 1)
		c := serveConfig(t, text, map[string]string{"catalog.yaml": oneService("a")})
		c.shows("", `"name":"nsm:nsm","state":"waiting"`)
	}
}

// TestConfigConsul has an agent of Consul that nobody can reach.
func TestConfigConsul(t *testing.T) {
	text := strings.Replace(ownerText, "- file:", "- consul: {address: \"http://127.0.0.1:1\", zone: consul.fed.example}\n  - file:", 1)
	c := serveConfig(t, text, map[string]string{"catalog.yaml": oneService("a")})
	c.shows("", `"name":"consul:consul","state":"waiting"`)
}
