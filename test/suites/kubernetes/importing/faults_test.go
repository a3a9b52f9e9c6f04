package importing

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/nightly"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// A service that comes, changes or goes takes two requests at most. An owner that is killed and
// comes back, within the grace and after it, takes none. What it had stays until its retention ends. An owner
// that comes back with half its services says so, and marks the end of its catalog: the others go.
func TestOwnerLost(t *testing.T) {
	t.Parallel()
	_, east := two(t)
	const retention = 15 * time.Second
	s := newSite(t, east.Cluster, "lost", services(12), options{retention: retention})
	i := s.start(t, "importer")
	s.settle(t)
	for what, change := range map[string]catalog{
		"a new service": s.now.with(catalog{"new": {"10.9.0.1:443"}}), "another endpoint": s.now.with(catalog{"s1": {"10.9.0.2:443"}}), "no service": s.now,
	} {
		before := s.requests(t)
		s.change(t, change)
		if more, sum := s.since(t, before); sum > 2 {
			t.Errorf("%s has taken %v, want two requests at most", what, more)
		}
		s.change(t, services(12))
	}

	before := s.requests(t)
	must.Do(t, s.owner.Restart(t.Context()))
	i.says(t, `"state":"synced"`)
	s.owner.Kill()
	i.says(t, `"state":"stale"`)
	must.Do(t, s.owner.Start(t.Context()))
	i.says(t, `"state":"synced"`)
	if more, sum := s.since(t, before); sum > 0 {
		t.Errorf("an owner that was lost and is back has taken %v", more)
	}

	s.watch.expire(s.now, retention)
	s.owner.Kill()
	eventually(t, func() string { return s.watch.differs(nil) })
	s.watch.restrict(nil)
	s.publish(t, services(20))
	must.Do(t, s.owner.Start(t.Context()))
	s.settle(t)
	s.owner.Kill()
	s.publish(t, services(9))
	must.Do(t, s.owner.Start(t.Context()))
	s.settle(t)
}

// expire says that the services of a catalog stay for a retention from now on, and go then.
func (w *watcher) expire(c catalog, retention time.Duration) {
	end := time.Now().Add(retention)
	w.expect(span{end, end.Add(late)}, c.names()...)
}

// An owner that does not mark the end of its catalog comes back with less than half its
// services. The others stay for their retention.
func TestHalfBack(t *testing.T) {
	t.Parallel()
	_, east := two(t)
	const all, half, retention = 20, 9, 25 * time.Second
	address := loopback.Address(t)
	s := newSite(t, east.Cluster, "half", services(all), options{retention: retention, address: address})
	owner := faultowner.New(faultowner.Config{
		Script:      must.Get(faultowner.Parse(fmt.Sprintf("services 0 %d %s\n---\nservices 0 %d %s", all, s.zone, half, s.zone)))(t),
		Credentials: must.Get(mtls.Load(s.Files("owner"), nil))(t).Server(),
	})
	listener := must.Get(net.Listen("tcp", address))(t)
	must.Run(t, func(ctx context.Context) error { return owner.Serve(ctx, listener) })
	i := s.start(t, "importer")
	s.settle(t)
	s.watch.expire(s.now.without(services(half).names()...), retention)
	owner.Reset()
	i.says(t, `"paused":11`)
	eventually(t, func() string { return s.watch.differs(services(half)) })
}

// The leader of two replicas is killed. The other one takes over, and writes only what has changed. Then it
// is killed as well, while the owner is lost, and a third one knows since when, because it has followed the owner.
// Then all are killed, and the file of one says it.
func TestImporterKilled(t *testing.T) {
	t.Parallel()
	_, east := two(t)
	const retention = time.Minute // two leases end meanwhile
	s := newSite(t, east.Cluster, "killed", services(12), options{retention: retention})
	one := s.start(t, "one")
	s.settle(t)
	two := s.start(t, "two")
	two.says(t, `"state":"synced"`)
	before := s.requests(t)
	one.Kill()
	s.change(t, s.now.without("s1").with(catalog{"s2": {"10.9.0.2:443"}, "new": {"10.9.0.1:443"}}))
	if more, sum := s.since(t, before, "list", "watch", "get"); sum > 5 { // two come, one changes, two go
		t.Errorf("the second replica has made %v", more)
	}

	three := s.start(t, "three")
	three.says(t, `"state":"synced"`)
	s.watch.expire(s.now, retention)
	s.owner.Kill()
	three.says(t, `"state":"stale"`)
	two.Kill()
	three.says(t, `"leads":true`)
	three.Kill()
	must.Do(t, three.Start(t.Context()))
	eventually(t, func() string { return s.watch.differs(nil) })
}

// What others make, or make of an object of the importer, is never touched, and gets none of its
// endpoints. What they only change is mended.
func TestForeign(t *testing.T) {
	t.Parallel()
	_, east := two(t)
	s := newSite(t, east.Cluster, "foreign", services(4), options{})
	const foreign = "{apiVersion: v1, kind: Service, metadata: {name: s0, namespace: NAMESPACE}, spec: {ports: [{port: 80}]}}"
	s.apply(t, foreign)
	i := s.start(t, "importer")
	eventually(t, func() string { return s.watch.differs(s.now.without("s0")) })
	i.says(t, `"refused":{"name_taken":1}`)
	s.watch.spare("services/s0")
	s.remove(t, foreign)
	s.settle(t)

	client := s.cluster.Client.CoreV1().Services(s.namespace)
	patch := func(name, text string) {
		t.Helper()
		must.Get(client.Patch(t.Context(), name, types.MergePatchType, []byte(text), metav1.PatchOptions{}))(t)
	}
	s.watch.release("s1") // its slices
	patch("s1", `{"metadata": {"labels": {"`+managedBy+`": "somebody"}}}`)
	i.says(t, `"refused":{"name_taken":1}`)
	eventually(t, func() string { return s.watch.differs(s.now.without("s1")) })
	s.watch.spare("services/s1")
	must.Do(t, client.Delete(t.Context(), "s1", metav1.DeleteOptions{}))
	s.settle(t)

	s.watch.await(t, "services/s2", func() { patch("s2", `{"spec": {"ports": [{"name": "wrong", "port": 1}]}}`) })
	s.watch.release("s3")
	s.watch.await(t, "services/s3", func() { must.Do(t, client.Delete(t.Context(), "s3", metav1.DeleteOptions{})) })
	s.watch.allow(catalog{"s3": {"10.66.6.6:443"}})
	s.watch.await(t, "endpointslices/s3-v4-https-443", func() {
		must.Get(s.cluster.Client.DiscoveryV1().EndpointSlices(s.namespace).Patch(t.Context(), "s3-v4-https-443", types.MergePatchType,
			[]byte(`{"endpoints": [{"addresses": ["10.66.6.6"]}]}`), metav1.PatchOptions{}))(t)
	})
	if service := must.Get(client.Get(t.Context(), "s2", metav1.GetOptions{}))(t); service.Spec.Ports[0].Port != 443 {
		t.Errorf("s2 has the ports %v", service.Spec.Ports)
	}
	s.settle(t)

	// Somebody removes everything, and does not end the importer.
	s.watch.release(s.now.names()...)
	s.watch.await(t, record, func() { s.remove(t, recordText) })
	s.settle(t)
}

// The namespace is deleted and made again, with the permissions and objects of others.
func TestNamespaceDeleted(t *testing.T) {
	t.Parallel()
	_, east := two(t)
	s := newSite(t, east.Cluster, "deleted", services(12), options{})
	s.start(t, "importer")
	s.settle(t)
	s.watch.check(t)
	s.remove(t, "{apiVersion: v1, kind: Namespace, metadata: {name: NAMESPACE}}")
	eventually(t, func() string {
		if _, err := s.cluster.Client.CoreV1().Namespaces().Get(t.Context(), s.namespace, metav1.GetOptions{}); err == nil {
			return "the namespace is still there"
		}
		return ""
	})
	s.populate(t)
	s.watch = watch(t, s.cluster, s.namespace, s.now)
	s.settle(t)
}

// The permissions are taken away and given back. What the owner withdraws meanwhile goes then, and
// nothing else.
func TestPermissionsTaken(t *testing.T) {
	t.Parallel()
	_, east := two(t)
	s := newSite(t, east.Cluster, "taken", services(12), options{})
	i := s.start(t, "importer")
	s.settle(t)
	s.remove(t, read(t, "testdata/binding.yaml"))
	s.publish(t, s.now.without("s1").with(catalog{"new": {"10.9.0.1:443"}}))
	i.says(t, `"leads":false`, `"failure":`)
	s.apply(t, read(t, "testdata/binding.yaml"))
	s.settle(t)
}

// A quota leaves room for some of the services. The others are written once it is gone.
func TestQuota(t *testing.T) {
	t.Parallel()
	_, east := two(t)
	s := newSite(t, east.Cluster, "quota", services(12), options{})
	// Its status is a controller's, which does not run here. There are two Services of others.
	const quota = `{apiVersion: v1, kind: ResourceQuota, metadata: {name: services, namespace: NAMESPACE}, spec: {hard: {services: "7"}}, status: {hard: {services: "7"}, used: {services: "2"}}}`
	s.apply(t, quota)
	i := s.start(t, "importer")
	i.says(t, `"refused":{"rejected":7}`)
	s.remove(t, quota)
	s.settle(t)
}

// While the API server is away nothing goes, and what the owner changes is written afterwards. Then
// etcd is restored from a backup: what the owner has withdrawn since goes again, and what it has published
// since comes again.
func TestClusterAway(t *testing.T) {
	t.Parallel()
	two(t)
	cluster := realserver.StartCluster(t)
	s := newSite(t, cluster, "away", services(12), options{})
	i := s.start(t, "importer")
	s.settle(t)
	cluster.API.Kill()
	s.publish(t, s.now.without("s1").with(catalog{"new": {"10.9.0.1:443"}}))
	passes(t, time.Duration(nightly.Cases(30, 15))*time.Second) // the lease is lost
	i.says(t, `"failure":`)
	cluster.Etcd.Kill()
	backup := t.TempDir()
	must.Do(t, os.CopyFS(backup, os.DirFS(filepath.Join(cluster.Etcd.Dir, "data"))))
	must.Do(t, cluster.Etcd.Start(t.Context()))
	must.Do(t, cluster.API.Start(t.Context()))
	s.settle(t)

	s.change(t, s.now.with(catalog{"s2": {"10.9.0.2:443"}, "newer": {"10.9.0.3:443"}}))
	s.watch.check(t)
	cluster.API.Kill()
	must.Do(t, cluster.Etcd.Restore(t.Context(), backup))
	must.Do(t, cluster.API.Start(t.Context()))
	s.watch = watch(t, cluster, s.namespace, s.now, services(12))
	s.watch.release("s1")
	s.settle(t)
}
