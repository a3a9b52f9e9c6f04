// Package kube is what reads and writes Kubernetes, for whatever the objects mean: a [Client] for one
// API server, a [Watch] that follows the objects of a resource, and an [Election] of the replica that
// writes.
//
// Everything here works on with a server that is away, and says so: errors go to functions of the
// caller, and [Client.ExplainError] makes sentences of them. What client-go logs goes to the logger
// of the context (klog.NewContext), which callers set to none, because they report it themselves.
package kube

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/connrotation"
)

const (
	dialTimeout = 5 * time.Second
	keepAlive   = 30 * time.Second
	oneRequest  = 5 * time.Second // bounds a request that is not a list or a watch
	protobuf    = "application/vnd.kubernetes.protobuf"
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

// Client sends requests to one API server. It is safe for concurrent use.
type Client struct {
	config *rest.Config
	http   *http.Client
	dialer *connrotation.Dialer
}

// NewClient returns a client, which connects when it is first used, or a one-line error. The scheme
// has the types that are read and written. Wrap is put around the transport, unless it is nil.
func NewClient(a Access, scheme *runtime.Scheme, userAgent string, wrap func(http.RoundTripper) http.RoundTripper) (*Client, error) {
	config := rest.CopyConfig(a.Config)
	config.UserAgent, config.NegotiatedSerializer = userAgent, serializer.NewCodecFactory(scheme).WithoutConversion()
	config.QPS = -1                                      // the server's priority and fairness bounds what may be asked
	config.WarningHandlerWithContext = rest.NoWarnings{} // warnings are for people who write objects by hand
	// Connections that a probe finds dead are closed at once, with the watches on them.
	dialer := connrotation.NewDialer((&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext)
	config.Dial = dialer.DialContext
	if wrap != nil {
		config.Wrap(wrap)
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, oneLine(err)
	}
	return &Client{config: config, http: httpClient, dialer: dialer}, nil
}

// Close ends the connections, with the watches on them. A request that follows connects again.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.dialer.CloseAll()
}

// Group returns a client for the resources of one version of a group.
func (c *Client) Group(gv schema.GroupVersion) (*rest.RESTClient, error) {
	config := rest.CopyConfig(c.config)
	config.GroupVersion, config.APIPath = &gv, "/apis"
	switch gv.Group {
	case corev1.GroupName:
		config.APIPath = "/api"
		fallthrough
	case discoveryv1.GroupName:
		config.ContentType, config.AcceptContentTypes = protobuf, protobuf+",application/json"
	}
	return rest.RESTClientForConfigAndClient(config, c.http)
}

// Leases returns a client for leases. Each of its requests is bounded, because whoever gives a
// lease up waits for the answer.
func (c *Client) Leases() (coordinationv1client.LeasesGetter, error) {
	bounded := *c.http
	bounded.Timeout = oneRequest
	return coordinationv1client.NewForConfigAndClient(c.config, &bounded)
}

// ApplyStatus returns a request, which lacks the namespace and the resource, that applies the status of an object as
// a field manager, without force: fields that another manager has are a conflict, and an object that was replaced by
// another of the same name as well.
func ApplyStatus(api rest.Interface, o metav1.Object, gv schema.GroupVersion, kind, manager string, status any) (*rest.Request, error) {
	body, err := json.Marshal(map[string]any{
		"apiVersion": gv.String(), "kind": kind,
		"metadata": map[string]any{"name": o.GetName(), "namespace": o.GetNamespace(), "uid": o.GetUID()}, "status": status,
	})
	return api.Patch(types.ApplyYAMLPatchType).Name(o.GetName()).SubResource("status").Param("fieldManager", manager).Body(body).Timeout(oneRequest), err
}

// ExplainError returns the error of a request as one line that says what to do about it, with a class
// for [ReasonClass]. Of nil it returns nil.
func (c *Client) ExplainError(err error) error {
	if err == nil {
		return nil
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err // the path says nothing
	}
	status, class := apierrors.APIStatus(nil), "connection"
	if errors.As(err, &status) {
		class = string(status.Status().Reason)
	}
	// Who is denied what: user, verb, resource, group and scope. Quotas forbid things as well.
	_, denied, ok := strings.Cut(oneLine(err).Error(), "forbidden: User ")
	switch {
	case apierrors.IsUnauthorized(err):
		return ClassErrorf("credentials", "%s does not accept the credentials: they are wrong or have expired (401)", c.config.Host)
	case ok && status != nil:
		if of := status.Status().Details; of != nil {
			class = "RBAC " + of.Group + "/" + of.Kind // whatever the verb
		}
		return ClassErrorf(class, "RBAC: User %s", denied)
	}
	return ClassErrorf(class, "%s: %w", c.config.Host, oneLine(err))
}

// classError is an error with a class: errors of one class are the same state.
type classError struct {
	class string
	error
}

// ClassErrorf returns an error that is of a class.
func ClassErrorf(class, format string, args ...any) error {
	return classError{class, fmt.Errorf(format, args...)}
}

// ReasonClass returns the class of an error.
func ReasonClass(err error) string {
	if c, ok := errors.AsType[classError](err); ok {
		return c.class
	}
	return "other"
}
