package registration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// The bounds of finding out whether somebody may still have the nodes of a provider.
const (
	maxCleared   = 1000                   // nodes that one provider asks about
	maxInquiries = 128                    // at a time; the others wait for their turn
	maxInquiry   = time.Hour              // of one
	lookInterval = 100 * time.Millisecond // between two looks of one; longer where a look takes long
	tellInterval = time.Second            // between two answers
	maxMissing   = 3                      // consumers that an answer names
)

// cleared are the nodes that a stream has held and cleared.
type cleared struct {
	keys    map[node.Key]struct{}
	unknown string // why there may be others, or ""
}

func (c *cleared) note(key node.Key, held bool) {
	switch {
	case !held:
		c.unknown = "this owner did not have all of the nodes"
	case len(c.keys) == maxCleared:
		c.unknown = fmt.Sprintf("the stream has cleared more than %d nodes", maxCleared)
	default:
		if c.keys == nil {
			c.keys = make(map[node.Key]struct{})
		}
		c.keys[key] = struct{}{}
	}
}

// services returns a name for the services of the nodes, and whether a service has one of the nodes.
func (c *cleared) services() (name string, has func(*wire.Encoded) bool) {
	services := make(map[string][]node.URI, 1)
	for key := range c.keys {
		name = nameOf(key)
		services[name] = append(services[name], key.URI)
	}
	if len(services) > 1 {
		name = fmt.Sprintf("%d services", len(services))
	}
	return name, func(e *wire.Encoded) bool {
		uris := services[strings.ToLower(e.FQDN())]
		return len(uris) > 0 && slices.ContainsFunc(e.Service().Endpoints, func(e federation.Endpoint) bool {
			return slices.ContainsFunc(uris, func(u node.URI) bool { return u.Address == e.Address && u.Port == e.Port })
		})
	}
}

// settle tells the provider whether somebody may have the nodes that it has cleared, until
// nobody may, or that cannot be known. Then it ends the stream.
func (c *session) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, maxInquiry)
	defer cancel()
	defer c.send(nil)
	select {
	case <-c.withdrawn:
	case <-c.source.closing:
		return
	case <-ctx.Done():
		return
	}
	if unknown := c.unknown(); unknown != "" {
		c.send(settled(registrationv1.Settled_UNKNOWN, unknown))
		return
	}
	select {
	case c.source.inquiries <- struct{}{}:
	default:
		c.send(settled(registrationv1.Settled_WAITING, fmt.Sprintf("%d other programs wait already", maxInquiries)))
		select {
		case c.source.inquiries <- struct{}{}:
		case <-c.source.closing:
			return
		case <-ctx.Done():
			return
		}
	}
	defer func() { <-c.source.inquiries }()
	c.inquire(ctx)
}

// unknown returns why nobody can know who has the nodes, or "". Those that are registered
// anew are left out from then on.
func (c *session) unknown() string {
	s := c.source
	if _, own := s.config.Store.(*memory); !own {
		return "several owners share what is registered, and each knows only its own consumers"
	}
	if s.config.Inquire == nil {
		return "this owner keeps no receipts"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range c.cleared.keys {
		if s.table.Listed(key) {
			delete(c.cleared.keys, key)
		}
	}
	return c.cleared.unknown
}

// inquire looks until there is no more to wait for.
func (c *session) inquire(ctx context.Context) {
	name, matches := c.cleared.services()
	look := c.source.config.Inquire(matches)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var told time.Time
	for last := ""; ; {
		select {
		case <-timer.C:
		case <-c.source.closing:
			return
		case <-ctx.Done():
			return
		}
		begun := time.Now()
		settlement := look()
		state, text := answer(name, &settlement)
		if state != registrationv1.Settled_WAITING {
			c.send(settled(state, text))
			return
		}
		now := time.Now()
		if text != last && now.Sub(told) >= tellInterval && !c.isFull() {
			last, told = text, now
			c.send(settled(state, text))
		}
		timer.Reset(max(lookInterval, maxInquiries*now.Sub(begun))) // all of them take one processor at most
	}
}

// answer returns what a provider is told. It need not know where consumers are.
func answer(name string, s *status.Settlement) (state registrationv1.Settled_State, text string) {
	if s.Settled {
		return registrationv1.Settled_GONE, ""
	}
	s.Name = name
	s.Missing = slices.Clone(s.Missing[:min(len(s.Missing), maxMissing)])
	for i := range s.Missing {
		s.Missing[i].Catalog, s.Missing[i].Address = "", ""
	}
	lines := s.Lines()
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	state = registrationv1.Settled_UNKNOWN
	if s.Pending() {
		state = registrationv1.Settled_WAITING
	}
	return state, strings.Join(lines, "; ")
}

func settled(state registrationv1.Settled_State, text string) *registrationv1.RegisterResponse {
	return &registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Settled{
		Settled: &registrationv1.Settled{State: state, Text: text},
	}}
}

func nameOf(key node.Key) string { return strings.TrimSuffix(key.Service.String(), ".") }
