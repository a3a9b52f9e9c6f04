// Package realserver starts servers of other projects for tests, benchmarks and
// demonstrations: etcd, the API server of Kubernetes, a whole control plane, and SPIRE.
// `make real-servers` builds the first two, `make e2e-tools` what a control plane
// needs, and `make e2e-spiffe` SPIRE.
//
// A server listens on free ports of loopback, has answered when the function that
// starts it returns, keeps its files in a folder of its own, and is ended with the
// test. Where it is not built the test is skipped, with the command that builds it.
// With REAL_SERVERS=required in the environment such a test fails instead, with REAL_SERVERS=none
// it is skipped in any case.
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
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
)

const (
	variable = "REAL_SERVERS"
	required = "required"
	none     = "none"
	oneCall  = 30 * time.Second // bounds one request to a server
)

// program is a server, in the version that the module test/peers/tools/<module> pins, and
// the target of the Makefile that builds it.
type program struct {
	name, module, dependency, target string
}

var (
	etcd        = program{"etcd", "etcd", "go.etcd.io/etcd/server/v3", "real-servers"}
	apiServer   = program{"kube-apiserver", "kubernetes", "k8s.io/kubernetes", "real-servers"}
	controllers = program{"kube-controller-manager", "kubernetes", "k8s.io/kubernetes", "e2e-tools"}
	proxy       = program{"kube-proxy", "kubernetes", "k8s.io/kubernetes", "e2e-import"}
	kubectl     = program{"kubectl", "kubernetes", "k8s.io/kubernetes", "e2e-tools"}
	helm        = program{"helm", "helm", "helm.sh/helm/v4", "e2e-tools"}
	spireServer = program{"spire-server", "spire", "github.com/spiffe/spire", "e2e-spiffe"}
	spireAgent  = program{"spire-agent", "spire", "github.com/spiffe/spire", "e2e-spiffe"}
)

// find returns the path of the program below the root of the repository. The error
// says how to build it.
func (p program) find(root string) (string, error) {
	goMod := filepath.Join(root, "test", "peers", "tools", p.module, "go.mod")
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
		return "", fmt.Errorf("%s is not built: run make %s", path, p.target)
	}
	return filepath.Join(root, path), nil
}

// findHere is find in the repository that the working directory is in.
func (p program) findHere() (string, error) {
	if os.Getenv(variable) == none {
		return "", fmt.Errorf("%s is left out (%s=%s): run make %s, and make e2e", p.name, variable, none, p.target)
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	return p.find(root)
}

// Root returns the root of the repository that the working directory is in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "test", "peers", "tools")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("the working directory is not in the repository")
		}
	}
}

// FindEtcd returns why StartEtcd cannot run here, or nil.
func FindEtcd() error { return missing(etcd) }

// FindAPIServer returns why StartAPIServer cannot run here, or nil.
func FindAPIServer() error { return missing(etcd, apiServer) }

// FindCluster returns why StartCluster cannot run here, or nil.
func FindCluster() error { return missing(etcd, apiServer, controllers) }

// FindKubectl returns the path of kubectl, of the version of the cluster.
func FindKubectl() (string, error) { return kubectl.findHere() }

// Kubectl returns the path of kubectl. The test is skipped without it.
func Kubectl(tb testing.TB) string {
	tb.Helper()
	return kubectl.of(tb)
}

// KubeProxy is Kubectl for kube-proxy.
func KubeProxy(tb testing.TB) string {
	tb.Helper()
	return proxy.of(tb)
}

// Helm is Kubectl for helm.
func Helm(tb testing.TB) string {
	tb.Helper()
	return helm.of(tb)
}

func (p program) of(tb testing.TB) string {
	tb.Helper()
	path, err := p.findHere()
	need(tb, err)
	return path
}

// missing returns what of the programs is not built, and how to build it.
func missing(programs ...program) error {
	var errs []error
	for _, p := range programs {
		_, err := p.findHere()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// need ends the test here if why, the result of a function Find, is not nil.
func need(tb testing.TB, why error) {
	tb.Helper()
	switch {
	case why == nil:
	case os.Getenv(variable) == required:
		tb.Fatalf("%v (%s=%s)", why, variable, required)
	default:
		tb.Skip(why)
	}
}

// freeAddresses calls loopback.FreeAddress n times.
func freeAddresses(n int) ([]string, error) {
	addresses := make([]string, n)
	for i := range addresses {
		var err error
		if addresses[i], err = loopback.FreeAddress(); err != nil {
			return nil, err
		}
	}
	return addresses, nil
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
