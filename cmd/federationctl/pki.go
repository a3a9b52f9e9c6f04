package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
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
		Short: "Make certificates for a trial",
		Long: `pki makes an authority, an owner and a consumer in a directory. The certificate of the
owner is for localhost, 127.0.0.1, ::1 and every --host, also as a client, for relays.
'pki init' makes an authority alone, and 'pki issue' further certificates of an authority.
They are valid for a year from when the authority was made. No file is overwritten. In
production use an authority that can renew and revoke.`,
		Example: `  federationctl pki run

  # An owner that others reach by these names.
  federationctl pki certs --host owner.example.org --host 192.0.2.1`,
		Args:              argsBetween("one DIR", 1, 1),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		RunE: func(command *cobra.Command, args []string) error {
			return makeTrialFiles(args[0], hosts, command.OutOrStdout())
		},
	}
	command.Flags().StringArrayVar(&hosts, "host", nil, "`NAME` or IP address by which consumers reach the owner; repeatable")
	command.AddCommand(pkiInitCommand(), pkiIssueCommand())
	return command
}

func pkiInitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init DIR",
		Short: "Make an authority for a trial",
		Long: `init makes an authority in a directory: ca.pem, which peers need, and ca-key.pem, which
stays where it is. It is valid for a year. No file is overwritten.`,
		Example: `  federationctl pki init ca

  # A certificate of that authority.
  federationctl pki issue ca dns --id spiffe://dns.example/coredns --client`,
		Args:              argsBetween("one DIR", 1, 1),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		RunE: func(command *cobra.Command, args []string) error {
			dir := args[0]
			if err := initAuthority(dir); err != nil {
				return err
			}
			fmt.Fprintf(command.OutOrStdout(), "wrote %[1]s for peers, and %[2]s, which stays here\nnext: federationctl pki issue %[3]s NAME --id spiffe://...\n",
				filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem"), dir)
			return nil
		},
	}
}

// issueOptions are the flags of pki issue.
type issueOptions struct {
	ids            []federation.ID
	hosts          []string
	client, server bool
}

func pkiIssueCommand() *cobra.Command {
	var o issueOptions
	command := &cobra.Command{
		Use:   "issue DIR NAME {--id ID | --dns NAME}...",
		Short: "Issue a certificate of an authority of 'pki init'",
		Long: `issue makes NAME.pem and NAME-key.pem in DIR, signed by the authority there, and valid for
as long. The certificate is for both sides of a connection, as a relay needs it, or only
for those of --client (a CoreDNS, a provider) and --server (an owner).`,
		Example: `  federationctl pki init ca
  federationctl pki issue ca dns --id spiffe://dns.example/coredns --client

  # An owner that is reached by a name and by an address.
  federationctl pki issue ca owner --id spiffe://owner.example/hamlet \
      --dns owner.example --dns 192.0.2.1 --server`,
		Args: argsBetween("DIR and NAME", 2, 2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveFilterDirs
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(command *cobra.Command, args []string) error {
			return o.issueCertificate(args[0], args[1], command.OutOrStdout())
		},
	}
	flags := command.Flags()
	listFlag(command, &o.ids, "id", func(text string) (federation.ID, error) {
		id, err := federation.ParseID(text)
		if err == nil && !id.IsSPIFFE() {
			err = fmt.Errorf("%s is no SPIFFE ID, such as spiffe://dns.example/coredns; use --dns for a DNS name", id)
		}
		return id, err
	}, "SPIFFE `ID` of the certificate, spiffe://...; repeatable")
	flags.StringArrayVar(&o.hosts, "dns", nil, "DNS `NAME` or IP address of the certificate; repeatable")
	flags.BoolVar(&o.client, "client", false, "valid for clients")
	flags.BoolVar(&o.server, "server", false, "valid for servers")
	return command
}

// issueCertificate writes a certificate of the authority in dir.
func (o *issueOptions) issueCertificate(dir, name string, stdout io.Writer) error {
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" || strings.HasPrefix(name, ".") {
		return fmt.Errorf("NAME %q is not a name of files, of letters, digits, '-', '_' and '.'", name)
	}
	leaf := mtls.Leaf{Name: name}
	for _, id := range o.ids {
		leaf.URIs = append(leaf.URIs, id.String())
	}
	if err := addHosts(&leaf, "--dns", o.hosts); err != nil {
		return err
	}
	if len(o.ids)+len(o.hosts) == 0 {
		return errors.New("the certificate has no identity; add --id spiffe://... or --dns NAME")
	}
	if o.client {
		leaf.Usage = append(leaf.Usage, x509.ExtKeyUsageClientAuth)
	}
	if o.server {
		leaf.Usage = append(leaf.Usage, x509.ExtKeyUsageServerAuth)
	}
	authority, err := readAuthority(dir)
	if err != nil {
		return err
	}
	files, err := filesFor(authority, dir, leaf)
	if err != nil {
		return err
	}
	if err := createFiles(files); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "wrote %s and %s, signed by %s\n", files[1].path, files[0].path, filepath.Join(dir, "ca.pem"))
	return nil
}

// makeTrialFiles makes the files of an authority, an owner and a consumer in dir. hosts are further names
// and addresses of the owner.
func makeTrialFiles(dir string, hosts []string, stdout io.Writer) error {
	owner := mtls.Leaf{
		Name:     "owner",
		DNSNames: []string{"localhost"},
		IPs:      []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()},
		URIs:     []string{pkiOwnerID},
	}
	if err := addHosts(&owner, "--host", hosts); err != nil {
		return err
	}
	consumer := mtls.Leaf{
		Name:  "consumer",
		URIs:  []string{pkiConsumerID},
		Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if err := initAuthority(dir, owner, consumer); err != nil {
		return err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	fmt.Fprintf(stdout, `wrote to %s:
  ca.pem, ca-key.pem
  owner.pem, owner-key.pem        %s
  consumer.pem, consumer-key.pem  %s
Next, publish a catalog:
  federationctl serve --catalog catalog.yaml --cert %s --key %s --ca %s --allow-id %s
and, in another terminal, look at it:
  federationctl watch localhost:8008 --cert %s --key %s --ca %s
`, dir, pkiOwnerID, pkiConsumerID,
		in("owner.pem"), in("owner-key.pem"), in("ca.pem"), pkiConsumerID, in("consumer.pem"), in("consumer-key.pem"), in("ca.pem"))
	return nil
}

// addHosts adds names and addresses that a flag has to a certificate.
func addHosts(leaf *mtls.Leaf, flag string, hosts []string) error {
	for _, host := range hosts {
		address, err := federation.ParseAddress(host)
		if err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
		if ip, ok := address.IP(); ok {
			leaf.IPs = append(leaf.IPs, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, strings.TrimSuffix(address.String(), "."))
		}
	}
	return nil
}

// initAuthority writes an authority into dir, with certificates of it.
func initAuthority(dir string, leaves ...mtls.Leaf) error {
	authority, err := mtls.NewAuthority("authority for a trial", pkiLifetime)
	if err != nil {
		return failureOf(err)
	}
	key, err := authority.KeyPEM()
	if err != nil {
		return failureOf(err)
	}
	files := []newFile{{filepath.Join(dir, "ca.pem"), authority.PEM(), 0o644}, {filepath.Join(dir, "ca-key.pem"), key, 0o600}}
	for _, leaf := range leaves {
		of, err := filesFor(authority, dir, leaf)
		if err != nil {
			return err
		}
		files = append(files, of...)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return newFailuref("%w; choose another directory", err)
	}
	return createFiles(files)
}

// readAuthority returns the authority in dir.
func readAuthority(dir string) (*mtls.Authority, error) {
	cert, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	key, keyErr := os.ReadFile(filepath.Join(dir, "ca-key.pem"))
	if err := errors.Join(err, keyErr); errors.Is(err, fs.ErrNotExist) {
		return nil, newFailuref("there is no authority in %s, ca.pem and ca-key.pem; make one with 'federationctl pki init'", dir)
	} else if err != nil {
		return nil, failureOf(err)
	}
	authority, err := mtls.ParseAuthority(cert, key)
	if err != nil {
		return nil, newFailuref("the authority in %s cannot be used: %w", dir, err)
	}
	return authority, nil
}

// newFile is a file to create.
type newFile struct {
	path string
	data []byte
	mode os.FileMode
}

// filesFor issues a certificate. It returns the files of its key and of itself.
func filesFor(authority *mtls.Authority, dir string, leaf mtls.Leaf) ([]newFile, error) {
	issued, err := authority.Issue(leaf)
	if err != nil {
		return nil, failureOf(err)
	}
	base := filepath.Join(dir, leaf.Name)
	return []newFile{{base + "-key.pem", issued.Key, 0o600}, {base + ".pem", issued.Cert, 0o644}}, nil
}

// createFiles writes files, all or none of them where one exists, and overwrites none.
func createFiles(files []newFile) error {
	i := slices.IndexFunc(files, func(f newFile) bool {
		_, err := os.Lstat(f.path)
		return err == nil
	})
	if i >= 0 {
		return newFailuref("%s is there already, and nothing was written; remove it, or choose another name or directory", files[i].path)
	}
	for _, f := range files {
		file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
		if err != nil {
			return failureOf(err)
		}
		_, err = file.Write(f.data)
		if err := errors.Join(err, file.Close()); err != nil {
			return failureOf(err)
		}
	}
	return nil
}
