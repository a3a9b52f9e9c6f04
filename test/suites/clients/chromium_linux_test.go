package clients

import (
	"crypto/tls"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestHTTPS has a chromium open http:// of two names. Nothing listens at port 80, but the HTTPS
// record of one has it go to https://. (It ignores records with a port other than 443. curl of
// Debian 12 asks for none.)
func TestHTTPS(t *testing.T) {
	if unfit != nil {
		t.Skip(unfit)
	}
	const page = "by HTTPS"
	w := newWorld(t)
	h := newHost(t, 100, coreDNSAddress)
	w.publish(t, map[string][]string{"secure-https": {endpoint(1)}, "secure-tls": {endpoint(1)}})
	w.answers(t, "secure-https", endpoint(1))

	must.Do(t, w.Issue("secure", "spiffe://fed.example/secure", 0))
	certificate := must.Get(tls.LoadX509KeyPair(w.Files("secure").Cert, w.Files("secure").Key))(t)
	listener := must.Get(net.Listen("tcp", net.JoinHostPort(endpoint(1), httpsPort)))(t)
	server := &http.Server{
		ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(page)) }),
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })

	for name, want := range map[string]bool{"secure-https": true, "secure-tls": false} {
		// It fails where the page does.
		out, _ := exec.CommandContext(t.Context(), "ip", h.inside("resolv.conf",
			"chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--user-data-dir="+t.TempDir(),
			"--ignore-certificate-errors", "--disable-features=HttpsUpgrades", "--timeout=20000", "--dump-dom", "http://"+fqdn(name)+"/")...).Output()
		if got := strings.Contains(string(out), page); got != want {
			t.Errorf("%s: the page comes %t, want %t: %s\nqueries: %q", name, got, want, out, w.queries(t, h, name))
		}
	}
}
