package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/allowfile"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// InputFiles are what a Catalog is read from.
type InputFiles struct {
	Config     string // of the owner; the allow file that it names is read as well
	ServerName string // of the catalog in there, empty for the default one
	Services   string // a catalog file or a dump, of Limit bytes at most
	Limit      int64
}

// Catalog is one of an owner, with the consumers that may subscribe to it.
type Catalog struct {
	file       string // of the configuration, as it was named
	serverName string
	policy     *policy.Policy   // nil for everything to everyone who may subscribe
	rules      []Rule           // of the policy
	exports    []*config.Export // these, as they stand in the configuration
	services   []*wire.EncodedService
	allowed    []federation.ID // in the order of the files, each once
	spiffe     bool            // host names in certificates of consumers count for nothing
}

// OpenCatalog reads a catalog.
func OpenCatalog(ctx context.Context, f InputFiles) (*Catalog, error) {
	data, _, err := file.Read(f.Config, config.MaxBytes)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	owner, problems := config.Parse(data)
	if err := problem.Error(problems, 0); err != nil {
		return nil, fmt.Errorf("configuration file %s: %w; 'federationctl check %[1]s' shows each mistake in a line", f.Config, err)
	}
	owner.ResolvePaths(filepath.Dir(f.Config))
	c := &Catalog{file: f.Config, serverName: strings.ToLower(strings.TrimSuffix(f.ServerName, ".")), spiffe: owner.Identity.SPIFFE.Socket != ""}
	if err := c.takeRules(owner.Catalogs); err != nil {
		return nil, err
	}
	c.allowConsumers(owner.Allow.IDs)
	if path := owner.Allow.File; path != "" {
		if _, err := allowfile.Open(ctx, allowfile.Config{Path: path, Set: c.allowConsumers, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			return nil, err //nolint:wrapcheck // it names the file
		}
	}
	c.services, err = readServices(f.Services, f.Limit)
	return c, err
}

// takeRules takes the rules of the catalog with its server name.
func (c *Catalog) takeRules(catalogs []config.Catalog) error {
	i := slices.IndexFunc(catalogs, func(one config.Catalog) bool { return one.ServerName == c.serverName })
	if i < 0 {
		var names []string
		for _, one := range catalogs {
			names = append(names, catalogName(one.ServerName))
		}
		return fmt.Errorf("%s does not have %s; choose with --server-name: %s", c.file, catalogName(c.serverName), safetext.Printable(strings.Join(names, ", ")))
	}
	c.policy, c.exports = catalogs[i].Policy, catalogs[i].Exports
	for i, export := range catalogs[i].Exports {
		c.rules = append(c.rules, newRule(i+1, c.file, export))
	}
	return nil
}

// allowConsumers adds consumers to those that may subscribe.
func (c *Catalog) allowConsumers(ids []federation.ID) {
	for _, id := range ids {
		if !slices.Contains(c.allowed, id) {
			c.allowed = append(c.allowed, id)
		}
	}
}

// readServices reads those of a catalog file. Their addresses are not judged: a dump has those that
// the owner publishes.
func readServices(opened string, limit int64) ([]*wire.EncodedService, error) {
	data, _, err := file.Read(opened, limit)
	if errors.Is(err, file.ErrTooLarge) {
		return nil, fmt.Errorf("%w; --max-catalog raises it", err)
	} else if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	parsed := catalogfile.Parse(data, wire.AnyAddress())
	if err := parsed.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w; 'federationctl check %[1]s' shows each mistake in a line", opened, err)
	}
	return parsed.Services, nil
}

// catalogName returns the name of a catalog for people.
func catalogName(serverName string) string {
	if serverName == "" {
		return "the default catalog"
	}
	return "catalog " + serverName
}
