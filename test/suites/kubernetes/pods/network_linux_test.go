package pods

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

const patience = time.Minute // bounds each wait for something that must happen

// eventually waits until condition has nothing to complain of.
func eventually(t *testing.T, condition func() string) {
	t.Helper()
	await.Until(t, patience, condition)
}

// mustRun runs a command, and returns what it printed.
func mustRun(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// The network of the node: a bridge in the sandbox, and an address for each pod.
const (
	bridge = "pods0"
	prefix = 24
)

var nodeAddress = netip.MustParseAddr("10.244.0.1")

// newBridge makes the network of the node, until the end of the test.
func newBridge(t *testing.T) {
	t.Helper()
	// Without an address of its own a bridge takes that of one of its ports, and another one
	// when a pod comes: what others then send to the address that they know is lost.
	mustRun(t, "ip", "link", "add", bridge, "address", macOf(nodeAddress), "type", "bridge")
	t.Cleanup(func() { mustRun(t, "ip", "link", "del", bridge) })
	mustRun(t, "ip", "addr", "add", fmt.Sprintf("%v/%d", nodeAddress, prefix), "dev", bridge)
	mustRun(t, "ip", "link", "set", bridge, "up")
}

// macOf returns the MAC address that a container network gives to an IPv4 address.
func macOf(address netip.Addr) string {
	ip := address.As4()
	return fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", ip[0], ip[1], ip[2], ip[3])
}

// pod is a network namespace with an address and, where it has a root, files of its own.
type pod struct {
	name    string
	address netip.Addr
	root    string // "" is that of the machine
}

// newPod makes a pod with an address on the bridge, until the end of the test.
func newPod(t *testing.T, name, address string) *pod {
	t.Helper()
	p := &pod{name: name, address: netip.MustParseAddr(address)}
	mustRun(t, "ip", "netns", "add", name)
	t.Cleanup(func() { mustRun(t, "ip", "netns", "del", name) })
	mustRun(t, "ip", "link", "add", "to-"+name, "type", "veth", "peer", "name", "eth0", "netns", name)
	// The kernel removes it some time after the namespace.
	t.Cleanup(func() { mustRun(t, "ip", "link", "del", "to-"+name) })
	mustRun(t, "ip", "link", "set", "to-"+name, "master", bridge, "up")
	// A later pod with the same address gets the same MAC address, as others may know it.
	mustRun(t, "ip", "-n", name, "link", "set", "eth0", "address", macOf(p.address))
	mustRun(t, "ip", "-n", name, "addr", "add", fmt.Sprintf("%v/%d", p.address, prefix), "dev", "eth0")
	mustRun(t, "ip", "-n", name, "link", "set", "eth0", "up")
	mustRun(t, "ip", "-n", name, "link", "set", "lo", "up")
	return p
}

// start starts a command in the network namespace and the root of the pod.
func (p *pod) start(cmd *exec.Cmd) error {
	if p.root != "" {
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: p.root}
	}
	namespace, err := os.Open(filepath.Join("/run/netns", p.name))
	if err != nil {
		return err
	}
	defer namespace.Close()
	return onThread(func() error {
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return cmd.Start() // a child has the namespaces of the thread that made it
	})
}

// onThread runs a function on a thread of the system that then ends, as it may have
// left the namespaces of the others.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// process is a program that runs until the end of the test.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	log  testlog.Buffer
}

// startProcess starts a command with the function start, and ends it with the test. A
// test that has failed logs what it wrote.
func startProcess(t *testing.T, name string, cmd *exec.Cmd, start func(*exec.Cmd) error) *process {
	t.Helper()
	p := &process{name: name, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	if err := start(cmd); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the exit code is in ProcessState
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-p.done:
		case <-timer.C:
			t.Errorf("%s did not end on SIGTERM", name)
			_ = cmd.Process.Kill()
			<-p.done
		}
		if t.Failed() {
			t.Logf("%s wrote:\n%s", name, &p.log)
		}
	})
	return p
}

// mustLive fails the test if the process has ended.
func (p *process) mustLive(t *testing.T) {
	t.Helper()
	select {
	case <-p.done:
		t.Fatalf("%s has ended", p.name)
	default:
	}
}
