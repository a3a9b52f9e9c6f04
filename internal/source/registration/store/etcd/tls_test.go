package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store/storetest"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// front is TLS before a plain server: it asks for a certificate of the authority.
type front struct {
	address string

	mu     sync.Mutex
	config *tls.Config
	conns  []net.Conn
}

func startFront(t *testing.T, to string, config *tls.Config) *front {
	t.Helper()
	address := must.Get(loopback.FreeAddress())(t)
	listener := must.Get(net.Listen("tcp", address))(t)
	f := &front{address: address, config: config}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			secure := tls.Server(near, f.config)
			f.mu.Unlock()
			far, err := net.Dial("tcp", to)
			if err != nil {
				t.Error(err)
				return
			}
			f.mu.Lock()
			f.conns = append(f.conns, near, far)
			f.mu.Unlock()
			wg.Go(func() { _, _ = io.Copy(far, secure); far.Close() })
			wg.Go(func() { _, _ = io.Copy(secure, far); near.Close() })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		f.use(nil)
		wg.Wait()
	})
	return f
}

// use ends all connections; those that come have another configuration.
func (f *front) use(config *tls.Config) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config = config
	for _, c := range f.conns {
		c.Close()
	}
	f.conns = nil
}

// issue writes the files of a client of a new authority, and returns the configuration of
// its server.
func issue(t *testing.T, files mtls.Files, host netip.Addr) *tls.Config {
	t.Helper()
	authority := must.Get(mtls.NewAuthority("test", 24*time.Hour))(t)
	client := must.Get(authority.Issue(mtls.Leaf{Name: "owner"}))(t)
	must.Do(t, client.WriteFiles(files))
	server := must.Get(authority.Issue(mtls.Leaf{Name: "etcd", IPs: []netip.Addr{host}}))(t)
	pair := must.Get(tls.X509KeyPair(server.Cert, server.Key))(t)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.PEM())
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2"},
	}
}

// TestTLS checks that certificates and authorities are followed, and that a member with
// another name is not believed.
func TestTLS(t *testing.T) {
	t.Parallel()
	e := realserver.StartEtcd(t)
	dir := t.TempDir()
	files := mtls.Files{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), CA: filepath.Join(dir, "ca")}
	if _, err := TLS(mtls.Files{Cert: files.Cert}); !errors.Is(err, errPair) {
		t.Errorf("without a key: %v", err)
	}
	here := netip.MustParseAddr("127.0.0.1")
	f := startFront(t, strings.TrimPrefix(e.URL, "http://"), issue(t, files, here))
	config := must.Get(TLS(files))(t)
	s := newStore(t, func(c *Config) { c.TLS = config }, "https://"+f.address)
	s.timing.probe = 3 * time.Second // the reason is found only if a handshake has failed by then
	r, _ := storetest.StartStore(t, s)
	storetest.CommitAll(t, s, storetest.PutChange(storetest.NewNode(1, 1, 7), 0))

	f.use(issue(t, files, netip.MustParseAddr("127.0.0.2")))
	r.Wait("a member with another name is not believed", func(told storetest.ToldState) bool {
		return told.Away != nil && strings.Contains(told.Away.Error(), "certificate is valid for 127.0.0.2")
	})
	f.use(issue(t, files, here))
	r.Wait("new files are used", has(1))
}

// TestPassword checks that a user with a password is let in, and another is not.
func TestPassword(t *testing.T) {
	t.Parallel()
	e := realserver.StartEtcd(t)
	admin := must.Get(clientv3.New(clientv3.Config{Endpoints: []string{e.URL}}))(t)
	defer admin.Close()
	prefix := "/" + t.Name() + "/"
	for _, err := range []error{
		second(admin.UserAdd(t.Context(), "root", "root's")),
		second(admin.UserGrantRole(t.Context(), "root", "root")),
		second(admin.RoleAdd(t.Context(), "owner")),
		second(admin.RoleGrantPermission(t.Context(), "owner", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))),
		second(admin.UserAdd(t.Context(), "owner", "owner's")),
		second(admin.UserGrantRole(t.Context(), "owner", "owner")),
		second(admin.AuthEnable(t.Context())),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s := newStore(t, func(c *Config) { c.Username, c.Password = "owner", "owner's" }, e.URL)
	r, _ := storetest.StartStore(t, s)
	version := storetest.CommitAll(t, s, storetest.PutChange(storetest.NewNode(1, 1, 7), 0))[0]
	storetest.CommitAll(t, s, storetest.DeleteChange(storetest.NewNode(1, 1, 7).Key, version))
	storetest.CommitAll(t, s, storetest.PutChange(storetest.NewNode(1, 2, 8), 0))
	if err := e.Restart(t.Context()); err != nil { // which forgets the tokens
		t.Fatal(err)
	}
	await.Until(t, patience, func() string { // what Commit began before the restart may fail
		if _, err := s.Commit(t.Context(), puts(2, 3, 8)); err != nil {
			return err.Error()
		}
		return ""
	})
	r.Wait("nodes", func(told storetest.ToldState) bool { return len(told.Nodes) == 4 })

	wrong := newStore(t, func(c *Config) { c.Username, c.Password = "owner", "root's" }, e.URL)
	told := storetest.NewRecorder(t)
	var wg sync.WaitGroup
	wg.Go(func() { wrong.Run(t.Context(), told) })
	t.Cleanup(wg.Wait)
	told.Wait("the wrong password", func(told storetest.ToldState) bool {
		return told.Away != nil && strings.Contains(told.Away.Error(), "invalid user ID or password")
	})
}

func second[T any](_ T, err error) error { return err }
