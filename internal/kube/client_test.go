package kube

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const goodConfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u, namespace: ns}}, {name: lost, context: {cluster: d, user: u}}, {name: nobody, context: {cluster: c, user: v}}]
current-context: x
`

func TestAccessErrors(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	path := filepath.Join(t.TempDir(), "kubeconfig")
	for _, test := range []struct{ name, text, context, want string }{
		{name: "in no cluster", want: "no kubeconfig is named, and this is not a pod with a service account"},
		{name: "no YAML", text: "{", want: "did not find expected node content"},
		{name: "empty", text: " ", want: "it has no current-context"},
		{name: "unknown context", text: goodConfig, context: "w", want: `there is no context "w"`},
		{name: "unknown cluster", text: goodConfig, context: "lost", want: `context "lost": there is no cluster "d"`},
		{name: "unknown user", text: goodConfig, context: "nobody", want: `context "nobody": there is no user "v"`},
		{name: "no CA", text: strings.Replace(goodConfig, "1:1\"", "1:1\", certificate-authority: nowhere", 1), want: "nowhere: no such file"},
		{name: "bad CA", text: strings.Replace(goodConfig, "1:1\"", "1:1\", certificate-authority-data: AAAA", 1), want: "unable to load root certificates"},
		{name: "good", text: goodConfig},
	} {
		t.Run(test.name, func(t *testing.T) {
			of := ""
			if test.text != "" {
				of = path
				must.Do(t, os.WriteFile(path, []byte(test.text), 0o600))
			}
			a, err := LoadAccess(of, test.context)
			if err == nil {
				_, err = NewClient(a, scheme.Scheme, "test", nil)
			}
			switch {
			case test.want == "" && (err != nil || a.Namespace != "ns" || string(a.Text) != test.text):
				t.Errorf("namespace %q, error %v", a.Namespace, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("error is %v, want one line with %q", err, test.want)
			}
		})
	}
	if _, err := LoadAccess(filepath.Join(t.TempDir(), "absent"), ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error of a kubeconfig that is not there: %v", err)
	}
}

// TestReasonClass explains errors of requests: errors of one class are one state.
func TestReasonClass(t *testing.T) {
	var code int // 0: no answer
	var message string
	c := newTestClient(t, func(r *http.Request) (*http.Response, error) {
		if code == 0 {
			return nil, errors.New(message)
		}
		return respond(t, r, code, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReason(http.StatusText(code)), Code: int32(code),
			Message: message, Details: &metav1.StatusDetails{Group: "g", Kind: "k"},
		}), nil
	})
	leases := must.Get(c.Leases())(t)
	for _, test := range []struct {
		code                 int
		message, class, text string
	}{
		{0, "no\nroute", "connection", "http://api: no route"},
		{http.StatusUnauthorized, "Unauthorized", "credentials", "http://api does not accept the credentials: they are wrong or have expired (401)"},
		{http.StatusForbidden, `k is forbidden: User "a" cannot get it`, "RBAC g/k", `RBAC: User "a" cannot get it`},
		{http.StatusForbidden, "k is forbidden: exceeded quota: q", "Forbidden", "http://api: k is forbidden: exceeded quota: q"},
		{http.StatusConflict, "another version", "Conflict", "http://api: another version"},
	} {
		code, message = test.code, test.message
		_, err := leases.Leases("n").Get(t.Context(), "l", metav1.GetOptions{})
		if err = c.ExplainError(err); err == nil || err.Error() != test.text || ReasonClass(err) != test.class {
			t.Errorf("%d %q: %q of class %q, want %q of %q", code, message, err, ReasonClass(err), test.text, test.class)
		}
	}
	if err := c.ExplainError(nil); err != nil {
		t.Errorf("without an error: %v", err)
	}
}
