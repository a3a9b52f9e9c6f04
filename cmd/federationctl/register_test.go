package main

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// registry is an owner that registers everything but what is refused.
type registry struct {
	registrationv1.UnimplementedRegistrationServiceServer

	address string
	refuses atomic.Bool

	mu      sync.Mutex
	nodes   map[string]*registrationv1.Active // by URI
	changed chan struct{}                     // closed and replaced when nodes change
}

// newRegistry serves one with the owner's certificate in dir, until the test ends.
func newRegistry(t *testing.T, dir string) *registry {
	t.Helper()
	r := &registry{nodes: make(map[string]*registrationv1.Active), changed: make(chan struct{})}
	r.address = serveRegistry(t, dir, r)
	return r
}

// serveRegistry serves the service with the owner's certificate in dir, until the test
// ends, and returns the address.
func serveRegistry(t *testing.T, dir string, service registrationv1.RegistrationServiceServer) (address string) {
	t.Helper()
	source := must.Get(mtls.Load(mtls.Files{
		Cert: filepath.Join(dir, "owner.pem"), Key: filepath.Join(dir, "owner-key.pem"), CA: filepath.Join(dir, "ca.pem"),
	}, nil))(t)
	listener := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	server := grpc.NewServer(grpc.Creds(source.Server()), grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second}))
	registrationv1.RegisterRegistrationServiceServer(server, service)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return listener.Addr().String()
}

// Register implements registrationv1.RegistrationServiceServer.
func (r *registry) Register(stream registrationv1.RegistrationService_RegisterServer) error {
	open := &registrationv1.RegisterResponse_Open{Open: &registrationv1.Open{Version: 1}}
	if err := stream.Send(&registrationv1.RegisterResponse{Message: open}); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		active := m.GetActive()
		answer := &registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Granted{Granted: &registrationv1.Granted{
			Service: active.GetService(), Node: active.GetNode(), Ttl: durationpb.New(30 * time.Second),
			Uri: strings.Replace(active.GetNode(), "://:", "://127.0.0.1:", 1),
		}}}
		switch {
		case m.GetClose() != nil:
			return nil
		case m.GetClear() != nil:
			r.set(m.GetClear().GetNode(), nil)
			continue
		case active == nil:
			continue
		case r.refuses.Load():
			r.set(active.GetNode(), nil)
			answer.Message = &registrationv1.RegisterResponse_Refused{Refused: &registrationv1.Refused{
				Service: active.GetService(), Node: active.GetNode(), Rule: "no-rule", Reason: "nobody may",
			}}
		default:
			r.set(active.GetNode(), active)
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func (r *registry) set(uri string, active *registrationv1.Active) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, uri)
	if active != nil {
		r.nodes[uri] = active
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// await waits until a node is registered, or is not, and returns it.
func (r *registry) await(t *testing.T, uri string, registered bool) *registrationv1.Active {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		r.mu.Lock()
		active, changed := r.nodes[uri], r.changed
		r.mu.Unlock()
		if (active != nil) == registered {
			return active
		}
		select {
		case <-changed:
		case <-deadline.C:
			t.Fatalf("registered is %v still for %s", !registered, uri)
		}
	}
}

// has reports whether a node is registered now.
func (r *registry) has(uri string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[uri] != nil
}

const registerURI = "http://:8080"

// registering is register as a process.
type registering struct {
	*exec.Cmd
	t      *testing.T
	stdout *bufio.Scanner
	stderr chan string // its lines
}

// register starts it with the certificates in dir.
func (r *registry) register(t *testing.T, dir string, args ...string) *registering {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	all := slices.Concat([]string{
		"register", "--server", r.address, "--service", "shop.fed.example", "--node", registerURI,
	}, files(dir, "consumer"), args)
	p := &registering{Cmd: exec.CommandContext(ctx, realBinary(t), all...), t: t, stderr: make(chan string, 1000)}
	errs, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout = startWithOutput(t, p.Cmd)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(p.stderr)
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			p.stderr <- lines.Text()
		}
	})
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
		reading.Wait()
	})
	return p
}

// says waits for a line on standard error that begins so, and fails the test at another
// one.
func (p *registering) says(prefix string) (rest string) {
	p.t.Helper()
	line, ok := <-p.stderr
	rest, said := strings.CutPrefix(line, "federationctl: "+prefix)
	if !ok || !said {
		p.t.Fatalf("register says %q, expected %q", line, prefix)
	}
	return rest
}

func (p *registering) signal(s os.Signal) {
	p.t.Helper()
	must.Do(p.t, p.Process.Signal(s))
}

// ends waits for the end.
func (p *registering) ends(code int) {
	p.t.Helper()
	for p.stdout.Scan() {
		p.t.Errorf("the command writes %q at its end", p.stdout.Text())
	}
	for line := range p.stderr {
		p.t.Errorf("register says %q at its end", line)
	}
	_ = p.Wait()
	if got := p.ProcessState.ExitCode(); got != code {
		p.t.Errorf("exit code %d, expected %d", got, code)
	}
}

const isRegistered = "registered: shop.fed.example at http://127.0.0.1:8080, with owner 127.0.0.1:"

// At SIGTERM the program is withdrawn first, and then drained.
func TestRegisterDrains(t *testing.T) {
	dir := pkiIn(t)
	r := newRegistry(t, dir)
	p := r.register(t, dir, "--drain", "1s", "--ttl", "20s", "--metadata", "tier=gold", "--instance", "v1")
	active := r.await(t, registerURI, true)
	if active.GetTtl().AsDuration() != 20*time.Second || active.GetMetadata()["tier"] != "gold" || active.GetInstance() != "v1" {
		t.Errorf("it registers %v", active)
	}
	p.says(isRegistered)
	begun := time.Now()
	p.signal(syscall.SIGTERM)
	p.says("withdrawing shop.fed.example, and waiting 1s for the caches of its clients")
	r.await(t, registerURI, false)
	p.ends(0)
	if took := time.Since(begun); took < time.Second {
		t.Errorf("register ends after %v", took)
	}
}

// Whatever keeps it from being registered, it goes on trying.
func TestRegisterRefused(t *testing.T) {
	dir := pkiIn(t)
	r := newRegistry(t, dir)
	r.refuses.Store(true)
	p := r.register(t, dir, "--drain", "1h")
	p.says("refused by owner 127.0.0.1:")
	p.signal(syscall.SIGTERM) // nobody has it in a cache
	p.ends(0)
}

func TestRegisterNobody(t *testing.T) {
	dir := pkiIn(t)
	r := &registry{address: "127.0.0.1:1"}
	p := r.register(t, dir, "--drain", "1h")
	p.says("not registered with owner 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused; check --server")
	p.signal(syscall.SIGTERM)
	p.ends(0)
}

// It stands beside a program until a signal of a terminal, too.
func TestRegisterBeside(t *testing.T) {
	dir := pkiIn(t)
	r := newRegistry(t, dir)
	p := r.register(t, dir, "--drain", "100ms")
	p.says(isRegistered)
	p.signal(os.Interrupt)
	p.says("withdrawing shop.fed.example, and waiting 100ms")
	p.ends(0)
	if r.has(registerURI) {
		t.Error("it is registered still")
	}
}

// A program that is not healthy is not registered, and one that was not for a moment stays.
func TestRegisterCheck(t *testing.T) {
	dir := pkiIn(t)
	r := newRegistry(t, dir)
	var failures atomic.Int32 // to come
	checked := make(chan struct{}, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if failures.Add(-1) >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		checked <- struct{}{}
	}))
	t.Cleanup(server.Close)
	failures.Store(3)
	p := r.register(t, dir, "--check", server.URL, "--check-interval", "10ms", "--check-timeout", "1m", "--drain", "0")
	p.says("check fails: GET http://127.0.0.1:")
	p.says("check succeeds; registering")
	p.says(isRegistered)
	failures.Store(2)
	for range 10 {
		<-checked
	}
	if !r.has(registerURI) {
		t.Error("two failures withdraw it")
	}
	failures.Store(3)
	p.says("check fails: GET http://127.0.0.1:")
	p.says("check succeeds; registering")
	p.says(isRegistered)
	p.signal(syscall.SIGTERM)
	p.says("withdrawing shop.fed.example")
	p.ends(0)
}

func TestRegisterUsage(t *testing.T) {
	t.Chdir(pkiIn(t))
	good := append(files("", "consumer"), "--server", "127.0.0.1:1", "--service", "shop.fed.example", "--node", registerURI)
	for want, args := range map[string][]string{
		`required flag(s) "node", "server", "service" not set`:     files("", "consumer"),
		`--server: "owner/path": address is neither an IP address`: {"--server", "owner/path"},
		`--service: name`:                         {"--service", "a..b"},
		`--node "8080": the scheme is not one of`: {"--node", "8080"},
		`--metadata: "a" is not key=value`:        {"--metadata", "a"},
		`--metadata: "a" is there twice`:          {"--metadata", "a=1", "--metadata", "a=2"},
		`--check: "localhost:80" is none of`:      {"--check", "localhost:80"},
		`--ttl: 0s is not positive`:               {"--ttl", "0s"},
		`--check-timeout: -1s is not positive`:    {"--check-timeout", "-1s"},
		`--check-failures: 0 is less than 1`:      {"--check-failures", "0"},
		`--drain: -1s is negative`:                {"--drain", "-1s"},
		`register takes no argument, not "shop"; systemd, or a container beside this one, runs the program`: {"shop"},
		`--spiffe needs --owner-id: the host of --server is no SPIFFE ID`:                                   nil,
		`--owner-id: identity "*": label has a character other than a-z, 0-9, '-' and '_'`:                  {"--owner-id", "*"},
	} {
		all := slices.Concat([]string{"register"}, good, args)
		code := 2
		switch {
		case strings.HasPrefix(want, "required"):
			all = append([]string{"register"}, args...)
		case args == nil:
			all = slices.Concat([]string{"register", "--spiffe", "unix:///a"}, good[6:])
		}
		got, _, stderr := ctl(t, all...)
		if got != code || !strings.HasPrefix(stderr, "federationctl: "+want) {
			t.Errorf("%v: exit code %d, standard error %q, expected %q", args, got, stderr, want)
		}
	}
}

var (
	exampleServer = regexp.MustCompile(`owner\.example\.org:8008(,owner-b\.example\.org:8008)?`)
	exampleCheck  = regexp.MustCompile(`--check ('.*?'|\S+)`)
)

// silent is the catalog of an owner that nobody subscribes to.
type silent struct{}

func (silent) Replace([]*wire.EncodedService)          {}
func (silent) Update([]*wire.EncodedService, []string) {}
func (silent) SetAway(error)                           {}
func (silent) SetPath(wire.OwnerPath) error            { return nil }

func (silent) SetRefused(map[string]int) {}

// A real owner knows of a program that is registered, until it is withdrawn.
func TestRegisterWithOwner(t *testing.T) {
	dir := pkiIn(t)
	parsed, problems := rules.Parse([]byte("rules:\n- name: shops\n  providers: [" + pkiConsumerID + "]\n  services: [shop.fed.example]\n" +
		"  addresses: [peer]\n  ttl: {min: 1s, max: 1m, default: 10s}\n"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	source := registration.New(registration.Config{
		Name: "registration", Owner: "real", Rules: parsed, Convergence: time.Minute, Published: func(string) bool { return true },
		Policy: wire.AddressPolicy{AllowAddresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { source.Run(ctx, silent{}) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	r := &registry{address: serveRegistry(t, dir, source)}
	p := r.register(t, dir, "--drain", "0", "--instance", "v1")
	p.says(isRegistered)
	if n := source.Stats().Nodes; n != 1 {
		t.Errorf("%d nodes are registered", n)
	}
	other := r.register(t, dir, "--node", "http://192.0.2.1:8080")
	other.says("refused by owner 127.0.0.1:")
	other.signal(syscall.SIGTERM)
	other.ends(0)
	p.signal(syscall.SIGTERM)
	p.says("withdrawing shop.fed.example")
	p.ends(0)
	if n := source.Stats().Nodes; n != 0 {
		t.Errorf("%d nodes are registered still", n)
	}
}

// copyOf gives the certificate of a consumer another name.
func copyOf(t *testing.T, dir, name string) {
	t.Helper()
	for _, suffix := range []string{".pem", "-key.pem"} {
		data := must.Get(os.ReadFile(filepath.Join(dir, "consumer"+suffix)))(t)
		write(t, filepath.Join(dir, name+suffix), string(data))
	}
}

// registerExample runs an example of register until it is registered.
func registerExample(t *testing.T, dir, line string) {
	t.Helper()
	r := newRegistry(t, dir)
	copyOf(t, dir, "provider")
	listener := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { listener.Close() })
	script := exampleServer.ReplaceAllString(line, strings.Replace(r.address, "127.0.0.1", "localhost", 1))
	script = exampleCheck.ReplaceAllString(script, "--check tcp://"+listener.Addr().String())
	script += " --drain 0"
	command := shellCommand(t.Context(), t, dir, "exec "+script+" 2>&1")
	output := startWithOutput(t, command)
	var said []string
	for output.Scan() {
		if said = append(said, output.Text()); strings.HasPrefix(output.Text(), "federationctl: registered: ") {
			if err := command.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	_ = command.Wait()
	if got := command.ProcessState.ExitCode(); got != 0 {
		t.Errorf("%s\nended with exit code %d:\n%s", script, got, fmt.Sprint(strings.Join(said, "\n")))
	}
}
