package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
)

const (
	tick = 100 * time.Millisecond // between two looks at the crowds

	// patience is for one step, and restTime for how long the owner is watched at rest.
	patience = 15 * time.Minute
	restTime = 20 * time.Second
)

// drive runs the whole: see the package.
func drive(ctx context.Context, p plan, out io.Writer) error {
	dir, err := os.MkdirTemp("", "swarm")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := &driver{plan: p, ctx: ctx, out: out}
	d.dir = dir
	defer d.end()
	if d.owner, err = loopback.FreeAddress(); err != nil {
		return err
	}
	if err := errors.Join(certificates(dir, max(1, p.classes)), d.writeCatalog("first"), d.writeConfig("on")); err != nil {
		return err
	}
	return d.demonstrate()
}

// driver has the processes of a run.
type driver struct {
	plan

	ctx    context.Context //nolint:containedctx // of the one run
	out    io.Writer
	serve  *process
	crowds []*child
}

// consumerOf names the files and the identity of the consumers of a class.
func consumerOf(class int) string { return fmt.Sprintf("consumer%02d", class) }

// certificates writes those of the owner and of the classes of consumers.
func certificates(dir string, classes int) error {
	authority, err := mtls.NewAuthority("swarm", 24*time.Hour)
	if err != nil {
		return err
	}
	names := []string{"owner"}
	for i := range classes {
		names = append(names, consumerOf(i))
	}
	for _, name := range names {
		issued, err := authority.Issue(mtls.Leaf{URIs: []string{"spiffe://" + name + ".example/coredns"}})
		if err != nil {
			return err
		}
		for suffix, content := range map[string][]byte{".pem": issued.Cert, "-key.pem": issued.Key} {
			if err := os.WriteFile(filepath.Join(dir, name+suffix), content, 0o600); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, "ca.pem"), authority.PEM(), 0o600)
}

// shared is how many services are in each of the zones on and off, of which the policy tells
// all consumers one.
const shared = 5

// zone returns the zone of a service.
func (d *driver) zone(service int) string {
	switch {
	case d.classes == 0:
		return "fed"
	case service < shared:
		return "on"
	case service < 2*shared:
		return "off"
	default:
		return consumerOf(service % d.classes)
	}
}

// writeCatalog writes the catalog, of which one service has that description.
func (d *driver) writeCatalog(description string) error {
	var b strings.Builder
	for i := range d.services {
		fmt.Fprintf(&b, `{"name": "s%05d", "fqdn": "s%05d.%s.example", "description": "%s", "endpoints": [{"address": "192.0.2.1", "port": 443}], `+
			`"instances": [{"id": "a", "protocol": "HTTPS"}]}`+"\n", i, i, d.zone(i), []string{description, "none"}[min(i, 1)])
	}
	return d.replace("catalog.jsonl", b.String())
}

// writeConfig writes the configuration of an owner that has a policy, which tells each class its
// zone, and all the zone everyone.
func (d *driver) writeConfig(everyone string) error {
	var allow, exports strings.Builder
	for i := range d.classes {
		id := "spiffe://" + consumerOf(i) + ".example/coredns"
		fmt.Fprintf(&allow, "%q, ", id)
		fmt.Fprintf(&exports, "  - {match: {fqdn: [\"*.%s.example\"]}, to: [%q]}\n", consumerOf(i), id)
	}
	return d.replace("owner.yaml", fmt.Sprintf(`listen: %q
window: %d
identity: {files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}}
allow: {ids: [%s]}
catalogs:
- sources: [{file: {path: catalog.jsonl}}]
  exports:
  - {match: {fqdn: ["*.%s.example"]}, to: ["*"]}
%s`, d.owner, d.window, &allow, everyone, &exports))
}

// replace writes a file that the owner reads.
func (d *driver) replace(name, content string) error {
	path := filepath.Join(d.dir, name)
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// held returns how many services all consumers hold together.
func (d *driver) held() int64 {
	each := d.consumers / d.processes
	if d.classes == 0 {
		return int64(each) * int64(d.processes) * int64(d.services)
	}
	told := make([]int, d.classes)
	for i := 2 * shared; i < d.services; i++ {
		told[i%d.classes]++
	}
	n := 0
	for i := range each {
		n += shared + told[i%d.classes]
	}
	return int64(n) * int64(d.processes)
}

// demonstrate says what the owner and its consumers do.
func (d *driver) demonstrate() error {
	if err := d.startOwner(); err != nil {
		return err
	}
	empty := d.serve.memory()
	if d.classes == 0 { // with a configuration, the owner listens before it has read the catalog
		d.sayf("owner with %d services and no consumer: %.0f MB", d.services, megabytes(empty))
	}
	begin := time.Now()
	if err := d.startCrowds(); err != nil {
		return err
	}
	if err := d.settle("first catalog", begin); err != nil {
		return err
	}
	if err := d.rest(empty); err != nil {
		return err
	}
	if err := d.change("a change", 1, d.writeCatalog); err != nil {
		return err
	}
	if d.classes > 0 {
		everyone := "on"
		if err := d.change("another policy", 2*shared, func(string) error {
			everyone = map[string]string{"on": "off", "off": "on"}[everyone]
			return d.writeConfig(everyone)
		}); err != nil {
			return err
		}
	}
	for _, way := range []string{"resume", "full"} {
		if way == "full" && d.prime {
			break // too much for one machine
		}
		if _, err := d.ask(way); err != nil {
			return err
		}
		d.serve.end()
		if _, err := d.ask("reset"); err != nil {
			return err
		}
		begin := time.Now()
		if err := d.startOwner(); err != nil {
			return err
		}
		if err := d.settle("owner started anew, "+way, begin); err != nil {
			return err
		}
	}
	return nil
}

// startOwner starts federationctl serve, and waits until it listens.
func (d *driver) startOwner() error {
	file := func(name string) string { return filepath.Join(d.dir, name) }
	args := []string{"--config", file("owner.yaml")}
	if d.classes == 0 {
		args = []string{
			"--listen", d.owner, "--catalog", file("catalog.jsonl"), "--window", strconv.Itoa(d.window),
			"--cert", file("owner.pem"), "--key", file("owner-key.pem"), "--ca", file("ca.pem"), "--allow-any",
		}
	}
	cmd := exec.Command(d.binary, append([]string{"serve"}, args...)...)
	serve, err := startProcess(cmd)
	if err != nil {
		return err
	}
	d.serve = serve
	dialer := net.Dialer{Timeout: time.Second}
	for {
		conn, err := dialer.DialContext(d.ctx, "tcp", d.owner)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-time.After(tick / 10):
		case <-serve.gone:
			return errors.New("the owner has ended")
		case <-d.ctx.Done():
			return d.ctx.Err()
		}
	}
}

// startCrowd starts swarm itself in the role of a crowd.
func (d *driver) startCrowd(number int) (*child, error) {
	cmd := exec.Command(os.Args[0], "-role", "crowd", "-owner", d.owner, "-dir", d.dir, "-number", strconv.Itoa(number),
		"-consumers", strconv.Itoa(d.consumers/d.processes), "-services", strconv.Itoa(d.services), "-classes", strconv.Itoa(d.classes), "-window", strconv.Itoa(d.window), "-at-once", strconv.Itoa(d.atOnce), "-prime="+strconv.FormatBool(d.prime))

	cmd.Stderr = os.Stderr
	c := &child{}
	var err error
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.lines = bufio.NewReader(out)
	c.process, err = startProcess(cmd)
	return c, err
}

func (d *driver) startCrowds() error {
	for i := range d.processes {
		c, err := d.startCrowd(i)
		if err != nil {
			return err
		}
		d.crowds = append(d.crowds, c)
	}
	return nil
}

// ask asks all crowds, and adds up what they say.
func (d *driver) ask(command string) (status, error) {
	all := status{Failures: make(map[string]int)}
	for _, c := range d.crowds {
		s, err := c.ask(command)
		if err != nil {
			return all, err
		}
		all.Complete += s.Complete
		all.Resumed += s.Resumed
		all.Services += s.Services
		all.Kinds = max(all.Kinds, s.Kinds)
		all.Bytes += s.Bytes
		all.Arrivals = append(all.Arrivals, s.Arrivals...)
		for text, n := range s.Failures {
			all.Failures[text] += n
		}
	}
	return all, nil
}

// wait asks the crowds until done says that it is.
func (d *driver) wait(done func(status) bool) (status, error) {
	deadline := time.Now().Add(patience)
	for {
		s, err := d.ask("status")
		switch {
		case err != nil:
			return s, err
		case done(s):
			return s, nil
		case time.Now().After(deadline):
			return s, fmt.Errorf("not done after %v: %+v", patience, s)
		}
		select {
		case <-time.After(tick):
		case <-d.ctx.Done():
			return s, d.ctx.Err()
		}
	}
}

// settle waits until all consumers have the catalog.
func (d *driver) settle(what string, begin time.Time) error {
	all, quantiles := d.consumers/d.processes*d.processes, map[int]time.Duration{}
	shown := time.Now()
	s, err := d.wait(func(s status) bool {
		for _, percent := range []int{50, 99} {
			if _, known := quantiles[percent]; !known && s.Complete*100 >= all*percent {
				quantiles[percent] = time.Since(begin)
			}
		}
		if time.Since(shown) > time.Minute {
			shown = time.Now()
			log.Printf("%s: %d of %d complete, %d MB, failures %v", what, s.Complete, all, s.Bytes>>20, s.Failures)
		}
		return s.Complete == all && s.Services == d.held()
	})
	if err != nil {
		return err
	}
	d.sayf("%s: all %d consumers complete after %.1f s (half %.1f s, 99%% %.1f s); %d resumed; %.1f kB for each; %d kinds of catalogs",
		what, all, time.Since(begin).Seconds(), quantiles[50].Seconds(), quantiles[99].Seconds(), s.Resumed, float64(s.Bytes)/float64(all)/1e3, s.Kinds)
	d.sayf("  owner: %.0f MB at most, %.1f s of CPU", megabytes(d.serve.peak()), d.serve.cpu().Seconds())
	for _, text := range slices.Sorted(maps.Keys(s.Failures)) {
		d.sayf("  %d times: %s", s.Failures[text], text)
	}
	return nil
}

// rest watches the owner while nothing happens.
func (d *driver) rest(empty int64) error {
	before := d.serve.cpu()
	select {
	case <-time.After(restTime):
	case <-d.ctx.Done():
		return d.ctx.Err()
	}
	share := float64(d.serve.cpu()-before) / float64(restTime)
	now := d.serve.memory()
	d.sayf("at rest: %.0f MB; %.1f %% of a processor", megabytes(now), 100*share)
	if d.classes == 0 {
		d.sayf("  %.1f kB for each consumer", float64(now-empty)/float64(d.consumers)/1e3)
	}
	return nil
}

// change applies a change five times, and says when the consumers have the messages that each of
// them is sent for it.
func (d *driver) change(what string, messages int, apply func(description string) error) error {
	all := d.consumers / d.processes * d.processes * messages
	for i := range 5 {
		if _, err := d.ask("reset"); err != nil {
			return err
		}
		if err := d.serve.forget(); err != nil {
			return err
		}
		begin, memory, cpu := time.Now().UnixNano(), d.serve.memory(), d.serve.cpu()
		if err := apply("change" + strconv.Itoa(i)); err != nil {
			return err
		}
		s, err := d.wait(func(s status) bool { return len(s.Arrivals) >= all })
		if err != nil {
			return err
		}
		slices.Sort(s.Arrivals)
		at := func(percent int) float64 { return float64(s.Arrivals[(all-1)*percent/100]-begin) / 1e6 }
		d.sayf("%s: the first consumer has it after %.0f ms; half %.0f ms, 99%% %.0f ms and all %.0f ms after the first; owner: %.2f s of CPU, %.2f times the memory",
			what, at(0), at(50)-at(0), at(99)-at(0), at(100)-at(0), (d.serve.cpu() - cpu).Seconds(), float64(d.serve.peak())/float64(memory))
	}
	return nil
}

func (d *driver) end() {
	for _, c := range d.crowds {
		_ = c.stdin.Close()
		c.end()
	}
	if d.serve != nil {
		d.serve.end()
	}
}

// sayf prints a line.
func (d *driver) sayf(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

func megabytes(n int64) float64 { return float64(n) / 1e6 }

// process is a program that runs.
type process struct {
	cmd  *exec.Cmd
	gone chan struct{}
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd, make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.gone)
	}()
	return p, nil
}

// end ends the process, by force after a while.
func (p *process) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.gone
	}
}

// memory returns what the process has in memory, in bytes, and peak the most that it had since
// the last call of forget.
func (p *process) memory() int64 { return p.of("VmRSS:") }
func (p *process) peak() int64   { return p.of("VmHWM:") }

func (p *process) forget() error {
	// proc_pid_clear_refs(5): 5 resets VmHWM.
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0)
}

func (p *process) of(key string) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(text), key)
	var kB int64
	_, _ = fmt.Sscan(rest, &kB)
	return kB << 10
}

// cpu returns the time of processors that the process has used.
func (p *process) cpu() time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond // proc(5): in hundredths of a second
}
