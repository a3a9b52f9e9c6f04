package realserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// token is what the client of an API server that may do everything says.
const token = "test-token"

// APIServer is a running kube-apiserver with an etcd of its own. There are no
// controllers and no nodes: an object stays as it was created, and a Service has no
// EndpointSlice unless the test creates one.
type APIServer struct {
	URL        string
	PID        int
	Kubeconfig string // path of the file with which a client may do everything
	Etcd       *Etcd

	client *http.Client
}

// StartAPIServer starts an etcd and a kube-apiserver, and waits until it is ready.
// Services get addresses of 10.96.0.0/12.
func StartAPIServer(tb testing.TB) *APIServer {
	tb.Helper()
	path, dir := apiServer.path(tb), tb.TempDir()
	s := &APIServer{Etcd: StartEtcd(tb), Kubeconfig: filepath.Join(dir, "kubeconfig")}
	address := freeAddress(tb)
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		tb.Fatal(err)
	}
	s.URL = "https://" + address
	key, err := signingKey()
	if err != nil {
		tb.Fatal(err)
	}
	certificate := filepath.Join(dir, "certificates", "apiserver.crt") // it signs its own
	for name, text := range map[string]string{
		"signing.key": key,
		"tokens.csv":  token + `,admin,admin,"system:masters"` + "\n",
		"kubeconfig": fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: test, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`, s.URL, certificate, token),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	s.PID = start(tb, dir, path, []string{
		"--etcd-servers=" + s.Etcd.URL,
		"--bind-address=" + host, "--advertise-address=" + host, "--secure-port=" + port,
		"--cert-dir=" + filepath.Dir(certificate),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=signing.key", "--service-account-signing-key-file=signing.key",
		"--token-auth-file=tokens.csv", "--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.96.0.0/12", "--endpoint-reconciler-type=none",
		"--disable-admission-plugins=ServiceAccount", // no controller makes service accounts
		"--profiling=false",
	}, func() error {
		if s.client == nil {
			if s.client, err = clientFor(certificate); err != nil {
				return err
			}
			tb.Cleanup(s.client.CloseIdleConnections)
		}
		_, err := s.Get(tb.Context(), "/readyz")
		return err
	})
	return s
}

// signingKey returns a new key for the tokens of service accounts, in PEM.
func signingKey() (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})), nil
}

// clientFor returns a client that trusts the certificate in a file.
func clientFor(certificate string) (*http.Client, error) {
	text, err := os.ReadFile(certificate)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("the certificate is not written yet")
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}, nil
}

// Create creates an object in JSON in the collection at a path, such as
// /api/v1/namespaces.
func (s *APIServer) Create(ctx context.Context, path string, object any) error {
	_, err := call(ctx, s.client, http.MethodPost, s.URL+path, token, object)
	return err
}

// Get returns what is at a path, in JSON for an object.
func (s *APIServer) Get(ctx context.Context, path string) ([]byte, error) {
	return call(ctx, s.client, http.MethodGet, s.URL+path, token, nil)
}
