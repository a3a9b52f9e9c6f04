package test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestCorefileMistakes shows that each mistake is one clear error with its line,
// and that CoreDNS does not start with it.
func TestCorefileMistakes(t *testing.T) {
	t.Parallel()
	tls := tlsOf(newPlace(t))
	for name, tt := range map[string]struct{ block, want string }{
		"no owner": {tls, "Corefile:3 - Error during parsing: owner: is missing"},
		"property": {"owner a.example:1\n" + tls + "\ncolour red", `Corefile:6 - Error during parsing: colour: is not a property`},
		"persist":  {"owner a.example:1\n" + tls + "\npersist /nonexistent/catalog", "Corefile:3 - Error: owner a.example:1: persist:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			corefile := filepath.Join(t.TempDir(), "Corefile")
			writeFile(t, corefile, "fed.example:0 {\nbind 127.0.0.1\nfederation {\n"+tt.block+"\n}\n}\n")
			cmd := exec.Command(must.Get(os.Executable())(t), "-conf", corefile)
			cmd.Env = append(os.Environ(), roleVariable+"=coredns")
			out, err := cmd.CombinedOutput()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
				t.Errorf("CoreDNS ended with %v, want exit code 1", err)
			}
			if !strings.Contains(string(out), tt.want) {
				t.Errorf("output is\n%s\nwant %q in it", out, tt.want)
			}
		})
	}
}
