package kubernetes

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/feedback"
)

// offline is a source without a cluster: the test says what its watches read, and when
// it publishes.
type offline struct {
	*publisher

	told *part
}

// newOffline returns a source that knows nothing yet.
func newOffline(t *testing.T, rules export.Rules) *offline {
	t.Helper()
	rules.Cluster, rules.Zone = "west", zone(t)
	log := slog.New(slog.DiscardHandler)
	s := &Source{
		config: Config{Rules: rules}, selector: labels.Everything(), log: log, world: newWorld(time.Second),
		writer: feedback.New(log), pace: quick, opinions: make(map[name]opinion),
	}
	s.wanted, s.slices = wantedKinds(rules)
	s.world.health.discovered = true
	told := &part{}
	o := &offline{newPublisher(s, told), told}
	for _, k := range s.wanted {
		s.world.begin(watched{kind: k})
	}
	return o
}

// store returns what the watch of a kind fills.
func (o *offline) store(k kind) store { return store{o.world, watched{kind: k}} }

// read has every watch read everything that there is.
func (o *offline) read(t *testing.T, objects ...metav1.Object) {
	t.Helper()
	for _, k := range o.wanted {
		var of []any
		for _, object := range objects {
			if kindOf(object) == k {
				of = append(of, object)
			}
		}
		if err := o.store(k).Replace(of, ""); err != nil {
			t.Fatal(err)
		}
	}
	o.round()
}

// put has the watches see objects that are new or have changed.
func (o *offline) put(t *testing.T, objects ...metav1.Object) {
	t.Helper()
	for _, object := range objects {
		if err := o.store(kindOf(object)).Add(object); err != nil {
			t.Fatal(err)
		}
	}
	o.round()
}

// kindOf returns the kind of an object.
func kindOf(object metav1.Object) kind {
	switch object.(type) {
	case *corev1.Service:
		return kindService
	case *corev1.Node:
		return kindNode
	case *mcsv1beta1.ServiceExport:
		return kindExport
	}
	return kinds
}

// named returns a Service that asks for a name, with the label or without.
func named(namespace, name, fqdn string, label bool, created time.Time) *corev1.Service {
	s := service(namespace, name, "192.0.2.1")
	if label {
		labelled(s)
	}
	s.Annotations = map[string]string{"hamlet-federation.github.io/fqdn": fqdn}
	s.CreationTimestamp = metav1.NewTime(created)
	return s
}

func exportOf(namespace, name string, created time.Time) *mcsv1beta1.ServiceExport {
	return &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(created)}}
}

// TestOldServiceTakesNoName labels Services that are older than the export that has their
// name: the label is new, whatever the age of the Service.
func TestOldServiceTakesNoName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wanted = "api.shop.west.fed.example"
		o, start := newOffline(t, export.Rules{}), time.Now()
		o.read(
			t,
			named("shop", "exported", wanted, false, start.Add(-time.Hour)), exportOf("shop", "exported", start),
			named("shop", "middle", wanted, true, start.Add(-2*time.Hour)),
		)
		holder := func() string { return strings.ReplaceAll(o.told.names(), "west/shop/", "") }
		if got := holder(); got != "exported" {
			t.Fatalf("%s has the name, want the ServiceExport to go before a label", got)
		}
		time.Sleep(time.Minute)
		o.put(t, named("shop", "oldest", wanted, true, start.Add(-3*time.Hour)))
		if got := holder(); got != "exported" {
			t.Errorf("%s has the name after an old Service was labelled", got)
		}
		if err := o.store(kindService).Delete(named("shop", "exported", wanted, false, start)); err != nil {
			t.Fatal(err)
		}
		o.round()
		if got := holder(); got != "middle" {
			t.Errorf("%s has the name, want the label that was seen first", got)
		}
		time.Sleep(time.Minute)
		changed := named("shop", "middle", wanted, true, start.Add(-2*time.Hour))
		changed.Spec.ExternalIPs = []string{"192.0.2.9"}
		o.put(t, changed)
		if got := holder(); got != "middle" {
			t.Errorf("%s has the name after a change of the one that had it", got)
		}
	})
}

// TestNobodyTakesForeignNames has a Service ask for names of others.
func TestNobodyTakesForeignNames(t *testing.T) {
	for _, wanted := range []string{"cart.shop.west.fed.example", "db-0.db.shop.west.fed.example", "later.shop.west.fed.example", "pay.west.fed.example", "west.fed.example"} {
		o := newOffline(t, export.Rules{})
		o.read(t, named("attack", "a", wanted, true, time.Now()))
		if got := o.told.names(); got != "" || o.counts[string(export.NameNotAllowed)] != 1 {
			t.Errorf("%s: published %q, refused %v", wanted, got, o.counts)
		}
	}
}
