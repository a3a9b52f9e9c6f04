package realserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// Etcd is a running member of etcd, mostly the only one, without authentication. It
// keeps its data over its starts, but not over a crash of the machine.
type Etcd struct {
	*Process

	URL string // of its clients

	peers string // its URL for other members
}

// StartEtcd starts etcd and waits until it is healthy.
func StartEtcd(tb testing.TB) *Etcd {
	tb.Helper()
	return StartEtcdCluster(tb, tb.TempDir())[0]
}

// StartEtcdCluster starts the members of one etcd, each with its files in a folder, and
// waits until all are healthy.
func StartEtcdCluster(tb testing.TB, dirs ...string) []*Etcd {
	tb.Helper()
	need(tb, FindEtcd())
	members := must.Get(newEtcds(dirs...))(tb)
	for _, e := range members {
		endWith(tb, (*Process).Stop, e.Process)
		must.Do(tb, e.Launch())
	}
	for _, e := range members {
		must.Do(tb, e.Await(tb.Context()))
	}
	return members
}

// newEtcd returns an etcd of one member that has not been started, with its files in dir.
func newEtcd(dir string) (*Etcd, error) {
	members, err := newEtcds(dir)
	if err != nil {
		return nil, err
	}
	return members[0], nil
}

// newEtcds returns the members of one etcd that have not been started.
func newEtcds(dirs ...string) ([]*Etcd, error) {
	path, err := etcd.findHere()
	if err != nil {
		return nil, err
	}
	addresses, err := freeAddresses(2 * len(dirs))
	if err != nil {
		return nil, err
	}
	var (
		members = make([]*Etcd, len(dirs))
		cluster = make([]string, len(dirs))
		name    = func(i int) string { return fmt.Sprintf("member%d", i) }
	)
	for i := range dirs {
		members[i] = &Etcd{URL: "http://" + addresses[2*i], peers: "http://" + addresses[2*i+1]}
		cluster[i] = name(i) + "=" + members[i].peers
	}
	for i, e := range members {
		e.Process = &Process{
			Name: "etcd", Path: path, Dir: dirs[i],
			Args: []string{
				"--name", name(i), "--data-dir", etcdData, "--unsafe-no-fsync", // what ends with a test needs no disk
				"--bcrypt-cost", "4", // nor passwords that take seconds to check on a machine that is busy
				"--listen-client-urls", e.URL, "--advertise-client-urls", e.URL,
				"--listen-peer-urls", e.peers, "--initial-advertise-peer-urls", e.peers,
				"--initial-cluster", strings.Join(cluster, ","),
			},
			Ready: func(ctx context.Context) error {
				_, err := e.call(ctx, http.MethodGet, "/health", nil)
				return err
			},
		}
	}
	return members, nil
}

// Leads reports whether the member is the leader, as it sees it.
func (e *Etcd) Leads(ctx context.Context) (bool, error) {
	body, err := e.call(ctx, http.MethodPost, "/v3/maintenance/status", map[string]any{})
	if err != nil {
		return false, err
	}
	var reply struct {
		Header struct {
			Member string `json:"member_id"` //nolint:tagliatelle // the name in etcd
		} `json:"header"`
		Leader string `json:"leader"`
	}
	err = json.Unmarshal(body, &reply)
	return reply.Leader == reply.Header.Member, err
}

// etcdData is the folder of the data, in the working directory.
const etcdData = "data"

// Compact forgets every revision but the last, as etcd's own compaction does after a
// while: who watches from an older one is told that it is gone.
func (e *Etcd) Compact(ctx context.Context) error {
	body, err := e.call(ctx, http.MethodPost, "/v3/kv/range", map[string]any{"key": []byte("/")})
	if err != nil {
		return err
	}
	var reply struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := json.Unmarshal(body, &reply); err != nil {
		return err
	}
	_, err = e.call(ctx, http.MethodPost, "/v3/kv/compaction", map[string]any{"revision": reply.Header.Revision, "physical": true})
	return err
}

// Restore ends etcd, and starts it again with the data in a folder, which may be none.
func (e *Etcd) Restore(ctx context.Context, from string) error {
	e.Kill()
	data := filepath.Join(e.Dir, etcdData)
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	if err := os.CopyFS(data, os.DirFS(from)); err != nil {
		return err
	}
	return e.Start(ctx)
}

// maxOperations is how many operations etcd takes in one transaction, by default.
const maxOperations = 128

// Put writes values by key, not all at once.
func (e *Etcd) Put(ctx context.Context, values map[string]string) error {
	type put struct { // etcd's JSON has bytes in base64, as encoding/json does
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	}
	type operation struct {
		Put put `json:"requestPut"`
	}
	var operations []operation
	flush := func() error {
		_, err := e.call(ctx, http.MethodPost, "/v3/kv/txn", map[string]any{"success": operations})
		operations = operations[:0]
		return err
	}
	for key, value := range values {
		operations = append(operations, operation{put{[]byte(key), []byte(value)}})
		if len(operations) == maxOperations {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(operations) == 0 {
		return nil
	}
	return flush()
}

// Get returns the value of a key, or "" where there is none.
func (e *Etcd) Get(ctx context.Context, key string) (string, error) {
	body, err := e.call(ctx, http.MethodPost, "/v3/kv/range", map[string]any{"key": []byte(key)})
	if err != nil {
		return "", err
	}
	var reply struct {
		KVs []struct {
			Value []byte `json:"value"`
		} `json:"kvs"`
	}
	if err := json.Unmarshal(body, &reply); err != nil || len(reply.KVs) == 0 {
		return "", err
	}
	return string(reply.KVs[0].Value), nil
}

// call calls etcd through its gateway for JSON, and returns the body of the reply.
func (e *Etcd) call(ctx context.Context, method, path string, message any) ([]byte, error) {
	return call(ctx, http.DefaultClient, method, e.URL+path, "", message)
}
