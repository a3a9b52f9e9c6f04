package kubernetes

import (
	"cmp"
	"context"
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
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/connrotation"
)

const (
	userAgent   = "hamlet-federation-owner"
	dialTimeout = 5 * time.Second
	keepAlive   = 30 * time.Second
	oneRequest  = 5 * time.Second // bounds a request that is not a list or a watch
	protobuf    = "application/vnd.kubernetes.protobuf"
)

// serverAccess says how to reach the API server.
type serverAccess struct {
	config    *rest.Config
	namespace string // of the pod, or of the context
	text      []byte // of the kubeconfig and of its CA file, to notice a change of either
}

// loadAccess returns how to reach the API server, or a one-line error.
func loadAccess(path, name string) (to serverAccess, err error) {
	if to, err = readAccess(path, name); err != nil || to.config.CAFile == "" || len(to.config.CAData) > 0 {
		return to, err
	}
	// The client gets what was read: client-go would read the file again minutes later.
	if to.config.CAData, err = os.ReadFile(to.config.CAFile); err != nil {
		return serverAccess{}, fmt.Errorf("CA file of the API server: %w", err)
	}
	if len(to.config.CAData) == 0 { // which would mean the authorities of the system
		return serverAccess{}, fmt.Errorf("CA file of the API server: %s is empty", to.config.CAFile)
	}
	to.config.CAFile, to.text = "", append(to.text, to.config.CAData...)
	return to, nil
}

// podNamespace is where a pod finds its namespace.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// readAccess returns what loadAccess does, without the content of a CA file.
func readAccess(path, name string) (to serverAccess, err error) {
	if path == "" {
		to.config, err = rest.InClusterConfig()
		namespace, unreadable := os.ReadFile(podNamespace)
		if err = cmp.Or(err, unreadable); err != nil {
			return serverAccess{}, fmt.Errorf("no kubeconfig is named, and this is not a pod with a service account: %w", oneLine(err))
		}
		to.namespace = strings.TrimSpace(string(namespace))
		return to, nil
	}
	if to.text, err = os.ReadFile(path); err != nil {
		return serverAccess{}, fmt.Errorf("kubeconfig: %w", err)
	}
	fail := func(err error) (serverAccess, error) {
		return serverAccess{}, fmt.Errorf("kubeconfig %s: %w", path, oneLine(err))
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
	to.namespace = cmp.Or(chosen.Namespace, metav1.NamespaceDefault)
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return fail(err)
	}
	if to.config, err = clientcmd.NewNonInteractiveClientConfig(*file, name, &clientcmd.ConfigOverrides{}, nil).ClientConfig(); err != nil {
		return fail(err)
	}
	return to, nil
}

// oneLine returns the error as one line, without what libraries put around it.
func oneLine(err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	return errors.New(strings.TrimPrefix(text, "invalid configuration: "))
}

// apiClient sends requests to one API server.
type apiClient struct {
	config *rest.Config
	http   *http.Client
	codecs serializer.CodecFactory
	dialer *connrotation.Dialer
}

// newClient returns a client, which connects when it is first used. Wrap is put around its
// transport, unless it is nil.
func newClient(config *rest.Config, scheme *runtime.Scheme, wrap func(http.RoundTripper) http.RoundTripper) (*apiClient, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = userAgent
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
	return &apiClient{config: config, http: httpClient, codecs: serializer.NewCodecFactory(scheme), dialer: dialer}, nil
}

// closeConnections ends the connections.
func (c *apiClient) closeConnections() {
	c.http.CloseIdleConnections()
	c.dialer.CloseAll()
}

// groupClient returns a client for the resources of one version of a group.
func (c *apiClient) groupClient(gv schema.GroupVersion) (*rest.RESTClient, error) {
	config := rest.CopyConfig(c.config)
	config.GroupVersion, config.APIPath = &gv, "/apis"
	config.NegotiatedSerializer = c.codecs.WithoutConversion()
	switch gv.Group {
	case corev1.GroupName:
		config.APIPath = "/api"
		config.ContentType, config.AcceptContentTypes = protobuf, protobuf+",application/json"
	case discoveryv1.GroupName:
		config.ContentType, config.AcceptContentTypes = protobuf, protobuf+",application/json"
	}
	return rest.RESTClientForConfigAndClient(config, c.http)
}

// leaseClient returns a client for leases. Each of its requests is bounded, because whoever gives a
// lease up waits for the answer.
func (c *apiClient) leaseClient() (coordinationv1client.LeasesGetter, error) {
	bounded := *c.http
	bounded.Timeout = oneRequest
	return coordinationv1client.NewForConfigAndClient(c.config, &bounded)
}

// getRaw returns what the server has at a path, in the media type accept.
func (c *apiClient) getRaw(ctx context.Context, path, accept string) ([]byte, error) {
	gv := schema.GroupVersion{Version: "v1"}
	api, err := c.groupClient(gv)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, oneRequest)
	defer cancel()
	body, err := api.Get().AbsPath(path).SetHeader("Accept", accept).MaxRetries(0).Do(ctx).Raw()
	var status metav1.Status
	if err != nil && json.Unmarshal(body, &status) == nil && status.Kind == "Status" {
		err = &apierrors.StatusError{ErrStatus: status} // the client does not decode a raw body
	}
	return body, err
}

// readJSON reads the JSON at a path into v. Without such a path, v stays as it is.
func (c *apiClient) readJSON(ctx context.Context, path string, v any) error {
	body, err := c.getRaw(ctx, path, "application/json")
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// checkReady returns why the API server cannot be asked, or nil.
func (c *apiClient) checkReady(ctx context.Context) error {
	_, err := c.getRaw(ctx, "/readyz", "text/plain")
	switch {
	case err == nil, apierrors.IsForbidden(err): // a server that refuses the request is there
		return nil
	case apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err):
		return errors.New("it is not ready: its /readyz says why")
	default:
		return err
	}
}

// explainError returns the error of a request as one line that says what to do about it.
func (c *apiClient) explainError(err error) error {
	status := apierrors.APIStatus(nil)
	switch {
	case apierrors.IsUnauthorized(err):
		return classErrorf("credentials", "%s does not accept the credentials: they are wrong or have expired (401)", c.config.Host)
	case apierrors.IsForbidden(err) && errors.As(err, &status):
		class := "RBAC"
		if of := status.Status().Details; of != nil {
			class += " " + of.Group + "/" + of.Kind // whatever the verb
		}
		return classErrorf(class, "RBAC: %s", deniedPermission(status.Status()))
	case errors.As(err, &status):
		return classErrorf(string(status.Status().Reason), "%s: %w", c.config.Host, oneLine(err))
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err // the path says nothing
	}
	return classErrorf("connection", "%s: %w", c.config.Host, oneLine(err))
}

// deniedPermission returns what the API server does not allow: user, verb, resource, group and
// scope.
func deniedPermission(status metav1.Status) string {
	text := strings.Join(strings.Fields(status.Message), " ")
	if _, after, ok := strings.Cut(text, "forbidden: "); ok {
		return after
	}
	return text
}
