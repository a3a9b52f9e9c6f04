// Package etcd keeps registered nodes in etcd, where any number of owners share them.
//
// A node is the value of a key PREFIX/nodes/SERVICE/URI, and its version is the revision
// of etcd that has changed the key last. The nodes of an owner belong to one lease, which the owner
// keeps alive as long as it lives, whatever happens to its providers: the source deletes a node
// that expires. So the lease ends only with its owner, and the nodes that no other owner has put again
// by then go with it.
//
// A lease is lost, although its owner lives, when the owner cannot reach etcd for longer than the lease
// lasts. Then its nodes are gone from etcd, and every watcher learns that. The source puts the nodes
// again that its providers still have, and its next Commit gets a new lease.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/source/internal/reconnect"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
)

// Config says where the nodes are, and how long an owner may be gone. Whoever reads a
// configuration has checked it.
type Config struct {
	// Endpoints are the URLs of the members, such as https://etcd-1.example:2379: all with https,
	// or all with http.
	Endpoints []string

	// Prefix begins all keys, such as /federation/acme. Owners that share registrations have the
	// same prefix, and others have another one.
	Prefix string

	// TLS is for endpoints with https, mostly what the function TLS returns; nil stands for
	// the authorities of the system and no certificate.
	TLS credentials.TransportCredentials

	// Username and Password are for an etcd with authentication: both or none.
	Username, Password string

	// Lease is how long nodes outlive their owner: two thirds of it at least, because leases are
	// renewed when a third is over. It is the convergence period. The ttl of nodes does not matter,
	// because providers notice at once, or by pings, that an owner is gone. Etcd counts in whole
	// seconds, and grants two of them at least.
	Lease time.Duration

	// Logger may be nil.
	Logger *slog.Logger
}

const (
	minLease = 2 * time.Second // what etcd grants at least, with its defaults

	dialTimeout = 3 * time.Second // of one connection, and of the authentication
	maxRedial   = time.Second     // between attempts to connect to a member
	pingEvery   = 10 * time.Second
	pingTimeout = 3 * time.Second
	onePage     = 20 * time.Second // bounds a page of a list
)

// storeTiming has times that tests change.
type storeTiming struct {
	probe    time.Duration // how often etcd is asked whether it is there, and how long for an answer
	patience time.Duration // how long etcd may not answer: longer than an election, which takes two seconds by default, and shorter than leases last
	retry    time.Duration // between attempts to read the whole state
	keep     time.Duration // how often leases are checked for renewal
	call     time.Duration // bounds a request, except for a page of a list, because a leader that dies does not answer
}

var (
	errAway     = errors.New("etcd cannot be asked now")
	errNoAnswer = errors.New("no answer in time, perhaps there is no leader")
)

// Store is a store.Store in etcd. It keeps the client, the lease of this owner and the last
// revision, and no nodes: those are in etcd and in the table of the source. Run changes what it
// owns, and the goroutine that renews the lease and Commit change the rest under mu. Its methods may be
// called from any goroutine, within what store.Store says.
type Store struct {
	config Config
	timing storeTiming
	logger *slog.Logger

	// Owned by Run.
	heard      time.Time // when etcd answered last
	revision   int64     // the last one that was seen
	begun      string    // the last value of the marker; empty: none
	replacedAt time.Time // when etcd was seen to have other data than before; zero: never

	// Only Run changes them.
	client atomic.Pointer[clientv3.Client] // nil before Run has connected, and after its end
	away   atomic.Bool                     // etcd is away, and the watcher knows that

	mu    sync.Mutex // guards the field below
	lease grantedLease
}

// New returns a store, which connects when it runs.
func New(config Config) *Store {
	config.Lease = max(config.Lease, minLease)
	if config.TLS == nil && strings.HasPrefix(config.Endpoints[0], "https:") {
		config.TLS = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}) // of etcd itself
	}
	return &Store{
		config: config, logger: loglimit.NewLogger(config.Logger),
		timing: storeTiming{probe: 2 * time.Second, patience: min(store.Patience, config.Lease*2/3), retry: 500 * time.Millisecond, keep: min(time.Second, config.Lease/6), call: 3 * time.Second},
	}
}

// Run implements store.Store. The watcher learns within some seconds that etcd is away; elections
// of a leader go unnoticed.
func (s *Store) Run(ctx context.Context, w store.Watcher) {
	var wg sync.WaitGroup
	defer wg.Wait()
	s.heard = time.Now()
	var client *clientv3.Client
	defer func() {
		s.client.Store(nil)
		if client != nil {
			_ = client.Close() // the error is that of its context
		}
	}()
	for ctx.Err() == nil {
		err := error(nil)
		if client == nil {
			if client, err = s.openClient(ctx); err == nil {
				s.client.Store(client)
				wg.Go(func() { s.keepLease(ctx, client) })
			}
		}
		if err == nil {
			err = s.followState(ctx, client, w)
		}
		s.noteFailure(ctx, client, w, err)
		reconnect.WaitFor(ctx, s.timing.retry)
	}
}

// noteFailure records why the state cannot be followed, and tells the watcher if that has been so
// for too long.
func (s *Store) noteFailure(ctx context.Context, client *clientv3.Client, w store.Watcher, err error) {
	if s.away.Load() || time.Since(s.heard) < s.timing.patience {
		return
	}
	err = s.failureReason(ctx, client, err)
	if ctx.Err() != nil {
		return
	}
	s.away.Store(true)
	w.SetAway(fmt.Errorf("etcd: %w", err))
}

// failureReason returns why a request was not answered in time. The client waits for a connection
// as long as the request may take, and does not say why there is none.
func (s *Store) failureReason(ctx context.Context, client *clientv3.Client, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if client == nil {
		return errNoAnswer
	}
	ctx, cancel := context.WithTimeout(ctx, s.timing.probe)
	defer cancel()
	_, err = grpc_health_v1.NewHealthClient(client.ActiveConnection()).Check(ctx, new(grpc_health_v1.HealthCheckRequest))
	if st := status.Convert(err); st.Code() == codes.Unavailable {
		return errors.New(st.Message())
	}
	return errNoAnswer
}

// connectedClient returns the client, or an error while etcd is away.
func (s *Store) connectedClient() (*clientv3.Client, error) {
	if client := s.client.Load(); client != nil && !s.away.Load() {
		return client, nil
	}
	return nil, errAway
}

// openClient returns a client, which asks etcd for nothing yet, unless there is a password.
func (s *Store) openClient(ctx context.Context) (*clientv3.Client, error) {
	options := []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		// By default a member that was gone for long is tried every two minutes.
		Backoff:           backoff.Config{BaseDelay: maxRedial / 10, Multiplier: 2, Jitter: 0.2, MaxDelay: maxRedial},
		MinConnectTimeout: dialTimeout,
	})}
	if s.config.TLS != nil {
		options = append(options, grpc.WithTransportCredentials(s.config.TLS))
	}
	return clientv3.New(clientv3.Config{
		Endpoints: s.config.Endpoints, // those that are configured, not those that members think they have
		Username:  s.config.Username, Password: s.config.Password,
		Context:     ctx,
		Logger:      zap.NewNop(), // what there is to say the store says itself
		DialTimeout: dialTimeout,
		DialOptions: options,
		// A member that is gone without a word takes the watch with it when it misses a ping.
		DialKeepAliveTime: pingEvery, DialKeepAliveTimeout: pingTimeout, PermitWithoutStream: true,
	})
}

// askMembers makes a request as many times at once as there are members, and returns the first answer.
// The client sends requests to members in turn, and a member that hangs keeps those that it gets.
func askMembers[T any](ctx context.Context, s *Store, request func(context.Context) (T, error)) (reply T, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timing.probe)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel() // the others end at once
	type answer struct {
		reply T
		err   error
	}
	answers := make(chan answer, len(s.config.Endpoints))
	for range s.config.Endpoints {
		asking.Go(func() {
			reply, err := request(ctx)
			answers <- answer{reply, err}
		})
	}
	for range s.config.Endpoints {
		a := <-answers
		if reply, err = a.reply, a.err; err == nil {
			break
		}
	}
	return reply, err
}
