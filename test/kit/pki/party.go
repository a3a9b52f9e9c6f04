package pki

import (
	"context"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// Party is a consumer or an owner whose certificate is replaced when a test says so.
type Party struct {
	*mtls.Source

	t         testing.TB
	authority *mtls.Authority
	leaf      mtls.Leaf
	files     mtls.Files
}

// NewParty returns a party with a certificate of that lifetime, from now on.
func NewParty(t testing.TB, authority *mtls.Authority, leaf mtls.Leaf, lifetime time.Duration) *Party {
	t.Helper()
	p := &Party{t: t, authority: authority, leaf: leaf, files: Files(t.TempDir())}
	p.Replace(lifetime)
	p.Source = must.Get(mtls.Load(p.files, nil))(t)
	return p
}

// Replace gives the party a new certificate of that lifetime, from now on.
func (p *Party) Replace(lifetime time.Duration) {
	p.t.Helper()
	p.leaf.Lifetime = time.Hour + lifetime // counted from an hour before
	must.Do(p.t, must.Get(p.authority.Issue(p.leaf))(p.t).WriteFiles(p.files))
	if p.Source != nil {
		p.Reload()
	}
}

// As returns the identity of a consumer, a stream.Identity, that follows no files.
func (p *Party) As(c mtls.Consumer) Reloaded {
	c.Source = p.Source
	return Reloaded{c}
}

// Reloaded is an identity whose files are read when a test says so.
type Reloaded struct{ mtls.Consumer }

// Run implements stream.Identity.
func (Reloaded) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
