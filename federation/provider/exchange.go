package provider

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/moment"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// dueMessages returns the messages that are due now, and when to call it again. It fails when the
// owner has owed an answer for too long.
func (p *Provider) dueMessages(s *registrationStream, now time.Time) (messages []*registrationv1.RegisterRequest, next time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next = now.Add(time.Hour)
	p.pruneCleared(now)
	for k, o := range p.cleared {
		if o.stream != s {
			o.stream = s
			messages = append(messages, &registrationv1.RegisterRequest{Message: &registrationv1.RegisterRequest_Clear{
				Clear: &registrationv1.Clear{Service: k.service, Node: k.uri},
			}})
		} else if len(p.cleared) > maxCleared {
			delete(p.cleared, k)
		}
	}
	for _, e := range p.nodes {
		interval := e.heartbeatInterval()
		switch overdue := !e.due.Add(-e.slack).After(now); {
		case e.late && overdue:
			return nil, next, errSilent
		case e.late:
			next = moment.Earlier(next, e.due)
			continue
		case e.fresh:
		case overdue && e.awaits && (e.granted || !s.useful || now.Sub(s.heard) >= 2*interval):
			return nil, next, errSilent
		case overdue && e.awaits && e.status.State == Pending:
			// Others are answered: what is new may wait for the owner's store.
			e.due = now.Add(interval)
			next = moment.Earlier(next, e.due)
			continue
		case !overdue:
			next = moment.Earlier(next, e.due)
			continue
		}
		messages = append(messages, e.active)
		e.fresh, e.sent, e.awaits, e.last, e.slack = false, true, true, now, 0
		e.due = now.Add(interval)
		if !s.useful {
			e.due = now.Add(max(interval, p.patience))
		}
		next = moment.Earlier(next, e.due)
	}
	s.next = next
	return messages, next, nil
}

// hasUntold reports whether a node was cleared without a message to the owner of the stream.
func (p *Provider) hasUntold(s *registrationStream) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.cleared {
		if o.stream != s {
			return true
		}
	}
	return false
}

// applyResponse applies a message of the owner. An error ends the stream.
func (p *Provider) applyResponse(s *registrationStream, m *registrationv1.RegisterResponse, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.heard = now
	if open := m.GetOpen(); open != nil {
		s.opened = true
		if open.GetVersion() != version {
			return &versionError{open.GetVersion()}
		}
		return nil
	}
	if closed := m.GetClose(); closed != nil {
		return &closeError{closed.GetReason(), closed.GetText(), closed.GetRetryAfter().AsDuration()}
	}
	if !s.opened {
		return errNotOpened
	}
	switch m := m.GetMessage().(type) {
	case *registrationv1.RegisterResponse_Granted:
		p.applyGranted(s, m.Granted)
	case *registrationv1.RegisterResponse_Refused:
		p.applyRefused(s, m.Refused, now)
	case *registrationv1.RegisterResponse_Expired:
		p.applyExpired(s, m.Expired, now)
	}
	return nil
}

// applyGranted records that a node is registered. The caller holds p.mu.
func (p *Provider) applyGranted(s *registrationStream, m *registrationv1.Granted) {
	e := p.nodes[nodeKey{m.GetService(), m.GetNode()}]
	if e == nil || !e.sent {
		return
	}
	if !s.useful {
		s.useful = true
		p.answered = s.address
	}
	if p.isOutdated(e) {
		return
	}
	before := e.status
	e.awaits, e.granted, e.retry = false, true, 0
	e.status = Status{Node: e.node, State: Registered, Owner: s.address, URI: m.GetUri(), TTL: m.GetTtl().AsDuration(), Waits: m.GetWaits()}
	e.status.TTL = e.knownTTL() // where the owner has told none
	e.status.Until = e.last.Add(e.status.TTL)
	if before.State != Registered || before.Owner != s.address || before.URI != e.status.URI || before.TTL != e.status.TTL || before.Waits != e.status.Waits || e.told != e.active {
		e.told = e.active
		p.noteChange(e)
	}
	interval := e.heartbeatInterval()
	e.slack = interval / 20
	p.planEntry(s, e, e.last.Add(interval-rand.N(interval/10))) //nolint:gosec // jitter is no secret
}

// isOutdated reports whether an answer is for a node as it was before it has changed. If so, the
// changed node may be sent now. The caller holds p.mu.
func (p *Provider) isOutdated(e *nodeEntry) bool {
	if !e.late {
		return false
	}
	e.late, e.awaits = false, false
	wake.Up(p.wake)
	return true
}

// applyRefused records that a node is refused. The caller holds p.mu.
func (p *Provider) applyRefused(s *registrationStream, m *registrationv1.Refused, now time.Time) {
	e := p.nodes[nodeKey{m.GetService(), m.GetNode()}]
	if e == nil {
		return
	}
	s.useful = true
	if p.isOutdated(e) {
		return
	}
	before := e.status
	e.awaits, e.granted, e.slack = false, false, 0
	e.status = Status{Node: e.node, State: Refused, Owner: s.address, Rule: m.GetRule(), Reason: m.GetReason()}
	if before.State != Refused || before.Owner != s.address || before.Rule != e.status.Rule || before.Reason != e.status.Reason || e.told != e.active {
		e.told = e.active
		p.noteChange(e)
	}
	e.retry = min(max(2*e.retry, minRetry), maxRetry)
	p.planEntry(s, e, now.Add(e.retry+rand.N(e.retry/4))) //nolint:gosec // jitter is no secret
}

// applyExpired records that a node is not registered any more, although it was granted on this
// stream. The caller holds p.mu.
func (p *Provider) applyExpired(s *registrationStream, m *registrationv1.Expired, now time.Time) {
	e := p.nodes[nodeKey{m.GetService(), m.GetNode()}]
	if e == nil || e.status.State != Registered {
		return
	}
	e.granted, e.awaits, e.late, e.slack = false, false, false, 0
	e.status = Status{Node: e.node, Owner: s.address, Err: errExpired}
	p.noteChange(e)
	due := e.last.Add(minInterval)
	if due.Before(now) {
		due = now
	}
	p.planEntry(s, e, due)
}

// planEntry sets when an entry is due. The caller holds p.mu.
func (p *Provider) planEntry(s *registrationStream, e *nodeEntry, due time.Time) {
	e.due = due
	if due.Before(s.next) {
		wake.Up(p.wake)
	}
}

// loseStream prepares everything for another stream, because this one has ended with err.
func (p *Provider) loseStream(s *registrationStream, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.nodes {
		e.fresh, e.sent, e.awaits, e.granted, e.late = true, false, false, false, false
		before := e.status.Err
		switch e.status.State {
		case Refused:
			continue
		case Registered:
			e.status.State = Lost
			p.noteChange(e)
		case Pending, Lost:
			e.status.Owner = s.address
			if before == nil || before.Error() != err.Error() {
				p.noteChange(e)
			}
		}
		e.status.Err = err
	}
}

// The reasons why a stream ends that no status says.
var (
	errSilent    = errors.New("the owner does not answer")
	errNotOpened = errors.New("the owner does not begin with Open")
	errExpired   = errors.New("it has expired, as the owner heard nothing of it")
)
