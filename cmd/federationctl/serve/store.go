package serve

import (
	"bytes"
	"fmt"
	"log/slog"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store/etcd"
)

// maxPassword bounds the file with a password, in bytes.
const maxPassword = 4 << 10

// openStore returns what owners share the nodes of a registration in, or nil for the memory of this
// owner.
func openStore(s *config.Registration, logger *slog.Logger) (store.Store, error) {
	in := s.Store.Etcd
	if in == nil {
		return nil, nil //nolint:nilnil // memory, as package registration has it
	}
	c := etcd.Config{
		Endpoints: in.Endpoints, Prefix: in.Prefix, Username: in.Username, Lease: s.Convergence, Logger: logger,
	}
	if in.PasswordFile != "" {
		password, _, err := file.Read(in.PasswordFile, maxPassword)
		if err != nil {
			return nil, fmt.Errorf("password of etcd: %w", err)
		}
		if c.Password = string(bytes.TrimRight(password, "\r\n")); c.Password == "" {
			return nil, fmt.Errorf("password of etcd: %s is empty", in.PasswordFile)
		}
	}
	if in.TLS != (mtls.Files{}) {
		var err error
		if c.TLS, err = etcd.TLS(in.TLS); err != nil {
			return nil, fmt.Errorf("etcd: %w", err)
		}
	}
	return etcd.New(c), nil
}
