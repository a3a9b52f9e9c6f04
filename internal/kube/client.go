package kube

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
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
	"k8s.io/client-go/util/connrotation"
)

const (
	dialTimeout = 5 * time.Second
	keepAlive   = 30 * time.Second
	oneRequest  = 5 * time.Second // bounds a request that is not a list or a watch
	protobuf    = "application/vnd.kubernetes.protobuf"
)

// Client sends requests to one API server. It is safe for concurrent use.
type Client struct {
	config *rest.Config
	http   *http.Client
	codecs serializer.CodecFactory
	dialer *connrotation.Dialer
}

// NewClient returns a client, which connects when it is first used, or a one-line error. The scheme
// has the types that are read and written. Wrap is put around the transport, unless it is nil.
func NewClient(a Access, scheme *runtime.Scheme, userAgent string, wrap func(http.RoundTripper) http.RoundTripper) (*Client, error) {
	config := rest.CopyConfig(a.Config)
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
	return &Client{config: config, http: httpClient, codecs: serializer.NewCodecFactory(scheme), dialer: dialer}, nil
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

// Leases returns a client for leases. Each of its requests is bounded, because whoever gives a
// lease up waits for the answer.
func (c *Client) Leases() (coordinationv1client.LeasesGetter, error) {
	bounded := *c.http
	bounded.Timeout = oneRequest
	return coordinationv1client.NewForConfigAndClient(c.config, &bounded)
}

// ExplainError returns the error of a request as one line that says what to do about it, with a class
// for [ReasonClass]. Of nil it returns nil.
func (c *Client) ExplainError(err error) error {
	status := apierrors.APIStatus(nil)
	switch {
	case err == nil:
		return nil
	case apierrors.IsUnauthorized(err):
		return ClassErrorf("credentials", "%s does not accept the credentials: they are wrong or have expired (401)", c.config.Host)
	case apierrors.IsForbidden(err) && errors.As(err, &status):
		class := "RBAC"
		if of := status.Status().Details; of != nil {
			class += " " + of.Group + "/" + of.Kind // whatever the verb
		}
		return ClassErrorf(class, "RBAC: %s", deniedPermission(status.Status()))
	case errors.As(err, &status):
		return ClassErrorf(string(status.Status().Reason), "%s: %w", c.config.Host, oneLine(err))
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err // the path says nothing
	}
	return ClassErrorf("connection", "%s: %w", c.config.Host, oneLine(err))
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
