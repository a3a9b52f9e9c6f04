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
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// token is what the client of an API server that may do everything says.
const token = "test-token"

// APIServer is a running kube-apiserver. By itself it has no controllers and no
// nodes: an object stays as it was created, and a Service has no EndpointSlice unless
// the test creates one. StartCluster starts one with controllers.
type APIServer struct {
	*Process

	URL        string
	Kubeconfig string // path of the file with which a client may do everything
	Etcd       *Etcd

	certificate string // path of its own
	client      *http.Client
}

// StartAPIServer starts an etcd and a kube-apiserver, and waits until it is ready.
// Services get addresses of 10.96.0.0/12.
func StartAPIServer(tb testing.TB) *APIServer {
	tb.Helper()
	need(tb, FindAPIServer())
	e := StartEtcd(tb)
	s := must.Get(newAPIServer(tb.TempDir(), e))(tb)
	s.StartFor(tb)
	return s
}

// newAPIServer returns an API server that has not been started, with its files in dir.
func newAPIServer(dir string, e *Etcd) (*APIServer, error) {
	path, err := apiServer.findHere()
	if err != nil {
		return nil, err
	}
	addresses, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(addresses[0])
	if err != nil {
		return nil, err
	}
	s := &APIServer{
		Etcd: e, URL: "https://" + addresses[0], Kubeconfig: filepath.Join(dir, "kubeconfig"),
		certificate: filepath.Join(dir, "certificates", "apiserver.crt"), // it signs its own, and keeps it
	}
	key, err := signingKey()
	if err != nil {
		return nil, err
	}
	for name, text := range map[string]string{"signing.key": key, "tokens.csv": token + `,admin,admin,"system:masters"` + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	if err := s.writeKubeconfig(s.Kubeconfig, token); err != nil {
		return nil, err
	}
	s.Process = &Process{
		Name: "kube-apiserver", Path: path, Dir: dir,
		Args: []string{
			"--etcd-servers=" + e.URL,
			"--bind-address=" + host, "--advertise-address=" + host, "--secure-port=" + port,
			"--cert-dir=" + filepath.Dir(s.certificate),
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=signing.key", "--service-account-signing-key-file=signing.key",
			"--token-auth-file=tokens.csv", "--authorization-mode=RBAC",
			"--service-cluster-ip-range=10.96.0.0/12", "--endpoint-reconciler-type=none",
			"--disable-admission-plugins=ServiceAccount", // pods need none here
			"--profiling=false",
		},
		Ready: func(ctx context.Context) error {
			if s.client == nil {
				if s.client, err = clientFor(s.certificate); err != nil {
					return err
				}
			}
			_, err := call(ctx, s.client, http.MethodGet, s.URL+"/readyz", token, nil)
			return err
		},
	}
	return s, nil
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
