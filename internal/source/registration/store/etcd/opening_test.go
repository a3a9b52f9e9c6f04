package etcd

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store/storetest"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// unopened is an etcd that has no nodes, and that is gone as soon as a watch is asked for,
// which it never opens.
type unopened struct {
	etcdserverpb.UnimplementedKVServer
	etcdserverpb.UnimplementedWatchServer
	etcdserverpb.UnimplementedLeaseServer

	gone func() bool
	ask  func()
}

func (u *unopened) Range(context.Context, *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	if u.gone() {
		return nil, status.Error(codes.Unavailable, "there is no leader")
	}
	return &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{Revision: 1}}, nil
}

func (u *unopened) Watch(stream etcdserverpb.Watch_WatchServer) error {
	u.ask()
	<-stream.Context().Done()
	return stream.Context().Err()
}

// TestGoneBeforeWatch has an etcd that goes between the reading of its state and the
// opening of a watch. Its absence is told all the same.
func TestGoneBeforeWatch(t *testing.T) {
	t.Parallel()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	asked := make(chan struct{})
	u := &unopened{ask: sync.OnceFunc(func() { close(asked) }), gone: func() bool {
		select {
		case <-asked:
			return true
		default:
			return false
		}
	}}
	server := grpc.NewServer()
	etcdserverpb.RegisterKVServer(server, u)
	etcdserverpb.RegisterWatchServer(server, u)
	etcdserverpb.RegisterLeaseServer(server, u)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	s := newStore(t, nil, "http://"+listener.Addr().String())
	s.timing.patience = 100 * time.Millisecond
	r, _ := storetest.StartStore(t, s)
	r.Wait("etcd is away", func(told storetest.ToldState) bool { return told.Away != nil })
}
