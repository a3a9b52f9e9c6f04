package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hamlet-federation/coredns-federation/internal/source/internal/reconnect"
)

// grantedLease is the lease to which all nodes of this owner belong.
type grantedLease struct {
	id      clientv3.LeaseID // NoLease: none has been granted yet, or it was lost
	renewed time.Time        // when etcd was asked last for the time that it has left
}

// grantLease returns the lease of this owner, after it has been granted where there is none.
func (s *Store) grantLease(ctx context.Context, client *clientv3.Client) (clientv3.LeaseID, error) {
	lease := s.currentLease()
	if lease.id != clientv3.NoLease {
		return lease.id, nil
	}
	now := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.timing.call)
	defer cancel()
	reply, err := client.Grant(ctx, int64((s.config.Lease+time.Second-1)/time.Second)) // etcd counts in seconds
	if err != nil {
		return clientv3.NoLease, err
	}
	s.replaceLease(lease.id, grantedLease{reply.ID, now})
	return reply.ID, nil
}

func (s *Store) currentLease() grantedLease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

// replaceLease replaces the lease of that ID, unless another one has replaced it already.
func (s *Store) replaceLease(id clientv3.LeaseID, by grantedLease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease.id == id {
		s.lease = by
	}
}

// forgetLease forgets a lease that etcd does not have any more: the watch reports the nodes that have
// gone with it.
func (s *Store) forgetLease(id clientv3.LeaseID) {
	s.replaceLease(id, grantedLease{})
	s.logger.Warn("a lease in etcd was lost; its nodes are stored again", "lease", fmt.Sprintf("%x", int64(id)))
}

// keepLease renews the lease of this owner when a third of it is over, until ctx ends. It tries again
// in the next round what fails, and does nothing while etcd is away. It leaves alone the lease of an
// owner that had this name before: it ends when that owner has been gone for as long as it lasts,
// however often owners of its name begin. The client could renew leases itself, but its one stream for
// them may hang at a member that does not answer.
func (s *Store) keepLease(ctx context.Context, client *clientv3.Client) {
	for reconnect.WaitFor(ctx, s.timing.keep) {
		lease, now := s.currentLease(), time.Now()
		if _, err := s.connectedClient(); err != nil || lease.id == clientv3.NoLease || now.Sub(lease.renewed) < s.config.Lease/3 {
			continue
		}
		_, err := askMembers(ctx, s, func(ctx context.Context) (*clientv3.LeaseKeepAliveResponse, error) {
			return client.KeepAliveOnce(ctx, lease.id)
		})
		switch {
		case err == nil:
			s.replaceLease(lease.id, grantedLease{lease.id, now})
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			s.forgetLease(lease.id)
		}
	}
}
