package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
)

const (
	maxOperations = 128 // of a transaction, by default of etcd; as many of the largest nodes are less than the 1.5 MiB of a request
	atOnce        = 8   // transactions in flight: etcd brings them to the disk together
	maxAttempts   = 3   // at a commit that has found a lease lost
)

// errUnsettled is the error for a transaction that fails although nothing is in conflict.
var errUnsettled = errors.New("etcd: a transaction fails without a conflict")

// Commit implements store.Store. It fails at once while etcd is away. After an error it is not
// known which changes were made: when they are committed again, those that were made are in
// conflict, and the watcher learns of them.
func (s *Store) Commit(ctx context.Context, changes []store.Change) ([]store.CommitOutcome, error) {
	client, err := s.connectedClient()
	if err != nil {
		return nil, err
	}
	operations := make([]keyOperation, len(changes))
	for i, c := range changes {
		operations[i] = keyOperation{key: s.nodeKey(c.Key), change: c}
	}
	err = rpctypes.ErrLeaseNotFound // as if it were lost
	for attempt := 1; errors.Is(err, rpctypes.ErrLeaseNotFound) && attempt <= maxAttempts; attempt++ {
		err = s.transactAll(ctx, client, operations)
	}
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	outcomes := make([]store.CommitOutcome, len(changes))
	for i := range operations {
		outcomes[i] = operations[i].outcome
	}
	return outcomes, nil
}

// keyOperation is a change of one key of etcd.
type keyOperation struct {
	key     string
	change  store.Change
	outcome store.CommitOutcome
	done    bool // the operation is done, and outcome is set
}

// transactAll makes the changes that are not done, in several transactions at a time.
func (s *Store) transactAll(ctx context.Context, client *clientv3.Client, operations []keyOperation) error {
	leases, err := s.grantLeases(ctx, client, operations)
	if err != nil {
		return err
	}
	// A lost lease does not cancel the other transactions, because nobody knows what becomes of a
	// cancelled one.
	var lost atomic.Bool
	group, working := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for batch := range slices.Chunk(operations, maxOperations) {
		group.Go(func() error {
			err := s.commitBatch(working, client, &leases, batch)
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				lost.Store(true)
				return nil
			}
			return err
		})
	}
	if err = group.Wait(); err == nil && lost.Load() {
		err = rpctypes.ErrLeaseNotFound
		s.renewLeases(ctx, client, 0) // which finds the lost one
	}
	return err
}

// commitBatch makes the changes of one transaction, except those in conflict.
func (s *Store) commitBatch(ctx context.Context, client *clientv3.Client, leases *[spread]grantedLease, batch []keyOperation) error {
	var left []*keyOperation
	for i := range batch {
		if !batch[i].done {
			left = append(left, &batch[i])
		}
	}
	for len(left) > 0 {
		reply, err := s.tryTransaction(ctx, client, leases, left)
		switch {
		case err != nil:
			return err
		case reply.Succeeded:
			for _, o := range left {
				o.outcome, o.done = store.CommitOutcome{Version: reply.Header.GetRevision()}, true
			}
			return nil
		}
		kept := left[:0]
		for i, o := range left {
			var version int64
			if kvs := reply.Responses[i].GetResponseRange().GetKvs(); len(kvs) > 0 {
				version = kvs[0].GetModRevision()
			}
			if version == o.change.Before {
				kept = append(kept, o)
				continue
			}
			o.outcome, o.done = store.CommitOutcome{Version: version, Conflict: true}, true
		}
		if len(kept) == len(reply.Responses) {
			return errUnsettled
		}
		left = kept
	}
	return nil
}

// tryTransaction makes all of the changes if all keys have the versions that they must have, and
// otherwise returns the versions of the keys.
func (s *Store) tryTransaction(ctx context.Context, client *clientv3.Client, leases *[spread]grantedLease, left []*keyOperation) (*clientv3.TxnResponse, error) {
	compares := make([]clientv3.Cmp, len(left))
	thens, elses := make([]clientv3.Op, len(left)), make([]clientv3.Op, len(left))
	for i, o := range left {
		compares[i] = clientv3.Compare(clientv3.ModRevision(o.key), "=", o.change.Before)
		elses[i] = clientv3.OpGet(o.key, clientv3.WithKeysOnly())
		if n := o.change.Node; n != nil {
			thens[i] = clientv3.OpPut(o.key, string(n.AppendStored(nil)), clientv3.WithLease(leases[leaseOf(n)].id))
		} else {
			thens[i] = clientv3.OpDelete(o.key)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.timing.call)
	defer cancel()
	return client.Txn(ctx).If(compares...).Then(thens...).Else(elses...).Commit()
}
