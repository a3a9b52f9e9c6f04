package test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// scratch is a directory that lasts until the tests end, or "".
var scratch string

// federationctl builds the command once.
var federationctl = sync.OnceValues(func() (string, error) {
	var err error
	if scratch, err = os.MkdirTemp("", "federationctl"); err != nil {
		return "", err
	}
	path := filepath.Join(scratch, "federationctl")
	out, err := exec.Command("go", "build", "-o", path, "../cmd/federationctl").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// serveCatalog runs an owner as a process.
func serveCatalog(t testing.TB, address, catalog string, files mtls.Files, flags ...string) *process {
	t.Helper()
	path := must.Get(federationctl())(t)
	args := append([]string{
		"serve", "--listen", address, "--catalog", catalog,
		"--cert", files.Cert, "--key", files.Key, "--ca", files.CA,
	}, flags...)
	if !slices.Contains(flags, "--allow-id") {
		args = append(args, "--allow-any")
	}
	return startProcess(t, exec.Command(path, args...))
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	temporary := path + ".new"
	must.Do(t, os.WriteFile(temporary, []byte(content), 0o600))
	must.Do(t, os.Rename(temporary, path))
}

// catalogOf is a catalog file with services of one instance, as fqdn=address.
func catalogOf(services ...string) string {
	var b strings.Builder
	b.WriteString("services:\n")
	for _, s := range services {
		fqdn, address, _ := strings.Cut(s, "=")
		fmt.Fprintf(&b, "- {name: %q, fqdn: %q, endpoints: [{address: %q, port: 443}], instances: [{id: v1, protocol: HTTPS}]}\n", fqdn, fqdn, address)
	}
	return b.String()
}

// TestCorefileMistakes shows that each mistake is one clear error with its line,
// and that CoreDNS does not start with it.
func TestCorefileMistakes(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	for name, tt := range map[string]struct{ block, want string }{
		"no owner": {p.tls(), "Corefile:3 - Error during parsing: owner: is missing"},
		"property": {"owner a.example:1\n" + p.tls() + "\ncolour red", `Corefile:6 - Error during parsing: colour: is not a property`},
		"persist":  {"owner a.example:1\n" + p.tls() + "\npersist /nonexistent/catalog", "Corefile:3 - Error: owner a.example:1: persist:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			corefile := filepath.Join(t.TempDir(), "Corefile")
			writeFile(t, corefile, "fed.example:0 {\nbind 127.0.0.1\nfederation {\n"+tt.block+"\n}\n}\n")
			out, err := coreDNSCommand(corefile).CombinedOutput()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
				t.Errorf("CoreDNS ended with %v, want exit code 1", err)
			}
			if !strings.Contains(string(out), tt.want) {
				t.Errorf("output is\n%s\nwant %q in it", out, tt.want)
			}
		})
	}
}
