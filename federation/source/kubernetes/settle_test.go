package kubernetes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/credentials"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
)

// speaker is credentials without cryptography: a consumer says who it is, and is believed.
type speaker struct{ name string }

func (n speaker) info(name string) credentials.TLSInfo {
	id := &url.URL{Scheme: "spiffe", Host: "example.org", Path: "/" + name}
	return credentials.TLSInfo{
		State:          tls.ConnectionState{PeerCertificates: []*x509.Certificate{{URIs: []*url.URL{id}}}},
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}
}

func (n speaker) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	_, err := conn.Write([]byte(n.name[:1]))
	return conn, n.info("owner"), err
}

func (n speaker) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	name := make([]byte, 1)
	_, err := io.ReadFull(conn, name)
	return conn, n.info(string(name)), err
}

func (speaker) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "named"}
}
func (n speaker) Clone() credentials.TransportCredentials { return n }
func (speaker) OverrideServerName(string) error           { return nil }

// published is a part that fills a registry.
type published struct {
	*part

	registry *registry.Registry
}

func (p published) Replace(services []*wire.Encoded) { p.registry.SetEncoded(services) }

func (p published) Update(changed []*wire.Encoded, gone []string) {
	p.registry.UpdateEncoded(changed, gone)
}

// publishing is an owner of one catalog, and the consumers that follow it.
type publishing struct {
	network.Network

	t        *testing.T
	registry *registry.Registry
	server   *owner.Server
	inquire  func(services map[string]*wire.Encoded) []owner.Changes
}

func newPublishing(t *testing.T) *publishing {
	t.Helper()
	p := &publishing{t: t, registry: registry.New()}
	server := must.Get(owner.New(owner.Config{
		Registry: p.registry, Credentials: speaker{}, Logger: slog.New(slog.DiscardHandler), Receipts: t.TempDir() + "/receipts",
	}))(t)
	p.server = server
	p.Serve(t, "owner:1", server.Serve)
	p.inquire = func(services map[string]*wire.Encoded) []owner.Changes {
		return server.InquireChanges("", services)
	}
	return p
}

// settled is a source without a cluster, whose part a real owner publishes.
type settled struct {
	*publishing
	*offline

	mu     sync.Mutex // guards the fields below
	object map[string]*mcsv1beta1.ServiceExport
	writes []string // of the condition Settled
	began  time.Time
}

func newSettled(t *testing.T, services int) *settled {
	t.Helper()
	s := &settled{publishing: newPublishing(t), offline: newOffline(t, export.Rules{}), object: make(map[string]*mcsv1beta1.ServiceExport), began: time.Now()}
	s.config.Inquire = s.inquire
	s.changes.wake = make(chan struct{}, 1)
	s.part = published{&part{}, s.registry}
	client := func(gv schema.GroupVersion) rest.Interface {
		return must.Get(rest.RESTClientForConfigAndClient(&rest.Config{
			Host: "http://api", APIPath: "/apis", ContentConfig: rest.ContentConfig{GroupVersion: &gv, NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
			QPS: -1,
		}, &http.Client{Transport: roundTripper(s.answer)}))(t)
	}
	s.writer.Use(client(eventsv1.SchemeGroupVersion), client(schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: "v1beta1"}), "v1beta1")
	var objects []metav1.Object
	for i := range services {
		name := fmt.Sprintf("s%d", i)
		s.object[name] = &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: "u"}}
		objects = append(objects, service("n", name, "192.0.2.1"), s.object[name])
	}
	s.read(t, objects...)
	for _, run := range []func(context.Context){s.run, s.writer.Run, s.settle} {
		must.Run(t, func(ctx context.Context) error { run(ctx); return nil })
	}
	return s
}

// answer takes conditions as the API server does, and has the watch see them.
func (s *settled) answer(request *http.Request) (*http.Response, error) {
	var body struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	code := http.StatusOK
	_, of, is := strings.Cut(strings.TrimSuffix(request.URL.Path, "/status"), "/serviceexports/")
	if is {
		if err := json.NewDecoder(request.Body).Decode(&body); err != nil {
			return nil, err
		}
		s.mu.Lock()
		if v := body.Metadata.ResourceVersion; v != "" && v != s.object[of].ResourceVersion {
			code = http.StatusConflict
		} else {
			next := s.object[of].DeepCopy()
			for _, c := range body.Status.Conditions {
				if c.Type == export.Settled {
					s.writes = append(s.writes, fmt.Sprintf("%v %s %s %s %s", time.Since(s.began).Round(time.Second), of, c.Status, c.Reason, c.Message))
				}
				meta.SetStatusCondition(&next.Status.Conditions, c)
			}
			version, _ := strconv.Atoi(next.ResourceVersion)
			next.ResourceVersion = strconv.Itoa(version + 1)
			s.object[of] = next
			must.Do(s.t, s.store(kindExport).Add(next.DeepCopy()))
		}
		s.mu.Unlock()
	}
	text := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, http.StatusText(code), code)
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(text)), Request: request}, nil
}

// change gives a Service another address.
func (s *settled) change(name, ip string) {
	s.t.Helper()
	s.version++
	next := service("n", name, ip)
	next.ResourceVersion = strconv.Itoa(s.version)
	must.Do(s.t, s.store(kindService).Add(next))
}

// after waits, and checks what was written meanwhile.
func (s *settled) after(d time.Duration, want ...string) {
	s.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortStableFunc(s.writes, func(a, b string) int { // those of one second
		if timeA, _, _ := strings.Cut(a, " "); strings.HasPrefix(b, timeA+" ") {
			return strings.Compare(a, b)
		}
		return 0
	})
	if diff := cmp.Diff(want, s.writes); diff != "" {
		s.t.Errorf("unexpected writes (-want +got):\n%s", diff)
	}
	s.writes, s.began = nil, time.Now()
}

// follow runs a consumer until it is killed, with receipts or without.
func (p *publishing) follow(name string, receipts bool) (kill func()) {
	p.t.Helper()
	var says func() receipt.Receipt
	if receipts {
		says = func() receipt.Receipt { return receipt.Receipt{TTL: 5 * time.Second, Hold: time.Hour} }
	}
	start := time.Now()
	mirror := must.Get(consumer.New(consumer.Config{
		Subscription: consumer.Subscription{
			Addresses: []string{"owner:1"}, Dial: p.Dial,
			Identity: &pki.Identity{Of: func(string) credentials.TransportCredentials { return speaker{name} }},
		},
		Rules:   catalog.Rules{Settle: 5 * time.Second, Retention: time.Hour},
		Receipt: says,
		Publish: func(consumer.Changes) {},
		Clock:   func() (time.Time, time.Duration) { return time.Now().Round(0), time.Since(start) },
	}))(p.t)
	return must.Run(p.t, mirror.Run)
}

const (
	is       = "True Settled nobody resolves what was published before the newest change"
	confirms = "False Confirming all consumers of one owner are settled; others have 5s to say that theirs are not"
	kept     = "False Settling 1 of 1 consumer are not settled; spiffe://example.org/a: its answers are kept for their TTL, until "
	lost     = "False Settling 1 of 1 consumer are not settled; spiffe://example.org/a: it is lost, and answers what it holds until then at most, until "
)

// TestSettled has a real owner say when its consumers are settled, in few writes.
func TestSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSettled(t, 2)
		s.after(10*time.Second, "5s s0 "+is, "5s s1 "+is)
		kill := s.follow("a", true)
		s.after(time.Minute)

		s.change("s0", "192.0.2.2")
		until := time.Now().Add(5 * time.Second).UTC().Format(time.RFC3339)
		s.after(time.Minute, "1s s0 "+kept+until, "5s s0 "+confirms, "10s s0 "+is)
		s.after(time.Hour) // what is settled costs nothing

		s.change("s0", "192.0.2.3")
		synctest.Wait()             // it is published
		s.change("s0", "192.0.2.2") // and back, within a round
		until = time.Now().Add(5 * time.Second).UTC().Format(time.RFC3339)
		s.after(time.Minute, "1s s0 "+kept+until, "5s s0 "+confirms, "10s s0 "+is)

		kill()
		s.change("s1", "192.0.2.2")
		until = time.Now().Add(95 * time.Second).UTC().Format(time.RFC3339)
		s.after(2*time.Minute, "1s s1 "+lost+until, "1m36s s1 "+confirms, "1m41s s1 "+is)
	})
}

// TestSettledByPolicy has a consumer count only for the Services that it is told of.
func TestSettledByPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSettled(t, 2)
		tells, mistakes := policy.New([]policy.Rule{{FQDNs: []string{"s0.n.west.fed.example"}, To: []string{"spiffe://example.org/a"}}})
		if len(mistakes) > 0 {
			t.Fatal(mistakes)
		}
		s.registry.SetPolicy(tells)
		kill := s.follow("a", true)
		s.after(time.Minute, "5s s0 "+is, "5s s1 "+is)
		kill()
		until := time.Now().Add(95 * time.Second).UTC().Format(time.RFC3339)
		s.after(10 * time.Second)
		s.change("s0", "192.0.2.2")
		s.change("s1", "192.0.2.2")
		s.after(time.Minute, "1s s0 "+lost+until)
	})
}

// TestSettledUnknown has an owner whose memory is broken: that is the last word about a change,
// and the next one asks anew.
func TestSettledUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSettled(t, 1)
		s.after(10*time.Second, "5s s0 "+is)
		s.follow("a", false)
		for i := range 2 * maxRounds { // none of which holds up the next ones
			s.change("s0", fmt.Sprintf("192.0.2.%d", i+2))
			time.Sleep(2 * time.Minute)
		}
		const unknown = "s0 Unknown NotKnown it cannot be known; spiffe://example.org/a: it does not say how long it answers what it holds"
		s.after(0, "1s "+unknown)
	})
}

// testSettled has two replicas share the condition. Each knows its own consumer.
func testSettled(t *testing.T, c *cluster) {
	c.namespace("settled")
	c.create(service("settled", "web", "192.0.2.1"))
	c.export("v1beta1", "settled", "web")
	says := func(what string, want ...string) {
		t.Helper()
		until(t, what, func() bool {
			status, reason, message := c.condition("settled", "web", export.Settled)
			for _, fragment := range want {
				if !strings.Contains(strings.Join([]string{status, reason, message}, " "), fragment) {
					return false
				}
			}
			return true
		})
	}
	replicas := make([]*publishing, 2)
	for i := range replicas {
		p := newPublishing(t)
		replicas[i] = p
		r := c.prepare(func(config *Config) { config.Namespaces, config.Inquire = []string{"settled"}, p.inquire })
		r.into = published{r.part, p.registry}
		c.start(r)
	}
	says("nobody holds what was published before", is)
	replicas[0].follow("a", true)
	kill := replicas[1].follow("b", true)
	for _, p := range replicas {
		until(t, "a consumer", func() bool { return p.server.Stats().Catalogs[""].Consumers[wire.V1Alpha2] == 1 })
	}

	c.moveTo("settled", "web", "192.0.2.2")
	says("answers are kept", "False Settling 1 of 1 consumer are not settled", "its answers are kept for their TTL")
	says("both consumers are settled", is)

	kill()
	c.moveTo("settled", "web", "192.0.2.3")
	says("a lost consumer counts, though the other replica has none", "False", "spiffe://example.org/b: it is lost")
}
