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

// settled is a source without a cluster, whose part a real owner publishes.
type settled struct {
	network.Network
	*offline

	t        *testing.T
	registry *registry.Registry

	mu     sync.Mutex // guards the fields below
	object map[string]*mcsv1beta1.ServiceExport
	writes []string // of the condition Settled
	began  time.Time
}

func newSettled(t *testing.T, services int) *settled {
	t.Helper()
	s := &settled{t: t, offline: newOffline(t, export.Rules{}), registry: registry.New(), object: make(map[string]*mcsv1beta1.ServiceExport), began: time.Now()}
	server := must.Get(owner.New(owner.Config{
		Registry: s.registry, Credentials: speaker{}, Logger: slog.New(slog.DiscardHandler), Receipts: t.TempDir() + "/receipts",
	}))(t)
	s.Serve(t, "owner:1", server.Serve)
	s.config.Inquire = func(services map[string]*wire.Encoded) ([]owner.Changes, []string) {
		return server.InquireChanges("", services)
	}
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

// follow runs a consumer until it is killed.
func (s *settled) follow(name string) (kill func()) {
	s.t.Helper()
	start := time.Now()
	mirror := must.Get(consumer.New(consumer.Config{
		Subscription: consumer.Subscription{
			Addresses: []string{"owner:1"}, Keepalive: 10 * time.Second, Dial: s.Dial,
			Identity: &pki.Identity{Of: func(string) credentials.TransportCredentials { return speaker{name} }},
		},
		Rules:   catalog.Rules{Settle: 5 * time.Second, Retention: time.Hour},
		Receipt: func() receipt.Receipt { return receipt.Receipt{TTL: 5 * time.Second, Hold: time.Hour} },
		Publish: func(consumer.Changes) {},
		Clock:   func() (time.Time, time.Duration) { return time.Now().Round(0), time.Since(start) },
	}))(s.t)
	return must.Run(s.t, mirror.Run)
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
		kill := s.follow("a")
		s.after(time.Minute)

		s.change("s0", "192.0.2.2")
		until := time.Now().Add(5 * time.Second).UTC().Format(time.RFC3339)
		s.after(time.Minute, "1s s0 "+kept+until, "5s s0 "+confirms, "10s s0 "+is)
		s.after(time.Hour) // what is settled costs nothing

		s.change("s0", "192.0.2.3") // and back, within a round
		s.change("s0", "192.0.2.2")
		s.after(time.Minute)

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
		kill := s.follow("a")
		s.after(time.Minute, "5s s0 "+is, "5s s1 "+is)
		kill()
		until := time.Now().Add(95 * time.Second).UTC().Format(time.RFC3339)
		s.after(10 * time.Second)
		s.change("s0", "192.0.2.2")
		s.change("s1", "192.0.2.2")
		s.after(time.Minute, "1s s0 "+lost+until)
	})
}
