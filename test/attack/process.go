package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// arena is where one attack takes place: a folder with certificates, and the
// processes that were started for it.
type arena struct {
	bin             string
	dir             string
	authority       *mtls.Authority
	owner, consumer mtls.Files
	processes       []*process
	closers         []func()
}

const ownerID = "spiffe://owner.example/hamlet"

func newArena(bin string) (*arena, error) {
	dir, err := os.MkdirTemp("", "federation-attack-")
	if err != nil {
		return nil, err
	}
	a := &arena{bin: bin, dir: dir}
	if a.authority, err = mtls.NewAuthority("attack", 24*time.Hour); err != nil {
		return nil, err
	}
	a.owner, err = a.issue("owner", mtls.Leaf{
		Name: "owner", DNSNames: []string{"localhost"}, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, URIs: []string{ownerID},
	})
	if err != nil {
		return nil, err
	}
	a.consumer, err = a.issue("consumer", mtls.Leaf{Name: "consumer", DNSNames: []string{"consumer.example"}})
	return a, err
}

func (a *arena) issue(name string, leaf mtls.Leaf) (mtls.Files, error) {
	issued, err := a.authority.Issue(leaf)
	files := mtls.Files{Cert: a.path(name + ".pem"), Key: a.path(name + "-key.pem"), CA: a.path("ca.pem")}
	if err == nil {
		err = issued.WriteFiles(files)
	}
	return files, err
}

func (a *arena) path(name string) string { return filepath.Join(a.dir, name) }

// write makes a file and returns its path.
func (a *arena) write(name, content string) (string, error) {
	return a.path(name), os.WriteFile(a.path(name), []byte(content), 0o600)
}

// close ends what was started, and removes the folder.
func (a *arena) close() {
	for _, p := range a.processes {
		_, _ = p.end()
	}
	for _, f := range a.closers {
		f()
	}
	_ = os.RemoveAll(a.dir)
}

// maxMemory keeps a victim that takes all the memory it can get from taking that
// of the machine, in KiB of address space.
const maxMemory = 14 << 20

// process is a program under attack. Its output is in a file.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended

	program string       // path
	peak    atomic.Int64 // most memory so far, in MiB

	// Of the log when it was measured last, in lines and bytes.
	lines, size int
}

// start runs a program of the folder bin; setup is a line of sh before it.
func (a *arena) start(ctx context.Context, setup, program string, arguments ...string) (*process, error) {
	p := &process{log: a.path(fmt.Sprintf("%s-%d.log", program, len(a.processes))), done: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	bin, err := filepath.Abs(filepath.Join(a.bin, program))
	if err != nil {
		return nil, err
	}
	if bin, err = filepath.EvalSymlinks(bin); err != nil {
		return nil, err
	}
	p.program = bin
	script := fmt.Sprintf(`ulimit -v %d; %s exec "$0" "$@"`, maxMemory, setup)
	p.cmd = exec.CommandContext(ctx, "sh", append([]string{"-c", script, bin}, arguments...)...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = a.dir, out, out
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	a.processes = append(a.processes, p)
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the exit code is in ProcessState
	}()
	go p.sample()
	return p, nil
}

// endTimeout is how long a process may take to end.
const endTimeout = 20 * time.Second

// end sends SIGTERM and returns how long the process took to end, and false when
// it had to be killed.
func (p *process) end() (time.Duration, bool) {
	p.measure()
	begun := time.Now()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	select {
	case <-p.done:
		return time.Since(begun), true
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.done
		return time.Since(begun), false
	}
}

// sampleInterval is short, for a process may be over soon. What the kernel says
// of one that has ended includes the memory of this program, which it began as.
const sampleInterval = 5 * time.Millisecond

// sample follows how much memory the process has, until it has ended.
func (p *process) sample() {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	for {
		if mib, ok := p.usage(); ok {
			p.peak.Store(int64(mib))
		}
		select {
		case <-p.done:
			return
		case <-tick.C:
		}
	}
}

// measure reads the log as it is now.
func (p *process) measure() {
	if p == nil {
		return
	}
	if data, err := os.ReadFile(p.log); err == nil {
		p.lines, p.size = bytes.Count(data, []byte("\n")), len(data)
	}
}

// usage returns the most memory that the process has had since it became the
// program that it is.
func (p *process) usage() (mib int, ok bool) {
	if name, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.cmd.Process.Pid)); err != nil || name != p.program {
		return 0, false // still the shell
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, false
	}
	_, rest, ok := bytes.Cut(status, []byte("VmHWM:"))
	if !ok {
		return 0, false
	}
	kib, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	return kib >> 10, err == nil
}

// count returns how many lines of the log hold the text.
func (p *process) count(text string) int {
	data, _ := os.ReadFile(p.log)
	return strings.Count(string(data), text)
}

// cost is what the table shows of the process.
func (p *process) cost() string {
	if p == nil {
		return "- | - | -"
	}
	return fmt.Sprintf("%d MiB | %d | %d", p.peak.Load(), p.lines, p.size)
}

// running reports whether the process has not ended.
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Ports below those that the system gives to clients.
const (
	firstPort = 10_000
	lastPort  = 32_000
)

// freeAddress returns a loopback address whose port is free for UDP and TCP.
func freeAddress() (string, error) {
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+rand.IntN(lastPort-firstPort)))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		p, err := net.ListenPacket("udp", address)
		_ = l.Close()
		if err == nil {
			_ = p.Close()
			return address, nil
		}
	}
	return "", errors.New("no port is free for both UDP and TCP")
}

// until waits for the condition, and returns how long that took. It fails after
// the bound.
func until(ctx context.Context, bound time.Duration, condition func() bool) (time.Duration, error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return time.Since(begun), fmt.Errorf("not within %v", bound)
		}
	}
	return time.Since(begun), nil
}

// pause waits.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
