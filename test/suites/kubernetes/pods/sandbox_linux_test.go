// Package pods shows that what runs in a pod resolves services of another cluster:
// with the C library's getaddrinfo and with Go, through the resolv.conf that a kubelet
// writes, and through both ways of putting federation into a cluster's DNS. It also
// starts the images of deploy/image. `make e2e-pods` runs it.
//
// All of it happens in network, mount and process namespaces of its own. They end with
// the test, however it ends, and with them every process, mount and network that it
// has made.
package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	// variable says how the pods are made: by a kubelet, as namespaces only, or as best
	// this machine can. Without it every test is skipped.
	variable = "E2E_PODS"

	byKubelet    = "kubelet"
	byNamespaces = "namespaces"
	asCan        = "auto"

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
		if err := furnish(); err != nil {
			fmt.Fprintln(os.Stderr, "sandbox:", err)
			os.Exit(1)
		}
	case os.Getenv(variable) == "":
		unfit = errors.New("run make e2e-pods")
	case !slices.Contains([]string{byKubelet, byNamespaces, asCan}, os.Getenv(variable)):
		fmt.Fprintf(os.Stderr, "PODS is %q, and may be %s, %s or %s\n", os.Getenv(variable), byKubelet, byNamespaces, asCan)
		os.Exit(1)
	default:
		if unfit = fit(); unfit == nil {
			os.Exit(runInSandbox())
		}
		fmt.Fprintf(os.Stderr, "\nNO POD IS TESTED HERE: %v\n\n", unfit)
	}
	os.Exit(m.Run())
}

// need skips the test where it cannot run.
func need(t *testing.T, programs ...string) {
	t.Helper()
	if unfit != nil {
		t.Skip(unfit)
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
}

// fit returns why this machine cannot run the tests, or nil.
func fit() error {
	if os.Getuid() != 0 {
		return errors.New("namespaces, networks and runc need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return errors.New("ip is not installed (package iproute2)")
	}
	cmd := exec.Command("true")
	cmd.SysProcAttr = namespaces()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("no new namespaces: %w", err)
	}
	return nil
}

func namespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL, // the first process of the namespace takes all others with it
	}
}

// runInSandbox runs this test again, in namespaces of its own, and returns its exit
// code. Control groups are no matter of namespaces; those that are left are removed.
func runInSandbox() int {
	runtime.LockOSThread() // Pdeathsig is about the thread
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	group := fmt.Sprintf("federation-pods-%d", os.Getpid())
	cmd := exec.CommandContext(ctx, os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleSandbox, groupVariable+"="+group)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = namespaces()
	err := cmd.Run()
	if left := removeGroups(group); left != nil {
		fmt.Fprintln(os.Stderr, "sandbox:", left)
	}
	if code := cmd.ProcessState.ExitCode(); err == nil || code > 0 { // it has said why
		return code
	}
	fmt.Fprintln(os.Stderr, "sandbox:", err)
	return 1
}

// furnish makes the namespaces that this process is in usable: nothing that is mounted
// here reaches the machine, /proc shows the processes of the sandbox, and /run is empty.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	// Temporary files end with the sandbox as well.
	if err := os.Mkdir("/run/tmp", 0o777); err != nil {
		return err
	}
	if err := os.Setenv("TMPDIR", "/run/tmp"); err != nil {
		return err
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
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
