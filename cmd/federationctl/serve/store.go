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
func openStore(s config.Registration, logger *slog.Logger) (store.Store, error) {
	if s.Etcd == nil {
		return nil, nil //nolint:nilnil // memory, as package registration has it
	}
	c := etcd.Config{
		Endpoints: s.Etcd.Endpoints, Prefix: s.Etcd.Prefix, Username: s.Etcd.Username, Lease: s.Convergence, Logger: logger,
	}
	if s.Etcd.PasswordFile != "" {
		password, _, err := file.Read(s.Etcd.PasswordFile, maxPassword)
		if err != nil {
			return nil, fmt.Errorf("password of etcd: %w", err)
		}
		if c.Password = string(bytes.TrimRight(password, "\r\n")); c.Password == "" {
			return nil, fmt.Errorf("password of etcd: %s is empty", s.Etcd.PasswordFile)
		}
	}
	if s.Etcd.TLS != (mtls.Files{}) {
		var err error
		if c.TLS, err = etcd.TLS(s.Etcd.TLS); err != nil {
			return nil, fmt.Errorf("etcd: %w", err)
		}
	}
	return etcd.New(c), nil
}
