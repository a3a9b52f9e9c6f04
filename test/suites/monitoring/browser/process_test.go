package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// bin is where `make build` puts the binaries, and the screenshots go.
var bin = func() string {
	path, err := filepath.Abs("../../../../bin")
	if err != nil {
		panic(err)
	}
	return path
}()

// patience bounds each wait for something that must happen.
const patience = 5 * time.Minute

// process is a binary of this project that runs.
type process struct {
	cmd  *exec.Cmd
	log  testlog.Buffer
	once sync.Once
}

// start runs a binary until the end of the test, or until kill. When the test fails, its
// log is shown.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(filepath.Join(bin, name), args...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.WaitDelay = time.Second // for a program that federationctl register has started
	must.Do(t, p.cmd.Start())     // make build makes it
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
	must.Do(t, os.WriteFile(path+".new", []byte(text), 0o644))
	must.Do(t, os.Rename(path+".new", path))
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
	at := loopback.Address(t)
	if !slices.Contains(flags, "--allow-id") {
		flags = append(flags, "--allow-any")
	}
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
	await.Until(t, patience, func() string {
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
			Name, State      string
			Services, Paused int
		}
		Unavailable string
		Services    int
		Consumers   map[string]int
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

// stall is a network that nearly stops in the middle: it passes on so many bytes from an owner
// to each consumer, and then a few each second, so that pings find the owner alive.
func stall(t *testing.T, owner string, after int64) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	var running sync.WaitGroup
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
			context.AfterFunc(t.Context(), func() { // before what is cleaned up
				near.Close()
				far.Close()
			})
			running.Go(func() { _, _ = io.Copy(far, near) })
			running.Go(func() {
				_, err := io.CopyN(near, far, after)
				pace := time.NewTicker(time.Second)
				defer pace.Stop()
				for ; err == nil; <-pace.C {
					_, err = io.CopyN(near, far, 4<<10)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	return l.Addr().String()
}
