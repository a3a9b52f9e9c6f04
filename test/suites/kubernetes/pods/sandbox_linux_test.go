// Package pods starts the images of deploy/image, and shows that what runs in a pod resolves
// services of another cluster through them: with the C library's getaddrinfo and with Go,
// by the resolv.conf that a kubelet writes. `make e2e-pods` runs it.
//
// All of it happens in network, mount and process namespaces of its own. They end with
// the test, however it ends, and with them every process, mount and network that it
// has made.
package pods

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/place/sandbox"
)

const (
	variable = "E2E_PODS" // without it every test is skipped

	// roleVariable says what this binary is, if not the test: roleSandbox or roleResolve.
	roleVariable = "E2E_PODS_ROLE"
	roleSandbox  = "sandbox" // the test, in its namespaces
	roleResolve  = "resolve" // a pod that resolves its arguments with Go's resolver

	groupVariable = "E2E_PODS_CGROUP" // where control groups are made, from the root of each hierarchy
)

// unfit is why this machine cannot run the tests, or nil.
var unfit error

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(roleVariable) == roleResolve:
		resolve(os.Args[1:], os.Stdout)
		return
	case os.Getenv(roleVariable) == roleSandbox:
		if err := sandbox.Furnish(); err != nil {
			fmt.Fprintln(os.Stderr, "sandbox:", err)
			os.Exit(1)
		}
	case os.Getenv(variable) == "":
		unfit = errors.New("run make e2e-pods")
	default:
		if unfit = fit(); unfit == nil {
			os.Exit(runInSandbox())
		}
		fmt.Fprintf(os.Stderr, "\nNO POD IS TESTED HERE: %v\n\n", unfit)
	}
	os.Exit(m.Run())
}

// fit returns why this machine cannot run the tests, or nil.
func fit() error {
	if os.Getuid() != 0 {
		return errors.New("namespaces, networks and runc need root")
	}
	for _, program := range []string{"ip", "runc", "umoci"} {
		if _, err := exec.LookPath(program); err != nil {
			return err
		}
	}
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("no new namespaces: %w", err)
	}
	return nil
}

const namespaces = sandbox.Namespaces | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS

// runInSandbox runs this test again, in namespaces of its own, and returns its exit
// code. Control groups are no matter of namespaces; those that are left are removed.
func runInSandbox() int {
	group := fmt.Sprintf("federation-pods-%d", os.Getpid())
	code := sandbox.Run(namespaces, roleVariable+"="+roleSandbox, groupVariable+"="+group)
	if left := removeGroups(group); left != nil {
		fmt.Fprintln(os.Stderr, "sandbox:", left)
	}
	return code
}

// removeGroups removes the control groups below one name, in every hierarchy.
func removeGroups(name string) error {
	var failed []error
	found, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	found = append(found, "/sys/fs/cgroup/"+name) // cgroup v2
	for _, top := range found {
		var folders []string
		_ = filepath.WalkDir(top, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				folders = append(folders, path)
			}
			return nil
		})
		for _, folder := range slices.Backward(folders) { // children first
			if err := os.Remove(folder); err != nil && !errors.Is(err, os.ErrNotExist) {
				failed = append(failed, err)
			}
		}
	}
	return errors.Join(failed...)
}
