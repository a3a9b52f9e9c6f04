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
	listInterval = 30 * time.Second // between two lists while nothing expires
	listGap      = time.Second      // between two lists at least, where endpoints expire
	listTimeout  = 20 * time.Second // of one list; a connection that takes longer is dead
	maxWords     = 256              // reports that are read before they are applied or published
)

// errClosed is the end of a watch for which the registry gives no reason.
var errClosed = errors.New("the registry has ended the watch")

// registrySession follows the registry over one connection. Its readers pass reports of the watch
// and lists to its loop, which alone changes the fields and the registryState. The channels bound
// what is read ahead. It ends with the connection; the state stays for the next one.
type registrySession struct {
	*Source

	part   source.Part
	client registry.NetworkServiceEndpointRegistryClient
	named  registry.NetworkServiceRegistryClient

	reports chan endpointReport // of the watch
	lists   chan endpointList   // one at a time
	failed  chan error          // why the watch has ended

	listing bool      // a list is under way
	ended   time.Time // when the last list came in; zero before
}

// endpointList is the answer of the registry to a Find without watch.
type endpointList struct {
	began   time.Time // when the list was asked for
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
	}
}

// isWhole reports whether the state of the registry is known.
func (x *registrySession) isWhole() bool { return !x.ended.IsZero() }

// followRegistry follows the registry, and returns why it cannot be followed any more.
func (x *registrySession) followRegistry(ctx context.Context) error {
	for _, e := range x.state.endpoints {
		e.old = true
	}
	var readers sync.WaitGroup
	defer readers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := x.findEndpoints(ctx, true)
	if err != nil {
		return printableError(err)
	}
	readers.Go(func() { x.failed <- x.readWatch(ctx, watch) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		reports := x.reports
		if x.listing {
			reports = nil // they are later than what the list says
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-x.failed:
			return printableError(err)
		case w := <-reports:
			x.applyReport(w)
			x.applyWaiting()
		case l := <-x.lists:
			if l.err != nil {
				return printableError(l.err)
			}
			x.applyList(&l)
		case <-timer.C:
		}
		if x.isWhole() {
			x.publishState()
		}
		now := time.Now()
		switch next := x.nextList(now); {
		case x.listing:
		case next.After(now):
			timer.Reset(next.Sub(now))
		default:
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

// readWatch passes on the reports of the watch until it ends, and returns why.
func (x *registrySession) readWatch(ctx context.Context, stream registry.NetworkServiceEndpointRegistry_FindClient) error {
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
	x.listing = true
	readers.Go(func() {
		l := endpointList{began: now}
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

// applyWaiting applies the reports of the watch that have come in, maxWords at most.
func (x *registrySession) applyWaiting() {
	for range maxWords {
		select {
		case w := <-x.reports:
			x.applyReport(w)
		default:
			return
		}
	}
}

func (x *registrySession) applyReport(w endpointReport) {
	if !w.deleted {
		x.state.noteEndpoint(w, time.Now())
	} else if e := x.state.endpoints[w.key]; e != nil {
		x.state.removeEndpoint(e)
	}
}

// applyList applies a list, and then what the watch has reported since the list was asked for.
func (x *registrySession) applyList(l *endpointList) {
	now := time.Now()
	x.state.beyond = l.dropped
	listed := make(map[string]struct{}, len(l.reports))
	for _, w := range l.reports {
		listed[w.key] = struct{}{}
		x.state.noteEndpoint(w, now)
	}
	if l.payloads != nil {
		x.state.setPayloads(l.payloads)
	}
	for key, e := range x.state.endpoints {
		_, ok := listed[key]
		x.limitAbsent(e, !ok, now)
		if !e.deadline.IsZero() && !e.deadline.After(l.began) {
			x.state.removeEndpoint(e) // the list has not renewed it
		}
	}
	x.listing, x.ended = false, now
	x.applyWaiting()
}

// limitAbsent sets for how long an endpoint stays that the list does not have, or that was old
// before it.
func (x *registrySession) limitAbsent(e *knownEndpoint, absent bool, now time.Time) {
	switch {
	case len(e.Offers) == 0:
		if absent {
			x.state.removeEndpoint(e) // it was only counted
		}
	case e.old && !x.isWhole():
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
	if !x.isWhole() {
		return time.Time{}
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

// publishState passes to the part what has changed.
func (x *registrySession) publishState() {
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
