package nsm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/networkservicemesh/api/pkg/api/registry"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/nsm/internal/endpoint"
)

const (
	listInterval = 30 * time.Second       // between two lists while nothing expires
	listGap      = time.Second            // between two lists at least, where endpoints expire
	listTimeout  = 20 * time.Second       // of one list; a connection that takes longer is dead
	firstGap     = 100 * time.Millisecond // between two lists until the state is whole
	patience     = 5 * time.Second        // with a watch that lacks what a list has
	maxWords     = 256                    // reports that are read before they are published
)

// errClosed is the end of a watch for which the registry gives no reason.
var errClosed = errors.New("the registry has ended the watch")

// registrySession follows the registry over one connection. Its readers pass reports of the watch
// and lists to its loop, which alone changes the fields and the registryState. The channels bound
// what is read ahead, and deleted is bounded by maxEndpoints. It ends with the connection; the
// state stays for the next one.
type registrySession struct {
	*Source

	part   source.Part
	client registry.NetworkServiceEndpointRegistryClient
	named  registry.NetworkServiceRegistryClient

	reports chan endpointReport // of the watch
	lists   chan endpointList   // one at a time
	failed  chan error          // why the watch has ended

	whole   bool                // the state of the registry is known
	began   time.Time           // when the first list was asked for; zero before
	tick    uint64              // counts the reports of the watch
	deleted map[string]uint64   // ticks of deletions that a list may not have
	number  uint64              // of the last list
	listing bool                // a list is under way
	ended   time.Time           // when the last list came in
	pending *endpointList       // a list that waits until the watch has reported what it has
	missing map[string]struct{} // endpoints of pending that the watch has not reported yet
}

// endpointList is the answer of the registry to a Find without watch.
type endpointList struct {
	number  uint64
	tick    uint64    // when the list was asked for, in reports of the watch
	began   time.Time // likewise
	reports []endpointReport
	dropped int // endpoints for which there is no room

	payloads map[string]string // of the network services; nil: they are not known
	err      error
}

func newRegistrySession(s *Source, part source.Part, conn grpc.ClientConnInterface) *registrySession {
	return &registrySession{
		Source: s, part: part, client: registry.NewNetworkServiceEndpointRegistryClient(conn),
		named:   registry.NewNetworkServiceRegistryClient(conn),
		reports: make(chan endpointReport, maxWords), lists: make(chan endpointList), failed: make(chan error, 1),
		deleted: make(map[string]uint64),
	}
}

// followRegistry follows the registry, and returns why it cannot be followed any more.
func (x *registrySession) followRegistry(ctx context.Context) error {
	for _, e := range x.state.endpoints {
		e.old, e.heard, e.listed = true, 0, 0
	}
	var readers sync.WaitGroup
	defer readers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching := make(chan struct{})
	readers.Go(func() { x.failed <- x.watchEndpoints(ctx, watching) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	timer.Stop() // until the watch is open
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-x.failed:
			return printableError(err)
		case <-watching:
			watching = nil
		case w := <-x.reports:
			x.takeReports(w)
		case l := <-x.lists:
			if l.err != nil {
				return printableError(l.err)
			}
			x.receiveList(&l)
		case <-timer.C:
		}
		if watching != nil {
			continue
		}
		x.publishState()
		if x.listing {
			timer.Stop()
			continue
		}
		now := time.Now()
		if next := x.nextList(now); next.After(now) {
			timer.Reset(next.Sub(now))
		} else {
			x.startList(ctx, &readers, now)
		}
	}
}

// printableError returns an error of the registry with a text that is bounded and printable.
func printableError(err error) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	return fmt.Errorf("%v: %s", s.Code(), safetext.Printable(s.Message()))
}

// findEndpoints asks for all endpoints.
func (x *registrySession) findEndpoints(ctx context.Context, watch bool) (registry.NetworkServiceEndpointRegistry_FindClient, error) {
	return x.client.Find(ctx, &registry.NetworkServiceEndpointQuery{
		NetworkServiceEndpoint: new(registry.NetworkServiceEndpoint), Watch: watch,
	})
}

// watchEndpoints passes on the reports of the watch until it ends, and returns why. It closes open
// when the watch is asked for.
func (x *registrySession) watchEndpoints(ctx context.Context, open chan<- struct{}) error {
	stream, err := x.findEndpoints(ctx, true)
	if err != nil {
		return err
	}
	close(open)
	for {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return errClosed
		case err != nil:
			return err
		}
		select {
		case x.reports <- x.readReport(reply):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readReport returns the report in a message.
func (x *registrySession) readReport(reply *registry.NetworkServiceEndpointResponse) endpointReport {
	message := reply.GetNetworkServiceEndpoint()
	w := endpointReport{key: endpoint.KeyOf(message.GetName()), deleted: reply.GetDeleted()}
	if w.deleted {
		return w
	}
	if t := message.GetExpirationTime(); t.IsValid() {
		w.until = t.AsTime()
	}
	w.said = x.rules.Read(message)
	return w
}

// startList begins a list.
func (x *registrySession) startList(ctx context.Context, readers *sync.WaitGroup, now time.Time) {
	if x.began.IsZero() {
		x.began = now
	}
	x.number++
	x.listing = true
	l := endpointList{number: x.number, tick: x.tick, began: now}
	readers.Go(func() {
		l.err = x.readList(ctx, &l)
		select {
		case x.lists <- l:
		case <-ctx.Done():
		}
	})
}

// readList reads a list to its end.
func (x *registrySession) readList(ctx context.Context, l *endpointList) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	stream, err := x.findEndpoints(ctx, false)
	if err != nil {
		return err
	}
	for {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			l.payloads, err = x.readPayloads(ctx)
			if err != nil {
				x.logger.Debug("network services cannot be read; their payloads stay as they were", "error", printableError(err))
			}
			return ctx.Err()
		case err != nil:
			return err
		case len(l.reports) >= maxEndpoints:
			l.dropped++
		case !reply.GetDeleted():
			l.reports = append(l.reports, x.readReport(reply))
		}
	}
}

// readPayloads returns the payloads of the network services, which their endpoints do not have. A
// registry need not tell them, because nothing else depends on them.
func (x *registrySession) readPayloads(ctx context.Context) (map[string]string, error) {
	stream, err := x.named.Find(ctx, &registry.NetworkServiceQuery{NetworkService: new(registry.NetworkService)})
	if err != nil {
		return nil, err
	}
	payloads := make(map[string]string)
	for {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return payloads, nil
		case err != nil:
			return nil, err
		}
		if service, payload := x.rules.ReadPayload(reply.GetNetworkService()); payload != "" && !reply.GetDeleted() && len(payloads) < maxEndpoints {
			payloads[service] = payload
		}
	}
}

// takeReports applies a report of the watch, and those that have come in behind it.
func (x *registrySession) takeReports(w endpointReport) {
	now := time.Now()
	for n := 0; ; n++ {
		x.tick++
		if e := x.state.endpoints[w.key]; !w.deleted {
			if e = x.state.noteEndpoint(w, now); e != nil {
				e.heard = x.tick
			}
		} else {
			if e != nil {
				x.state.removeEndpoint(e)
			}
			if (x.listing || !x.whole) && len(x.deleted) < maxEndpoints { // no list has more
				x.deleted[w.key] = x.tick // a list may still have the endpoint
			}
		}
		delete(x.missing, w.key)
		if n >= maxWords {
			break
		}
		select {
		case w = <-x.reports:
			continue
		default:
		}
		break
	}
	if x.pending != nil && len(x.missing) == 0 {
		x.applyList(x.pending)
	}
}

// receiveList applies a list that has come in. Until the state is whole, the list waits until the
// watch has reported everything in it: from then on, the watch is known to be complete.
func (x *registrySession) receiveList(l *endpointList) {
	x.listing, x.ended = false, time.Now()
	if !x.whole {
		x.pending, x.missing = l, make(map[string]struct{})
		for _, w := range l.reports {
			if e := x.state.endpoints[w.key]; (e == nil || e.heard == 0) && x.deleted[w.key] == 0 {
				x.missing[w.key] = struct{}{}
			}
		}
		if len(x.missing) > 0 && x.ended.Sub(x.began) < patience {
			return
		}
	}
	x.applyList(l)
}

// applyList applies those parts of a list that the watch has not reported since.
func (x *registrySession) applyList(l *endpointList) {
	now := time.Now()
	x.pending, x.missing = nil, nil
	x.state.beyond = l.dropped
	for _, w := range l.reports {
		e := x.state.endpoints[w.key]
		if x.deleted[w.key] > l.tick {
			continue
		}
		if e == nil || e.heard <= l.tick {
			e = x.state.noteEndpoint(w, now)
		}
		if e != nil {
			e.listed = l.number
		}
	}
	if l.payloads != nil {
		x.state.setPayloads(l.payloads)
	}
	if !x.listing {
		x.deleted = make(map[string]uint64)
	}
	for _, e := range x.state.endpoints {
		x.limitAbsent(e, l, now)
		if !e.deadline.IsZero() && !e.deadline.After(l.began) {
			x.state.removeEndpoint(e) // the list has not renewed it
		}
	}
	x.whole = true
}

// limitAbsent sets for how long an endpoint stays that the list does not have, or that was old
// before it.
func (x *registrySession) limitAbsent(e *knownEndpoint, l *endpointList, now time.Time) {
	absent := e.listed != l.number && e.heard <= l.tick
	switch {
	case len(e.Offers) == 0:
		if absent {
			x.state.removeEndpoint(e) // it was only counted
		}
	case e.old && !x.whole:
		if limit := now.Add(x.convergence); e.deadline.Before(limit) {
			x.state.setDeadline(e, limit)
		}
	case absent && e.deadline.IsZero():
		x.state.setDeadline(e, now.Add(x.convergence))
	}
}

// nextList returns when to ask for a list: the first one at once, the next ones at an interval, and
// as soon as an endpoint is due. Nothing expires without a list, because the registry may know
// better, and may be away.
func (x *registrySession) nextList(now time.Time) time.Time {
	switch {
	case x.number == 0:
		return time.Time{}
	case !x.whole:
		return x.ended.Add(firstGap)
	}
	next := x.ended.Add(listInterval)
	if due := x.state.nextDeadline(now); !due.IsZero() && due.Before(next) {
		next = due
		if soonest := x.ended.Add(listGap); next.Before(soonest) {
			next = soonest
		}
	}
	return next
}

// publishState passes to the part what has changed, once the state is whole.
func (x *registrySession) publishState() {
	if !x.whole {
		return
	}
	changed, gone := x.state.encodeChanged(&x.rules)
	for _, r := range x.state.news {
		x.logger.Warn("endpoint of the registry is not published", "endpoint", safetext.Printable(r.key), "rule", r.rule)
	}
	x.state.news = nil
	x.part.SetRefused(x.state.refusedCounts())
	switch {
	case !x.known:
		x.known = true
		x.part.Replace(changed) // all of them are new
	case len(changed)+len(gone) > 0:
		x.part.Update(changed, gone)
	}
	x.part.SetAway(nil)
}
