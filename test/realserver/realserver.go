// Package realserver starts servers of other projects for tests and benchmarks:
// etcd, and the API server of Kubernetes. `make real-servers` builds them.
//
// A server listens on free ports of loopback, has answered when the function that
// starts it returns, keeps its files in a folder of its own, and is ended with the
// test. Where it is not built the test is skipped, with the command that builds it.
// With REAL_SERVERS=required in the environment such a test fails instead.
package realserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/loopback"
)

const (
	variable  = "REAL_SERVERS"
	required  = "required"
	readiness = 2 * time.Minute  // bounds the wait for the first answer
	ending    = 30 * time.Second // bounds the wait for the end after SIGTERM
	poll      = 50 * time.Millisecond
	tailSize  = 4 << 10          // octets of a log that a failure shows
	oneCall   = 30 * time.Second // bounds one request to a server
)

// program is a server, in the version that the module test/tools/<module> pins.
type program struct {
	name, module, dependency string
}

var (
	etcd      = program{"etcd", "etcd", "go.etcd.io/etcd/server/v3"}
	apiServer = program{"kube-apiserver", "kubernetes", "k8s.io/kubernetes"}
)

// find returns the path of the program below the root of the repository. The error
// says how to build it.
func (p program) find(root string) (string, error) {
	goMod := filepath.Join(root, "test", "tools", p.module, "go.mod")
	text, err := os.ReadFile(goMod)
	if err != nil {
		return "", err
	}
	version := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(p.dependency) + ` (v\S+)`).FindSubmatch(text)
	if version == nil {
		return "", fmt.Errorf("%s does not require %s", goMod, p.dependency)
	}
	path := filepath.Join("bin", "tools", fmt.Sprintf("%s-%s", p.name, version[1]))
	if _, err := os.Stat(filepath.Join(root, path)); err != nil {
		return "", fmt.Errorf("%s is not built: run make real-servers", path)
	}
	return filepath.Join(root, path), nil
}

// findHere is find in the repository that the working directory is in.
func (p program) findHere() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "test", "tools")); err == nil {
			return p.find(dir)
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("the working directory is not in the repository")
		}
	}
}

// FindEtcd returns why StartEtcd cannot run here, or nil.
func FindEtcd() error {
	_, err := etcd.findHere()
	return err
}

// FindAPIServer returns why StartAPIServer cannot run here, or nil.
func FindAPIServer() error {
	_, err := apiServer.findHere()
	return errors.Join(FindEtcd(), err)
}

// path returns where the program is. Where it is nowhere the test ends here.
func (p program) path(tb testing.TB) string {
	tb.Helper()
	path, err := p.findHere()
	switch {
	case err == nil:
	case os.Getenv(variable) == required:
		tb.Fatalf("%v (%s=%s)", err, variable, required)
	default:
		tb.Skip(err)
	}
	return path
}

// freeAddress is loopback.FreeAddress.
func freeAddress(tb testing.TB) string {
	tb.Helper()
	address, err := loopback.FreeAddress()
	if err != nil {
		tb.Fatal(err)
	}
	return address
}

// start runs a program until the end of the test, with dir as its working
// directory, and returns its process ID when ready returns nil.
func start(tb testing.TB, dir, path string, args []string, ready func() error) (pid int) {
	tb.Helper()
	logFile := filepath.Join(dir, "log")
	log, err := os.Create(logFile)
	if err != nil {
		tb.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // the exit code is in ProcessState
	}()
	tb.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.NewTimer(ending)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			tb.Errorf("%s did not end on SIGTERM", path)
			_ = cmd.Process.Kill()
			<-done
		}
		if tb.Failed() {
			tb.Logf("end of the log of %s:\n%s", path, tail(logFile))
		}
	})
	timer, ticker := time.NewTimer(readiness), time.NewTicker(poll)
	defer timer.Stop()
	defer ticker.Stop()
	for err = ready(); err != nil; err = ready() {
		select {
		case <-done:
			tb.Fatalf("%s has ended: %v", path, cmd.ProcessState)
		case <-timer.C:
			tb.Fatalf("%s is not ready after %v: %v", path, readiness, err)
		case <-ticker.C:
		}
	}
	return cmd.Process.Pid
}

// tail returns the end of a log.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-tailSize):])
}

// call makes one HTTP request with a message in JSON, or none where it is nil, and
// returns the body of the reply. A status other than 2xx is an error.
func call(ctx context.Context, client *http.Client, method, url, token string, message any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	var body bytes.Buffer
	if message != nil {
		if err := json.NewEncoder(&body).Encode(message); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, url, &body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	reply, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s: %.300s", method, url, response.Status, reply)
	}
	return reply, nil
}
