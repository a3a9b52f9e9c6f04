// Package pki gives the owners and consumers of a test their certificates.
package pki

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// New returns an authority that outlives whatever a test waits for.
func New(t testing.TB) *mtls.Authority {
	t.Helper()
	return must.Get(mtls.NewAuthority("test", 100*365*24*time.Hour))(t)
}

// Named is a leaf with the DNS name.
func Named(name string) mtls.Leaf { return mtls.Leaf{Name: name, DNSNames: []string{name}} }

// Files returns the files of a folder for a certificate, its key and its authority.
func Files(dir string) mtls.Files {
	return mtls.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
}

// Issue writes a certificate of the authority to files of a new folder.
func Issue(t testing.TB, authority *mtls.Authority, leaf mtls.Leaf) mtls.Files {
	t.Helper()
	files := Files(t.TempDir())
	must.Do(t, must.Get(authority.Issue(leaf))(t).WriteFiles(files))
	return files
}

// Source returns a certificate of the authority, for someone who trusts the authority.
func Source(t testing.TB, authority *mtls.Authority, leaf mtls.Leaf) *mtls.Source {
	t.Helper()
	return must.Get(mtls.Load(Issue(t, authority, leaf), nil))(t)
}

// Identity is the identity of a stream, a stream.Identity, that changes when a test says
// so. That of package mtls waits for the file system, which no bubble knows.
type Identity struct {
	// Of returns the credentials for the owner at an address.
	Of func(address string) credentials.TransportCredentials

	mu      sync.Mutex
	changed chan struct{} // closed by the next Change; guarded by mu
}

// NewIdentity returns the identity of a consumer that holds the certificate.
func NewIdentity(source *mtls.Source) *Identity {
	return &Identity{Of: mtls.Consumer{Source: source}.Credentials}
}

// Credentials implements stream.Identity.
func (i *Identity) Credentials(address string) credentials.TransportCredentials { return i.Of(address) }

// Changed implements stream.Identity.
func (i *Identity) Changed() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.changed == nil {
		i.changed = make(chan struct{})
	}
	return i.changed
}

// Change does what a change of the certificate's files does.
func (i *Identity) Change() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.changed != nil {
		close(i.changed)
		i.changed = nil
	}
}

// Run implements stream.Identity.
func (*Identity) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
