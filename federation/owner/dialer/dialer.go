// Package dialer reaches relays that cannot reach the owner: the owner dials them, and serves
// its catalog on the connections as on those that come in.
//
// A Dialer keeps one connection that waits. The other side speaks first on it, as the client of
// HTTP/2, when it wants the catalog. Then the connection goes to the [Listener] of the owner, and
// the Dialer makes the next one, which the other side can turn to when it has lost the one in
// use, or wants to replace it. See [mtls.Source.Dialed].
//
// Only packages of this module import it: it is not a stable API.
package dialer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
)

const (
	dialTimeout = 10 * time.Second // for TCP and TLS

	// The delays before the next attempt, which double, and vary by half.
	firstDelay = 1500 * time.Millisecond
	maxDelay   = 15 * time.Second

	// askTimeout is after how long without any stream the log says that nobody asks.
	askTimeout = 30 * time.Second
)

// Config says who is dialed, and for which catalog.
type Config struct {
	Addresses []string      // host:port of the relay, at least one; tried in turn
	Identity  mtls.Consumer // of this owner, and who the relay must be
	Catalog   string        // the server name of the catalog that the relay gets
	Logger    *slog.Logger

	// Dial opens a connection to an address; default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Dialer dials one relay. Its Run may be called once.
type Dialer struct {
	config Config
	log    *slog.Logger

	mu     sync.Mutex // guards the fields below
	status Status
	used   map[*used]struct{}
	asked  time.Time // since when there is one
}

// Status is how a Dialer fares.
type Status struct {
	Name    string // of the relay: its identity, or its address
	Catalog string
	Address string    // that was tried last
	Used    int       // connections on which the relay has asked
	Waits   bool      // whether a connection waits
	Err     error     // why none does, or nil
	Since   time.Time // how long it has been so: that the relay asks, or else that a connection waits, or none
}

// New returns a Dialer that does not run yet.
func New(c Config) *Dialer {
	if c.Dial == nil {
		// While a connection waits, HTTP/2 does not find out that the host at the other end is gone.
		d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
	}
	name := c.Identity.OwnerName(c.Addresses)
	return &Dialer{
		config: c, log: loglimit.Logger(c.Logger).With("relay", name), used: make(map[*used]struct{}),
		status: Status{Name: name, Catalog: c.Catalog, Since: time.Now()},
	}
}

// Status returns how the Dialer fares.
func (d *Dialer) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.status
	if s.Used = len(d.used); s.Used > 0 {
		s.Since = d.asked
	}
	return s
}

// Run keeps a connection for the relay until ctx ends, and hands those on which the relay asks to
// the listener. At its end it closes all of them.
func (d *Dialer) Run(ctx context.Context, to *Listener) {
	defer d.closeAll()
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.Multiplier, delays.MaxInterval = firstDelay, 2, maxDelay
	for i := 0; ctx.Err() == nil; {
		address, changed := d.config.Addresses[i%len(d.config.Addresses)], d.config.Identity.Changed()
		asked, err := d.connect(ctx, address, changed)
		switch {
		case err == nil:
			delays.Reset()
			to.deliver(ctx, asked)
			continue
		case errors.Is(err, errRenewed):
			continue
		}
		i++
		d.fails(ctx, address, err)
		select {
		case <-time.NewTimer(delays.NextBackOff()).C:
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// errRenewed ends a connection that waits, for one with a newer certificate.
var errRenewed = errors.New("the certificate was renewed")

// connect makes a connection, and returns it when the relay has asked on it.
func (d *Dialer) connect(ctx context.Context, address string, changed <-chan struct{}) (*mtls.Reversed, error) {
	limited, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	raw, err := d.config.Dial(limited, address)
	if err != nil {
		return nil, err
	}
	conn, err := d.config.Identity.Dialed(limited, raw, address)
	if err != nil {
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	d.set(address, true, nil)
	defer d.set(address, false, nil)
	conn.Peer.State.ServerName = d.config.Catalog
	renewed, first := false, make([]byte, 1)
	var watching sync.WaitGroup
	over := make(chan struct{})
	watching.Go(func() {
		patience := time.NewTimer(askTimeout)
		defer patience.Stop()
		for {
			select {
			case <-patience.C:
				if d.Status().Used == 0 {
					d.log.Warn("relay does not ask for the catalog; it has another owner for it, or has stopped", "address", address)
				}
				continue
			case <-changed:
				renewed = true
			case <-ctx.Done():
			case <-over:
				return
			}
			conn.Close()
			return
		}
	})
	_, err = io.ReadFull(conn, first)
	close(over)
	watching.Wait()
	switch {
	case err == nil && !renewed:
		return &mtls.Reversed{Conn: d.use(conn, first), Peer: conn.Peer}, nil
	case renewed:
		return nil, errRenewed
	case errors.Is(err, io.EOF):
		err = errors.New("the relay has closed the connection")
	}
	conn.Close()
	if remote, ok := errors.AsType[*net.OpError](err); ok && remote.Op == "remote error" { // an alert of TLS
		err = fmt.Errorf("the relay refuses this owner, whose identity its relay.accept must name: %w", err)
	}
	return nil, err
}

// set notes whether a connection waits, and why not.
func (d *Dialer) set(address string, waits bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status.Address, d.status.Waits, d.status.Err, d.status.Since = address, waits, err, time.Now()
}

// fails notes why there is no connection.
func (d *Dialer) fails(ctx context.Context, address string, err error) {
	if ctx.Err() == nil {
		d.set(address, false, err)
		d.log.Warn("relay cannot be dialed, still trying", "address", address, "error", err)
	}
}

// used is a connection on which the relay has asked: what it has said first is read again.
type used struct {
	net.Conn

	dialer *Dialer
	first  []byte
}

// use counts a connection until it is closed.
func (d *Dialer) use(conn *mtls.Reversed, first []byte) *used {
	u := &used{conn.Conn, d, first}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.used) == 0 {
		d.asked = time.Now()
	}
	d.used[u] = struct{}{}
	return u
}

// Read implements net.Conn.
func (u *used) Read(p []byte) (int, error) {
	if n := copy(p, u.first); n > 0 {
		u.first = u.first[n:]
		return n, nil
	}
	return u.Conn.Read(p)
}

// Close implements net.Conn.
func (u *used) Close() error {
	u.dialer.mu.Lock()
	delete(u.dialer.used, u)
	u.dialer.mu.Unlock()
	return u.Conn.Close()
}

func (d *Dialer) closeAll() {
	d.mu.Lock()
	var open []*used
	for u := range d.used {
		open = append(open, u)
	}
	d.mu.Unlock()
	for _, u := range open {
		u.Close()
	}
}
