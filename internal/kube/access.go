package kube

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Access says how to reach an API server.
type Access struct {
	Config    *rest.Config
	Namespace string // of the pod, or of the context
	Text      []byte // of the kubeconfig and of its CA file, to notice a change of either
}

// LoadAccess returns how to reach the API server that a context of a kubeconfig names, or a one-line
// error. An empty context is the current one, and an empty path the service account of the pod that
// this process runs in.
func LoadAccess(path, name string) (to Access, err error) {
	if to, err = readAccess(path, name); err != nil || to.Config.CAFile == "" || len(to.Config.CAData) > 0 {
		return to, err
	}
	// The client gets what was read: client-go would read the file again minutes later.
	if to.Config.CAData, err = os.ReadFile(to.Config.CAFile); err != nil {
		return Access{}, fmt.Errorf("CA file of the API server: %w", err)
	}
	if len(to.Config.CAData) == 0 { // which would mean the authorities of the system
		return Access{}, fmt.Errorf("CA file of the API server: %s is empty", to.Config.CAFile)
	}
	to.Config.CAFile, to.Text = "", append(to.Text, to.Config.CAData...)
	return to, nil
}

// podNamespace is where a pod finds its namespace.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// readAccess returns what LoadAccess does, without the content of a CA file.
func readAccess(path, name string) (to Access, err error) {
	if path == "" {
		to.Config, err = rest.InClusterConfig()
		namespace, unreadable := os.ReadFile(podNamespace)
		if err = cmp.Or(err, unreadable); err != nil {
			return Access{}, fmt.Errorf("no kubeconfig is named, and this is not a pod with a service account: %w", oneLine(err))
		}
		to.Namespace = strings.TrimSpace(string(namespace))
		return to, nil
	}
	if to.Text, err = os.ReadFile(path); err != nil {
		return Access{}, fmt.Errorf("kubeconfig: %w", err)
	}
	fail := func(err error) (Access, error) {
		return Access{}, fmt.Errorf("kubeconfig %s: %w", path, oneLine(err))
	}
	file, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return fail(err)
	}
	if name == "" {
		name = file.CurrentContext
	}
	chosen, ok := file.Contexts[name]
	switch {
	case name == "":
		return fail(errors.New("it has no current-context, and no context is named"))
	case !ok:
		return fail(fmt.Errorf("there is no context %q", name))
	case file.Clusters[chosen.Cluster] == nil:
		return fail(fmt.Errorf("context %q: there is no cluster %q", name, chosen.Cluster))
	case file.AuthInfos[chosen.AuthInfo] == nil && chosen.AuthInfo != "":
		return fail(fmt.Errorf("context %q: there is no user %q", name, chosen.AuthInfo))
	}
	to.Namespace = cmp.Or(chosen.Namespace, metav1.NamespaceDefault)
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return fail(err)
	}
	if to.Config, err = clientcmd.NewNonInteractiveClientConfig(*file, name, &clientcmd.ConfigOverrides{}, nil).ClientConfig(); err != nil {
		return fail(err)
	}
	return to, nil
}

// oneLine returns the error as one line, without what libraries put around it.
func oneLine(err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	return errors.New(strings.TrimPrefix(text, "invalid configuration: "))
}
