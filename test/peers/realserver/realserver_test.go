package realserver

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestEtcd(t *testing.T) {
	e := StartEtcd(t)
	values := make(map[string]string)
	for i := range maxOperations + 1 {
		values[fmt.Sprintf("/k/%d", i)] = fmt.Sprintf("v%d\x00", i)
	}
	must.Do(t, e.Put(t.Context(), values))
	for key, want := range values {
		if got, err := e.Get(t.Context(), key); got != want || err != nil {
			t.Errorf("value of %s is %q, %v, want %q", key, got, err, want)
		}
	}
	if got, err := e.Get(t.Context(), "/k"); got != "" || err != nil {
		t.Errorf("value of a key that was not written is %q, %v", got, err)
	}
}

func TestEtcdCluster(t *testing.T) {
	members := StartEtcdCluster(t, t.TempDir(), t.TempDir(), t.TempDir())
	must.Do(t, members[0].Put(t.Context(), map[string]string{"/k": "v"}))
	for _, e := range members {
		if got, err := e.Get(t.Context(), "/k"); got != "v" || err != nil {
			t.Errorf("a member has %q, %v", got, err)
		}
	}
	err := until(t.Context(), func() error { // one election may follow another
		leaders := 0
		for _, e := range members {
			leads, err := e.Leads(t.Context())
			if err != nil {
				return err
			}
			if leads {
				leaders++
			}
		}
		if leaders != 1 {
			return fmt.Errorf("there are %d leaders", leaders)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAPIServer(t *testing.T) {
	s := StartAPIServer(t)
	service := map[string]any{
		"metadata": map[string]any{"name": "web"},
		"spec":     map[string]any{"clusterIP": "10.96.1.2", "ports": []any{map[string]any{"name": "http", "port": 80}}},
	}
	if err := s.Create(t.Context(), "/api/v1/namespaces/team/services", service); err == nil {
		t.Error("a Service is created in a namespace that does not exist")
	}
	must.Do(t, s.Create(t.Context(), "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": "team"}}))
	must.Do(t, s.Create(t.Context(), "/api/v1/namespaces/team/services", service))
	body := must.Get(s.Get(t.Context(), "/api/v1/namespaces/team/services/web"))(t)
	var got struct {
		Spec struct {
			ClusterIP string `json:"clusterIP"` //nolint:tagliatelle // the name in Kubernetes
		} `json:"spec"`
	}
	if err := json.Unmarshal(body, &got); err != nil || got.Spec.ClusterIP != "10.96.1.2" {
		t.Errorf("address of the Service is %q, %v, want 10.96.1.2", got.Spec.ClusterIP, err)
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	}
	find := func(want, wantErr string) {
		t.Helper()
		got, err := etcd.find(root)
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) || got != want {
			t.Errorf("found %q, %v, want %q and an error with %q", got, err, want, wantErr)
		}
	}
	find("", "go.mod")
	write("test/peers/tools/etcd/go.mod", "tool go.etcd.io/etcd/server/v3\n")
	find("", "does not require go.etcd.io/etcd/server/v3")
	write("test/peers/tools/etcd/go.mod", "tool go.etcd.io/etcd/server/v3\n\nrequire (\n\tgo.etcd.io/etcd/server/v3 v3.1.2 // indirect\n)\n")
	write("bin/tools/etcd-v3.1.1", "")
	find("", "bin/tools/etcd-v3.1.2 is not built: run make real-servers")
	write("bin/tools/etcd-v3.1.2", "")
	find(filepath.Join(root, "bin/tools/etcd-v3.1.2"), "")
}

// TestPins checks that the modules of the tools pin what is looked for.
func TestPins(t *testing.T) {
	for _, p := range []program{etcd, apiServer, controllers, kubectl, spireServer, spireAgent} {
		if _, err := p.findHere(); err != nil && !strings.Contains(err.Error(), "run make "+p.target) {
			t.Error(err)
		}
	}
}
