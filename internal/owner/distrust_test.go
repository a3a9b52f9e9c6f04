package owner

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
)

// party is an owner or a consumer with certificate files.
type party struct {
	tb     testing.TB
	files  mtls.Files
	source *mtls.Source
}

// use makes the party use a certificate of the signer, and trust the others.
func (p *party) use(id string, signer *mtls.Authority, trusted ...*mtls.Authority) {
	p.tb.Helper()
	issued := must.Get(signer.Issue(mtls.Leaf{Name: "test", URIs: []string{id}}))(p.tb)
	var bundle [][]byte
	for _, a := range trusted {
		bundle = append(bundle, a.PEM())
	}
	issued.CA = bytes.Join(bundle, nil)
	if p.source == nil {
		p.files = pki.Files(p.tb.TempDir())
	}
	must.Do(p.tb, issued.WriteFiles(p.files))
	if p.source != nil {
		p.source.Reload()
	} else {
		p.source = must.Get(mtls.Load(p.files, nil))(p.tb)
	}
}

// TestStreamEndsWhenItsAuthorityIsRemoved removes an authority from the CA bundle.
// The streams of its consumers end with Unavailable, after which they reconnect at
// once: with the certificate that they have by then, or else they are refused in the
// handshake. The streams of other consumers go on.
func TestStreamEndsWhenItsAuthorityIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, other := pki.New(t), pki.New(t)
		owner, consumer, stranger := party{tb: t}, party{tb: t}, party{tb: t}
		owner.use(ownerID, own, own, other)
		consumer.use(consumerID, own, own)
		stranger.use(strangerID, other, own)
		f := start(t, func(c *Config) { c.Credentials = owner.source.Server() })
		upsert(t, f.registry, expressible("a", 1))
		dial := func(p party) *grpc.ClientConn {
			conn := f.dial(t, "spiffe://test", grpc.WithTransportCredentials(p.source.Client("owner", []federation.ID{idOf(t, ownerID)})))
			time.AfterFunc(time.Hour, func() { conn.Close() }) // lets the streams end if the test fails
			return conn
		}
		kept, old := subscribe(t, dial(consumer)), subscribe1(t, dial(stranger))
		conn := dial(stranger)
		lost := subscribe(t, conn)
		kept.nextN(2)
		lost.nextN(2)
		old.nextN(2)

		owner.use(ownerID, own, own) // a new certificate of the owner ends no stream
		if got := lost.status(); got.Code() != codes.Unavailable {
			t.Errorf("the stream ended with %v, expected Unavailable", got)
		}
		if _, err := old.stream.Recv(); err == nil {
			t.Error("the stream of v1alpha1 goes on")
		}
		stream, err := rdpb.NewDiscoveryServiceClient(dial(stranger)).EstablishStream(t.Context())
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.Unavailable { // of a refused handshake
			t.Errorf("with the old certificate a stream ended with %v, expected Unavailable", err)
		}
		synctest.Wait() // the owner logs it when the consumer knows already
		if log := f.logged.String(); !strings.Contains(log, "its certificate is not accepted") || !strings.Contains(log, strangerID) {
			t.Errorf("the refused handshake is not logged with the identity:\n%s", log)
		}
		stranger.use(strangerID, own, own)
		if got := subscribe(t, dial(stranger)).next(); got != "upsert a 1" {
			t.Errorf("with a new certificate the first message is %q", got)
		}
		upsert(t, f.registry, service("a", 2))
		if got := kept.next(); got != "upsert a 2" {
			t.Errorf("who is still trusted received %q, expected upsert a 2", got)
		}

		// The status that the consumer gets has the reason.
		consumer.use(consumerID, own, other)
		if got := kept.status(); got.Code() != codes.Unavailable || !strings.Contains(got.Message(), "the CA bundle has no authority of the peer's certificate any more") {
			t.Errorf("the stream ended with %v, expected Unavailable with the reason", got)
		}
	})
}
