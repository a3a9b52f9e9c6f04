package etcd

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
)

// pageSize is how many keys one request of a list asks for. Etcd counts all keys that are left
// for each, so small pages of a large list cost more than they save.
const pageSize = 5000

var (
	errClosed   = errors.New("the watch has ended")
	errReplaced = errors.New("the data of etcd has been replaced")
)

func (s *Store) nodesPrefix() string { return s.config.Prefix + "/nodes/" }

// markerKey returns the key whose value says that providers have had the time to register. An etcd
// without that key is new, or has lost its data.
func (s *Store) markerKey() string { return s.config.Prefix + "/begun" }

func (s *Store) nodeKey(k node.Key) string { return s.nodesPrefix() + k.StoreText() }

// probe returns the revision of etcd, and the value of the marker. Only a leader with a quorum answers.
func (s *Store) probe(ctx context.Context, client *clientv3.Client) (revision int64, begun string, err error) {
	reply, err := askMembers(ctx, s, func(ctx context.Context) (*clientv3.GetResponse, error) { return client.Get(ctx, s.markerKey()) })
	if err != nil {
		return 0, "", err
	}
	if len(reply.Kvs) > 0 {
		begun = string(reply.Kvs[0].GetValue())
	}
	return reply.Header.GetRevision(), begun, nil
}

// readNodes returns all nodes that etcd has, at one revision.
func (s *Store) readNodes(ctx context.Context, client *clientv3.Client) (nodes []store.VersionedNode, revision int64, err error) {
	for from := s.nodesPrefix(); ; {
		reply, err := s.readPage(ctx, client, from, revision)
		if err != nil {
			return nil, 0, err
		}
		revision = cmp.Or(revision, reply.Header.GetRevision())
		for _, kv := range reply.Kvs {
			if n := s.parseNode(kv); n != nil {
				nodes = append(nodes, store.VersionedNode{Node: n, Version: kv.GetModRevision()})
			}
		}
		if !reply.More || len(reply.Kvs) == 0 {
			return nodes, revision, nil
		}
		from = string(reply.Kvs[len(reply.Kvs)-1].GetKey()) + "\x00"
	}
}

func (s *Store) readPage(ctx context.Context, client *clientv3.Client, from string, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, onePage)
	defer cancel()
	end := clientv3.GetPrefixRangeEnd(s.nodesPrefix())
	return client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
}

// parseNode returns the node of a key, or nil for a value that no owner of this version has
// written. Such a key is ignored and left where it is.
func (s *Store) parseNode(kv *mvccpb.KeyValue) *node.Node {
	n, err := node.ParseStored(kv.GetValue())
	if err == nil && s.nodeKey(n.Key) != string(kv.GetKey()) {
		err = errors.New("it is the value of another key")
	}
	if err != nil {
		s.logger.Warn("a key in etcd is ignored", "key", safetext.Printable(string(kv.GetKey())), "error", err)
		return nil
	}
	return n
}

// followState reports to the watcher the content of etcd and its changes, until these are not known
// for certain any more. It returns why.
func (s *Store) followState(ctx context.Context, client *clientv3.Client, w store.Watcher) error {
	probed, begun, err := s.probe(ctx, client)
	if err != nil {
		return err
	}
	nodes, revision, err := s.readNodes(ctx, client)
	if err != nil {
		return err
	}
	if s.hasOtherData(probed, begun) {
		s.replacedAt = time.Now()
	}
	s.revision, s.begun = revision, begun
	s.tellState(w, nodes)

	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	probes := time.NewTicker(s.timing.probe)
	defer probes.Stop()
	// The client returns a watch only once etcd has opened it, so a goroutine waits for that: an etcd
	// that has gone must be noticed before. The notices of progress keep a watch of few changes from
	// falling behind a compaction.
	opened := make(chan clientv3.WatchChan, 1)
	wg.Go(func() {
		opened <- client.Watch(watching, s.nodesPrefix(), clientv3.WithPrefix(), clientv3.WithRev(revision+1), clientv3.WithProgressNotify())
	})
	var events clientv3.WatchChan // nil until it is open
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case events = <-opened:
		case reply, ok := <-events:
			if !ok {
				return errClosed
			}
			if err := reply.Err(); err != nil {
				return err
			}
			s.revision = max(s.revision, reply.Header.GetRevision())
			s.tellEvents(w, reply.Events)
		case <-probes.C:
			if err := s.checkState(ctx, client, since); err != nil {
				return err
			}
		}
	}
}

// checkState probes etcd, and returns why the state cannot be followed any more, or nil. A watch does
// not notice when etcd does not answer, or when its data was lost or restored: it waits in silence for
// revisions that are to come.
func (s *Store) checkState(ctx context.Context, client *clientv3.Client, since time.Time) error {
	revision, begun, err := s.probe(ctx, client)
	if err != nil {
		if time.Since(s.heard) < s.timing.patience {
			return nil
		}
		return err
	}
	s.heard = time.Now()
	if s.hasOtherData(revision, begun) {
		return errReplaced
	}
	s.begun = begun
	if s.begun != "" || time.Since(since) < s.config.Lease {
		return nil
	}
	return s.setMarker(ctx, client)
}

// hasOtherData reports, by the answer to a probe, whether the data of etcd was lost or restored, so
// that its revisions are not comparable with earlier ones.
func (s *Store) hasOtherData(revision int64, begun string) bool {
	return revision < s.revision || s.begun != "" && begun != s.begun
}

// setMarker sets the marker. By then providers have had as long as a lease to register, with an
// owner that has listened all the time.
func (s *Store) setMarker(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, s.timing.call)
	defer cancel()
	reply, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.markerKey()), "=", 0)).
		Then(clientv3.OpPut(s.markerKey(), rand.Text())).Commit()
	if err != nil {
		return err
	}
	if reply.Succeeded {
		s.logger.Info("the registrations in etcd are complete from now on")
	}
	return nil // the next probe has the value
}

// tellState passes all nodes that etcd has to the watcher, and with them that etcd answers.
func (s *Store) tellState(w store.Watcher, nodes []store.VersionedNode) {
	s.heard = time.Now()
	wasAway := s.away.Swap(false)
	// An older copy of the data has the marker, but not what came after it.
	w.SetState(nodes, s.begun != "" && time.Since(s.replacedAt) >= s.config.Lease)
	if wasAway {
		w.SetAway(nil)
	}
}

// tellEvents passes events to the watcher.
func (s *Store) tellEvents(w store.Watcher, events []*clientv3.Event) {
	var (
		nodes []store.VersionedNode
		gone  []store.DeletedKey
	)
	for _, event := range events {
		version := event.GetKv().GetModRevision()
		if event.GetType() == clientv3.EventTypePut {
			if n := s.parseNode(event.GetKv()); n != nil {
				nodes = append(nodes, store.VersionedNode{Node: n, Version: version})
			}
			continue
		}
		if key, err := node.ParseKey(strings.TrimPrefix(string(event.GetKv().GetKey()), s.nodesPrefix())); err == nil { // else parseNode has told of it
			gone = append(gone, store.DeletedKey{Key: key, Version: version})
		}
	}
	if len(nodes)+len(gone) > 0 {
		w.ApplyChanges(nodes, gone)
	}
}
