// Command swarm shows what thousands of consumers cost an owner, and how long they take
// to come back. It starts federationctl serve with a catalog file, and has consumers in this
// process that hold nothing but the versions of the services: see the flags. It ends by itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	tick = 100 * time.Millisecond // between two looks at the crowd

	// patience is for one step, and restTime for how long the owner is watched at rest.
	patience = 15 * time.Minute
	restTime = 20 * time.Second
)

// plan is what the flags say.
type plan struct {
	consumers int
	services  int
	classes   int
	window    int
	atOnce    int
	prime     bool
}

func main() {
	var p plan
	flag.IntVar(&p.consumers, "consumers", 1000, "`number` of consumers")
	flag.IntVar(&p.services, "services", 1000, "`number` of services in the catalog")
	flag.IntVar(&p.classes, "classes", 0, "`number` of classes of consumers, each of which a policy tells its part of the services, and what all are told; 0: there is no policy")
	flag.IntVar(&p.window, "window", 32, "`number` of messages that the owner sends ahead of their acknowledgements")
	flag.IntVar(&p.atOnce, "at-once", 1000, "`number` of consumers that connect at a time: unlike others they share the processors of the owner")
	flag.BoolVar(&p.prime, "prime", false, "only the first consumer downloads the catalog; the others begin with what it holds, and resume")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := p.run(ctx); err != nil {
		cancel()
		log.Fatal(err) //nolint:gocritic // cancel was called
	}
}

// driver has the owner and its consumers.
type driver struct {
	plan
	*place.Place

	address string // of the owner
	metrics string
	owner   server
	crowd   *crowd
}

// run runs the whole: see the package.
func (p plan) run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "swarm")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := &driver{plan: p}
	var errs [4]error
	d.Place, errs[0] = place.New(dir)
	d.address, errs[1] = loopback.FreeAddress()
	d.metrics, errs[2] = loopback.FreeAddress()
	program, err := place.Program("federationctl")
	errs[3] = err
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if err := errors.Join(d.Issue("owner", "spiffe://owner.example/owner", 0), d.writeCatalog("first"), d.writeConfig("on")); err != nil {
		return err
	}
	var classes []credentials.TransportCredentials
	for i := range max(1, p.classes) {
		if err := d.Issue(consumerOf(i), idOf(i), 0); err != nil {
			return err
		}
		c, err := clientCredentials(d.Files(consumerOf(i)))
		if err != nil {
			return err
		}
		classes = append(classes, c)
	}
	d.crowd = newCrowd(d.address, classes, p.consumers, p.atOnce, p.prime)
	d.owner = server{&realserver.Process{Name: "owner", Path: program, Dir: dir, Args: []string{"serve", "--config", "owner.yaml"}, Ready: d.ready}}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	defer func() {
		cancel()
		<-ended
		_ = d.owner.Stop() // it may have ended
	}()
	if err := d.owner.Start(ctx); err != nil {
		close(ended)
		return err
	}
	empty := d.owner.memory()
	sayf("owner with %d services and no consumer: %.0f MB", p.services, megabytes(empty))
	begin := time.Now()
	go func() {
		defer close(ended)
		d.crowd.run(ctx)
	}()
	return d.demonstrate(ctx, begin, empty)
}

// ready returns nil when the owner has read the catalog.
func (d *driver) ready(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.metrics+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return errors.Join(err, response.Body.Close())
}

// consumerOf names the files of the consumers of a class, and idOf is their identity.
func consumerOf(class int) string { return fmt.Sprintf("consumer%02d", class) }
func idOf(class int) string       { return "spiffe://" + consumerOf(class) + ".example/coredns" }

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
	return d.Write("catalog.jsonl", b.String())
}

// writeConfig writes the configuration of the owner. A policy tells each class its zone, and all
// the zone everyone.
func (d *driver) writeConfig(everyone string) error {
	config := place.Owner{Address: d.address, Metrics: d.metrics, TLS: d.Files("owner"), Allow: []string{idOf(0)}}
	config.More = fmt.Sprintf("window: %d\ncatalogs:\n- sources: [{file: {path: catalog.jsonl}}]\n", d.window)
	if d.classes > 0 {
		config.More += fmt.Sprintf("  exports:\n  - {match: {fqdn: [\"*.%s.example\"]}, to: [\"*\"]}\n", everyone)
	}
	for i := range d.classes {
		config.Allow = append(config.Allow, idOf(i))
		config.More += fmt.Sprintf("  - {match: {fqdn: [\"*.%s.example\"]}, to: [%q]}\n", consumerOf(i), idOf(i))
	}
	config.Allow = config.Allow[min(1, d.classes):]
	return d.Write("owner.yaml", config.Config())
}

// held returns how many services all consumers hold together.
func (d *driver) held() (n int64) {
	if d.classes == 0 {
		return int64(d.consumers) * int64(d.services)
	}
	told := make([]int, d.classes)
	for i := 2 * shared; i < d.services; i++ {
		told[i%d.classes]++
	}
	for i := range d.consumers {
		n += int64(shared + told[i%d.classes])
	}
	return n
}

// demonstrate says what the owner and its consumers do.
func (d *driver) demonstrate(ctx context.Context, begin time.Time, empty int64) error {
	if err := d.settle(ctx, "first catalog", begin); err != nil {
		return err
	}
	if err := d.rest(ctx, empty); err != nil {
		return err
	}
	if err := d.change(ctx, "a change", 1, d.writeCatalog); err != nil {
		return err
	}
	if d.classes > 0 {
		everyone := "on"
		if err := d.change(ctx, "another policy", 2*shared, func(string) error {
			everyone = map[string]string{"on": "off", "off": "on"}[everyone]
			return d.writeConfig(everyone)
		}); err != nil {
			return err
		}
	}
	for _, resume := range []bool{true, false} {
		if !resume && d.prime {
			break // too much for one machine
		}
		d.crowd.resume.Store(resume)
		if err := d.owner.Stop(); err != nil {
			return err
		}
		d.crowd.reset()
		begin := time.Now()
		if err := d.owner.Start(ctx); err != nil {
			return err
		}
		if err := d.settle(ctx, fmt.Sprintf("owner started anew, resume %t", resume), begin); err != nil {
			return err
		}
	}
	return nil
}

// wait looks at the crowd until done says that it is.
func (d *driver) wait(ctx context.Context, done func(report) bool) (report, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		r := d.crowd.report()
		if done(r) {
			return r, nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return r, fmt.Errorf("not done: %w: %+v", ctx.Err(), r)
		}
	}
}

// settle waits until all consumers have the catalog.
func (d *driver) settle(ctx context.Context, what string, begin time.Time) error {
	quantiles := make(map[int]time.Duration)
	r, err := d.wait(ctx, func(r report) bool {
		for _, percent := range []int{50, 99} {
			if _, known := quantiles[percent]; !known && r.complete*100 >= d.consumers*percent {
				quantiles[percent] = time.Since(begin)
			}
		}
		return r.complete == d.consumers && r.services == d.held()
	})
	if err != nil {
		return err
	}
	sayf("%s: all %d consumers complete after %.1f s (half %.1f s, 99%% %.1f s); %d resumed; %.1f kB for each; %d kinds of catalogs", what, d.consumers,
		time.Since(begin).Seconds(), quantiles[50].Seconds(), quantiles[99].Seconds(), r.resumed, float64(r.bytes)/float64(d.consumers)/1e3, r.kinds)
	sayf("  owner: %.0f MB at most, %.1f s of CPU", megabytes(d.owner.peak()), d.owner.cpu().Seconds())
	for _, text := range slices.Sorted(maps.Keys(r.failures)) {
		sayf("  %d times: %s", r.failures[text], text)
	}
	return nil
}

// rest watches the owner while nothing happens.
func (d *driver) rest(ctx context.Context, empty int64) error {
	before := d.owner.cpu()
	select {
	case <-time.After(restTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	now := d.owner.memory()
	sayf("at rest: %.0f MB, %.1f kB for each consumer; %.1f %% of a processor",
		megabytes(now), float64(now-empty)/float64(d.consumers)/1e3, 100*float64(d.owner.cpu()-before)/float64(restTime))
	return nil
}

// change applies a change five times, and says when the consumers have the messages that each of
// them is sent for it.
func (d *driver) change(ctx context.Context, what string, messages int, apply func(description string) error) error {
	all := d.consumers * messages
	for i := range 5 {
		d.crowd.reset()
		if err := d.owner.forget(); err != nil {
			return err
		}
		begin, memory, cpu := time.Now(), d.owner.memory(), d.owner.cpu()
		if err := apply(fmt.Sprint("change", i)); err != nil {
			return err
		}
		r, err := d.wait(ctx, func(r report) bool { return len(r.arrivals) >= all })
		if err != nil {
			return err
		}
		slices.SortFunc(r.arrivals, time.Time.Compare)
		at := func(percent int) float64 { return r.arrivals[(all-1)*percent/100].Sub(begin).Seconds() * 1e3 }
		sayf("%s: the first consumer has it after %.0f ms; half %.0f ms, 99%% %.0f ms and all %.0f ms after the first; owner: %.2f s of CPU, %.2f times the memory",
			what, at(0), at(50)-at(0), at(99)-at(0), at(100)-at(0), (d.owner.cpu() - cpu).Seconds(), float64(d.owner.peak())/float64(memory))
	}
	return nil
}

func sayf(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }

func megabytes(n int64) float64 { return float64(n) / 1e6 }

// server is a process that is measured.
type server struct{ *realserver.Process }

// memory returns what the process has in memory, in bytes, and peak the most that it had since
// the last call of forget.
func (s server) memory() int64 { return s.of("VmRSS:") }
func (s server) peak() int64   { return s.of("VmHWM:") }

func (s server) forget() error {
	// proc_pid_clear_refs(5): 5 resets VmHWM.
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.PID()), []byte("5"), 0)
}

func (s server) of(key string) (kB int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	_, rest, _ := strings.Cut(string(text), key)
	_, _ = fmt.Sscan(rest, &kB)
	return kB << 10
}

// cpu returns the time of processors that the process has used.
func (s server) cpu() time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID()))
	_, rest, _ := strings.Cut(string(text), ") ")
	var user, system int64
	if fields := strings.Fields(rest); len(fields) > 12 {
		_, _ = fmt.Sscan(strings.Join(fields[11:13], " "), &user, &system)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // proc(5): in hundredths of a second
}
