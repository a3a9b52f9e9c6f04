package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store"
)

const (
	maxOperations = 128     // of a transaction, by default of etcd
	maxBytes      = 1 << 20 // of their values; etcd takes requests of 1.5 MiB by default
	atOnce        = 8       // transactions in flight: etcd brings them to the disk together
	maxAttempts   = 3       // at a transaction that has found a lease lost
)

// errUnsettled says that a transaction fails although nothing is in conflict.
var errUnsettled = errors.New("etcd: a transaction fails without a conflict")

// Commit is that of store.Store. It fails at once while etcd is away. What has become of
// changes is unknown after an error: when they are committed again, those that were made are in
// conflict, and the watcher is told of them.
func (s *Store) Commit(ctx context.Context, changes []store.Change) ([]store.Outcome, error) {
	client, err := s.connected()
	if err != nil {
		return nil, err
	}
	if err := s.grant(ctx, client, changes); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	var (
		outcomes = make([]store.Outcome, len(changes))
		mu       sync.Mutex
		next     int
	)
	// How many transactions there will be depends on the sizes of the nodes, which are
	// encoded when it is their turn.
	most := (len(changes) + maxOperations - 1) / maxOperations
	err = parallel(min(atOnce, most), atOnce, func(int) error {
		for {
			mu.Lock()
			batch := s.batch(changes, next)
			next += len(batch)
			mu.Unlock()
			if len(batch) == 0 {
				return nil
			}
			if err := s.transact(ctx, client, batch, outcomes); err != nil {
				mu.Lock()
				next = len(changes) // no more of them
				mu.Unlock()
				return err
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return outcomes, nil
}

// grant sees to a lease for every stream that something is put for.
func (s *Store) grant(ctx context.Context, client *clientv3.Client, changes []store.Change) error {
	var without []uint64
	seen := make(map[uint64]bool)
	s.mu.Lock()
	for _, c := range changes {
		if c.Node == nil || seen[c.Node.Stream] {
			continue
		}
		seen[c.Node.Stream] = true
		if st := s.streams[c.Node.Stream]; st == nil || st.lease == clientv3.NoLease {
			without = append(without, c.Node.Stream)
		}
	}
	s.mu.Unlock()
	return parallel(len(without), leasesAtOnce, func(i int) error {
		_, err := s.lease(ctx, client, without[i], true)
		return err
	})
}

// operation is a change as etcd has it.
type operation struct {
	index  int // of the change
	key    string
	value  string // empty: delete
	before int64
	lent   // by which stream the value is put, and its lease when it was looked up last
}

// batch returns the operations of one transaction, for the changes from first on.
func (s *Store) batch(changes []store.Change, first int) []operation {
	if first >= len(changes) {
		return nil
	}
	operations := make([]operation, 0, min(maxOperations, len(changes)-first))
	for i, size := first, 0; i < len(changes) && len(operations) < maxOperations && size < maxBytes; i++ {
		c := changes[i]
		o := operation{index: i, key: s.key(c.Key), before: c.Before}
		if c.Node != nil {
			o.value, o.stream = string(c.Node.Append(nil)), c.Node.Stream
		}
		size += len(o.value)
		operations = append(operations, o)
	}
	return operations
}

// transact makes the changes of one batch, but for those in conflict.
func (s *Store) transact(ctx context.Context, client *clientv3.Client, batch []operation, outcomes []store.Outcome) error {
	for attempt := 1; len(batch) > 0; {
		reply, err := s.attempt(ctx, client, batch)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound) && attempt < maxAttempts: // nothing was done
			attempt++
			if err := s.forget(ctx, client, batch); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case reply.Succeeded:
			for _, o := range batch {
				outcomes[o.index] = store.Outcome{Version: reply.Header.GetRevision()}
			}
			return nil
		}
		kept := batch[:0]
		for i, o := range batch {
			var version int64
			if kvs := reply.Responses[i].GetResponseRange().GetKvs(); len(kvs) > 0 {
				version = kvs[0].GetModRevision()
			}
			if version == o.before {
				kept = append(kept, o)
				continue
			}
			outcomes[o.index] = store.Outcome{Version: version, Conflict: true}
		}
		if len(kept) == len(batch) {
			return errUnsettled
		}
		batch = kept
	}
	return nil
}

// attempt makes all changes of a batch if all keys have the versions that they must
// have, and returns the versions that they have otherwise.
func (s *Store) attempt(ctx context.Context, client *clientv3.Client, batch []operation) (*clientv3.TxnResponse, error) {
	compares := make([]clientv3.Cmp, len(batch))
	thens, elses := make([]clientv3.Op, len(batch)), make([]clientv3.Op, len(batch))
	for i := range batch {
		o := &batch[i]
		compares[i] = clientv3.Compare(clientv3.ModRevision(o.key), "=", o.before)
		elses[i] = clientv3.OpGet(o.key, clientv3.WithKeysOnly())
		if o.value == "" {
			thens[i] = clientv3.OpDelete(o.key)
			continue
		}
		lease, err := s.lease(ctx, client, o.stream, false)
		if err != nil {
			return nil, err
		}
		o.lease = lease
		thens[i] = clientv3.OpPut(o.key, o.value, clientv3.WithLease(lease))
	}
	ctx, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	return client.Txn(ctx).If(compares...).Then(thens...).Else(elses...).Commit()
}

// forget forgets those leases of a batch that are lost.
func (s *Store) forget(ctx context.Context, client *clientv3.Client, batch []operation) error {
	asked := make(map[lent]bool)
	for _, o := range batch {
		if o.value == "" || asked[o.lent] {
			continue
		}
		asked[o.lent] = true
		if _, err := s.lost(ctx, client, o.lent); err != nil {
			return err
		}
	}
	return nil
}
