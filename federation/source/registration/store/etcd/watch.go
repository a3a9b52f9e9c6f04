package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store"
)

// pageSize is how many keys one request of a list asks for. Etcd counts all that are left
// for each, so small pages of a large list cost more than they save.
const pageSize = 5000

var (
	errClosed   = errors.New("the watch has ended")
	errReplaced = errors.New("the data of etcd has been replaced")
)

func (s *Store) nodes() string { return s.config.Prefix + "/nodes/" }

// marker is the key whose value says that the providers have had the time to come: an
// etcd without it is new, or has lost its data.
func (s *Store) marker() string { return s.config.Prefix + "/begun" }

func (s *Store) key(k node.Key) string { return s.nodes() + k.Service.String() + "/" + k.URI.String() }

// parseKey is the reverse of key.
func (s *Store) parseKey(text string) (node.Key, error) {
	service, uri, _ := strings.Cut(strings.TrimPrefix(text, s.nodes()), "/")
	name, err := federation.ParseFQDN(service)
	if err != nil {
		return node.Key{}, err
	}
	at, err := node.ParseURI(uri, netip.Addr{})
	return node.Key{Service: name, URI: at}, err
}

// probe is what etcd answers when it is asked whether it is there.
type probe struct {
	err      error
	revision int64
	begun    string // the value of the marker
}

// ask asks etcd whether it is there. Only a leader with a quorum answers.
func (s *Store) ask(ctx context.Context, client *clientv3.Client) (p probe) {
	answers := make(chan probe, 1) // the first one counts
	err := s.anywhere(ctx, func(ctx context.Context) error {
		reply, err := client.Get(ctx, s.marker())
		if err != nil {
			return err
		}
		answer := probe{revision: reply.Header.GetRevision()}
		if len(reply.Kvs) > 0 {
			answer.begun = string(reply.Kvs[0].GetValue())
		}
		select {
		case answers <- answer:
		default:
		}
		return nil
	})
	if err != nil {
		return probe{err: err}
	}
	return <-answers
}

// snapshot is all that etcd has, at one revision.
type snapshot struct {
	nodes    map[node.Key]versioned
	revision int64
}

type versioned struct {
	store.Versioned

	lease clientv3.LeaseID
}

// list reads all that etcd has.
func (s *Store) list(ctx context.Context, client *clientv3.Client) (snapshot, error) {
	all := snapshot{nodes: make(map[node.Key]versioned)}
	for from, end := s.nodes(), clientv3.GetPrefixRangeEnd(s.nodes()); ; {
		reply, err := s.page(ctx, client, from, end, all.revision)
		if err != nil {
			return all, err
		}
		if all.revision == 0 {
			all.revision = reply.Header.GetRevision()
		}
		for _, kv := range reply.Kvs {
			if n := s.parse(kv); n != nil {
				all.nodes[n.Key] = versioned{store.Versioned{Node: n, Version: kv.GetModRevision()}, clientv3.LeaseID(kv.GetLease())}
			}
		}
		if !reply.More || len(reply.Kvs) == 0 {
			return all, nil
		}
		from = string(reply.Kvs[len(reply.Kvs)-1].GetKey()) + "\x00"
	}
}

func (s *Store) page(ctx context.Context, client *clientv3.Client, from, end string, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, onePage)
	defer cancel()
	return client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
}

// parse returns the node of a key, or nil for one that no owner of this version has
// written: it is ignored, and left where it is.
func (s *Store) parse(kv *mvccpb.KeyValue) *node.Node {
	n, err := node.Parse(kv.GetValue())
	if err == nil && s.key(n.Key) != string(kv.GetKey()) {
		err = errors.New("it is the value of another key")
	}
	if err != nil {
		s.logger.Warn("a key in etcd is ignored", "key", federation.Quote(string(kv.GetKey())), "error", err)
		return nil
	}
	return n
}

// follow tells the watcher what etcd has, and what changes, until that is not known
// for certain any more.
func (s *Store) follow(ctx context.Context, client *clientv3.Client, w store.Watcher) error {
	p := s.ask(ctx, client)
	if p.err != nil {
		return p.err
	}
	all, err := s.list(ctx, client)
	if err != nil {
		return err
	}
	missing := s.compare(all, s.replaced(p))
	s.revision, s.begun = all.revision, p.begun
	if _, err := s.restore(ctx, client, missing, func(v store.Versioned) { all.nodes[v.Node.Key] = versioned{Versioned: v} }); err != nil {
		return err
	}
	s.tell(w, all)

	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	probes := make(chan probe)
	wg.Go(func() { s.probe(watching, client, probes) })
	// The notices of progress keep a watch of few changes from falling behind a compaction.
	events := client.Watch(watching, s.nodes(), clientv3.WithPrefix(), clientv3.WithRev(all.revision+1), clientv3.WithProgressNotify())
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case reply, ok := <-events:
			if !ok {
				return errClosed
			}
			if err := reply.Err(); err != nil {
				return err
			}
			s.revision = max(s.revision, reply.Header.GetRevision())
			if err := s.apply(ctx, client, w, reply.Events); err != nil {
				return err
			}
		case p := <-probes:
			if err := s.check(ctx, client, p, since); err != nil {
				return err
			}
		}
	}
}

// probe asks etcd again and again.
func (s *Store) probe(ctx context.Context, client *clientv3.Client, probes chan<- probe) {
	for ctx.Err() == nil {
		pause(ctx, s.timing.probe)
		select {
		case probes <- s.ask(ctx, client):
		case <-ctx.Done():
		}
	}
}

// check judges a probe. A watch waits in silence where etcd does not answer, and where
// its data has been lost or restored, for revisions that are to come.
func (s *Store) check(ctx context.Context, client *clientv3.Client, p probe, since time.Time) error {
	if p.err != nil {
		if time.Since(s.heard) < s.timing.patience {
			return nil
		}
		return p.err
	}
	s.heard = time.Now()
	if s.replaced(p) {
		return errReplaced
	}
	s.begun = p.begun
	if s.begun != "" || time.Since(since) < s.config.Lease {
		return nil
	}
	return s.begin(ctx, client)
}

// replaced reports whether etcd has other data than before, lost or restored: its
// revisions are not comparable then.
func (s *Store) replaced(p probe) bool {
	return p.revision < s.revision || s.begun != "" && p.begun != s.begun
}

// begin sets the marker, when providers have had as long as a lease to register, with an owner
// that has listened all the time.
func (s *Store) begin(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	reply, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.marker()), "=", 0)).
		Then(clientv3.OpPut(s.marker(), rand.Text())).Commit()
	if err != nil {
		return err
	}
	if reply.Succeeded {
		s.logger.Info("the registrations in etcd are complete from now on")
	}
	return nil // the next probe has the value
}

// tell tells the watcher all that etcd has, and that it is there.
func (s *Store) tell(w store.Watcher, all snapshot) {
	s.heard = time.Now()
	nodes := make([]store.Versioned, 0, len(all.nodes))
	for _, v := range all.nodes {
		nodes = append(nodes, v.Versioned)
	}
	s.adopt(all)
	s.sleep(false)
	w.State(nodes, s.begun != "")
	if s.away {
		s.away = false
		s.logger.Info("etcd is back", "nodes", len(nodes))
		w.Away(nil)
	}
}

// adopt has the leases that an owner of this name has left behind renewed, once: from now
// on its providers have as long as a lease to come back.
func (s *Store) adopt(all snapshot) {
	if s.adopted {
		return
	}
	s.adopted = true
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := make(map[clientv3.LeaseID]bool)
	for _, v := range all.nodes {
		if v.Node.Owner == s.config.Owner && s.streams[v.Node.Stream] == nil && v.lease != clientv3.NoLease && !seen[v.lease] {
			seen[v.lease] = true
			s.former = append(s.former, v.lease)
		}
	}
}

// compare brings what is held up to date with what etcd has, and returns what it should
// have and has not. With replaced its versions are not comparable with those held.
func (s *Store) compare(all snapshot, replaced bool) (missing []holding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, held := range s.held {
		switch now, ok := all.nodes[key]; {
		case ok && (replaced || now.Version > held.version):
			delete(s.held, key) // and comes back below, unless it has moved
		case !ok && (replaced || held.version <= all.revision): // else it has just been put
			missing = append(missing, held)
		}
	}
	for key, now := range all.nodes {
		if _, ok := s.held[key]; !ok && s.streams[now.Node.Stream] != nil {
			s.held[key] = holding{now.Node, now.Version, now.lease}
		}
	}
	return missing
}

// restore puts those nodes again that have gone with the leases of their streams, and
// calls restored with each that is there again. It returns the others: somebody has
// deleted them, or the stream has been released.
func (s *Store) restore(ctx context.Context, client *clientv3.Client, missing []holding, restored func(store.Versioned)) (gone []node.Key, err error) {
	if len(missing) == 0 {
		return nil, nil
	}
	ended, err := s.endedLeases(ctx, client, missing)
	if err != nil {
		return nil, err
	}
	var changes []store.Change
	for _, held := range missing {
		s.mu.Lock()
		if ended[held.lease] && s.streams[held.node.Stream] != nil {
			changes = append(changes, store.Change{Key: held.node.Key, Node: held.node})
		} else {
			s.drop(held)
			gone = append(gone, held.node.Key)
		}
		s.mu.Unlock()
	}
	if len(changes) == 0 {
		return gone, nil
	}
	if err := s.grant(ctx, client, changes, false); err != nil {
		return nil, err
	}
	outcomes, err := s.write(ctx, client, changes)
	if err != nil {
		return nil, err
	}
	for i, o := range outcomes {
		if !o.Conflict { // else somebody has put it meanwhile, of which the watch tells
			restored(store.Versioned{Node: changes[i].Node, Version: o.Version})
		}
	}
	s.logger.Warn("leases in etcd were lost, their nodes are put again", "nodes", len(changes))
	return gone, nil
}

// drop forgets that a node is held, if it is still that version of it.
func (s *Store) drop(h holding) {
	if s.held[h.node.Key].version == h.version {
		delete(s.held, h.node.Key)
	}
}

// endedLeases returns which leases of nodes have ended.
func (s *Store) endedLeases(ctx context.Context, client *clientv3.Client, nodes []holding) (map[clientv3.LeaseID]bool, error) {
	var (
		mu    sync.Mutex
		ended = make(map[clientv3.LeaseID]bool)
		all   []unkept
	)
	for _, held := range nodes {
		if _, ok := ended[held.lease]; !ok {
			ended[held.lease] = false
			all = append(all, unkept{held.node.Stream, held.lease})
		}
	}
	err := parallel(len(all), leasesAtOnce, func(i int) error {
		lost, err := s.lost(ctx, client, all[i].stream, all[i].lease)
		mu.Lock()
		ended[all[i].lease] = lost
		mu.Unlock()
		return err
	})
	return ended, err
}

// apply tells the watcher of events. What has gone with a lease of a stream that lives
// is put again instead, and the watch tells of that.
func (s *Store) apply(ctx context.Context, client *clientv3.Client, w store.Watcher, events []*clientv3.Event) error {
	var (
		nodes   []store.Versioned
		gone    []store.Gone
		missing []holding
		since   = make(map[node.Key]int64) // versions of the deletions of what is missing
	)
	for _, event := range events {
		version := event.GetKv().GetModRevision()
		if event.GetType() == clientv3.EventTypePut {
			if n := s.parse(event.GetKv()); n != nil {
				s.noticed(holding{n, version, clientv3.LeaseID(event.GetKv().GetLease())})
				nodes = append(nodes, store.Versioned{Node: n, Version: version})
			}
			continue
		}
		key, err := s.parseKey(string(event.GetKv().GetKey()))
		if err != nil {
			continue // parse has told of it
		}
		s.mu.Lock()
		held, ok := s.held[key]
		s.mu.Unlock()
		switch {
		case !ok:
			gone = append(gone, store.Gone{Key: key, Version: version})
		case held.version < version:
			missing = append(missing, held)
			since[key] = version
		} // else it has been put again
	}
	deleted, err := s.restore(ctx, client, missing, func(store.Versioned) {})
	if err != nil {
		return err
	}
	for _, key := range deleted {
		gone = append(gone, store.Gone{Key: key, Version: since[key]})
	}
	if len(nodes)+len(gone) > 0 {
		w.Changed(nodes, gone)
	}
	return nil
}

// noticed notes that a node is there: whether a stream of this owner holds it.
func (s *Store) noticed(now holding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch held, ok := s.held[now.node.Key]; {
	case ok && held.version >= now.version:
	case s.streams[now.node.Stream] != nil:
		s.held[now.node.Key] = now
	default:
		delete(s.held, now.node.Key)
	}
}
