package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
)

// maxWaiting bounds the connections that wait under one identity: each replica of an owner has
// one, and another one while it replaces that.
const maxWaiting = 16

// Inbound are the connections of owners that dial in and wait to be asked. Each identity is an
// address of the subscription: the owner that is connected first has the catalog, and the others
// wait until its stream is lost.
type Inbound struct {
	*mtls.Source // of the relay, which the owners have verified

	ids    []federation.ID
	log    *slog.Logger
	before *Inbound // in whose place this one comes, or nil

	mu      sync.Mutex             // guards the fields below
	waiting map[string][]*inactive // by the address that Subscription has for the owner, the newest last
	arrived func()                 // is called for each connection that comes
	ended   bool                   // whether Run has, or another one has its place
}

// NewInbound returns an Inbound without connections, for owners with one of the identities. It
// may come in the place of another one: when it runs, that one closes its connections that wait,
// and the owners dial anew.
func NewInbound(identity *mtls.Source, ids []federation.ID, before *Inbound, logger *slog.Logger) *Inbound {
	return &Inbound{Source: identity, ids: ids, before: before, log: loglimit.Logger(logger), waiting: make(map[string][]*inactive), arrived: func() {}}
}

// Subscription returns one to the owners that dial in.
func (in *Inbound) Subscription() consumer.Subscription {
	s := consumer.Subscription{Identity: in, Dial: in.dial}
	for _, id := range in.ids {
		s.Addresses = append(s.Addresses, id.String())
	}
	return s
}

// owner returns the address that Subscription has for an owner with these identities; empty for
// one that may not dial in.
func (in *Inbound) owner(ids []federation.ID) string {
	for _, id := range in.ids {
		if slices.Contains(ids, id) {
			return id.String()
		}
	}
	return ""
}

// May reports whether an owner with these identities may dial in.
func (in *Inbound) May(ids []federation.ID) bool { return in.owner(ids) != "" }

// Take has the connection of an owner wait until the subscription turns to it.
func (in *Inbound) Take(conn *mtls.Reversed) {
	address := in.owner(conn.Peer.IDs())
	_ = conn.SetDeadline(time.Time{}) // that of the handshake
	in.mu.Lock()
	arrived := in.arrived
	if address == "" || in.ended {
		in.mu.Unlock()
		conn.Close() // it has stopped, or may not dial any more
		return
	}
	waits := &inactive{Reversed: conn, read: make(chan error, 1)}
	in.waiting[address] = append(in.waiting[address], waits)
	var surplus *inactive
	if all := in.waiting[address]; len(all) > maxWaiting {
		surplus = all[0]
		in.removeLocked(address, surplus)
	}
	in.mu.Unlock()
	if surplus != nil {
		surplus.Close()
		in.log.Warn("owner dials more often than it is asked; its oldest connection is closed", "address", surplus.RemoteAddr(), "identities", address)
	}
	go func() {
		if waits.watch() {
			in.mu.Lock()
			in.removeLocked(address, waits)
			in.mu.Unlock()
			waits.Close()
		}
	}()
	arrived()
}

func (in *Inbound) removeLocked(address string, conn *inactive) {
	in.waiting[address] = slices.DeleteFunc(in.waiting[address], func(c *inactive) bool { return c == conn })
}

// errNobody is why an owner that dials in cannot be reached.
var errNobody = errors.New("the owner has not dialed in")

// dial returns the newest connection of the owner: an older one may have been cut.
func (in *Inbound) dial(_ context.Context, address string) (net.Conn, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	all := in.waiting[address]
	if len(all) == 0 {
		return nil, errNobody
	}
	newest := all[len(all)-1]
	newest.turned.Store(true)
	in.removeLocked(address, newest)
	return newest, nil
}

// run has arrived called for each connection until ctx ends. Then it closes those that wait.
func (in *Inbound) run(ctx context.Context, arrived func()) {
	in.mu.Lock()
	in.arrived = arrived
	in.mu.Unlock()
	if in.before != nil {
		in.before.end()
	}
	<-ctx.Done()
	in.end()
}

// end closes the connections that wait, and takes no others.
func (in *Inbound) end() {
	in.mu.Lock()
	in.ended = true
	waiting := in.waiting
	in.waiting = make(map[string][]*inactive)
	in.mu.Unlock()
	for _, all := range waiting {
		for _, conn := range all {
			conn.Close()
		}
	}
}

// Run implements stream.Identity: the certificates are current by themselves.
func (in *Inbound) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Credentials implements stream.Identity. The handshake of a connection was before it came.
func (in *Inbound) Credentials(string) credentials.TransportCredentials {
	return shaken{credentials.NewTLS(nil)}
}

// shaken are the credentials of connections that have their handshake behind them.
type shaken struct {
	credentials.TransportCredentials
}

// ClientHandshake implements credentials.TransportCredentials.
func (shaken) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	dialed, ok := conn.(*inactive)
	if !ok {
		return nil, nil, fmt.Errorf("no owner has dialed %T", conn)
	}
	return dialed, dialed.Peer, nil
}

// Clone implements credentials.TransportCredentials.
func (s shaken) Clone() credentials.TransportCredentials { return s }

// inactive is a connection on which this side has sent nothing before the subscription turned to
// it. Its first Read is pending all the while, to notice its end. An owner may send its SETTINGS
// meanwhile (RFC 9113 section 3.4); what it sends stays for who reads next.
type inactive struct {
	*mtls.Reversed

	turned atomic.Bool // whether the subscription has
	first  []byte      // what the first Read has brought
	read   chan error  // has the error of the first Read, once that is over

	// owned by whoever reads
	begun bool
}

// watch does the first Read. It reports whether the connection has ended before the subscription
// turned to it.
func (c *inactive) watch() bool {
	first := make([]byte, 1)
	n, err := c.Reversed.Read(first)
	c.first = first[:n]
	c.read <- err
	return err != nil && !c.turned.Load()
}

// Read implements net.Conn.
func (c *inactive) Read(p []byte) (int, error) {
	if c.begun || len(p) == 0 {
		return c.Reversed.Read(p)
	}
	c.begun = true
	err := <-c.read
	return copy(p, c.first), err
}
