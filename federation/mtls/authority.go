package mtls

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// Authority is a throwaway certificate authority, for tests and for trying the
// project out. It is no way to run a federation: nothing protects its key, and nothing
// that it signed can be revoked.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// backdated is how long before it was made a certificate becomes valid, because clocks of peers may
// be behind.
const backdated = time.Hour

// NewAuthority returns a new authority with that common name. Its certificate is valid for
// lifetime, counted from an hour before now.
func NewAuthority(name string, lifetime time.Duration) (*Authority, error) {
	template := newTemplate(name, lifetime)
	template.KeyUsage, template.IsCA = x509.KeyUsageCertSign, true
	key, der, err := signCertificate(template, template, nil)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse certificate: %w", err)
	}
	return &Authority{certificate, key}, nil
}

// ParseAuthority returns the authority with a certificate and a key in PEM, as PEM and
// KeyPEM return them.
func ParseAuthority(cert, key []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	private, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("certificate and key are not those of an authority of this package")
	}
	return &Authority{pair.Leaf, private}, nil
}

// Leaf describes the certificate of a consumer or an owner.
type Leaf struct {
	Name string // common name, which identifies nobody

	// The subject alternative names.
	DNSNames []string
	IPs      []netip.Addr
	URIs     []string

	Usage    []x509.ExtKeyUsage // default: both client and server
	Lifetime time.Duration      // counted from an hour before now; default: as long as the authority
}

// Issued is a certificate with its key, and the certificate of the authority
// that signed it, in PEM.
type Issued struct{ Cert, Key, CA []byte }

// Issue returns a new key and a certificate for it. It fails when one of the URIs cannot be parsed.
func (a *Authority) Issue(leaf Leaf) (Issued, error) {
	template := newTemplate(leaf.Name, leaf.Lifetime)
	template.KeyUsage, template.DNSNames, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, leaf.DNSNames, leaf.Usage
	if len(leaf.Usage) == 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	if leaf.Lifetime == 0 {
		template.NotAfter = a.certificate.NotAfter
	}
	for _, ip := range leaf.IPs {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	for _, s := range leaf.URIs {
		uri, err := url.Parse(s)
		if err != nil {
			return Issued{}, err
		}
		template.URIs = append(template.URIs, uri)
	}
	key, certificate, err := signCertificate(template, a.certificate, a.key)
	if err != nil {
		return Issued{}, err
	}
	private, err := keyPEM(key)
	if err != nil {
		return Issued{}, err
	}
	return Issued{
		Cert: pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: certificate}),
		Key:  private,
		CA:   a.PEM(),
	}, nil
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), nil
}

// KeyPEM returns the key of the authority in PEM.
func (a *Authority) KeyPEM() ([]byte, error) { return keyPEM(a.key) }

// PEM returns the certificate of the authority in PEM.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: a.certificate.Raw})
}

// newTemplate returns a certificate with that common name, valid for lifetime, counted from an hour before
// now.
func newTemplate(name string, lifetime time.Duration) *x509.Certificate {
	notBefore := time.Now().Add(-backdated)
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: notBefore, NotAfter: notBefore.Add(lifetime), BasicConstraintsValid: true,
	}
}

// signCertificate returns a new key, and a certificate for it that parentKey has signed, or the new key
// itself if that is nil.
func signCertificate(template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (key *ecdsa.PrivateKey, der []byte, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // RFC 5280 section 4.1.2.2: at most 20 octets, unique
	if err != nil {
		return nil, nil, fmt.Errorf("choose serial number: %w", err)
	}
	template.SerialNumber = serial
	der, err = x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, cmp.Or(parentKey, key))
	if err != nil {
		return nil, nil, fmt.Errorf("sign certificate: %w", err)
	}
	return key, der, nil
}

// WriteFiles writes the certificate, the key and the authority's certificate to the paths in files.
// The key has mode 0600. A rename replaces every file, so that a reader never sees half of one.
func (i Issued) WriteFiles(files Files) error {
	for _, f := range []struct {
		path string
		data []byte
		mode os.FileMode
	}{{files.CA, i.CA, 0o644}, {files.Cert, i.Cert, 0o644}, {files.Key, i.Key, 0o600}} {
		if err := replaceFile(f.path, f.data, f.mode); err != nil {
			return err
		}
	}
	return nil
}

func replaceFile(path string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // of mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // does nothing after the rename
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
