package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// stream is a provider's stream to this owner, from its first node until its release.
type stream struct {
	granting sync.Mutex // held while its lease is granted

	// Guarded by mu of the store.
	lease clientv3.LeaseID // NoLease: none has been granted yet, or it was lost
	alive <-chan *clientv3.LeaseKeepAliveResponse
	heard time.Time          // when etcd has answered for it, as far as has been looked
	end   context.CancelFunc // of keeping it alive
}

const (
	leasesAtOnce = 16  // requests about leases in flight
	overdue      = 0.4 // of the time of a lease without an answer; the client asks for one after a third
)

// errReleased is the error for a stream that was released in the meantime.
var errReleased = errors.New("the stream has been released")

// lease returns the lease of a stream, which is granted if there is none.
func (s *Store) lease(ctx context.Context, client *clientv3.Client, id uint64, begin bool) (clientv3.LeaseID, error) {
	s.mu.Lock()
	st := s.streams[id]
	if st == nil {
		if !begin {
			s.mu.Unlock()
			return 0, errReleased
		}
		st = new(stream)
		s.streams[id] = st
	}
	lease := st.lease
	s.mu.Unlock()
	if lease != clientv3.NoLease {
		return lease, nil
	}

	st.granting.Lock()
	defer st.granting.Unlock()
	s.mu.Lock()
	lease = st.lease
	s.mu.Unlock()
	if lease != clientv3.NoLease { // another goroutine was first
		return lease, nil
	}
	ctx, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	granted, err := client.Grant(ctx, s.seconds())
	if err != nil {
		return 0, err
	}
	alive, end, err := keepAlive(client, granted.ID) //nolint:contextcheck // it outlives who asks for it
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.streams[id] != st {
		err = errReleased
	}
	if err != nil {
		end()
		s.ended = append(s.ended, granted.ID)
		return 0, err
	}
	st.lease, st.alive, st.end, st.heard = granted.ID, alive, end, time.Now()
	return granted.ID, nil
}

// keepAlive lets the client keep a lease alive, until end is called or the client closed.
func keepAlive(client *clientv3.Client, lease clientv3.LeaseID) (alive <-chan *clientv3.LeaseKeepAliveResponse, end context.CancelFunc, err error) {
	ctx, end := context.WithCancel(client.Ctx())
	alive, err = client.KeepAlive(ctx, lease)
	return alive, end, err
}

// seconds is the TTL of leases, as etcd counts.
func (s *Store) seconds() int64 { return int64((s.config.Lease + time.Second - 1) / time.Second) }

// lost reports whether a lease of a stream has ended, and forgets it then.
func (s *Store) lost(ctx context.Context, client *clientv3.Client, u lent) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timing.probe)
	defer cancel()
	left, err := client.TimeToLive(ctx, u.lease)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return false, err
	}
	if err == nil && left.TTL > 0 {
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.streams[u.stream]; st != nil && st.lease == u.lease {
		st.end()
		st.lease, st.alive, st.end = clientv3.NoLease, nil, nil
		s.logger.Warn("a lease in etcd was lost, its nodes have to be put again", "stream", u.stream)
	}
	return true, nil
}

// Release is that of store.Store. The lease of the stream ends.
func (s *Store) Release(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.streams[id]
	if st == nil {
		return
	}
	delete(s.streams, id)
	if st.lease == clientv3.NoLease {
		return
	}
	st.end()
	if !s.asleep { // else it ends by itself
		s.ended = append(s.ended, st.lease)
	}
}

// keepLeases looks after the leases until ctx ends. It is one goroutine for all.
func (s *Store) keepLeases(ctx context.Context, client *clientv3.Client) {
	ticker := time.NewTicker(s.timing.keep)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		closed, late := s.drain()
		// Those that fail are tried again in the next round.
		s.each(len(closed), func(i int) { s.resume(ctx, client, closed[i]) })
		s.each(len(late), func(i int) { s.hurry(ctx, client, late[i]) })
		s.mu.Lock()
		ended, former := s.ended, s.former
		s.ended, s.former = nil, nil
		s.mu.Unlock()
		// Those that fail end by themselves.
		s.each(len(ended), func(i int) { s.revoke(ctx, client, ended[i]) })
		s.each(len(former), func(i int) { s.adopt(ctx, client, former[i]) })
	}
}

// each calls f for leases, several at a time, and stops when etcd is away.
func (s *Store) each(n int, f func(i int)) {
	_ = parallel(n, leasesAtOnce, func(i int) error {
		_, err := s.connected()
		if err == nil {
			f(i)
		}
		return err
	})
}

// lent is a lease of a stream.
type lent struct {
	stream uint64
	lease  clientv3.LeaseID
}

// drain takes what etcd has answered for leases, which the client drops and logs
// otherwise. It returns the leases that the client has given up, after as long without an
// answer as a lease lasts, or because etcd does not have them any more; and those
// for which etcd has not answered in time.
func (s *Store) drain() (closed, late []lent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for id, st := range s.streams {
		if st.lease == clientv3.NoLease {
			continue
		}
		open, answered := drained(st.alive)
		if answered {
			st.heard = now
		}
		switch {
		case !open:
			closed = append(closed, lent{id, st.lease})
		case now.Sub(st.heard).Seconds() > overdue*s.config.Lease.Seconds():
			late = append(late, lent{id, st.lease})
		}
	}
	return closed, late
}

// drained empties a channel, and reports whether it is open and there was an answer.
func drained(alive <-chan *clientv3.LeaseKeepAliveResponse) (open, answered bool) {
	for {
		select {
		case _, ok := <-alive:
			if !ok {
				return false, answered
			}
			answered = true
		default:
			return true, answered
		}
	}
}

// resume lets the client keep a lease alive again, if etcd still has it: it has all of
// them extended when a leader was elected. When a lease is lost, the watch tells of the nodes
// that have gone with it.
func (s *Store) resume(ctx context.Context, client *clientv3.Client, u lent) {
	if lost, err := s.lost(ctx, client, u); err != nil || lost {
		return
	}
	alive, end, err := keepAlive(client, u.lease) //nolint:contextcheck // it outlives who asks for it
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.streams[u.stream]
	if err != nil || st == nil || st.lease != u.lease {
		end()
		return
	}
	st.end()
	st.alive, st.end, st.heard = alive, end, time.Now()
}

// hurry renews a lease beside the client's one stream for all leases. That may hang at a
// member that does not answer until a ping is missed, which takes longer than short leases last.
func (s *Store) hurry(ctx context.Context, client *clientv3.Client, u lent) {
	if s.renew(ctx, client, u.lease) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.streams[u.stream]; st != nil && st.lease == u.lease {
		st.heard = time.Now()
	}
}

// adopt renews a lease that an owner of this name has left behind, unless its nodes would be
// older than they may be then. Since when they wait is a key of the lease itself.
func (s *Store) adopt(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) {
	if s.config.Lifetime == 0 {
		_ = s.renew(ctx, client, lease)
		return
	}
	asking, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	left, err := client.TimeToLive(asking, lease)
	if err != nil || left.TTL <= 0 {
		return
	}
	now := time.Now()
	heard := now.Unix() - (left.GrantedTTL - left.TTL)
	key := fmt.Sprintf("%s/left/%x", s.config.Prefix, int64(lease))
	reply, err := client.Txn(asking).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, strconv.FormatInt(heard, 10), clientv3.WithLease(lease))).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return
	}
	if !reply.Succeeded {
		if heard, err = strconv.ParseInt(string(reply.Responses[0].GetResponseRange().GetKvs()[0].GetValue()), 10, 64); err != nil {
			return
		}
	}
	if !now.Add(s.config.Lease).After(time.Unix(heard, 0).Add(s.config.Lifetime)) {
		_ = s.renew(ctx, client, lease)
	}
}

// renew keeps a lease alive once.
func (s *Store) renew(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) error {
	return s.anywhere(ctx, func(ctx context.Context) error {
		_, err := client.KeepAliveOnce(ctx, lease)
		return err
	})
}

// revoke ends the lease of a stream that was released. A put whose answer has never come
// may have left a key on it, which is nobody's to delete here: then it runs out. No other
// can come, as nothing is put for the stream any more.
func (s *Store) revoke(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(ctx, s.timing.probe)
	defer cancel()
	left, err := client.TimeToLive(ctx, lease, clientv3.WithAttachedKeys())
	if err == nil && left.TTL > 0 && len(left.Keys) == 0 {
		_, _ = client.Revoke(ctx, lease) // what fails runs out
	}
}
