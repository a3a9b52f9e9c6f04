package realserver

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
)

// Etcd is a running etcd of one member, without authentication. It keeps nothing.
type Etcd struct {
	URL string // of its clients
	PID int
}

// StartEtcd starts etcd and waits until it is healthy.
func StartEtcd(tb testing.TB) *Etcd {
	tb.Helper()
	path, dir := etcd.path(tb), tb.TempDir()
	e := &Etcd{URL: "http://" + freeAddress(tb)}
	peers := "http://" + freeAddress(tb)
	e.PID = start(tb, dir, path, []string{
		"--data-dir", "data", "--unsafe-no-fsync", // a test that ends needs no disk
		"--listen-client-urls", e.URL, "--advertise-client-urls", e.URL,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default=" + peers,
	}, func() error {
		_, err := e.call(tb.Context(), http.MethodGet, "/health", nil)
		return err
	})
	return e
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
