package main

import (
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const partnerID = "spiffe://partner.example/coredns"

// partiesIn returns a new directory with the certificates of the parties owner,
// consumer and partner, a second consumer, and server, an owner that can be no consumer.
func partiesIn(t *testing.T) string {
	t.Helper()
	authority := must.Get(mtls.NewAuthority("test", 24*time.Hour))(t)
	dir := t.TempDir()
	for name, leaf := range map[string]mtls.Leaf{
		"owner":    {Name: "owner", DNSNames: []string{"localhost"}, URIs: []string{pkiOwnerID}},
		"consumer": {Name: "consumer", URIs: []string{pkiConsumerID}},
		"partner":  {Name: "partner", URIs: []string{partnerID}},
		"server":   {Name: "server", URIs: []string{pkiOwnerID}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}},
	} {
		issued := must.Get(authority.Issue(leaf))(t)
		must.Do(t, issued.WriteFiles(filesOf(dir, name)))
	}
	return dir
}

// filesOf returns the certificate files of a party in dir.
func filesOf(dir, party string) mtls.Files {
	return mtls.Files{
		Cert: filepath.Join(dir, party+".pem"), Key: filepath.Join(dir, party+"-key.pem"), CA: filepath.Join(dir, "ca.pem"),
	}
}

// stream is a consumer that sends and receives messages by itself.
type stream struct {
	t *testing.T
	rdpb.DiscoveryService_EstablishStreamClient
}

// dialOwner connects to an owner with the certificate of a party in dir.
func dialOwner(t *testing.T, dir, party, address string) *grpc.ClientConn {
	t.Helper()
	source := must.Get(mtls.Load(filesOf(dir, party), nil))(t)
	conn := must.Get(grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(source.Client("localhost", nil))))(t)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// subscribe opens a stream and sends the first request.
func subscribe(t *testing.T, conn *grpc.ClientConn) *stream {
	t.Helper()
	s := must.Get(rdpb.NewDiscoveryServiceClient(conn).EstablishStream(t.Context()))(t)
	request := &rdpb.BidirectionalStream{Request: wire.Subscribe("session")}
	if err := s.Send(request); err != nil && !errors.Is(err, io.EOF) { // the reason comes with the first Recv
		t.Fatal(err)
	}
	return &stream{t, s}
}

// next receives a response and acknowledges it.
// It returns the operation and the name of the service.
func (s *stream) next() string {
	s.t.Helper()
	m := must.Get(s.Recv())(s.t)
	must.Do(s.t, s.Send(&rdpb.BidirectionalStream{Request: wire.Answer(m.GetResponse().GetNonce(), "session", nil)}))
	return strings.TrimSpace(m.GetResponse().GetOperation().String() + " " + m.GetResponse().GetResourceId())
}

// ends waits until the stream ends, and returns its code.
func (s *stream) ends() codes.Code {
	s.t.Helper()
	for {
		if _, err := s.Recv(); err != nil {
			return status.Code(err)
		}
	}
}

// eventually waits until a condition has nothing to complain of.
var eventually = await.Eventually

// TestServeAllowFileAndFlag has an allow file that names nobody: those that the flag
// names are still allowed.
func TestServeAllowFileAndFlag(t *testing.T) {
	dir := partiesIn(t)
	file := write(t, filepath.Join(dir, "consumers.txt"), "[]\n")
	_, address := runServe(t, dir, write(t, filepath.Join(dir, "catalog.yaml"), catalogText), "--allow-file", file, "--allow-id", pkiConsumerID)
	if got := subscribe(t, dialOwner(t, dir, "consumer", address)).next(); got != "UPSERT api" {
		t.Errorf("received %q, expected UPSERT api", got)
	}
	if code := subscribe(t, dialOwner(t, dir, "partner", address)).ends(); code != codes.Unauthenticated {
		t.Errorf("a consumer that neither names gets %v, expected Unauthenticated", code)
	}
}

// TestServeRefusesFlags has flags whose files or addresses cannot be used.
func TestServeRefusesFlags(t *testing.T) {
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), catalogText)
	empty, broken := write(t, filepath.Join(dir, "empty"), "# nobody yet\n"), write(t, filepath.Join(dir, "broken"), "a.example\n*\n")
	for _, tt := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--allow-file", filepath.Join(dir, "no")}, "allow file: stat " + filepath.Join(dir, "no") + ": no such file or directory; it needs one identity a line"},
		{[]string{"--allow-file", empty}, "allow file " + empty + ": the file names nobody; [] on a line of its own allows nobody"},
		{[]string{"--allow-file", broken}, "allow file " + broken + ": line 2: identity \"*\""},
		{[]string{"--metrics", "nowhere"}, "missing port in address; choose another address with --metrics"},
	} {
		args := slices.Concat([]string{"serve", "--listen", "127.0.0.1:0", "--catalog", file}, files(dir, "owner"), admitting(tt.flags))
		code, stdout, stderr := ctl(t, args...)
		if code != exitFailed || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("%v: exit code %d, standard output %q, standard error:\n%s\nexpected exit code 1 and %q", tt.flags, code, stdout, stderr, tt.want)
		}
	}
}

// scrape returns the metrics of an owner by name and labels.
func scrape(t *testing.T, url string) map[string]float64 {
	t.Helper()
	response := must.Get(http.Get(url))(t)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v, %s", url, err, response.Status)
	}
	samples := make(map[string]float64)
	for line := range strings.Lines(string(body)) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || !strings.HasPrefix(series, "federation_owner_") {
			continue
		}
		if samples[series], err = strconv.ParseFloat(value, 64); err != nil {
			t.Fatal(err)
		}
	}
	return samples
}
