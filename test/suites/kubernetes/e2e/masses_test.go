package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// A cluster that is restored from a backup is followed into its past: what was there
// then is back, and what has come since is gone.
func TestRestored(t *testing.T) {
	s := newStage(t, "restored")
	cluster := s.west.Cluster
	deleted := []string{balanced(s.space, "deleted", "198.51.100.201"), export(s.space, "deleted")}
	apply(t, s.west, append(deleted, balanced(s.space, "moved", "198.51.100.202"), export(s.space, "moved"))...)
	s.change(t)
	exported(t, s.west, s.space, "deleted")
	backup, err := cluster.Backup(t.Context(), "backup")
	must.Do(t, err)
	back := s.changes

	remove(t, s.west, deleted...)
	apply(t, s.west, balanced(s.space, "moved", "198.51.100.203"), balanced(s.space, "young", "198.51.100.204"), export(s.space, "young"))
	answers(t, s.east, "deleted"+s.zone, dns.TypeA, "NXDOMAIN")
	answers(t, s.east, "moved"+s.zone, dns.TypeA, "NOERROR 198.51.100.203")
	answers(t, s.east, "young"+s.zone, dns.TypeA, "NOERROR 198.51.100.204")
	s.change(t)

	restarts(t, cluster.Etcd.Process)
	restarts(t, cluster.API.Process)
	restarts(t, cluster.Controllers)
	must.Do(t, cluster.Restore(t.Context(), backup))
	s.changes = back
	answers(t, s.east, "deleted"+s.zone, dns.TypeA, "NOERROR 198.51.100.201")
	answers(t, s.east, "moved"+s.zone, dns.TypeA, "NOERROR 198.51.100.202")
	answers(t, s.east, "young"+s.zone, dns.TypeA, "NXDOMAIN")
	s.arrived(t)
	for _, name := range []string{"deleted", "moved", balancedName, statefulName} {
		exported(t, s.west, s.space, name)
	}
	s.change(t)
	s.settled(t)
	s.check(t)
}

// A namespace with many Services is deleted: each is withdrawn once, and nothing else
// is. A ServiceExport that has to wait for its end says why it is not published.
func TestNamespaceDeleted(t *testing.T) {
	const (
		many  = 1000
		space = "many"
	)
	s := newStage(t, "few")
	namespace(t, s.west, space)
	ctx, client := t.Context(), s.west.Cluster.Client.CoreV1().Services(space)
	exports := s.west.Cluster.Dynamic.Resource(serviceExports).Namespace(space)
	name := func(i int) string { return fmt.Sprintf("service-%d", i) }
	address := func(i int) string { return fmt.Sprintf("198.18.%d.%d", i>>8, i&0xff) }
	must.Do(t, realserver.Each(ctx, many, func(ctx context.Context, i int) error {
		_, err := client.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name(i)},
			Spec:       corev1.ServiceSpec{ExternalIPs: []string{address(i)}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(serviceExports.GroupVersion().WithKind("ServiceExport"))
		object.SetName(name(i))
		if i == 0 {
			object.SetFinalizers([]string{"example.org/wait"})
		}
		_, err = exports.Create(ctx, object, metav1.CreateOptions{})
		return err
	}))
	all := func(want func(i int) string) {
		t.Helper()
		for i := range many {
			answers(t, s.east, name(i)+"."+space+"."+s.west.Zone, dns.TypeA, want(i))
		}
	}
	all(func(i int) string { return "NOERROR " + address(i) })
	for _, f := range s.followers {
		holds(t, f, s.west.Name+"/"+space+"/", many)
	}
	exported(t, s.west, space, name(0))

	remove(t, s.west, "{apiVersion: v1, kind: Namespace, metadata: {name: "+space+"}}")
	all(func(int) string { return "NXDOMAIN" })
	says(t, s.west, space, name(0), "Valid", "False", "BeingDeleted")
	for i, f := range s.followers {
		holds(t, f, s.west.Name+"/"+space+"/", 0)
		for n := range many {
			service := s.west.Name + "/" + space + "/" + name(n)
			if announced, withdrawn := f.told(service); announced != 1 || withdrawn != 1 {
				t.Errorf("%s has announced %s %d times and withdrawn it %d times, want once", s.west.Owners[i].Name, service, announced, withdrawn)
			}
		}
	}
	_, err := exports.Patch(ctx, name(0), types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
	must.Do(t, err)
	s.change(t)
	s.settled(t)
	s.check(t)
}

// holds waits until a follower has so many services with a prefix.
func holds(t *testing.T, f *follower, prefix string, want int) {
	t.Helper()
	eventually(t, func() string {
		n := 0
		for name := range f.now() {
			if strings.HasPrefix(name, prefix) {
				n++
			}
		}
		if n != want {
			return fmt.Sprintf("there are %d services, want %d", n, want)
		}
		return ""
	})
}

// Services flip, in four ways, as fast as the API server takes it. Nobody is told
// more often than that, and the last state is the one that stays.
func TestFlipsAtOnce(t *testing.T) {
	const flips = 20 // of each; the last one is as the test ends
	s := newStage(t, "flipping")
	service := func(name string) string { return balanced(s.space, name, "198.51.100.210") }
	labelled := func(value string) string {
		return strings.Replace(service("label"), "{name:", "{labels: {"+label+": "+value+"}, name:", 1)
	}
	apply(t, s.west, service("in"), service("out"), export(s.space, "out"), export(s.space, "empty"))
	answers(t, s.east, "out"+s.zone, dns.TypeA, "NOERROR 198.51.100.210")
	empty(t, s.west, s.space, "empty")
	must.Do(t, realserver.Each(t.Context(), 4, func(ctx context.Context, which int) error {
		cluster := s.west.Cluster
		for i := range flips {
			on := i%2 == 1
			var err error
			switch {
			case which == 0 && on:
				err = cluster.Apply(ctx, export(s.space, "in"))
			case which == 0 && i > 0:
				err = cluster.Delete(ctx, export(s.space, "in"))
			case which == 1 && on:
				err = cluster.Delete(ctx, export(s.space, "out"))
			case which == 1:
				err = cluster.Apply(ctx, export(s.space, "out"))
			case which == 2:
				err = cluster.Apply(ctx, labelled(map[bool]string{true: `"true"`, false: `"false"`}[on]))
			case on:
				err = cluster.Apply(ctx, service("empty"))
			case i > 0:
				err = cluster.Delete(ctx, service("empty"))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
	for name, want := range map[string]string{"in": "NOERROR 198.51.100.210", "out": "NXDOMAIN", "label": "NOERROR 198.51.100.210", "empty": "NOERROR 198.51.100.210"} {
		answers(t, s.east, name+s.zone, dns.TypeA, want)
	}
	exported(t, s.west, s.space, "in")
	exported(t, s.west, s.space, "empty")
	s.change(t)
	s.settled(t)
	for i, f := range s.followers {
		for _, name := range []string{"in", "out", "label", "empty"} {
			announced, withdrawn := f.told(s.west.Name + "/" + s.space + "/" + name)
			if n := announced + withdrawn; n == 0 || n > flips+1 {
				t.Errorf("%s has told %d changes of %s, which has flipped %d times", s.west.Owners[i].Name, n, name, flips)
			}
			t.Logf("%s has announced %s %d times, and withdrawn it %d times", s.west.Owners[i].Name, name, announced, withdrawn)
		}
	}
	s.check(t)
}
