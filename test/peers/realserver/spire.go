package realserver

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	plaintext "google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// SPIRE is a trust domain: a SPIRE server, and an agent that gives this user's
// processes their certificates. The agent asks for a new certificate when about half of the
// time of one is over. Its methods are for one goroutine at a time.
type SPIRE struct {
	TrustDomain string
	Socket      string // address of the agent's Workload API: unix:///PATH

	server *Process
	admin  string // path of the server's socket
}

const (
	spireSync    = "500ms" // how often the agent asks its server, and the server its database
	agentTTL     = "1h"    // longer than a test
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
  KeyManager "disk" { plugin_data { keys_path = "server/keys.json" } }
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
)

// StartSPIRE starts a server, and an agent that has joined it, and waits until both
// answer. They are ended with the test. No process has an identity before Register; its
// certificates are valid for ttl.
func StartSPIRE(tb testing.TB, trustDomain string, ttl time.Duration) *SPIRE {
	tb.Helper()
	need(tb, missing(spireServer, spireAgent))
	// The path of a Unix socket has 107 octets at most, and a test's own folder has its name.
	dir, err := os.MkdirTemp("", "spire") //nolint:usetesting // see above
	must.Do(tb, err)
	tb.Cleanup(func() { os.RemoveAll(dir) })
	write := func(name, format string, values ...any) {
		tb.Helper()
		must.Do(tb, os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, format, values...), 0o600))
	}
	socket := filepath.Join(dir, "agent.sock")
	s := &SPIRE{TrustDomain: trustDomain, Socket: "unix://" + socket, admin: filepath.Join(dir, "server.sock")}
	s.server = &Process{
		Name: "spire-server-" + trustDomain, Path: spireServer.of(tb), Dir: dir, Args: []string{"run", "-config", "server.conf"},
		Ready: func(ctx context.Context) error { return healthy(ctx, s.admin) },
	}
	agent := &Process{
		Name: "spire-agent-" + trustDomain, Path: spireAgent.of(tb), Dir: dir, Args: []string{"run", "-config", "agent.conf"},
		Ready: func(ctx context.Context) error { return healthy(ctx, socket) },
	}
	host, port, err := net.SplitHostPort(loopback.Address(tb))
	must.Do(tb, err)
	write("server.conf", serverConfig, host, port, s.admin, trustDomain, ttl, agentTTL, authorityTTL, spireSync)
	s.server.StartFor(tb)
	write("bundle.pem", "%s", must.Get(s.call(tb.Context(), "", "bundle", "show"))(tb))
	reply := must.Get(s.call(tb.Context(), "", "token", "generate", "-spiffeID", s.ID("agent")))(tb)
	_, token, ok := strings.Cut(strings.TrimSpace(string(reply)), "Token: ")
	if !ok {
		tb.Fatalf("spire-server token generate has written %q", reply)
	}
	write("agent.conf", agentConfig, host, port, socket, trustDomain, token, spireSync)
	agent.StartFor(tb)
	return s
}

// ID returns the SPIFFE ID in the trust domain with a path that does not begin with
// a slash.
func (s *SPIRE) ID(path string) string { return "spiffe://" + s.TrustDomain + "/" + path }

// Register lets the agent issue certificates with an ID of the trust domain to the
// processes that a selector says, such as unix:path:/bin/sh. These get the bundles of
// the other trust domains as well. A process gets its first certificate two seconds later.
func (s *SPIRE) Register(ctx context.Context, path, selector string, others ...*SPIRE) error {
	args := []string{"entry", "create", "-parentID", s.ID("agent"), "-spiffeID", s.ID(path), "-selector", selector}
	for _, other := range others {
		args = append(args, "-federatesWith", "spiffe://"+other.TrustDomain)
	}
	_, err := s.call(ctx, "", args...)
	return err
}

// Trust gives the trust domain the bundle of another, as it is now.
func (s *SPIRE) Trust(ctx context.Context, other *SPIRE) error {
	bundle, err := other.call(ctx, "", "bundle", "show", "-format", "spiffe")
	if err != nil {
		return err
	}
	_, err = s.call(ctx, string(bundle), "bundle", "set", "-format", "spiffe", "-id", "spiffe://"+other.TrustDomain)
	return err
}

// call runs a command of spire-server, with input as its standard input, and returns
// what it writes.
func (s *SPIRE) call(ctx context.Context, input string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.server.Path, append(args, "-socketPath", s.admin)...)
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
