package clients

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/place/sandbox"
)

// roleVariable says what this binary is, if not the test: roleSandbox or a client.
const (
	roleVariable = "CLIENTS_ROLE"
	roleSandbox  = "sandbox" // the test, in its namespaces
)

// unfit is why the test cannot run, or nil.
var unfit error

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if run, ok := roles[role]; ok {
		if err := run(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	switch {
	case role == roleSandbox:
		if err := sandbox.Furnish(); err != nil {
			fmt.Fprintln(os.Stderr, "sandbox:", err)
			os.Exit(1)
		}
	case os.Getenv("REAL_SERVERS") != "required":
		unfit = errors.New("needs clients of many kinds: make e2e-clients runs it")
	case os.Getuid() != 0:
		fmt.Fprintln(os.Stderr, "namespaces need root")
		os.Exit(1)
	default:
		os.Exit(sandbox.Run(sandbox.Namespaces, roleVariable+"="+roleSandbox))
	}
	os.Exit(m.Run())
}
