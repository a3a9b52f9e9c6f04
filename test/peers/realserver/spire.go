package realserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	plaintext "google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// SPIREOptions are those of a trust domain.
type SPIREOptions struct {
	TrustDomain string        // its name, such as owner.test
	TTL         time.Duration // of the certificates of workloads; default one minute
}

// SPIRE is a trust domain: a SPIRE server, and an agent that gives this user's
// processes their certificates. Both keep what they know over their starts. The agent
// asks for a new certificate when about half of the time of one is over. Its methods are
// for one goroutine at a time.
type SPIRE struct {
	Server *Process
	Agent  *Process

	TrustDomain string
	Socket      string // address of the agent's Workload API: unix:///PATH

	dir   string
	admin string // path of the server's socket
	host  string // of the server
	port  string

	registered map[string]bool // paths that Register was called with
}

const (
	spireSync    = "500ms" // how often the agent asks its server, and the server its database
	agentTTL     = "1h"    // an agent can come back, and is the same
	authorityTTL = "24h"   // none is replaced while a test runs

	serverConfig = `server {
  bind_address = "%s"
  bind_port = "%s"
  socket_path = "%s"
  trust_domain = "%s"
  data_dir = "server"
  log_level = "WARN"
  default_x509_svid_ttl = "%s"
  agent_ttl = "%s"
  ca_ttl = "%s"
  experimental { cache_reload_interval = "%s" }
}
plugins {
  DataStore "sql" { plugin_data { database_type = "sqlite3" connection_string = "server/data.sqlite3" } }
  KeyManager "disk" { plugin_data { keys_path = "%s" } }
  NodeAttestor "join_token" { plugin_data {} }
}
`
	agentConfig = `agent {
  server_address = "%s"
  server_port = "%s"
  socket_path = "%s"
  trust_domain = "%s"
  trust_bundle_path = "bundle.pem"
  join_token = "%s"
  data_dir = "agent"
  log_level = "WARN"
  experimental { sync_interval = "%s" }
}
plugins {
  NodeAttestor "join_token" { plugin_data {} }
  KeyManager "disk" { plugin_data { directory = "agent" } }
  WorkloadAttestor "unix" { plugin_data { discover_workload_path = true } }
}
`
	spireKeys = "server/keys.json"
)

// StartSPIRE starts a server, and an agent that has joined it, and waits until both
// answer. They are ended with the test. No process has an identity before Register.
func StartSPIRE(tb testing.TB, options SPIREOptions) *SPIRE {
	tb.Helper()
	need(tb, FindSPIRE())
	// The path of a Unix socket has 107 octets at most, and a test's own folder has its name.
	dir, err := os.MkdirTemp("", "spire") //nolint:usetesting // see above
	must.Do(tb, err)
	tb.Cleanup(func() { os.RemoveAll(dir) })
	s := &SPIRE{
		TrustDomain: options.TrustDomain, Socket: "unix://" + filepath.Join(dir, "agent.sock"),
		dir: dir, admin: filepath.Join(dir, "server.sock"), registered: make(map[string]bool),
	}
	must.Do(tb, s.configure(cmp.Or(options.TTL, time.Minute)))
	endWith(tb, (*Process).Stop, s.Server, s.Agent)
	must.Do(tb, s.start(tb.Context()))
	return s
}

// configure makes both processes, and writes what the server needs.
func (s *SPIRE) configure(ttl time.Duration) error {
	server, err := spireServer.findHere()
	if err != nil {
		return err
	}
	agent, err := spireAgent.findHere()
	if err != nil {
		return err
	}
	s.Server = &Process{
		Name: "spire-server-" + s.TrustDomain, Path: server, Dir: s.dir, Args: []string{"run", "-config", "server.conf"},
		Ready: func(ctx context.Context) error { return healthy(ctx, s.admin) },
	}
	s.Agent = &Process{
		Name: "spire-agent-" + s.TrustDomain, Path: agent, Dir: s.dir, Args: []string{"run", "-config", "agent.conf"},
		Ready: func(ctx context.Context) error { return healthy(ctx, s.socketPath()) },
	}
	addresses, err := freeAddresses(1)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(addresses[0])
	if err != nil {
		return err
	}
	s.host, s.port = host, port
	text := fmt.Sprintf(serverConfig, host, port, s.admin, s.TrustDomain, ttl, agentTTL, authorityTTL, spireSync, spireKeys)
	return os.WriteFile(filepath.Join(s.dir, "server.conf"), []byte(text), 0o600)
}

// start starts the server, lets the agent join it, and starts that.
func (s *SPIRE) start(ctx context.Context) error {
	if err := s.Server.Start(ctx); err != nil {
		return err
	}
	bundle, err := s.call(ctx, "", "bundle", "show")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.dir, "bundle.pem"), bundle, 0o600); err != nil {
		return err
	}
	reply, err := s.call(ctx, "", "token", "generate", "-spiffeID", s.ID("agent"))
	if err != nil {
		return err
	}
	_, token, ok := strings.Cut(strings.TrimSpace(string(reply)), "Token: ")
	if !ok {
		return fmt.Errorf("spire-server token generate has written %q", reply)
	}
	text := fmt.Sprintf(agentConfig, s.host, s.port, s.socketPath(), s.TrustDomain, token, spireSync)
	if err := os.WriteFile(filepath.Join(s.dir, "agent.conf"), []byte(text), 0o600); err != nil {
		return err
	}
	return s.Agent.Start(ctx)
}

// ID returns the SPIFFE ID in the trust domain with a path that does not begin with
// a slash.
func (s *SPIRE) ID(path string) string { return "spiffe://" + s.TrustDomain + "/" + path }

func (s *SPIRE) socketPath() string { return strings.TrimPrefix(s.Socket, "unix://") }

// Register lets the agent issue certificates with an ID of the trust domain to the
// processes that the selectors say, such as unix:uid:0 or unix:path:/bin/sh, all of
// them. These get the bundles of the other trust domains as well. A process gets its
// first certificate two seconds later. Another call with the same path replaces what the
// one before has said.
func (s *SPIRE) Register(ctx context.Context, path string, selectors []string, others ...*SPIRE) error {
	verb := "create"
	if s.registered[path] {
		verb = "update"
	}
	args := []string{"entry", verb, "-entryID", entryID(path), "-parentID", s.ID("agent"), "-spiffeID", s.ID(path)}
	for _, selector := range selectors {
		args = append(args, "-selector", selector)
	}
	for _, other := range others {
		args = append(args, "-federatesWith", "spiffe://"+other.TrustDomain)
	}
	_, err := s.call(ctx, "", args...)
	s.registered[path] = s.registered[path] || err == nil
	return err
}

// entryID is the name of a registration: it has no slash.
func entryID(path string) string { return strings.ReplaceAll(path, "/", "-") }

// Trust gives the trust domain the bundle of another, as it is now.
func (s *SPIRE) Trust(ctx context.Context, other *SPIRE) error {
	bundle, err := other.call(ctx, "", "bundle", "show", "-format", "spiffe")
	if err != nil {
		return err
	}
	_, err = s.call(ctx, string(bundle), "bundle", "set", "-format", "spiffe", "-id", "spiffe://"+other.TrustDomain)
	return err
}

// Distrust takes the bundle of another trust domain away, and from all that was
// registered with it.
func (s *SPIRE) Distrust(ctx context.Context, other *SPIRE) error {
	_, err := s.call(ctx, "", "bundle", "delete", "-mode", "dissociate", "-id", "spiffe://"+other.TrustDomain)
	return err
}

// Forge returns a certificate with any ID, for an hour, that the trust domain's
// authority has signed: what somebody can make who has broken into the server. The
// server itself refuses to sign for other domains.
func (s *SPIRE) Forge(ctx context.Context, id string) (tls.Certificate, error) {
	authority, key, err := s.authority(ctx)
	if err != nil {
		return tls.Certificate{}, err
	}
	uri, err := url.Parse(id)
	if err != nil {
		return tls.Certificate{}, err
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), URIs: []*url.URL{uri}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore:   time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority, own.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: own, Leaf: leaf}, err
}

// authority returns the certificate of the trust domain's authority, and its key.
func (s *SPIRE) authority(ctx context.Context) (*x509.Certificate, crypto.Signer, error) {
	text, err := s.call(ctx, "", "bundle", "show")
	if err != nil {
		return nil, nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, nil, fmt.Errorf("spire-server bundle show has written %q", text)
	}
	authority, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, err
	}
	if text, err = os.ReadFile(filepath.Join(s.dir, spireKeys)); err != nil {
		return nil, nil, err
	}
	var file struct {
		Keys map[string][]byte `json:"keys"` // PKCS #8, by names of SPIRE's own
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, nil, err
	}
	for _, der := range file.Keys {
		key, err := x509.ParsePKCS8PrivateKey(der)
		if err != nil {
			return nil, nil, err
		}
		if key, ok := key.(*ecdsa.PrivateKey); ok && key.PublicKey.Equal(authority.PublicKey) {
			return authority, key, nil
		}
	}
	return nil, nil, fmt.Errorf("%s has no key of the authority", spireKeys)
}

// call runs a command of spire-server, with input as its standard input, and returns
// what it writes.
func (s *SPIRE) call(ctx context.Context, input string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Server.Path, append(args, "-socketPath", s.admin)...)
	cmd.Stdin = strings.NewReader(input)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("spire-server %s: %w: %s%s", strings.Join(args, " "), err, output, failed.Bytes())
	}
	return output, nil
}

// healthy returns nil when the server or agent behind a socket says that it serves.
func healthy(ctx context.Context, socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(plaintext.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	reply, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, new(grpc_health_v1.HealthCheckRequest))
	if err == nil && reply.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		err = fmt.Errorf("it is %v", reply.GetStatus())
	}
	return err
}
