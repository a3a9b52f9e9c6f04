package main

import (
	"bytes"
	"context"
	"fmt"
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

// arena is what one attack needs: a folder with certificates, and the processes and
// servers that were started for it.
type arena struct {
	bin             string // folder of the programs
	dir             string // folder of the arena
	authority       *mtls.Authority
	owner, consumer mtls.Files
	processes       []*process
	closers         []func() // end the servers
}

// ownerID is the SPIFFE ID in the certificate of every owner.
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

// issue writes a new certificate, its key and the authority's certificate.
func (a *arena) issue(name string, leaf mtls.Leaf) (mtls.Files, error) {
	issued, err := a.authority.Issue(leaf)
	files := mtls.Files{Cert: a.path(name + ".pem"), Key: a.path(name + "-key.pem"), CA: a.path("ca.pem")}
	if err == nil {
		err = issued.WriteFiles(files)
	}
	return files, err
}

func (a *arena) path(name string) string { return filepath.Join(a.dir, name) }

// write writes a file of the arena and returns its path.
func (a *arena) write(name, content string) (string, error) {
	return a.path(name), os.WriteFile(a.path(name), []byte(content), 0o600)
}

// close ends the processes and servers, and removes the folder.
func (a *arena) close() {
	for _, p := range a.processes {
		p.end()
	}
	for _, f := range a.closers {
		f()
	}
	_ = os.RemoveAll(a.dir)
}

// maxMemory is the address space that a victim may have, in KiB. One that takes all
// the memory it can get must not take that of the machine.
const maxMemory = 14 << 20

// process is a program under attack.
type process struct {
	cmd  *exec.Cmd
	log  string        // path of the file with its output
	done chan struct{} // closed when it has ended

	program string       // path of the program
	peak    atomic.Int64 // most memory so far, in MiB

	lines, size int // of the log in lines and bytes, by the last measure
}

// start runs a program of the folder bin. setup is shell commands that run before
// it, each with a final semicolon.
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

// end sends SIGTERM, and kills the process after endTimeout.
func (p *process) end() {
	p.measure()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// sampleInterval is short, as a process may end soon. The figure that the kernel
// keeps of a process that has ended cannot be used: it includes the memory of this
// program, from before exec.
const sampleInterval = 5 * time.Millisecond

// sample follows the memory of the process until it has ended.
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

// measure counts the lines and bytes of the log.
func (p *process) measure() {
	if p == nil {
		return
	}
	if data, err := os.ReadFile(p.log); err == nil {
		p.lines, p.size = bytes.Count(data, []byte("\n")), len(data)
	}
}

// usage returns the most memory that the program has had so far. It is not known
// before the shell has become the program, and after its end.
func (p *process) usage() (mib int, ok bool) {
	if name, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.cmd.Process.Pid)); err != nil || name != p.program {
		return 0, false // it is still the shell
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

// count returns how often the log contains the text.
func (p *process) count(text string) int {
	data, _ := os.ReadFile(p.log)
	return strings.Count(string(data), text)
}

// cost returns the columns of the table that are about the process.
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

// until waits until the condition is true, and returns how long that took. It fails
// after the bound.
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

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
