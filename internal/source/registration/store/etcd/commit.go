package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
)

const (
	maxOperations = 127 // of a transaction, as etcd allows 128 by default and each is one with an operation; as many of the largest nodes are less than the 1.5 MiB of a request
	atOnce        = 8   // transactions in flight: etcd brings them to the disk together
)

// Commit implements store.Store. It fails at once while etcd is away. After an error it is not
// known which changes were made: when they are committed again, those that were made are in
// conflict, and the watcher learns of them.
func (s *Store) Commit(ctx context.Context, changes []store.Change) ([]store.CommitOutcome, error) {
	client, err := s.connectedClient()
	if err != nil {
		return nil, err
	}
	lease, err := s.grantLease(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	outcomes := make([]store.CommitOutcome, len(changes))
	group, working := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for from := 0; from < len(changes); from += maxOperations {
		to := min(from+maxOperations, len(changes))
		group.Go(func() error { return s.commitBatch(working, client, lease, changes[from:to], outcomes[from:to]) })
	}
	switch err = group.Wait(); {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		s.forgetLease(lease)
		fallthrough
	case err != nil:
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return outcomes, nil
}

// commitBatch makes changes in one transaction, in which each change is one of its own, and sets
// their outcomes.
func (s *Store) commitBatch(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID, changes []store.Change, outcomes []store.CommitOutcome) error {
	operations := make([]clientv3.Op, len(changes))
	for i, c := range changes {
		key := s.nodeKey(c.Key)
		change := clientv3.OpDelete(key)
		if c.Node != nil {
			change = clientv3.OpPut(key, string(c.Node.AppendStored(nil)), clientv3.WithLease(lease))
		}
		operations[i] = clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", c.Before)}, []clientv3.Op{change}, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timing.call)
	defer cancel()
	reply, err := client.Txn(ctx).Then(operations...).Commit()
	if err != nil {
		return err
	}
	for i, response := range reply.Responses {
		if outcomes[i].Conflict = !response.GetResponseTxn().GetSucceeded(); !outcomes[i].Conflict {
			outcomes[i].Version = reply.Header.GetRevision()
		}
	}
	return nil
}
