package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	annotation = "hamlet-federation.github.io/"

	condValid    = string(mcsv1beta1.ServiceExportConditionValid)
	condReady    = string(mcsv1beta1.ServiceExportConditionReady)
	condAccepted = annotation + "Accepted"
)

// refusal is a Service that is refused, and how its author mends it. In the
// manifests SPACE, NAME and ADDRESS stand for those of a round.
type refusal struct {
	name, rule    string
	condition     string   // that is False: Valid, or Ready where the Service itself is in order
	words         []string // of its message
	wrong, mended string
}

// refusals are all rules for which the author can do something.
var refusals = []refusal{
	{
		"outside", "NameOutsideZone", condValid,
		[]string{"annotation " + annotation + "fqdn", "web.elsewhere.example", "west.fed.example"},
		atBalancer + exportWith("fqdn: web.elsewhere.example"), atBalancer + exportWith(""),
	},
	{
		"foreign", "NameNotAllowed", condValid,
		[]string{"annotation " + annotation + "fqdn", "db-0.db.pay.west.fed.example", "SPACE.west.fed.example"},
		atBalancer + exportWith("fqdn: db-0.db.pay.west.fed.example"), atBalancer + exportWith(""),
	},
	{
		"misnamed", "InvalidName", condValid,
		[]string{"annotation " + annotation + "fqdn", "two..dots"},
		atBalancer + exportWith("fqdn: two..dots"), atBalancer + exportWith(""),
	},
	{
		"sans", "BadAnnotation", condValid,
		[]string{"annotation " + annotation + "sans", "no-id"},
		atBalancer + exportWith("sans: no-id"), atBalancer + exportWith("sans: spiffe://west.example/web"),
	},
	{
		"metadata", "BadAnnotation", condValid,
		[]string{"annotation " + annotation + "metadata.8080", "port"},
		atBalancer + exportWith("metadata.8080: SNI=web.example"), atBalancer + exportWith("metadata.443: SNI=web.example"),
	},
	{
		"datagrams", "UDPOnly", condValid,
		[]string{"SPACE/NAME", "UDP"},
		strings.Replace(atBalancer, "appProtocol: https", "protocol: UDP", 1) + exportWith(""), atBalancer,
	},
	{
		"inside", "NoAddress", condReady,
		[]string{"SPACE/NAME", "load-balancer"},
		"{apiVersion: v1, kind: Service, metadata: {name: NAME, namespace: SPACE}, spec: {ports: [{name: https, port: 443, appProtocol: https}]}}\n" +
			exportWith(""), atBalancer,
	},
	{"absent", "NoService", condValid, []string{"SPACE/NAME"}, exportWith(""), atBalancer},
	{
		"alias", "InvalidServiceType", condValid,
		[]string{"SPACE/NAME", "ExternalName"},
		"{apiVersion: v1, kind: Service, metadata: {name: NAME, namespace: SPACE}, spec: {type: ExternalName, externalName: web.example}}\n" +
			exportWith(""), atBalancer,
	},
	{
		"portless", "NoPort", condValid,
		[]string{"SPACE/NAME"},
		"{apiVersion: v1, kind: Service, metadata: {name: NAME, namespace: SPACE}, spec: {clusterIP: None, selector: {app: NAME}}}\n" +
			exportWith(""), stateful("SPACE", "NAME", "ADDRESS"),
	},
	{
		"second", "Conflict", condValid,
		[]string{"first.SPACE.west.fed.example", "SPACE/first"},
		atBalancer + exportWith("fqdn: first.SPACE.west.fed.example"), exportWith(""),
	},
	{
		"large", "TooLarge", condValid,
		[]string{"sans"},
		atBalancer + exportWith("sans: "+manyIDs()), exportWith(""),
	},
}

var atBalancer = balanced("SPACE", "NAME", "ADDRESS")

// exportWith is the manifest, behind another, of a ServiceExport with one of our annotations, or none.
func exportWith(note string) string {
	if note != "" {
		note = ", annotations: {" + annotation + note + "}"
	}
	return "\n---\n" + strings.Replace(export("SPACE", "NAME"), "namespace: SPACE", "namespace: SPACE"+note, 1)
}

// manyIDs returns more SPIFFE IDs than a service may have.
func manyIDs() string {
	var ids []string
	for i := range 65 {
		ids = append(ids, fmt.Sprintf("spiffe://west.example/%d", i))
	}
	return `"` + strings.Join(ids, " ") + `"`
}

// in puts the names of a round in a manifest or a text.
func in(text, space, name, address string) string {
	return strings.NewReplacer("SPACE", space, "NAME", name, "ADDRESS", address).Replace(text)
}

// Every refusal is a condition of the ServiceExport and an Event, with the rule; it
// goes when the author has mended the Service; and neighbours do not notice. Logged is
// how long it takes from the answer of the API server to the author until the condition
// is there.
func TestEveryRefusal(t *testing.T) {
	const rounds = 4
	west, east := two(t)
	const space = "refusals"
	namespace(t, west, space)
	apply(t, west, balanced(space, "first", "192.0.2.1"), export(space, "first"))
	first := "first." + space + "." + west.Zone
	answers(t, east, first, dns.TypeA, "NOERROR 192.0.2.1")
	follower := follow(t, west)
	follower.synced(t)
	told := listen(t, west, space)

	var refused, mended []time.Duration
	for round := range rounds {
		for i, r := range refusals {
			name, address := fmt.Sprintf("%s-%d", r.name, round), fmt.Sprintf("192.0.2.%d", 2+round*len(refusals)+i)
			begin := told.apply(t, in(r.wrong, space, name, address))
			c, took := told.await(t, name, r.condition, "False "+r.rule, begin)
			refused = append(refused, took)
			for _, word := range r.words {
				if word = in(word, space, name, address); !strings.Contains(c.Message, word) {
					t.Errorf("%s: the condition is %s %q, want one with %q", name, c.Reason, c.Message, word)
				}
			}
			if r.condition == condValid {
				told.await(t, name, condReady, "False "+r.rule, begin)
			} else {
				told.await(t, name, condValid, "True Valid", begin)
			}
			event(t, west, space, "ServiceExport", name, r.rule)
		}
	}
	for round := range rounds {
		for i, r := range refusals {
			name, address := fmt.Sprintf("%s-%d", r.name, round), fmt.Sprintf("192.0.2.%d", 2+round*len(refusals)+i)
			begin := told.apply(t, in(r.mended, space, name, address))
			c, took := told.await(t, name, condReady, "True Exported", begin)
			mended = append(mended, took)
			if fqdn := name + "." + space + "." + west.Zone; !strings.Contains(c.Message, fqdn) {
				t.Errorf("%s: Ready is %q, want one with %s", name, c.Message, fqdn)
			}
			told.await(t, name, condValid, "True Valid", begin)
			answers(t, east, name+"."+space+"."+west.Zone, dns.TypeA, "NOERROR "+address)
		}
	}
	report(t, "a refusal", refused)
	report(t, "its end", mended)
	answers(t, east, first, dns.TypeA, "NOERROR 192.0.2.1")
	follower.undisturbed(t, west.Name+"/"+space+"/")
}

// report logs figures.
func report(t *testing.T, what string, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	t.Logf("%s is a condition after %v (median), %v at most; %d of them", what,
		took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond), len(took))
}

// A Service that its label exports has no ServiceExport: the Event is about the Service.
func TestRefusedLabel(t *testing.T) {
	west, east := two(t)
	const space = "refused-label"
	namespace(t, west, space)
	labelled := func(note string) string {
		return strings.Replace(balanced(space, "web", "192.0.2.1"), "{name: web,",
			"{name: web, labels: {"+annotation+"export: \"true\"}, annotations: {"+note+"},", 1)
	}
	apply(t, west, labelled(annotation+"fqdn: web.elsewhere.example"))
	e := event(t, west, space, "Service", "web", "NameOutsideZone")
	if !strings.Contains(e.Note, "web.elsewhere.example") || e.Type != "Warning" {
		t.Errorf("the Event is %s %q", e.Type, e.Note)
	}
	apply(t, west, labelled(""))
	answers(t, east, "web."+space+"."+west.Zone, dns.TypeA, "NOERROR 192.0.2.1")
}

// What a consumer does not take is a condition as well: here a CoreDNS that answers for
// a smaller zone.
func TestConsumerRefuses(t *testing.T) {
	west, east := two(t)
	const space = "consumers"
	namespace(t, west, space)
	told := listen(t, west, space)
	zone := "narrow." + space + "." + west.Zone
	narrow := narrowDNS(t, west, zone)

	begin := told.apply(t, in(atBalancer+exportWith(""), space, "web", "192.0.2.1"))
	c, took := told.await(t, "web", condAccepted, "False RefusedByConsumer", begin)
	for _, word := range []string{west.ConsumerID(), "fqdn", zone} {
		if !strings.Contains(c.Message, word) {
			t.Errorf("the condition is %q, want one with %q", c.Message, word)
		}
	}
	t.Logf("what a consumer refuses is a condition after %v", took.Round(time.Millisecond))
	told.await(t, "web", condReady, "True Exported", begin)
	event(t, west, space, "ServiceExport", "web", "RefusedByConsumer")
	answers(t, east, "web."+space+"."+west.Zone, dns.TypeA, "NOERROR 192.0.2.1") // which takes it

	told.apply(t, in(exportWith("fqdn: web."+zone), space, "web", ""))
	eventually(t, func() string {
		if got := narrow.Answer(t.Context(), "web."+zone, dns.TypeA); got != "NOERROR 192.0.2.1" {
			return "the narrow CoreDNS answers " + got
		}
		if c, ok := told.now("web")[condAccepted]; ok && c.Status == metav1.ConditionFalse {
			return "the condition is still there: " + c.Message
		}
		return ""
	})
}

// narrowDNS starts a CoreDNS for one zone only, which subscribes to the first owner of a
// domain as the domain's own consumer.
func narrowDNS(t *testing.T, d *domain.Domain, zone string) *domain.DNS {
	t.Helper()
	address, err := loopback.FreeAddress()
	must.Do(t, err)
	_, port, _ := strings.Cut(address, ":")
	dir, files := t.TempDir(), d.ConsumerFiles()
	narrow := &domain.DNS{Address: address, Corefile: dir + "/Corefile"}
	narrow.Process = &realserver.Process{
		Name: "coredns", Path: d.DNS.Path, Dir: dir, Args: []string{"-conf", narrow.Corefile},
		Ready: func(ctx context.Context) error { _, err := narrow.Ask(ctx, zone, dns.TypeSOA); return err },
	}
	must.Do(t, writeText(narrow.Corefile, fmt.Sprintf(`%s:%s {
    bind 127.0.0.1
    federation {
        owner %s
        tls %s %s %s
        owner_id %s
        negative_ttl 1
    }
}
`, zone, port, d.Owners[0].Address, files.Cert, files.Key, files.CA, d.OwnerID())))
	narrow.StartFor(t)
	return narrow
}

// event waits until there is an Event of this reason about an object, and returns it.
func event(t *testing.T, d *domain.Domain, space, kind, name, reason string) (found eventsv1.Event) {
	t.Helper()
	eventually(t, func() string {
		list, err := d.Cluster.Client.EventsV1().Events(space).List(t.Context(), metav1.ListOptions{})
		must.Do(t, err)
		for i := range list.Items {
			e := &list.Items[i]
			if of := e.Regarding; of.Kind == kind && of.Name == name && e.Reason == reason {
				found = *e
				return ""
			}
		}
		return fmt.Sprintf("there is no Event %s about the %s %s", reason, kind, name)
	})
	return found
}

// ear hears, by a watch, what the ServiceExports of a namespace say, and when.
type ear struct {
	domain *domain.Domain
	space  string

	mu    sync.Mutex
	news  chan struct{}        // closed when there is something new
	heard map[string][]hearing // by name, in the order of time
}

// hearing is one version of a ServiceExport.
type hearing struct {
	at         time.Time
	conditions map[string]metav1.Condition // by type
}

// listen begins a watch, which ends with the test.
func listen(t *testing.T, d *domain.Domain, space string) *ear {
	t.Helper()
	e := &ear{domain: d, space: space, news: make(chan struct{}), heard: make(map[string][]hearing)}
	w, err := d.Cluster.Dynamic.Resource(serviceExports).Namespace(space).Watch(t.Context(), metav1.ListOptions{})
	must.Do(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for got := range w.ResultChan() {
			now := time.Now()
			if object, ok := got.Object.(*unstructured.Unstructured); ok {
				e.hear(object, now)
			}
		}
	})
	t.Cleanup(func() { w.Stop(); running.Wait() })
	return e
}

func (e *ear) hear(object *unstructured.Unstructured, at time.Time) {
	conditions, err := conditionsOf(object)
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard[object.GetName()] = append(e.heard[object.GetName()], hearing{at, conditions})
	close(e.news)
	e.news = make(chan struct{})
}

// conditionsOf returns the conditions of a ServiceExport by their types.
func conditionsOf(object *unstructured.Unstructured) (map[string]metav1.Condition, error) {
	var e mcsv1beta1.ServiceExport
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &e); err != nil {
		return nil, err
	}
	conditions := make(map[string]metav1.Condition)
	for _, c := range e.Status.Conditions {
		conditions[c.Type] = c
	}
	return conditions, nil
}

// apply applies objects, and returns when the API server had acknowledged the last.
func (e *ear) apply(t *testing.T, text string) time.Time {
	t.Helper()
	apply(t, e.domain, text)
	return time.Now()
}

// now returns the conditions of a ServiceExport, by type.
func (e *ear) now(name string) map[string]metav1.Condition {
	e.mu.Lock()
	defer e.mu.Unlock()
	if all := e.heard[name]; len(all) > 0 {
		return all[len(all)-1].conditions
	}
	return nil
}

// await waits until a condition is what is wanted, its status and its reason, and is so
// in the last version heard. It returns that one, and how long it took from begin until
// it was so. A Service and its ServiceExport come to an owner by two watches: in between
// it may say NoService.
func (e *ear) await(t *testing.T, name, kind, want string, begin time.Time) (c metav1.Condition, took time.Duration) {
	t.Helper()
	timer := time.NewTimer(await.Patience)
	defer timer.Stop()
	for {
		e.mu.Lock()
		news, at := e.news, time.Time{}
		for _, h := range e.heard[name] {
			var ok bool
			if c, ok = h.conditions[kind]; !ok || string(c.Status)+" "+c.Reason != want {
				at = time.Time{}
			} else if at.IsZero() {
				at = h.at
			}
		}
		e.mu.Unlock()
		if !at.IsZero() {
			took = max(0, at.Sub(begin))
			await.Took(t, "a condition that an owner writes", time.Second, took)
			return c, took
		}
		select {
		case <-news:
		case <-timer.C:
			t.Fatalf("after %v the conditions of %s are %v, want %s to be %s", await.Patience, name, e.now(name), kind, want)
		}
	}
}

// writeText writes a file, in the place of one that is there.
func writeText(path, text string) error {
	part := path + ".part"
	if err := os.WriteFile(part, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(part, path)
}
