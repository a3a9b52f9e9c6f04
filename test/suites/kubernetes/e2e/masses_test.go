package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/nightly"
)

// A namespace with many Services is deleted: each is withdrawn once, and nothing else
// is. A ServiceExport that has to wait for its end says why it is not published.
func TestNamespaceDeleted(t *testing.T) {
	const space = "many"
	many := nightly.Cases(2000, 100)
	s := newStage(t, "few")
	namespace(t, s.west, space)
	client := s.west.Cluster.Client.CoreV1().Services(space)
	exports := s.west.Cluster.Dynamic.Resource(serviceExports).Namespace(space)
	name := func(i int) string { return fmt.Sprintf("service-%d", i) }
	address := func(i int) string { return fmt.Sprintf("198.18.%d.%d", i>>8, i&0xff) }
	create := func(ctx context.Context, i int) error {
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
	}
	creating, ctx := errgroup.WithContext(t.Context())
	creating.SetLimit(16)
	for i := range many {
		creating.Go(func() error { return create(ctx, i) })
	}
	must.Do(t, creating.Wait())
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
	_, err := exports.Patch(t.Context(), name(0), types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
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
