package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// fileChecker checks files, prints their problems and counts them.
type fileChecker struct {
	policy    wire.AddressPolicy // of catalog files that no configuration names
	limit     int64              // bytes of a file
	elsewhere bool               // whether files of certificates are on another machine

	stdin    io.Reader
	stdout   io.Writer
	problems int
	more     bool // whether there are more problems than were counted
}

// checkFiles returns an error if one of the files has a problem.
func (l *fileChecker) checkFiles(files []string) error {
	for _, file := range files {
		data, err := readCatalog(file, l.limit, l.stdin)
		if file == "-" {
			file = "<stdin>"
		}
		if err != nil {
			l.errorf(file, "%v", err)
			continue
		}
		l.checkContent(file, data)
	}
	switch {
	case l.more:
		return newFailuref("problems found: at least %d; fix them and check again", l.problems)
	case l.problems > 0:
		return newFailuref("problems found: %d; fix them and check again", l.problems)
	}
	return nil
}

// errorf reports that a file cannot be checked.
func (l *fileChecker) errorf(file, format string, args ...any) {
	l.problems++
	fmt.Fprintf(l.stdout, "%s: error: %s\n", file, fmt.Sprintf(format, args...))
}

// serverBlock matches a file whose first line, after comments, opens a server block or a snippet
// of a Corefile.
var serverBlock = regexp.MustCompile(`^(?:[ \t\r]*(?:#[^\n]*)?\n)*[^\s#"'{\[](?:[^\n#]*[^\s:#])?[ \t]*\{[ \t\r]*(?:#[^\n]*)?(?:\n|$)`)

// isCorefile reports whether a file is a Corefile, by its name or else by how it begins.
func isCorefile(name string, data []byte) bool {
	base := filepath.Base(name)
	return base == "Corefile" || strings.HasPrefix(base, "Corefile.") || serverBlock.Match(data)
}

// checkContent checks the content of a file, whose form is to be recognized.
func (l *fileChecker) checkContent(file string, data []byte) {
	if isCorefile(file, data) {
		l.checkCorefile(file, data)
		return
	}
	switch config.RecognizeForm(data) {
	case config.FormConfiguration:
		l.checkConfiguration(file, data)
	case config.FormImport:
		l.checkImport(file, data)
	case config.FormRules:
		l.checkRules(file, data)
	default:
		l.checkCatalog(file, data, l.policy)
	}
}

// checkRules checks the content of a file with the rules of a registration.
func (l *fileChecker) checkRules(file string, data []byte) {
	_, problems := rules.Parse(data)
	l.problems += len(problems)
	printProblems(l.stdout, file, "error", problems)
	if len(problems) == 0 {
		fmt.Fprintf(l.stdout, "%s: rules, fit to be used\n", file)
	}
}

// checkCatalog checks the content of a catalog file.
func (l *fileChecker) checkCatalog(file string, data []byte, policy wire.AddressPolicy) {
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
func (l *fileChecker) checkConfiguration(opened string, data []byte) {
	config, problems, warnings := config.Check(data)
	if !l.reportConfiguration(opened, problems, warnings, status.CountNoun(len(config.Catalogs), "catalog")+", fit to be served") {
		return
	}
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

// reportConfiguration prints what is wrong with a configuration, or else that it is fit, and reports whether
// it is.
func (l *fileChecker) reportConfiguration(opened string, problems, warnings []problem.Problem, fit string) bool {
	l.problems += len(problems)
	printProblems(l.stdout, opened, "error", problems)
	printProblems(l.stdout, opened, "warning", warnings)
	if len(problems) == 0 {
		fmt.Fprintf(l.stdout, "%s: %s\n", opened, fit)
	}
	return len(problems) == 0
}

// checkImport checks the content of the configuration file of an importer.
func (l *fileChecker) checkImport(opened string, data []byte) {
	c, problems, warnings := config.CheckImport(data)
	if !l.reportConfiguration(opened, problems, warnings, status.CountNoun(len(c.Owners), "owner")+", fit to be imported") || l.elsewhere {
		return
	}
	c.ResolvePaths(filepath.Dir(opened))
	identity, err := l.checkProcessFiles(opened, c.ProcessConfig)
	if err == nil && !identity.ForClients() {
		l.errorf(c.Identity.Files.Cert, "the certificate is not valid for clients (clientAuth), so owners refuse it; have it issued for clients")
	}
	if at, err := os.Stat(c.Persist); err == nil && !at.IsDir() {
		l.errorf(opened, "persist: %s is a file; name a folder", c.Persist)
	}
}

// errorUnlessUsable reports why files of certificates that a key of a configuration names cannot be used.
func (l *fileChecker) errorUnlessUsable(opened, key string, files mtls.Files, err error) {
	if err != nil && files != (mtls.Files{}) {
		l.errorf(opened, "%s: %v", key, err)
	}
}

// checkProcessFiles checks the files of certificates that owners and importers have, and returns the
// identity that they make.
func (l *fileChecker) checkProcessFiles(opened string, c config.ProcessConfig) (*mtls.Source, error) {
	identity, err := mtls.Load(c.Identity.Files, nil)
	l.errorUnlessUsable(opened, "identity.files", c.Identity.Files, err)
	l.errorUnlessUsable(opened, "status", c.Status.Files, usableFiles(c.Status.Files))
	return identity, err
}

// checkCertificates checks the files of certificates that a configuration names, and warns when
// the certificate of the owner cannot be that of a consumer of the owner that a relay follows.
func (l *fileChecker) checkCertificates(opened string, c *config.Config) {
	if l.elsewhere {
		return
	}
	identity, err := l.checkProcessFiles(opened, c.ProcessConfig)
	for _, catalog := range c.Catalogs {
		for _, s := range catalog.Sources {
			switch {
			case s.Registration != nil && s.Registration.Store.Etcd != nil:
				l.errorUnlessUsable(opened, "source "+s.Name, s.Registration.Store.Etcd.TLS, usableClientFiles(s.Registration.Store.Etcd.TLS))
			case s.Consul != nil:
				l.errorUnlessUsable(opened, "source "+s.Name, s.Consul.TLS, usableClientFiles(s.Consul.TLS))
			case s.Relay != nil && err == nil && !identity.ForClients():
				fmt.Fprintf(l.stdout, "%s: warning: the certificate is not valid for clients (clientAuth), so the owner that %s follows refuses it; have it issued for servers and clients\n", c.Identity.Files.Cert, s.Name)
			}
		}
	}
}

// usableClientFiles returns why the files of TLS to a server cannot be used, or nil.
func usableClientFiles(files mtls.Files) error {
	_, err := file.TLS(files.Cert, files.Key, files.CA)
	return err
}

// readCatalog returns the content of a file, or, for "-", of standard input.
// More than limit bytes are an error.
func readCatalog(opened string, limit int64, stdin io.Reader) ([]byte, error) {
	if opened != "-" {
		data, _, err := file.Read(opened, limit)
		switch {
		case errors.Is(err, file.ErrTooLarge):
			return nil, fmt.Errorf("%w; --max-catalog raises it", err)
		case errors.Is(err, file.ErrNotRegular):
			return nil, fmt.Errorf("%w; 'federationctl check -' reads standard input", err)
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
