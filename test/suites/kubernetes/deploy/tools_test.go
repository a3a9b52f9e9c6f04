// Package deploy tests what is in the folder deploy: the chart with helm, the plain
// manifests with kubectl, both against a real API server without nodes, and their
// Corefiles with a real CoreDNS.
package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	root      = "../../../.."
	chart     = root + "/deploy/chart"
	manifests = root + "/deploy/kubernetes"
)

// recipes are the bases and overlays of the plain manifests, each with the namespace
// that it is for. The chart has an example of the same name.
var recipes = map[string]string{"owner": "federation", "beside": "federation", "cluster-dns": "kube-system", "import": "federation"}

// command runs one of the tools with files of its own.
type command struct {
	path string
	env  []string
}

func newCommand(t *testing.T, path, kubeconfig string) command {
	t.Helper()
	home := t.TempDir()
	return command{path, append(
		os.Environ(), "HOME="+home, "KUBECONFIG="+kubeconfig,
		"HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home,
	)}
}

func helm(t *testing.T, kubeconfig string) command {
	t.Helper()
	return newCommand(t, realserver.Helm(t), kubeconfig)
}

func kubectl(t *testing.T, kubeconfig string) command {
	t.Helper()
	return newCommand(t, realserver.Kubectl(t), kubeconfig)
}

// run returns what the command prints. An error has what it prints to standard error.
func (c command) run(input string, args ...string) (stdout, stderr string, err error) {
	var out, diagnostics bytes.Buffer
	cmd := exec.Command(c.path, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.env, strings.NewReader(input), &out, &diagnostics
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(c.path), strings.Join(args, " "), err, &diagnostics)
	}
	return out.String(), diagnostics.String(), err
}

// must is run for a command that has to succeed.
func (c command) must(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, _, err := c.run(input, args...)
	must.Do(t, err)
	return out
}

// examples returns the values files of the chart, by name.
func examples(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(chart + "/examples/*.yaml")
	if err != nil || len(paths) < 6 {
		t.Fatalf("found %d examples, %v", len(paths), err)
	}
	found := make(map[string]string)
	for _, path := range paths {
		found[strings.TrimSuffix(filepath.Base(path), ".yaml")] = path
	}
	return found
}

// namespaceOf returns where an example of the chart is installed.
func namespaceOf(example string) string {
	if strings.HasPrefix(example, "cluster-dns") {
		return "kube-system"
	}
	return "federation"
}

// template renders the chart with an example, as the release federation.
func (c command) template(t *testing.T, example string, args ...string) string {
	t.Helper()
	args = append([]string{"template", "federation", chart, "--namespace", namespaceOf(example), "--values", examples(t)[example]}, args...)
	return c.must(t, "", args...)
}

// object is an object of Kubernetes, or a part of one.
type object = map[string]any

// objects returns the objects of a text, by kind, namespace and name.
func objects(t *testing.T, text string) map[string]object {
	t.Helper()
	found := make(map[string]object)
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		var o object
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return found
		}
		must.Do(t, err)
		if o == nil {
			continue // nothing between two lines of hyphens
		}
		key := fmt.Sprint(o["kind"], " ", at(o, "metadata", "namespace"), "/", at(o, "metadata", "name"))
		if found[key] != nil {
			t.Errorf("%s stands there twice", key)
		}
		found[key] = o
	}
}

// at returns what is at a path in an object, or nil.
func at(o any, path ...string) any {
	for _, key := range path {
		m, ok := o.(object)
		if !ok {
			return nil
		}
		o = m[key]
	}
	return o
}

// sorted returns an object with its lists of volumes by name: they have no order.
func sorted(o object) object {
	if volumes, ok := at(o, "spec", "template", "spec", "volumes").([]any); ok {
		slices.SortFunc(volumes, func(a, b any) int {
			return strings.Compare(fmt.Sprint(at(a, "name")), fmt.Sprint(at(b, "name")))
		})
	}
	return o
}

// ofKind returns the objects of a kind, in the order of their keys.
func ofKind(all map[string]object, kind string) (found []object) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if all[key]["kind"] == kind {
			found = append(found, all[key])
		}
	}
	return found
}

// fileOf returns a file in the ConfigMaps of what is rendered, or "".
func fileOf(t *testing.T, rendered, name string) string {
	t.Helper()
	for _, o := range ofKind(objects(t, rendered), "ConfigMap") {
		if text, ok := at(o, "data", name).(string); ok {
			return text
		}
	}
	return ""
}
