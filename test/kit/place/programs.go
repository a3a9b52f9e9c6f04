package place

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// scratch is the folder of the programs, until the tests end.
var scratch string

// Main runs the tests of a package that calls Built.
func Main(m *testing.M) {
	code := m.Run()
	if scratch != "" {
		os.RemoveAll(scratch)
	}
	os.Exit(code)
}

var build = sync.OnceValue(func() error {
	root, err := realserver.Root()
	if err != nil {
		return err
	}
	if scratch, err = os.MkdirTemp("", "programs"); err != nil {
		return err
	}
	// CoreDNS has races of its own.
	for program, detect := range map[string]bool{"coredns": false, "federationctl": raceDetected} {
		cmd := exec.Command("go", "build", fmt.Sprintf("-race=%v", detect), "-o", scratch+"/", "./cmd/"+program)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
	}
	return nil
})

// Built returns the path of coredns or federationctl, built from the tree as it is, once
// for all tests of a package. Of a test under the race detector federationctl is as well.
func Built(t testing.TB, name string) string {
	t.Helper()
	must.Do(t, build())
	return filepath.Join(scratch, name)
}
