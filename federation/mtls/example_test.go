package mtls_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// Each side has its certificate in files. The consumer takes the owner for the one that it
// follows only with the right identity, and the owner learns who the consumer is.
func Example() {
	authority, err := mtls.NewAuthority("example", 24*time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}
	owner, err := loadFiles(authority, mtls.Leaf{URIs: []string{"spiffe://west.example/owner"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	certificates, err := loadFiles(authority, mtls.Leaf{DNSNames: []string{"consumer.example"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	id, err := federation.ParseID("spiffe://west.example/owner")
	if err != nil {
		fmt.Println(err)
		return
	}
	consumer := mtls.Consumer{Source: certificates, IDs: []federation.ID{id}}

	// gRPC does this with the credentials of both sides, over a connection of TCP.
	here, there := net.Pipe()
	go func() {
		_, _, err := consumer.Credentials("owner.west.example:8008").ClientHandshake(context.Background(), "", here)
		if err != nil {
			fmt.Println(err)
		}
	}()
	_, info, err := owner.Server().ServerHandshake(there)
	if err != nil {
		fmt.Println(err)
		return
	}
	peer, certified := mtls.PeerOf(info)
	fmt.Println(peer.IDs(), certified)
	// Output:
	// [consumer.example] true
}

// loadFiles returns a certificate that the authority issues, from files as an operator has them.
// Its method Run would follow them.
func loadFiles(authority *mtls.Authority, leaf mtls.Leaf) (*mtls.Source, error) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	issued, err := authority.Issue(leaf)
	if err != nil {
		return nil, err
	}
	files := mtls.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
	if err := issued.WriteFiles(files); err != nil {
		return nil, err
	}
	return mtls.Load(files, slog.Default())
}
