package kubernetes

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/kube"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/internal/feedback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// offline is a source without a cluster: the test says what its watches read, and when
// it publishes.
type offline struct {
	*partPublisher

	told    *part
	version int // of the object that was put last
}

// newOffline returns a source that knows nothing yet.
func newOffline(t *testing.T, rules export.Rules) *offline {
	t.Helper()
	rules.Cluster, rules.Zone = "west", zone(t)
	log := slog.New(slog.DiscardHandler)
	s := &Source{
		config: Config{Rules: rules}, selector: labels.Everything(), log: log, state: newClusterState(time.Second),
		writer: feedback.New(objectName{}, log), pace: quick,
	}
	s.wanted, s.slices = wantedKinds(rules)
	s.state.health.discovered = true
	told := &part{}
	o := &offline{partPublisher: newPartPublisher(s, told), told: told}
	for _, k := range s.wanted {
		s.state.noteWatchBegun(watchID{kind: k})
	}
	return o
}

// store returns what the watch of a kind fills.
func (o *offline) store(k objectKind) watchStore {
	return watchStore{o.state, watchID{kind: k}, o.config.Rules}
}

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
		must.Do(t, o.store(k).Replace(of, ""))
	}
	o.publishRound()
}

// put has the watches see objects that are new or have changed.
func (o *offline) put(t *testing.T, objects ...metav1.Object) {
	t.Helper()
	for _, object := range objects {
		o.version++
		object.SetResourceVersion(strconv.Itoa(o.version))
		must.Do(t, o.store(kindOf(object)).Add(object))
	}
	o.publishRound()
}

// kindOf returns the kind of an object.
func kindOf(object metav1.Object) objectKind {
	switch object.(type) {
	case *corev1.Service:
		return kindService
	case *corev1.Node:
		return kindNode
	case *mcsv1beta1.ServiceExport:
		return kindExport
	case *discoveryv1.EndpointSlice:
		return kindSlice
	case *gatewayv1.TCPRoute:
		return kindTCPRoute
	}
	return kinds
}

// again has every watch lose touch, as they do when the server was away, and those of all
// kinds but some read everything anew.
func (o *offline) again(t *testing.T, without []objectKind, objects ...metav1.Object) {
	t.Helper()
	for _, k := range o.wanted {
		o.state.noteWatchBegun(watchID{kind: k})
	}
	for _, k := range without {
		o.state.noteAttempt(watchID{kind: k}, kube.ClassErrorf("RBAC "+k.String(), "cannot list %v", k))
	}
	wanted := o.wanted
	defer func() { o.wanted = wanted }()
	o.wanted = slices.DeleteFunc(slices.Clone(wanted), func(k objectKind) bool { return slices.Contains(without, k) })
	o.read(t, objects...)
}

// recover has the watch of a kind read.
func (o *offline) recover(t *testing.T, k objectKind, objects ...any) {
	t.Helper()
	o.state.noteAttempt(watchID{kind: k}, nil)
	must.Do(t, o.store(k).Replace(objects, ""))
	o.publishRound()
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

// at returns a Service of the namespace shop with an address, which the label exports.
func at(name, ip string) *corev1.Service { return labelled(service("shop", name, ip)) }

// behind returns a route to a Service of the namespace shop.
func behind(name string) *gatewayv1.TCPRoute {
	return &gatewayv1.TCPRoute{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: gatewayv1.TCPRouteSpec{Rules: []gatewayv1.TCPRouteRule{{BackendRefs: []gatewayv1.BackendRef{
			{BackendObjectReference: gatewayv1.BackendObjectReference{Name: gatewayv1.ObjectName(name)}},
		}}}},
	}
}

// TestUnreadableKindHoldsItsServices has some kinds not come back after an outage. Services
// that have to do with them stay as they are until they do, and the others go on.
func TestUnreadableKindHoldsItsServices(t *testing.T) {
	const before, after = "192.0.2.1", "192.0.2.2"
	cluster := func(ip string) []metav1.Object {
		spread := at("spread", ip)
		spread.Spec.Type, spread.Spec.ExternalIPs = corev1.ServiceTypeNodePort, nil
		spread.Spec.Ports[0].NodePort = 30000 + int32(ip[len(ip)-1])
		local := spread.DeepCopy()
		local.Name, local.Spec.ExternalTrafficPolicy = "local", corev1.ServiceExternalTrafficPolicyLocal
		exported := service("shop", "exported", ip)
		return []metav1.Object{
			at("plain", ip), at("routed", ip), behind("routed"), exported, exportOf("shop", "exported", time.Now()), spread, local, readyNode("n1"),
			&discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "local", Labels: map[string]string{discoveryv1.LabelServiceName: "local"}},
				Endpoints:  []discoveryv1.Endpoint{{NodeName: new("n1")}},
			},
		}
	}
	for _, test := range []struct {
		without []objectKind
		held    string // of those that have changed
	}{
		{[]objectKind{kindTCPRoute}, "routed"},
		{[]objectKind{kindTLSRoute}, ""},
		{[]objectKind{kindGateway}, "routed"},
		{[]objectKind{kindExport}, "exported"},
		{[]objectKind{kindNode}, "local spread"},
		{[]objectKind{kindSlice}, "local"},
		{[]objectKind{kindService}, "exported local plain routed spread"},
		{[]objectKind{kindExport, kindTCPRoute}, "exported routed"},
	} {
		t.Run(test.held, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOffline(t, export.Rules{})
				o.read(t, cluster(before)...)
				held := func() string {
					var names []string
					for _, name := range []string{"exported", "local", "plain", "routed", "spread"} {
						if !o.told.has("west/shop/"+name, after) && !o.told.has("west/shop/"+name, ":30050") {
							names = append(names, name)
						}
					}
					return strings.Join(names, " ")
				}
				if got := held(); got != "exported local plain routed spread" {
					t.Fatalf("at the start %s are of before", got)
				}
				o.again(t, test.without, cluster(after)...)
				if got := held(); got != "exported local plain routed spread" {
					t.Errorf("%s are of before at once, want all: what is not there may come", got)
				}
				time.Sleep(o.state.health.grace)
				o.publishRound()
				if got := held(); got != test.held {
					t.Errorf("%s are held, want %s", got, test.held)
				}
				for _, k := range test.without {
					var objects []any
					for _, object := range cluster(after) {
						if kindOf(object) == k {
							objects = append(objects, object)
						}
					}
					o.recover(t, k, objects...)
				}
				if got := held(); got != "" {
					t.Errorf("%s are held when everything has been read", got)
				}
				if len(o.told.withdrawn) > 0 || o.told.away != nil {
					t.Errorf("withdrawn %v, away %v", o.told.withdrawn, o.told.away)
				}
			})
		})
	}
}

func readyNode(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.51.100.1"}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
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
		must.Do(t, o.store(kindService).Delete(named("shop", "exported", wanted, false, start)))
		o.publishRound()
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

// TestConflictIsTheOwnersToKnow has Services of two namespaces want a name. Whose it is the log
// says once, and not the refusal, which goes to the author of the other one.
func TestConflictIsTheOwnersToKnow(t *testing.T) {
	const wanted = "cart.pay.west.fed.example"
	p := must.Get(pattern.ParseName(wanted))(t)
	o := newOffline(t, export.Rules{Grants: []export.Grant{{Namespaces: []string{"shop"}, Names: []pattern.Name{p}}}})
	var log testlog.Buffer
	o.log = log.Logger()
	o.read(t, named("pay", "secret", wanted, true, time.Now()), named("shop", "a", wanted, true, time.Now()))
	o.put(t, named("shop", "a", wanted, true, time.Now()))
	if got := log.String(); strings.Count(got, "export is refused") != 1 || !strings.Contains(got, "pay/secret has the name") {
		t.Errorf("the log of the owner: %s", got)
	}
	v := o.claims.Judge("shop/a", o.config.Translate(export.Input{Service: named("shop", "a", wanted, true, time.Now())}))
	if v.Refusal != nil && strings.Contains(v.Refusal.Message, "secret") {
		t.Errorf("the author is told: %s", v.Refusal.Message)
	}
}

// TestGrowthIsCounted has a Service become too large: a part of it stays published, and is
// counted until all of it is.
func TestGrowthIsCounted(t *testing.T) {
	o := newOffline(t, export.Rules{})
	large := func(n int) *corev1.Service {
		s := at("large", "192.0.2.1")
		s.Spec.ExternalIPs = nil
		for i := range n {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("10.0.%d.%d", i/250, i%250))
		}
		return s
	}
	o.read(t, large(1000))
	for _, step := range []struct{ size, count int }{{1001, 1}, {1000, 0}} {
		o.put(t, large(step.size))
		if got := o.told.refused[string(export.TooManyEndpoints)]; got != step.count || o.told.names() != "west/shop/large" || len(o.told.withdrawn) > 0 {
			t.Errorf("%d addresses: counted %d times, published %s", step.size, got, o.told.names())
		}
	}
}
