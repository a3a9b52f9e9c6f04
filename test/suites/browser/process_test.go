package browser

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
)

// bin is where `make build` puts the binaries, and the screenshots go.
var bin = func() string {
	path, err := filepath.Abs("../../../bin")
	if err != nil {
		panic(err)
	}
	return path
}()

// patience bounds each wait for something that must happen.
const patience = 90 * time.Second

// ports are below the ephemeral ones, which the system gives to clients.
const firstPort, lastPort = 10_000, 32_000

var tried atomic.Int64

func init() { tried.Store(rand.Int64N(lastPort - firstPort)) }

// address returns 127.0.0.1 with a port that is free for UDP and TCP.
func address(t *testing.T) string {
	t.Helper()
	for range 100 {
		free := fmt.Sprintf("127.0.0.1:%d", firstPort+tried.Add(1)%(lastPort-firstPort))
		l, err := net.Listen("tcp", free)
		if err != nil {
			continue
		}
		p, err := net.ListenPacket("udp", free)
		l.Close()
		if err == nil {
			p.Close()
			return free
		}
	}
	t.Fatal("no port is free")
	return ""
}

// process is a binary of this project that runs.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	log  lockedBuffer
	once sync.Once
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start runs a binary until the end of the test, or until kill. When the test fails, its
// log is shown.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(filepath.Join(bin, name), args...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.WaitDelay = time.Second // for a program that federationctl register has started
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%v; make build makes it", err)
	}
	t.Cleanup(func() {
		p.end(syscall.SIGTERM)
		if t.Failed() {
			log := p.log.String()
			t.Logf("%s %q:\n%s", name, args, log[max(0, len(log)-4000):])
		}
	})
	return p
}

// kill ends the process as a crash does.
func (p *process) kill() { p.end(syscall.SIGKILL) }

func (p *process) end(signal syscall.Signal) {
	p.once.Do(func() {
		_ = p.cmd.Process.Signal(signal)
		_ = p.cmd.Wait()
	})
}

// pki makes certificates in a folder, and returns it.
func pki(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if out, err := exec.Command(filepath.Join(bin, "federationctl"), "pki", folder).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return folder
}

// write writes a file, and returns its path.
func write(t *testing.T, folder, name, text string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// service is an entry of a catalog file, on one line.
func service(name, fqdn, address string) string {
	return fmt.Sprintf("{name: %q, fqdn: %q, endpoints: [{address: %q, port: 443}], instances: [{id: v1, protocol: HTTPS}]}", name, fqdn, address)
}

func catalogOf(services ...string) string {
	return "services:\n- " + strings.Join(services, "\n- ") + "\n"
}

// owner starts an owner with a catalog file, and returns it with its address, once it
// listens.
func owner(t *testing.T, folder, name, text string, flags ...string) (*process, string) {
	t.Helper()
	at := address(t)
	p := start(t, "federationctl", append([]string{
		"serve", "--listen", at, "--catalog", write(t, folder, name+".yaml", text),
		"--cert", folder + "/owner.pem", "--key", folder + "/owner-key.pem", "--ca", folder + "/ca.pem",
	}, flags...)...)
	listening(t, at)
	return p, at
}

// listening waits until somebody listens at an address.
func listening(t *testing.T, at string) {
	t.Helper()
	await.Until(t, 2*time.Second, patience, func() string {
		c, err := net.Dial("tcp", at)
		if err != nil {
			return err.Error()
		}
		c.Close()
		return ""
	})
}

// status is what the tests need of the JSON of the status.
type status struct {
	Ready  bool
	Owners []struct {
		ID, State, Failure    string
		Services, NotAdmitted int
		Conflicts             map[string]int
	}
	Catalogs []struct {
		Sources []struct {
			Name, State string
			Services    int
		}
		Services  int
		Consumers map[string]int
		Refusals  []struct{ Field string }
	}
}

// read reads the status of a process.
func read(base string) (s status, err error) {
	answer, err := http.Get(base + "/v1/status")
	if err != nil {
		return s, err
	}
	defer answer.Body.Close()
	return s, json.NewDecoder(answer.Body).Decode(&s)
}

// stall is a network that stops in the middle: it passes on so many bytes from an owner to
// each consumer, and then no more.
func stall(t *testing.T, owner string, after int64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	var running sync.WaitGroup
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		open = append(open, c)
	}
	running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", owner)
			if err != nil {
				near.Close()
				continue
			}
			keep(near)
			keep(far)
			running.Go(func() { pass(far, near, 1<<40) })
			running.Go(func() { pass(near, far, after) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return l.Addr().String()
}

// pass copies so many bytes from one connection to another.
func pass(to, from net.Conn, n int64) {
	buffer := make([]byte, 4096)
	for n > 0 {
		got, err := from.Read(buffer[:min(n, int64(len(buffer)))])
		if err != nil {
			return
		}
		if _, err := to.Write(buffer[:got]); err != nil {
			return
		}
		n -= int64(got)
	}
}
