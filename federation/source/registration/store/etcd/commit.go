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
	if err := s.grant(ctx, client, changes, true); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	s.letGo(changes)
	outcomes, err := s.write(ctx, client, changes)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return outcomes, nil
}

// write makes changes, and notes what streams hold by them. Their streams must be there.
func (s *Store) write(ctx context.Context, client *clientv3.Client, changes []store.Change) ([]store.Outcome, error) {
	var (
		outcomes = make([]store.Outcome, len(changes))
		leases   = make([]clientv3.LeaseID, len(changes))
		mu       sync.Mutex
		next     int
	)
	// How many transactions there will be depends on the sizes of the nodes, which are
	// encoded when it is their turn.
	most := (len(changes) + maxOperations - 1) / maxOperations
	err := parallel(min(atOnce, most), atOnce, func(int) error {
		for {
			mu.Lock()
			batch := s.batch(changes, next)
			next += len(batch)
			mu.Unlock()
			if len(batch) == 0 {
				return nil
			}
			if err := s.transact(ctx, client, batch, changes, outcomes, leases); err != nil {
				mu.Lock()
				next = len(changes) // no more of them
				mu.Unlock()
				return err
			}
		}
	})
	if err != nil {
		return nil, err
	}
	s.hold(changes, outcomes, leases)
	return outcomes, nil
}

// grant sees to a lease for every stream that something is put for. With begin the
// stream may be a new one.
func (s *Store) grant(ctx context.Context, client *clientv3.Client, changes []store.Change, begin bool) error {
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
		_, err := s.lease(ctx, client, without[i], begin)
		return err
	})
}

// letGo forgets what is to be deleted: it is not put again when its lease is lost.
func (s *Store) letGo(changes []store.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		if held, ok := s.held[c.Key]; ok && c.Node == nil && held.version == c.Before {
			delete(s.held, c.Key)
		}
	}
}

// hold notes what has been put.
func (s *Store) hold(changes []store.Change, outcomes []store.Outcome, leases []clientv3.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range changes {
		if c.Node == nil || outcomes[i].Conflict || s.streams[c.Node.Stream] == nil {
			continue
		}
		if held := s.held[c.Key]; held.version < outcomes[i].Version {
			s.held[c.Key] = holding{c.Node, outcomes[i].Version, leases[i]}
		}
	}
}

// operation is a change as etcd has it.
type operation struct {
	index  int // of the change
	key    string
	value  string // empty: delete
	before int64
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
			o.value = string(c.Node.Append(nil))
		}
		size += len(o.value)
		operations = append(operations, o)
	}
	return operations
}

// transact makes the changes of one batch, but for those in conflict.
func (s *Store) transact(ctx context.Context, client *clientv3.Client, batch []operation, changes []store.Change, outcomes []store.Outcome, leases []clientv3.LeaseID) error {
	for attempt := 1; len(batch) > 0; {
		thens := make([]clientv3.Op, 0, len(batch))
		for _, o := range batch {
			if o.value == "" {
				thens = append(thens, clientv3.OpDelete(o.key))
				continue
			}
			lease, err := s.lease(ctx, client, changes[o.index].Node.Stream, false)
			if err != nil {
				return err
			}
			leases[o.index] = lease
			thens = append(thens, clientv3.OpPut(o.key, o.value, clientv3.WithLease(lease)))
		}
		reply, err := attemptAll(ctx, client, batch, thens)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound) && attempt < maxAttempts: // nothing was done
			attempt++
			if err := s.forgetLost(ctx, client, batch, changes, leases); err != nil {
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

// attemptAll makes all changes of a batch if all keys have the versions that they must
// have, and returns the versions that they have otherwise.
func attemptAll(ctx context.Context, client *clientv3.Client, batch []operation, thens []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	compares := make([]clientv3.Cmp, len(batch))
	elses := make([]clientv3.Op, len(batch))
	for i, o := range batch {
		compares[i] = clientv3.Compare(clientv3.ModRevision(o.key), "=", o.before)
		elses[i] = clientv3.OpGet(o.key, clientv3.WithKeysOnly())
	}
	return client.Txn(ctx).If(compares...).Then(thens...).Else(elses...).Commit()
}

// forgetLost forgets those leases of a batch that are lost.
func (s *Store) forgetLost(ctx context.Context, client *clientv3.Client, batch []operation, changes []store.Change, leases []clientv3.LeaseID) error {
	asked := make(map[uint64]bool)
	for _, o := range batch {
		n := changes[o.index].Node
		if n == nil || asked[n.Stream] {
			continue
		}
		asked[n.Stream] = true
		if _, err := s.lost(ctx, client, n.Stream, leases[o.index]); err != nil {
			return err
		}
	}
	return nil
}
