// Package providers asks an owner which nodes are registered, and shows them.
//
// Only packages of this module import it: it is not a stable API.
package providers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

const (
	connectTimeout = 10 * time.Second
	maxDelay       = 10 * time.Second // between two attempts of a watch
	keepaliveTime  = 30 * time.Second
	maxMessage     = 1 << 20 // bytes of one node
)

// Config says what to ask for.
type Config struct {
	Address     string // of the owner, host:port
	Credentials credentials.TransportCredentials
	Service     string // the fqdn; "" for all services
	Watch       bool   // whether to go on with what changes, until ctx ends
	Output      string // table, or a format of printable.Objects: an object for each node
	Stdout      io.Writer
	Stderr      io.Writer // for an owner that is lost
}

// Show shows the nodes, sorted by service and URI, and, with Watch, what changes. Without
// Watch it fails when the owner cannot be reached; with it, it tries again. It fails when
// the owner refuses it.
func Show(ctx context.Context, c Config) error {
	conn, err := grpc.NewClient("passthrough:///"+c.Address,
		grpc.WithTransportCredentials(c.Credentials),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff(), MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: connectTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
	)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := registrationv1.NewRegistrationServiceClient(conn)
	shown := newTable(c)
	if !c.Watch {
		return explain(follow(ctx, client, c, shown, func() {}))
	}
	lost := false
	for {
		heard := false
		err := follow(ctx, client, c, shown, func() {
			heard = true
			if lost {
				fmt.Fprintf(c.Stderr, "federationctl: connected to %s again\n", c.Address)
				lost = false
			}
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case !retriable(err):
			return explain(err)
		case !lost:
			fmt.Fprintf(c.Stderr, "federationctl: owner %s: %v; trying again\n", c.Address, explain(err))
			lost = true
		}
		if !pause(ctx, heard) {
			return nil
		}
	}
}

// backoff is that of gRPC, with a limit for somebody who waits.
func backoff() grpcbackoff.Config {
	b := grpcbackoff.DefaultConfig
	b.MaxDelay = maxDelay
	return b
}

// pause waits between two streams: gRPC does so only between two connections. It reports
// whether ctx has not ended.
func pause(ctx context.Context, heard bool) bool {
	delay := maxDelay / 10
	if heard {
		delay /= 4
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// follow shows what is registered now and, with Watch, what changes, until the stream ends. It
// calls heard when the owner has told all that there is.
func follow(ctx context.Context, client registrationv1.RegistrationServiceClient, c Config, t *table, heard func()) error {
	stream, err := client.List(ctx, &registrationv1.ListRequest{Service: c.Service, Watch: c.Watch})
	if err != nil {
		return err
	}
	var all []*registrationv1.ListResponse
	complete := false
	for {
		m, err := stream.Recv()
		now := time.Now()
		switch {
		case errors.Is(err, io.EOF) && !c.Watch:
			slices.SortFunc(all, compare)
			return t.all(all, now)
		case err != nil:
			return err
		case complete:
			err = t.change(m, now)
		case m.GetComplete():
			complete = true
			heard()
			slices.SortFunc(all, compare)
			err = t.replace(all, now)
			all = nil
		default:
			all = append(all, m)
		}
		if err != nil {
			return err
		}
	}
}

func compare(a, b *registrationv1.ListResponse) int {
	return cmp.Or(cmp.Compare(a.GetService(), b.GetService()), cmp.Compare(a.GetNode(), b.GetNode()))
}

// retriable reports whether a watch should try again.
func retriable(err error) bool {
	if errors.Is(err, io.EOF) {
		return true
	}
	switch s, ok := status.FromError(err); {
	case !ok: // writing has failed
		return false
	case s.Code() == codes.PermissionDenied, s.Code() == codes.Unauthenticated, s.Code() == codes.Unimplemented, s.Code() == codes.InvalidArgument:
		return false
	}
	return true
}

// explain returns what has gone wrong, and what to do about it.
func explain(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		if errors.Is(err, io.EOF) {
			return errEnded
		}
		return err
	}
	remedy := "check --server, --cert and --ca, and that the owner is up"
	switch s.Code() {
	case codes.PermissionDenied:
		remedy = "have the owner's rules name the identity of --cert as an observer"
	case codes.Unauthenticated:
		remedy = "check --cert: the owner needs an identity in it"
	case codes.Unimplemented:
		remedy = "check --server and --server-name: no programs register there"
	case codes.InvalidArgument:
		remedy = "check --service"
	default:
	}
	return fmt.Errorf("%v: %s; %s", s.Code(), federation.Printable(s.Message()), remedy)
}

var errEnded = errors.New("the owner has ended the stream")
