package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"

	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

var fileAttacks = []attack{
	{"catalog of 254 kB that lost its dashes, served", func(ctx context.Context, a *arena) (damage, error) {
		o, err := a.publish(ctx, "", 1)
		if err != nil {
			return damage{}, err
		}
		d := damage{victim: o.process}
		slip := strings.ReplaceAll(catalogOf(1900), "- name", "  name")
		slip = strings.Replace(slip, "  name", "- name", 1) // one service with all the keys
		if _, err := a.write("catalog.yaml", slip); err != nil {
			return d, err
		}
		took, err := until(ctx, time.Minute, func() bool { return !o.running() || o.count(`"file is not used: fix it" what="catalog file"`) > 0 })
		d.effect = fmt.Sprintf("%d kB, reported after %.1f s", len(slip)/1000, took.Seconds())
		if err != nil {
			d.effect = fmt.Sprintf("%d kB, not reported within a minute", len(slip)/1000)
		}
		d.victim.measure()
		d.limit("memory in MiB", float64(d.victim.peak.Load()), 300)
		d.limit("bytes of log", float64(d.victim.size), 100_000)
		d.limit("seconds", took.Seconds(), 10)
		return d, nil
	}},
	{"catalog with 8,000 duplicate keys, linted", func(ctx context.Context, a *arena) (damage, error) {
		catalog := "services:\n- name: s\n" + strings.Repeat("  fqdn: s.fed.example\n", 8000)
		return lint(ctx, a, catalog, 300, 10)
	}},
	{"catalog full of control characters, linted", func(ctx context.Context, a *arena) (damage, error) {
		catalog := "services:\n- name: \"\\e[31m" + strings.Repeat("x", 3<<20) + "\"\n  fqdn: \"\\n\\e]0;title\\a\"\n"
		d, err := lint(ctx, a, catalog, 300, 10)
		if err == nil {
			d.require(d.victim.count("\x1b") == 0, "an escape character is printed")
		}
		return d, err
	}},
	{"/dev/zero as catalog, linted", func(ctx context.Context, a *arena) (damage, error) {
		if err := os.Symlink("/dev/zero", a.path("catalog.yaml")); err != nil {
			return damage{}, err
		}
		return lint(ctx, a, "", 100, 10)
	}},
	{"FIFO for a moment in the place of the catalog", func(ctx context.Context, a *arena) (damage, error) {
		return fifo(ctx, a, "catalog.yaml")
	}},
	{"FIFO for a moment in the place of the key", func(ctx context.Context, a *arena) (damage, error) {
		return fifo(ctx, a, "owner-key.pem")
	}},
	{"FIFO as the file of persist", persistFIFO},
}

// lint runs federationctl lint on a catalog that it must find fault with. An empty
// catalog stands for the file that is there already. The bounds are in MiB and
// seconds.
func lint(ctx context.Context, a *arena, catalog string, memory, seconds float64) (damage, error) {
	if catalog != "" {
		if _, err := a.write("catalog.yaml", catalog); err != nil {
			return damage{}, err
		}
	}
	begun := time.Now()
	p, err := a.start(ctx, "", "federationctl", "lint", a.path("catalog.yaml"))
	if err != nil {
		return damage{}, err
	}
	d := damage{victim: p}
	_, err = until(ctx, time.Minute, func() bool { return !p.running() })
	took := time.Since(begun).Seconds()
	p.measure()
	d.effect = fmt.Sprintf("%.1f s", took)
	if err != nil {
		d.effect = "not over after a minute"
	} else {
		d.require(p.cmd.ProcessState.ExitCode() == 1 && p.size > 0, fmt.Sprintf("lint reports no problem, but ends with %v", p.cmd.ProcessState))
	}
	d.limit("memory in MiB", float64(p.peak.Load()), memory)
	d.limit("bytes printed", float64(d.victim.size), 1<<20)
	d.limit("seconds", took, seconds)
	return d, nil
}

// fifo puts a FIFO in the place of a file of serve for two seconds. The owner must
// follow its files afterwards, and end on SIGTERM.
func fifo(ctx context.Context, a *arena, name string) (damage, error) {
	o, err := a.publish(ctx, "", 1)
	if err != nil {
		return damage{}, err
	}
	d := damage{victim: o.process}
	path, kept := a.path(name), a.path(name+".kept")
	if err := os.Rename(path, kept); err != nil {
		return d, err
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return d, err
	}
	pause(ctx, 2*time.Second)
	if err := os.Rename(kept, path); err != nil {
		return d, err
	}
	before := o.count("catalog applied")
	if _, err := a.write("catalog.yaml", catalogOf(2)); err != nil {
		return d, err
	}
	took, err := until(ctx, 30*time.Second, func() bool { return o.count("catalog applied") > before })
	followed := fmt.Sprintf("a change is read %.1f s later", took.Seconds())
	if err != nil {
		followed = "no change is read within 30 s"
	}
	d.limit("seconds until a change is read", took.Seconds(), 20)
	if name != "catalog.yaml" { // it has been told of the key as well
		pause(ctx, time.Second)
	}
	ended, ok := o.end()
	d.effect = fmt.Sprintf("%s; ends %.1f s after SIGTERM", followed, ended.Seconds())
	if !ok {
		d.effect = followed + "; does not end on SIGTERM"
	}
	d.require(ok, "SIGTERM does not end it")
	return d, nil
}

// persistFIFO has a FIFO as the file of the property persist.
func persistFIFO(ctx context.Context, a *arena) (damage, error) {
	if err := syscall.Mkfifo(a.path("persist"), 0o600); err != nil {
		return damage{}, err
	}
	var sent atomic.Int64
	o, err := a.serveOwner(ctx, sendAll(1, &sent, func(int) *typespb.FederatedService { return simple("web", "a.fed.example", "10.1.1.1") }))
	if err != nil {
		return damage{}, err
	}
	s, err := a.serveDNS(ctx, fmt.Sprintf(oneOwner, o.address+"\n        persist "+a.path("persist")))
	if s == nil {
		return damage{}, err
	}
	d := damage{victim: s.process}
	if err != nil {
		// A refusal to start that names the file is as good.
		d.effect = "does not start and says why"
		d.require(!s.running() && s.count("persist") > 0, "CoreDNS does not answer: "+err.Error())
		return d, nil
	}
	took, err := until(ctx, 30*time.Second, func() bool { return s.says("web.a.fed.example.", "10.1.1.1") })
	d.effect = fmt.Sprintf("the owner is served after %.1f s", took.Seconds())
	if err != nil {
		d.effect = "the owner is not contacted within 30 s"
	}
	d.limit("seconds until the owner is served", took.Seconds(), 15)
	d.require(s.ask("none.a.fed.example.", dns.TypeA) != nil, "CoreDNS does not answer")
	ended, ok := s.end()
	d.effect += fmt.Sprintf("; ends %.1f s after SIGTERM", ended.Seconds())
	d.require(ok, "SIGTERM does not end it")
	return d, nil
}
