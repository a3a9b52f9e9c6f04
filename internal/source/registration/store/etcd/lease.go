package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
)

// spread is the number of leases to which the nodes of an owner belong. Etcd ends a lease with all of its
// nodes at once, and does nothing else meanwhile, which takes two seconds for 100,000 nodes.
const spread = 64

// grantedLease is a lease to which the nodes of some streams belong.
type grantedLease struct {
	id      clientv3.LeaseID // NoLease: none has been granted yet, or it was lost
	renewed time.Time        // when etcd was asked last for the time that it has left
}

// leaseOf returns the index of the lease of a node.
func leaseOf(n *node.Node) int { return int(n.Stream % spread) }

// grantLeases returns the leases of this owner, after it has granted those that the changes need
// and that are missing.
func (s *Store) grantLeases(ctx context.Context, client *clientv3.Client, operations []keyOperation) (leases [spread]grantedLease, err error) {
	leases = s.currentLeases()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	var asked [spread]bool
	for i := range operations {
		n := operations[i].change.Node
		if n == nil || asked[leaseOf(n)] || leases[leaseOf(n)].id != clientv3.NoLease {
			continue
		}
		asked[leaseOf(n)] = true
		group.Go(func() error {
			now := time.Now()
			ctx, cancel := context.WithTimeout(ctx, s.timing.call)
			defer cancel()
			reply, err := client.Grant(ctx, int64((s.config.Lease+time.Second-1)/time.Second)) // etcd counts in seconds
			if err != nil {
				return err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.leases[leaseOf(n)] = grantedLease{reply.ID, now}
			return nil
		})
	}
	err = group.Wait()
	return s.currentLeases(), err
}

func (s *Store) currentLeases() [spread]grantedLease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases
}

// keepLeases renews the leases of this owner when a third of them is over, until ctx ends. It tries
// again in the next round what fails, and does nothing while etcd is away. It leaves alone the leases
// of an owner that had this name before: they end when that owner has been gone for as long as they
// last, however often owners of its name begin. The client could renew leases itself, but its
// one stream for all leases may hang at a member that does not answer.
func (s *Store) keepLeases(ctx context.Context, client *clientv3.Client) {
	ticker := time.NewTicker(s.timing.keep)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if _, err := s.connectedClient(); err != nil {
			continue
		}
		s.renewLeases(ctx, client, s.config.Lease/3)
	}
}

// renewLeases renews the leases of this owner whose last renewal is longer ago than since. It
// forgets leases that etcd does not have any more: the watch reports the nodes that have gone with
// them.
func (s *Store) renewLeases(ctx context.Context, client *clientv3.Client, since time.Duration) {
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, l := range s.currentLeases() {
		now := time.Now()
		if l.id == clientv3.NoLease || now.Sub(l.renewed) < since {
			continue
		}
		group.Go(func() error {
			err := s.renewLease(ctx, client, l.id)
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case s.leases[i].id != l.id: // another lease has replaced it
			case err == nil:
				s.leases[i].renewed = now
			case errors.Is(err, rpctypes.ErrLeaseNotFound):
				s.leases[i] = grantedLease{}
				s.logger.Warn("a lease in etcd was lost; its nodes are stored again", "lease", fmt.Sprintf("%x", int64(l.id)))
			}
			return nil
		})
	}
	_ = group.Wait() // none fails
}

// renewLease keeps a lease alive once.
func (s *Store) renewLease(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID) error {
	_, err := askAnyMember(ctx, s, func(ctx context.Context) (*clientv3.LeaseKeepAliveResponse, error) {
		return client.KeepAliveOnce(ctx, id)
	})
	return err
}
