package mtls

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Files are the paths of the PEM files by which a party identifies itself and
// verifies its peers. Each must be a regular file of at most 1 MiB or a symbolic link to one; anything
// else, such as a FIFO, is refused. The tags are for the configuration files of federationctl.
type Files struct {
	Cert string `yaml:"cert" doc:"A PEM file with the certificate to show, then intermediate ones. A renewed file is used without a restart."`
	Key  string `yaml:"key" doc:"A PEM file with the key of cert."`
	CA   string `yaml:"ca" doc:"A PEM file with the authorities that may have signed the certificate of the other side."`
}

const blockCertificate = "CERTIFICATE" // RFC 7468 section 5

var (
	errNoCertificate = errors.New("holds no PEM certificate")
	errMalformed     = errors.New("has a PEM block that is cut off or malformed")
	errOver          = errors.New("expired")
	errNotYetValid   = errors.New("is not valid")
)

// fileError is why one of the files cannot be used, and what to do about that.
type fileError struct {
	error

	remedy string
}

// Unwrap returns the error itself.
func (e *fileError) Unwrap() error { return e.error }

// Remedy returns what to do about the file.
func (e *fileError) Remedy() string { return e.remedy + "; the files are read again by themselves" }

// newReadError returns the error of a file that cannot be read.
func newReadError(what, path string, err error) error {
	remedy := "make " + path + " a regular file, and repair its disk"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		remedy = "put " + path + " in its place, or correct the path"
	case errors.Is(err, fs.ErrPermission):
		remedy = "let the user of this process read " + path
	case errors.Is(err, file.ErrTooLarge), errors.Is(err, file.ErrNotRegular):
		remedy = "replace " + path + " by a PEM file"
	}
	return &fileError{fmt.Errorf("%s: %w", what, err), remedy}
}

// newContentError returns the error of a file whose certificates cannot be used.
func newContentError(what, path string, err error) error {
	remedy := "replace " + path + " by a whole PEM file with certificates"
	switch {
	case errors.Is(err, errOver):
		remedy = "renew " + path
	case errors.Is(err, errNotYetValid):
		remedy = "correct the clock of this machine, or have " + path + " issued anew"
	}
	return &fileError{fmt.Errorf("%s %s: %w", what, path, err), remedy}
}

// readMaterial returns the material of the files, if it is valid now. Its errors name the file and
// what is wrong with it.
func (f Files) readMaterial(now time.Time) (*tlsMaterial, error) {
	var all [3][]byte
	for i, of := range [...]struct{ what, path string }{{"certificate", f.Cert}, {"key", f.Key}, {"CA bundle", f.CA}} {
		var err error
		if all[i], _, err = file.Read(of.path, file.MaxPEM); err != nil {
			return nil, newReadError(of.what, of.path, err)
		}
	}
	cert, key, ca := all[0], all[1], all[2]
	m := &tlsMaterial{
		sum:      sha256.Sum256(bytes.Join(all[:], []byte{0})), // PEM has no zero byte
		replaced: make(chan struct{}),
	}

	chain, err := parseCertificates(cert)
	if err != nil {
		return nil, newContentError("certificate", f.Cert, err)
	}
	for _, c := range chain {
		if err := checkValidity(c, now); err != nil {
			return nil, newContentError("certificate", f.Cert, err)
		}
	}
	m.expiry = firstExpiry(chain)
	if m.certificate, err = tls.X509KeyPair(cert, key); err != nil {
		return nil, &fileError{
			fmt.Errorf("key %s of certificate %s: %w", f.Key, f.Cert, printableError(err)), "replace " + f.Key + " by the key that " + f.Cert + " was issued for",
		}
	}

	authorities, err := parseCertificates(ca)
	if err != nil {
		return nil, newContentError("CA bundle", f.CA, err)
	}
	m.trust = trustFiles(authorities)
	valid := false
	for _, c := range authorities {
		if err = checkValidity(c, now); err == nil {
			valid = true
		}
	}
	// An expired authority beside a valid one is usual while one replaces the other.
	if !valid {
		return nil, newContentError("CA bundle", f.CA, err)
	}
	return m, nil
}

// parseCertificates returns all certificates of a PEM file. Package encoding/pem skips what it
// cannot read, which would turn a half-written bundle into a shorter one. So everything that begins
// like a block must be one.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certificates []*x509.Certificate
	begun := bytes.Count(data, []byte("-----BEGIN "))
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		begun--
		if block.Type != blockCertificate {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, printableError(err)
		}
		certificates = append(certificates, c)
	}
	switch {
	case begun != 0:
		return nil, errMalformed
	case len(certificates) == 0:
		return nil, errNoCertificate
	}
	return certificates, nil
}

// printableError returns an error that wraps err and whose text is safe to show, because the text
// of err may repeat the content of a file.
func printableError(err error) error {
	text := err.Error()
	quoted := safetext.Quote(text)
	if quoted == `"`+text+`"` {
		return err
	}
	return fmt.Errorf("%s%.0w", quoted, err)
}

func checkValidity(c *x509.Certificate, now time.Time) error {
	switch {
	case now.After(c.NotAfter):
		return fmt.Errorf("%w at %s", errOver, c.NotAfter.Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return fmt.Errorf("%w before %s; check the clock of this machine", errNotYetValid, c.NotBefore.Format(time.RFC3339))
	}
	return nil
}
