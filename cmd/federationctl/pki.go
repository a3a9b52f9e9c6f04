package main

import (
	"crypto/x509"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// What the certificates of pki hold.
const (
	pkiOwnerID    = "spiffe://federation.example/owner"
	pkiConsumerID = "spiffe://federation.example/consumer"

	pkiLifetime = 365 * 24 * time.Hour
)

func pkiCommand() *cobra.Command {
	var hosts []string
	command := &cobra.Command{
		Use:   "pki DIR",
		Short: "Make throwaway certificates for a first try",
		Long: `pki writes the certificates and keys of an owner and of a consumer, signed by
a throwaway authority, into a directory:

  ca.pem                          the authority
  owner.pem, owner-key.pem        ` + pkiOwnerID + `,
                                  localhost, 127.0.0.1, ::1 and every --host;
                                  also valid for clients, for relays
  consumer.pem, consumer-key.pem  ` + pkiConsumerID + `

They are valid for a year. The key of the authority is not kept, so that nothing
can be renewed or added: in production, use certificates of an authority of your
own. pki overwrites no file.`,
		Example: `  federationctl pki run
  federationctl pki certs --host owner.example.org --host 192.0.2.1`,
		Args:              one("DIR"),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		RunE: func(command *cobra.Command, args []string) error {
			return pki(args[0], hosts, command.OutOrStdout())
		},
	}
	command.Flags().StringArrayVar(&hosts, "host", nil, "`name` or address by which consumers reach the owner; repeatable")
	return command
}

// pki writes the files into dir. hosts are further names and addresses of the owner.
func pki(dir string, hosts []string, stdout io.Writer) error {
	ownerLeaf := mtls.Leaf{
		Name:     "owner",
		DNSNames: []string{"localhost"},
		IPs:      []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()},
		URIs:     []string{pkiOwnerID},
	}
	for _, host := range hosts {
		address, err := federation.ParseAddress(host)
		if err != nil {
			return fmt.Errorf("--host: %w", err)
		}
		if ip, ok := address.IP(); ok {
			ownerLeaf.IPs = append(ownerLeaf.IPs, ip)
		} else {
			ownerLeaf.DNSNames = append(ownerLeaf.DNSNames, strings.TrimSuffix(address.String(), "."))
		}
	}
	consumerLeaf := mtls.Leaf{
		Name:  "consumer",
		URIs:  []string{pkiConsumerID},
		Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	ownerFiles := mtls.Files{Cert: in("owner.pem"), Key: in("owner-key.pem"), CA: in("ca.pem")}
	consumerFiles := mtls.Files{Cert: in("consumer.pem"), Key: in("consumer-key.pem"), CA: in("ca.pem")}

	for _, file := range []string{ownerFiles.CA, ownerFiles.Cert, ownerFiles.Key, consumerFiles.Cert, consumerFiles.Key} {
		if _, err := os.Lstat(file); err == nil {
			return failed("%s is there already, and nothing was written; remove it or choose another directory", file)
		}
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return failed("%w; choose another directory", err)
	}
	authority, err := mtls.NewAuthority("throwaway federation authority", pkiLifetime)
	if err != nil {
		return failure(err)
	}
	for _, party := range []struct {
		leaf  mtls.Leaf
		files mtls.Files
	}{{ownerLeaf, ownerFiles}, {consumerLeaf, consumerFiles}} {
		issued, err := authority.Issue(party.leaf)
		if err != nil {
			return failure(err)
		}
		if err := issued.WriteFiles(party.files); err != nil {
			return failure(err)
		}
	}
	fmt.Fprintf(stdout, `wrote to %s:
  ca.pem
  owner.pem, owner-key.pem        %s
  consumer.pem, consumer-key.pem  %s
Next, publish a catalog:
  federationctl serve --catalog catalog.yaml --cert %s --key %s --ca %s --allow-id %s
and, in another terminal, look at it:
  federationctl watch localhost:8008 --cert %s --key %s --ca %s
`, dir, pkiOwnerID, pkiConsumerID,
		ownerFiles.Cert, ownerFiles.Key, ownerFiles.CA, pkiConsumerID, consumerFiles.Cert, consumerFiles.Key, consumerFiles.CA)
	return nil
}
