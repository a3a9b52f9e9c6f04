package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/consul/internal/entry"
	"github.com/hamlet-federation/coredns-federation/internal/source/internal/reconnect"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

const (
	maxServices = 100_000         // that are read; more are refused
	maxReads    = 16              // queries at a time that do not wait
	listWait    = time.Minute     // of the query for the list; its answer is the proof that Consul has a leader
	serviceWait = 5 * time.Minute // of the query for a service
	listGrace   = time.Second     // in which the list tells as well that a service is gone, or that the state went back

	// Agents register again what runs beside them, within two minutes in a cluster of 128
	// members, and within eight in one of 8,192.
	convergence = 10 * time.Minute

	// Over http each query that waits is a connection, and an agent takes 200 of one machine
	// (limits.http_max_conns_per_client). More services than mostPlain are read in turns.
	mostPlain = 128
	leastTurn = 15 * time.Second
	turnShare = 5 * time.Millisecond // of a turn for each service

	// A query that is answered at once, again and again, is asked again no more often.
	answerInterval = 2 * time.Second
	answerBurst    = 10
)

var (
	errNoRead   = errors.New("the token may read no service; it needs service:read and node:read for what is to be published")
	errLessRead = errors.New("the token may read less than before")
	errWentBack = errors.New("its catalog is empty, or went back to an earlier state")
)

// session reads a datacenter as a whole, and then what changes, until a request fails. One
// goroutine, that of followCatalog, has all its state and is the only one that tells the part. The
// others have a query each, and are awaited by it. They hand over one answer at a time, so nothing queues up.
type session struct {
	*Source

	part      source.Part
	transport *http.Transport

	reports chan report
	reads   chan struct{} // has a place for each read under way
	turn    atomic.Int64  // time.Duration in which each service is read once; 0 while each has a query that waits

	services map[string]*service // that are wanted, by name
	list     uint64              // the index of the list; 0 while it is not known
	unread   int                 // services that are not known yet
	told     bool                // the part was told the whole state
}

// service is one of Consul that is wanted.
type service struct {
	end     context.CancelFunc
	read    bool
	verdict entry.Verdict
}

// report is an answer: of the list, or of one service.
type report struct {
	service   string              // empty for the list
	tags      map[string][]string // of the list: those of each service
	instances []entry.Instance    // of a service
	index     uint64              // never 0
	err       error
}

// followCatalog returns why Consul cannot be followed any more.
func (x *session) followCatalog(ctx context.Context) error {
	var readers sync.WaitGroup
	defer readers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	readers.Go(func() { x.follow(ctx, "") })
	timer := time.NewTimer(max(time.Until(x.converged), 0))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case r := <-x.reports:
			changed, err := x.takeReport(ctx, &readers, r)
			if err != nil {
				return err
			}
			if x.told {
				x.publishServices(changed)
			}
		}
		if x.told || x.list == 0 || x.unread > 0 {
			continue
		}
		if refused, _, published := x.countEntries(); refused[entry.ACL] > 0 && published == 0 {
			return errNoRead
		}
		if left := time.Until(x.converged); left > 0 && x.lacksEntries() {
			x.part.SetAway(x.awayError(fmt.Errorf("%w; what was published stays until agents have registered all of it again, for %v at most", errWentBack, convergence)))
			timer.Reset(left)
			continue
		}
		x.publishServices(nil)
	}
}

// follow reports the list, or a service, and each change of it, until ctx ends or a request fails.
func (x *session) follow(ctx context.Context, name string) {
	limit := rate.NewLimiter(rate.Every(answerInterval), answerBurst)
	var index uint64
	for limit.Wait(ctx) == nil {
		after, turn := index, time.Duration(x.turn.Load())
		if turn > 0 && name != "" && index > 0 {
			if !reconnect.WaitFor(ctx, turn/2+rand.N(turn)) { //nolint:gosec // the turns are to differ, and are no secret
				return
			}
			after = 0
		}
		r := report{service: name}
		switch r.err = x.read(ctx, after, &r); {
		case ctx.Err() != nil:
			return
		case r.err != nil:
		case r.index < index && name == "":
			r.err = errWentBack
		case r.index < index || len(r.instances) == 0 && name != "":
			if !reconnect.WaitFor(ctx, listGrace) {
				return
			}
			if r.index < index {
				index = 0
				continue
			}
		}
		index = r.index
		select {
		case x.reports <- r:
		case <-ctx.Done():
			return
		}
		if r.err != nil {
			return
		}
	}
}

// takeReport takes what is known of the list, or of a service, and returns the services that have changed.
func (x *session) takeReport(ctx context.Context, readers *sync.WaitGroup, r report) (changed []string, err error) {
	s := x.services[r.service]
	switch {
	case r.err != nil:
		return nil, r.err
	case r.service == "" && len(r.tags) == 0: // not even Consul itself
		return nil, errNoRead
	case r.service == "" && x.told && len(x.published) > 1 && x.hasLostAll(r.tags):
		return nil, errWentBack
	case r.service == "":
		return x.takeList(ctx, readers, r), nil
	case s == nil:
		return nil, nil // it has gone from the list
	}
	before, v := x.published[r.service], x.rules.Judge(r.service, r.instances)
	switch {
	case len(r.instances) == 0 && x.told && s.verdict.Refused[entry.ACL] == 0:
		return nil, errLessRead // it may be all of them
	case len(r.instances) == 0: // although the list has it
		v.Refused[entry.ACL] = 1
	case before != nil && v.Service != nil && before.Equal(v.Service):
		v.Service = before // which makes comparisons fast
	}
	if !maps.Equal(v.Refused, s.verdict.Refused) && len(v.Refused) > 0 {
		x.Logger.Warn("instances in Consul are not published", "service", safetext.Printable(r.service), "rules", strings.Join(slices.Sorted(maps.Keys(v.Refused)), ","))
	}
	if !s.read {
		x.unread--
	}
	s.verdict, s.read = v, true
	return []string{r.service}, nil
}

// takeList begins to read the services that are new in the list, and returns those that are gone.
func (x *session) takeList(ctx context.Context, readers *sync.WaitGroup, r report) (gone []string) {
	for name, s := range x.services {
		if tags, ok := r.tags[name]; !ok || !x.isWanted(name, tags) {
			s.end()
			if !s.read {
				x.unread--
			}
			delete(x.services, name)
			gone = append(gone, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.tags)) {
		if !x.isWanted(name, r.tags[name]) || x.services[name] != nil {
			continue
		}
		ctx, end := context.WithCancel(ctx)
		s := &service{end: end}
		x.services[name] = s
		switch _, err := x.rules.FQDN(name); {
		case err != nil:
			s.read, s.verdict.Refused = true, map[string]int{string(federation.ReasonName): 1}
			x.Logger.Warn("service in Consul is not published", "service", safetext.Printable(name), "error", err)
		case len(x.services) > maxServices:
			s.read, s.verdict.Refused = true, map[string]int{string(federation.ReasonLimit): 1}
		default:
			x.unread++
			readers.Go(func() { x.follow(ctx, name) })
		}
	}
	if x.list == 0 && x.converged.IsZero() && (r.index < x.index || x.hasLostAll(r.tags)) {
		x.converged = time.Now().Add(convergence)
	}
	x.list = r.index
	if n := len(x.services); n > mostPlain && strings.HasPrefix(x.Address, "http:") {
		if x.turn.Swap(int64(max(leastTurn, time.Duration(n)*turnShare))) == 0 {
			x.Logger.Info("services in Consul are read in turns; over https each would be read as soon as it changes", "services", n)
		}
	} else {
		x.turn.Store(0)
	}
	return gone
}

// hasLostAll reports whether nothing that is published is in a list.
func (x *session) hasLostAll(list map[string][]string) bool {
	for name := range x.published {
		if _, ok := list[name]; ok {
			return false
		}
	}
	return len(x.published) > 0
}

// lacksEntries reports whether something that is published is not known yet, or is known otherwise: a
// backup has old addresses as well.
func (x *session) lacksEntries() bool {
	for name, before := range x.published {
		if s := x.services[name]; s == nil || s.verdict.Service != before {
			return true
		}
	}
	return false
}

// countEntries returns how many entries are not published, by the rule, how many are proxies
// or gateways, and how many services are published.
func (x *session) countEntries() (refused map[string]int, sidecars, published int) {
	refused = make(map[string]int)
	for _, s := range x.services {
		sidecars += s.verdict.Sidecars
		for rule, n := range s.verdict.Refused {
			refused[rule] += n
		}
		if s.verdict.Service != nil {
			published++
		}
	}
	return refused, sidecars, published
}

// publishServices tells the part of the services that are different from what was published, or in
// a session for the first time of the whole state.
func (x *session) publishServices(names []string) {
	if !x.told {
		names = slices.AppendSeq(slices.Collect(maps.Keys(x.services)), maps.Keys(x.published))
	}
	var changed []*wire.EncodedService
	var gone []string
	for _, name := range names {
		var now *wire.EncodedService
		if s := x.services[name]; s != nil {
			now = s.verdict.Service
		}
		switch before := x.published[name]; {
		case now != nil && now != before:
			x.published[name] = now
			changed = append(changed, now)
		case now == nil && before != nil:
			delete(x.published, name)
			gone = append(gone, before.Name())
		}
	}
	switch {
	case !x.told:
		x.part.Replace(slices.Collect(maps.Values(x.published)))
	case len(changed)+len(gone) > 0:
		x.part.Update(changed, gone)
	}
	refused, sidecars, _ := x.countEntries()
	x.part.SetRefused(refused)
	if x.index = x.list; !x.told {
		if sidecars > 0 {
			x.Logger.Info("proxies and gateways of Consul's mesh are left out", "instances", sidecars)
		}
		x.told, x.converged = true, time.Time{}
		x.part.SetAway(nil)
	}
}
