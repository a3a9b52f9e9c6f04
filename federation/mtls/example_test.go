package mtls_test

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// A consumer has its certificate in files, and takes an owner for the one that it follows
// only with the right identity.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	files := mtls.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
	authority, err := mtls.NewAuthority("example", 24*time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}
	issued, err := authority.Issue(mtls.Leaf{Name: "a consumer", DNSNames: []string{"consumer.example"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := issued.WriteFiles(files); err != nil {
		fmt.Println(err)
		return
	}

	source, err := mtls.Load(files, slog.Default()) // its Run follows the files
	if err != nil {
		fmt.Println(err)
		return
	}
	owner, err := federation.ParseID("spiffe://west.example/owner")
	if err != nil {
		fmt.Println(err)
		return
	}
	consumer := mtls.Consumer{Source: source, IDs: []federation.ID{owner}}
	fmt.Println(consumer.Credentials("owner.west.example:8008").Info().SecurityProtocol)

	block, _ := pem.Decode(issued.Cert)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(mtls.PeerIDs(certificate))
	// Output:
	// tls
	// [consumer.example]
}
