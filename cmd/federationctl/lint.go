package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store/etcd"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

func lintCommand(ctx context.Context) *cobra.Command {
	var policy wire.AddressPolicy
	limit, elsewhere := int64(catalogfile.DefaultLimit), false
	command := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check catalog files, configuration files of owners and rules of registrations",
		Long: `lint checks catalog files as 'federationctl serve' does before it publishes
them, and as consumers do when they get them. It prints each problem with its
file, line, service and field, up to a hundred of each file. YAML may have 16 MiB.
An endpoint that is a name of its own service, or leads back to it through others,
is a problem, too. 'federationctl serve' publishes it, as a consumer may rename the
service.

A file that has keys of a configuration at the top, such as catalogs or identity,
and no services, is checked as the configuration of an owner is by 'federationctl
serve --config'. The catalog files and the rules of registrations that it names are
checked, too, with its allow_addresses and max_size, if they can be read.
Certificates, keys and CA files that cannot be used are problems here; an owner starts
with them, and nobody is connected until they are mended. The allow file, clusters and
stores are not looked at. A file that has rules at the top, and neither services nor keys of a
configuration, is checked as the rules of a registration.

It also warns of what is allowed, but probably a mistake: two services with one
fqdn (more than 64 are a problem), an endpoint that no instance selects, an instance that will have no DNS name
of its own; exports that are empty, an identity in allow.ids that no rule names, or one that a
rule names and that may not subscribe; a registration with an etcd
elsewhere without TLS; a relay that knows the owner that it follows by an IP address alone, or
whose certificate is not valid for clients. The exit code is 0 without problems, also with
warnings, 1 with some, and 2 when its output cannot be written.

The FILE - is standard input. Any other FILE must be a regular file.`,
		Example: `  federationctl lint catalog.yaml
  federationctl lint catalogs/*.json

  # The configuration of an owner, with the catalog files and rules it names.
  federationctl lint owner.yaml

  # Check a catalog before it is copied to where an owner reads it.
  cat catalog.yaml | federationctl lint - && cp catalog.yaml published.yaml`,
		Args: func(_ *cobra.Command, files []string) error {
			if len(files) == 0 {
				return errors.New("name the catalog FILE to check, or several")
			}
			return nil
		},
		RunE: func(command *cobra.Command, files []string) error {
			stdin, stdout := command.InOrStdin(), command.OutOrStdout()
			done := make(chan error, 1)
			// When ctx ends the goroutine is left to the end of the process: a read of
			// standard input cannot be interrupted.
			go func() {
				done <- toldOn(stdout, func(out io.Writer) error { return lintFiles(files, policy, limit, elsewhere, stdin, out) })
			}()
			select {
			case err := <-done:
				return err
			case <-ctx.Done():
				return newFailuref("interrupted")
			}
		},
		ValidArgsFunction: cobra.FixedCompletions([]string{"yaml", "yml", "json", "jsonl"}, cobra.ShellCompDirectiveFilterFileExt),
	}
	rangesFlag(command, &policy.AllowAddresses)
	maxCatalogFlag(command, &limit)
	elsewhereFlag(command, &elsewhere)
	return command
}

// lintFiles checks files, and returns an error where one of them has a problem. limit is
// in bytes. Elsewhere says that files of certificates are on another machine.
func lintFiles(files []string, policy wire.AddressPolicy, limit int64, elsewhere bool, stdin io.Reader, stdout io.Writer) error {
	l := linter{stdout: stdout, elsewhere: elsewhere}
	for _, file := range files {
		data, err := readCatalog(file, limit, stdin)
		if file == "-" {
			file = "<stdin>"
		}
		switch {
		case err != nil:
			l.errorf(file, "%v", err)
		default:
			l.checkContent(file, data, policy)
		}
	}
	switch {
	case l.more:
		return newFailuref("problems found: at least %d; fix them and check again", l.problems)
	case l.problems > 0:
		return newFailuref("problems found: %d; fix them and check again", l.problems)
	}
	return nil
}

// linter counts the problems of files and prints them.
type linter struct {
	stdout   io.Writer
	problems int
	more     bool // whether there are more problems than were counted

	elsewhere bool // whether files of certificates are not to be looked at
}

// errorf reports that a file cannot be checked.
func (l *linter) errorf(file, format string, args ...any) {
	l.problems++
	fmt.Fprintf(l.stdout, "%s: error: %s\n", file, fmt.Sprintf(format, args...))
}

// checkContent checks the content of a file, whose form is to be recognized.
func (l *linter) checkContent(file string, data []byte, policy wire.AddressPolicy) {
	switch config.RecognizeForm(data) {
	case config.FormConfiguration:
		l.checkConfiguration(file, data)
	case config.FormRules:
		l.checkRules(file, data)
	default:
		l.checkCatalog(file, data, policy)
	}
}

// checkRules checks the content of a file with the rules of a registration.
func (l *linter) checkRules(file string, data []byte) {
	_, problems := rules.Parse(data)
	l.problems += len(problems)
	printProblems(l.stdout, file, "error", problems)
	if len(problems) == 0 {
		fmt.Fprintf(l.stdout, "%s: rules, fit to be used\n", file)
	}
}

// checkCatalog checks the content of a catalog file.
func (l *linter) checkCatalog(file string, data []byte, policy wire.AddressPolicy) {
	catalog := catalogfile.Parse(data, policy)
	l.problems += len(catalog.Problems) + catalog.MoreProblems
	l.more = l.more || catalog.MoreProblems > 0
	printProblems(l.stdout, file, "error", catalog.Problems)
	if catalog.MoreProblems > 0 {
		fmt.Fprintf(l.stdout, "%s: error: and at least %d more\n", file, catalog.MoreProblems)
	}
	printProblems(l.stdout, file, "warning", catalog.Warnings)
	if catalog.MoreWarnings > 0 {
		fmt.Fprintf(l.stdout, "%s: warning: and %d more\n", file, catalog.MoreWarnings)
	}
	if len(catalog.Problems) == 0 {
		fmt.Fprintf(l.stdout, "%s: %s, fit to be published\n", file, status.CountNoun(len(catalog.Services), "service"))
	}
}

// checkConfiguration checks the content of a configuration file, and the catalog files and
// the rules that it names and that can be read.
func (l *linter) checkConfiguration(opened string, data []byte) {
	config, problems, warnings := config.Check(data)
	l.problems += len(problems)
	printProblems(l.stdout, opened, "error", problems)
	printProblems(l.stdout, opened, "warning", warnings)
	if len(problems) > 0 {
		return
	}
	fmt.Fprintf(l.stdout, "%s: %s, fit to be served\n", opened, status.CountNoun(len(config.Catalogs), "catalog"))
	checked := make(map[string]bool)
	named := func(path string, limit int64, raise string, check func(data []byte)) {
		if checked[path] {
			return
		}
		checked[path] = true
		data, _, err := file.Read(path, limit)
		switch {
		case errors.Is(err, file.ErrTooLarge):
			l.errorf(path, "%v%s", err, raise)
		case err != nil:
			fmt.Fprintf(l.stdout, "%s: warning: it is not checked: %v\n", path, err)
		default:
			check(data)
		}
	}
	config.ResolvePaths(filepath.Dir(opened))
	l.checkCertificates(opened, &config)
	for _, catalog := range config.Catalogs {
		for _, s := range catalog.Sources {
			switch {
			case s.File != nil:
				named(s.File.Path, s.File.MaxSize, "; max_size in "+opened+" raises it", func(data []byte) {
					l.checkCatalog(s.File.Path, data, wire.AddressPolicy{AllowAddresses: config.AllowAddresses})
				})
			case s.Registration != nil:
				named(s.Registration.Rules, rules.MaxBytes, "", func(data []byte) { l.checkRules(s.Registration.Rules, data) })
			}
		}
	}
}

// checkCertificates checks the files of certificates that a configuration names, and warns when
// the certificate of the owner cannot be that of a consumer of the owner that a relay follows.
func (l *linter) checkCertificates(opened string, c *config.Config) {
	if l.elsewhere {
		return
	}
	fit := func(key string, files mtls.Files, err error) {
		if err != nil && files != (mtls.Files{}) {
			l.errorf(opened, "%s: %v", key, err)
		}
	}
	identity, err := mtls.Load(c.Identity.Files, nil)
	fit("identity.files", c.Identity.Files, err)
	fit("status", c.Status.Files, checkFiles(c.Status.Files))
	for _, catalog := range c.Catalogs {
		for _, s := range catalog.Sources {
			switch {
			case s.Registration != nil && s.Registration.Etcd != nil:
				fit("source "+s.Name, s.Registration.Etcd.TLS, etcd.CheckFiles(s.Registration.Etcd.TLS))
			case s.Relay != nil && err == nil && !identity.ForClients():
				fmt.Fprintf(l.stdout, "%s: warning: the certificate is not valid for clients (clientAuth), so the owner that %s follows refuses it; have it issued for servers and clients\n", c.Identity.Files.Cert, s.Name)
			}
		}
	}
}

// readCatalog returns the content of a catalog file, or, for "-", of standard input.
// More than limit bytes are an error.
func readCatalog(opened string, limit int64, stdin io.Reader) ([]byte, error) {
	if opened != "-" {
		data, _, err := file.Read(opened, limit)
		switch {
		case errors.Is(err, file.ErrTooLarge):
			return nil, fmt.Errorf("%w; --max-catalog raises it", err)
		case errors.Is(err, file.ErrNotRegular):
			return nil, fmt.Errorf("%w; 'federationctl lint -' reads standard input", err)
		}
		return data, err
	}
	data, err := io.ReadAll(io.LimitReader(stdin, limit+1))
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("there are more than %d bytes; --max-catalog raises the limit", limit)
	}
	return data, err
}

// printProblems prints problems, one a line.
func printProblems(stdout io.Writer, file, severity string, problems []problem.Problem) {
	for _, p := range problems {
		place := file
		if p.Line > 0 {
			place = fmt.Sprintf("%s:%d", file, p.Line)
		}
		fmt.Fprintf(stdout, "%s: %s: %s\n", place, severity, p)
	}
}
