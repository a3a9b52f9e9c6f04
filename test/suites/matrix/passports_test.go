package matrix

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

// begin is when the fault begins, from the start of the clock of a bubble. The state
// before the fault is reached in the time before.
const begin = 24 * time.Hour

// The addresses of the owners: two replicas of the one, and its neighbour.
const (
	replicaA  = "a.example:8008"
	replicaB  = "b.example:8008"
	neighbour = "n.example:8008"
)

// passports are all certificates. They are made once for all bubbles, as the clocks
// of all bubbles start at the same time.
type passports struct {
	consumer mtls.Files                                         // for the neighbour
	own      mtls.Files                                         // for the owner: these can be damaged
	issued   [2]mtls.Issued                                     // what they have: a good certificate, and one that expires before the fault
	owners   map[faultowner.Identity]map[string]tls.Certificate // by address
	roots    *x509.CertPool                                     // of the authority that consumers and owners know
	foreign  *x509.CertPool                                     // of another one
}

// mint makes the certificates in files below dir.
func mint(t *testing.T, dir string) *passports {
	t.Helper()
	p := &passports{
		owners: make(map[faultowner.Identity]map[string]tls.Certificate),
		roots:  x509.NewCertPool(), foreign: x509.NewCertPool(),
		consumer: mtls.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")},
	}
	p.own = mtls.Files{Cert: p.consumer.Cert + ".own", Key: p.consumer.Key + ".own", CA: p.consumer.CA + ".own"}
	const century = 100 * 365 * 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		authority := must.Get(mtls.NewAuthority("test", century))(t)
		stranger := must.Get(mtls.NewAuthority("stranger", century))(t)
		p.roots.AppendCertsFromPEM(authority.PEM())
		p.foreign.AppendCertsFromPEM(stranger.PEM())
		issue := func(identity faultowner.Identity, authority *mtls.Authority, address string, leaf mtls.Leaf) {
			issued := must.Get(authority.Issue(leaf))(t)
			certificate := must.Get(tls.X509KeyPair(issued.Cert, issued.Key))(t)
			if p.owners[identity] == nil {
				p.owners[identity] = make(map[string]tls.Certificate)
			}
			p.owners[identity][address] = certificate
		}
		name := func(address string) mtls.Leaf {
			host, _, _ := net.SplitHostPort(address)
			return mtls.Leaf{Name: host, DNSNames: []string{host}}
		}
		brief := name("consumer.example:0")
		brief.Lifetime = begin / 2
		p.issued = [2]mtls.Issued{must.Get(authority.Issue(name("consumer.example:0")))(t), must.Get(authority.Issue(brief))(t)}
		must.Do(t, p.issued[0].WriteFiles(p.consumer))
		for _, address := range []string{replicaA, replicaB, neighbour} {
			issue(faultowner.Right, authority, address, name(address))
			issue(faultowner.Strict, authority, address, name(address))
			issue(faultowner.Other, authority, address, name("other.example:0"))
			issue(faultowner.Foreign, stranger, address, name(address))
			old := name(address)
			old.Lifetime = begin / 2
			issue(faultowner.Expired, authority, address, old)
		}
		// The last certificates are valid from 15 seconds after the fault begins: the time
		// at which they are made, less an hour.
		time.Sleep(begin + 15*time.Second + time.Hour)
		for _, address := range []string{replicaA, replicaB} {
			issue(faultowner.Early, authority, address, name(address))
		}
	})
	return p
}

// mend writes the consumer's own files as they are at the beginning.
func (p *passports) mend(t *testing.T) {
	t.Helper()
	must.Do(t, p.issued[0].WriteFiles(p.own))
}

// damages are what makes the consumer's own files unusable.
var damages = []func(*passports) error{
	func(p *passports) error { return os.Remove(p.own.Cert) },
	func(p *passports) error { return os.Remove(p.own.Key) },
	func(p *passports) error { return os.WriteFile(p.own.Key, p.issued[1].Key, 0o600) },
	func(p *passports) error { return os.WriteFile(p.own.CA, p.issued[0].CA[:100], 0o600) },
	func(p *passports) error { return p.issued[1].WriteFiles(p.own) },
}

// credentials returns the credentials of the owner at the address.
func (p *passports) credentials(identity faultowner.Identity, address string) credentials.TransportCredentials {
	clients := p.roots
	if identity == faultowner.Strict {
		clients = p.foreign
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{p.owners[identity][address]},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, SessionTicketsDisabled: true,
	})
}
