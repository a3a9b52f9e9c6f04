package page

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

func TestValidate(t *testing.T) {
	files := mtls.Files{Cert: "cert.pem", Key: "key.pem", CA: "ca.pem"}
	for name, tc := range map[string]struct {
		config Config
		want   string // the error; empty for none
	}{
		"localhost":             {config: Config{Address: "localhost:9154"}},
		"LOCALHOST":             {config: Config{Address: "LOCALHOST:9154"}},
		"all of 127.0.0.0/8":    {config: Config{Address: "127.9.8.7:9154"}},
		"::1":                   {config: Config{Address: "[::1]:9154"}},
		"mapped loopback":       {config: Config{Address: "[::ffff:127.0.0.1]:9154"}},
		"elsewhere with files":  {config: Config{Address: ":9154", Files: files}},
		"every address":         {config: Config{Address: ":9154"}, want: "not a loopback address"},
		"a name of localhost":   {config: Config{Address: "localhost.example:9154"}, want: "not a loopback address"},
		"another address":       {config: Config{Address: "192.0.2.1:9154"}, want: "not a loopback address"},
		"no port":               {config: Config{Address: "localhost"}, want: "not host:port"},
		"empty port":            {config: Config{Address: "localhost:"}, want: "has no port"},
		"a certificate, no key": {config: Config{Address: ":9154", Files: mtls.Files{Cert: "cert.pem"}}, want: "all three or none"},
		"a certificate, no CA":  {config: Config{Address: ":9154", Files: mtls.Files{Cert: "a", Key: "b"}}, want: "all three or none"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.config.Validate()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Validate says %v, expected %q", err, tc.want)
			}
		})
	}
}

func TestListenFails(t *testing.T) {
	taken := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	for name, tc := range map[string]struct {
		config Config
		want   string
	}{
		"port taken": {Config{Address: taken.Addr().String()}, "address already in use"},
		"open":       {Config{Address: ":0"}, "not a loopback address"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Listen(t.Context(), tc.config, nil)
			if err == nil {
				s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "status: ") {
				t.Errorf("Listen says %v, expected %q", err, tc.want)
			}
		})
	}
}

// served is a server under test.
type served struct {
	*Server

	logged testlog.Buffer
	stop   func() error
}

// serve runs a server until the end of the test, or until stop, which returns its error.
func serve(t *testing.T, server *Server, source ReportSource) *served {
	t.Helper()
	s := &served{Server: server}
	s.logger = s.logged.Logger()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var err error
	running.Go(func() { err = server.Serve(ctx, source) })
	s.stop = func() error {
		cancel()
		running.Wait()
		return err
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func listen(t *testing.T, config Config) *Server {
	t.Helper()
	return must.Get(Listen(t.Context(), config, nil))(t)
}

func TestRequests(t *testing.T) {
	s := serve(t, listen(t, Config{Address: "127.0.0.1:0"}), &fixed{status: status.Status{Role: status.Consumer}})
	port := s.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // a TCP port
	for name, tc := range map[string]struct {
		request string // header, without its end
		code    int
		header  string // of the answer
		body    string // part of the answer
	}{
		"status":          {request: "GET /v1/status HTTP/1.1\r\nHost: localhost", code: 200, body: `"role":"consumer"`},
		"HEAD":            {request: "HEAD /v1/status HTTP/1.1\r\nHost: localhost", code: 200},
		"POST":            {request: "POST /v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0", code: 405, header: "Allow: GET, HEAD"},
		"POST to why":     {request: "POST /v1/why?name=a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000", code: 405},
		"no such page":    {request: "GET /metrics HTTP/1.1\r\nHost: localhost", code: 404},
		"way up":          {request: "GET /../../etc/passwd HTTP/1.1\r\nHost: localhost", code: 307, header: "Location: /etc/passwd"},
		"port in Host":    {request: fmt.Sprintf("GET /v1/status HTTP/1.1\r\nHost: localhost:%d", port), code: 200},
		"address":         {request: "GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1:1", code: 200},
		"IPv6":            {request: "GET /v1/status HTTP/1.1\r\nHost: [::1]:1", code: 200},
		"upper case":      {request: "GET /v1/status HTTP/1.1\r\nHost: LocalHost:9154", code: 200},
		"IPv6, zone":      {request: "GET /v1/status HTTP/1.1\r\nHost: [::1%25lo]:9154", code: 200},
		"final dot":       {request: "GET /v1/status HTTP/1.1\r\nHost: localhost.:9154", code: 421},
		"below localhost": {request: "GET /v1/status HTTP/1.1\r\nHost: evil.localhost", code: 421},
		"rebound name":    {request: "GET /v1/status HTTP/1.1\r\nHost: evil.example", code: 421, body: "localhost"},
		"rebound, port":   {request: "GET /v1/status HTTP/1.1\r\nHost: evil.example:9154", code: 421},
		"absolute URL":    {request: "GET http://evil.example/v1/status HTTP/1.1\r\nHost: localhost", code: 421},
		"page elsewhere":  {request: "GET /v1/why?name=a.b HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors", code: 403},
		"link elsewhere":  {request: "GET / HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate", code: 200, body: "CoreDNS"},
		"empty Host":      {request: "GET /v1/status HTTP/1.1\r\nHost:", code: 421},
		"huge header":     {request: "GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("a", 64<<10), code: 431},
		"long name":       {request: "GET /v1/why?name=" + strings.Repeat("a.", 4<<10) + " HTTP/1.1\r\nHost: localhost", code: 400, body: "is not a domain name"},
		"no name":         {request: "GET /v1/why HTTP/1.1\r\nHost: localhost", code: 400, body: "name is missing"},
		"control name":    {request: "GET /v1/why?name=a%0ab%3cscript%3e HTTP/1.1\r\nHost: localhost", code: 200},
		"unknown type":    {request: "GET /v1/why?name=a&type=%3cb%3e HTTP/1.1\r\nHost: localhost", code: 400, body: "is not a type"},
		"unknown owner":   {request: "GET /v1/catalog?of=x HTTP/1.1\r\nHost: localhost", code: 404, body: `there is no owner or catalog \"x\"`},
	} {
		t.Run(name, func(t *testing.T) {
			c := must.Get(net.Dial("tcp", s.Addr().String()))(t)
			defer c.Close()
			fmt.Fprintf(c, "%s\r\n\r\n", tc.request) // fails where the server has had enough
			all, err := io.ReadAll(c)
			if len(all) == 0 && err != nil {
				t.Fatal(err)
			}
			header, body, _ := strings.Cut(string(all), "\r\n\r\n")
			if _, code, _ := strings.Cut(header, " "); !strings.HasPrefix(code, fmt.Sprint(tc.code)) {
				t.Errorf("the answer is %.300s, expected %d", all, tc.code)
			}
			if !strings.Contains(header, tc.header) || !strings.Contains(body, tc.body) {
				t.Errorf("the answer is %.300s, expected %q and %q in it", all, tc.header, tc.body)
			}
			if tc.code != 200 && tc.code != 404 && tc.code != 405 && tc.code != 403 && tc.code != 421 {
				return // of net/http
			}
			for _, want := range []string{
				"Cache-Control: no-store", "X-Content-Type-Options: nosniff",
				"Content-Security-Policy: default-src 'none'", "frame-ancestors 'none'",
			} {
				if !strings.Contains(header, want) {
					t.Errorf("the header is %q, expected %s in it", header, want)
				}
			}
		})
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", s.Addr().String()); err == nil {
		c.Close()
		t.Error("the port is open after the end")
	}
}

// pipes is a net.Listener whose connections are pipes, on which time can stand still.
type pipes struct {
	connections chan net.Conn
	closed      chan struct{}
	once        sync.Once
}

func newPipes() *pipes { return &pipes{connections: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.connections:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (p *pipes) dial() net.Conn {
	a, b := net.Pipe()
	p.connections <- b
	return a
}

// get asks for the status and returns the code.
func get(t *testing.T, c net.Conn) int {
	t.Helper()
	must.Get(io.WriteString(c, "GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"))(t)
	answer := must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
	defer answer.Body.Close()
	must.Get(io.Copy(io.Discard, answer.Body))(t)
	return answer.StatusCode
}

func TestSlowHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		serve(t, &Server{listener: p}, &fixed{})
		c := p.dial()
		begun := time.Now()
		var writing sync.WaitGroup
		writing.Go(func() {
			for err := error(nil); err == nil; time.Sleep(time.Second) { // an octet a second
				_, err = c.Write([]byte("G"))
			}
		})
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != headerTimeout {
			t.Errorf("a header of an octet a second was read for %v", took)
		}
		writing.Wait()
	})
}

// Those who say nothing keep others out for as long as a header may take, whatever their number.
func TestManyConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		serve(t, &Server{listener: p}, &fixed{})
		begun := time.Now()
		for range maxConnections {
			defer p.dial().Close()
		}
		if code := get(t, p.dial()); code != http.StatusOK {
			t.Errorf("the code is %d", code)
		}
		if took := time.Since(begun); took != headerTimeout {
			t.Errorf("this took %v", took)
		}
	})
}

// What a client sends beside a request for status costs nothing.
func TestBodies(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder) // where mime/multipart keeps what is large
	s := serve(t, listen(t, Config{Address: "127.0.0.1:0"}), &fixed{})
	const form = "--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n"
	for name, head := range map[string]string{
		"page":   "GET /?name=a.b HTTP/1.1\r\nContent-Length: 100000000",
		"HEAD":   "HEAD /v1/status HTTP/1.1\r\nContent-Length: 1",
		"chunks": "GET /v1/catalog HTTP/1.1\r\nTransfer-Encoding: chunked",
	} {
		t.Run(name, func(t *testing.T) {
			c := must.Get(net.Dial("tcp", s.Addr().String()))(t)
			defer c.Close()
			var sending sync.WaitGroup
			defer sending.Wait()
			sending.Go(func() {
				_, err := fmt.Fprintf(c, "%s\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n%s", head, form)
				for sent := 0; err == nil && sent < 50<<20; sent += 1 << 20 { // less than the request says
					_, err = c.Write(make([]byte, 1<<20))
				}
				if err == nil {
					t.Error("the server has read 50 MiB of the body")
				}
			})
			answer := must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
			answer.Body.Close()
			if !answer.Close {
				t.Errorf("the connection stays open after %s", answer.Status)
			}
		})
	}
	if files, err := os.ReadDir(folder); err != nil || len(files) > 0 {
		t.Errorf("there are files: %v, %v", files, err)
	}
}

func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := serve(t, &Server{listener: p}, &fixed{count: 1 << 40})
		c := p.dial()
		must.Get(io.WriteString(c, "GET /v1/catalog?of=o1.example:8008 HTTP/1.1\r\nHost: localhost\r\n\r\n"))(t)
		begun := time.Now()
		var err error
		for err == nil {
			_, err = c.Read(make([]byte, 1024))
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if took := time.Since(begun); !errors.Is(err, io.EOF) || took > catalogTimeout+2*time.Second {
			t.Errorf("a slow reader of a catalog without end was served for %v, then %v", took, err)
		}
		if log := s.logged.String(); log != "" {
			t.Errorf("logged %s", log)
		}
	})
}

// Those who ask for a catalog and do not read it leave room for others, and are not waited
// for.
func TestStuckReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		serve(t, &Server{listener: p}, &fixed{count: 1 << 40})
		ask := func() net.Conn {
			c := p.dial()
			must.Get(io.WriteString(c, "GET /v1/catalog?of=o1.example:8008 HTTP/1.1\r\nHost: localhost\r\n\r\n"))(t)
			synctest.Wait()
			return c
		}
		begun := time.Now()
		var stuck []net.Conn
		for range maxCatalogs {
			stuck = append(stuck, ask())
		}
		for range maxConnections {
			answer := must.Get(http.ReadResponse(bufio.NewReader(ask()), nil))(t)
			answer.Body.Close()
			if answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" {
				t.Fatalf("the code is %d", answer.StatusCode)
			}
			if code := get(t, p.dial()); code != http.StatusOK {
				t.Fatalf("the code is %d", code)
			}
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("others waited for %v", took)
		}
		time.Sleep(catalogTimeout)
		synctest.Wait()
		for _, c := range stuck {
			if n, err := io.Copy(io.Discard, c); err != nil || n != 0 {
				t.Errorf("after %v of silence the connection has %d octets more, %v", catalogTimeout, n, err)
			}
		}
		c := ask()
		defer c.Close()
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
			t.Errorf("the next one gets %q, %v", line, err)
		}
	})
}

// Serve ends soon, whatever its clients do.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := serve(t, &Server{listener: p}, &fixed{count: 1 << 40})
		c := p.dial()
		defer c.Close()
		must.Get(io.WriteString(c, "GET /v1/catalog?of=o1.example:8008 HTTP/1.1\r\nHost: localhost\r\n\r\n"))(t)
		defer p.dial().Close()
		synctest.Wait()
		begun := time.Now()
		if err := s.stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != endTimeout {
			t.Errorf("the end took %v", took)
		}
	})
}

// A part of a catalog must not pass for the whole.
func TestCatalogFails(t *testing.T) {
	s := serve(t, listen(t, Config{Address: "localhost:0"}), &fixed{count: 1000, broken: true})
	answer := must.Get(http.Get("http://" + s.Addr().String() + "/v1/catalog?of=o1.example:8008"))(t)
	defer answer.Body.Close()
	if all, err := io.ReadAll(answer.Body); err == nil || len(all) == 0 {
		t.Errorf("a catalog that fails is read to its end, which is %.100s, %v", all, err)
	}
}

func TestTLS(t *testing.T) {
	authority, other := newAuthority(t), newAuthority(t)
	folder := t.TempDir()
	files := mtls.Files{Cert: filepath.Join(folder, "cert.pem"), Key: filepath.Join(folder, "key.pem"), CA: filepath.Join(folder, "ca.pem")}
	server := mtls.Leaf{IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	write := func(server, clients *mtls.Authority, leaf mtls.Leaf) {
		issued := issue(t, server, leaf)
		issued.CA = clients.PEM()
		must.Do(t, issued.WriteFiles(files))
	}
	write(authority, authority, server)
	s := serve(t, listen(t, Config{Address: "127.0.0.1:0", Files: files}), &fixed{})

	client := func(by *mtls.Authority, leaf mtls.Leaf, owner *mtls.Authority) *tls.Config {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(owner.PEM())
		config := &tls.Config{RootCAs: roots}
		if by != nil {
			issued := issue(t, by, leaf)
			certificate := must.Get(tls.X509KeyPair(issued.Cert, issued.Key))(t)
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
		}
		return config
	}
	ask := func(config *tls.Config) error {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
		defer client.CloseIdleConnections()
		answer, err := client.Get("https://" + s.Addr().String() + "/v1/status")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		return json.NewDecoder(answer.Body).Decode(new(status.Status))
	}
	// refused sends nothing behind its certificate: there may be an error of that alone, in
	// place of what the server says.
	refused := func(what string, config *tls.Config, want string) {
		t.Helper()
		c, err := tls.Dial("tcp", s.Addr().String(), config)
		if err == nil {
			defer c.Close()
			_, err = c.Read(make([]byte, 1))
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", what, err, want)
		}
	}

	reader := mtls.Leaf{Name: "somebody"}
	if err := ask(client(authority, reader, authority)); err != nil {
		t.Error(err)
	}
	refused("no certificate", client(nil, mtls.Leaf{}, authority), "certificate required")
	refused("of another authority", client(other, reader, authority), "unknown certificate authority")
	answer := must.Get(http.Get("http://" + s.Addr().String() + "/v1/status"))(t)
	answer.Body.Close()
	if answer.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP at the port of TLS gets %d", answer.StatusCode)
	}

	// Another authority, from the next request on.
	write(other, other, server)
	s.identity.Reload()
	if err := ask(client(other, reader, other)); err != nil {
		t.Error(err)
	}
	refused("of the old authority", client(authority, reader, other), "unknown certificate authority")

	if err := s.stop(); err != nil { // it has logged everything then
		t.Error(err)
	}
	if log := s.logged.String(); !strings.Contains(log, "a request for the status failed") || !strings.Contains(log, "client didn't provide a certificate") {
		t.Errorf("logged %s", log)
	}
}

func newAuthority(t *testing.T) *mtls.Authority {
	t.Helper()
	return must.Get(mtls.NewAuthority("test", 24*time.Hour))(t)
}

func issue(t *testing.T, authority *mtls.Authority, leaf mtls.Leaf) mtls.Issued {
	t.Helper()
	return must.Get(authority.Issue(leaf))(t)
}

// fixed is a ReportSource that always says the same.
type fixed struct {
	status status.Status
	why    status.NameExplanation
	first  []status.CatalogService // of the catalog
	count  int                     // of the others
	broken bool                    // the catalog cannot be read to its end
}

const ownerID = "o1.example:8008"

func (f *fixed) Status() status.Status {
	s := f.status
	if len(s.Owners) == 0 && (f.count > 0 || len(f.first) > 0) {
		s.Owners = []status.FollowedOwner{{ID: ownerID}}
	}
	return s
}

func (f *fixed) Why(_ context.Context, name string, _ uint16) (status.NameExplanation, error) {
	why := f.why
	why.Name = name
	return why, nil
}

func (f *fixed) Catalog(string) iter.Seq2[status.CatalogService, error] {
	return func(yield func(status.CatalogService, error) bool) {
		for _, s := range f.first {
			if !yield(s, nil) {
				return
			}
		}
		for range f.count {
			if !yield(status.CatalogService{Name: "web", FQDN: "web.fed.example.", Service: json.RawMessage(`{}`)}, nil) {
				return
			}
		}
		if f.broken {
			yield(status.CatalogService{}, errors.New("broken"))
		}
	}
}
