package realserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// Access is what a kubeconfig says: where the API server is, and who the client is.
type Access struct {
	Server string // its URL
	CA     string // path of the certificate of its authority

	// One of these; none is anonymous.
	Token     string
	TokenFile string // path; clients read it again from time to time
	Cert, Key []byte // PEM
}

// WriteKubeconfig writes a kubeconfig, in the place of one that is there.
func WriteKubeconfig(path string, a Access) error {
	const name = "test"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: a.Server, CertificateAuthority: a.CA}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{
		Token: a.Token, TokenFile: a.TokenFile, ClientCertificateData: a.Cert, ClientKeyData: a.Key,
	}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	part := path + ".part"
	if err := clientcmd.WriteToFile(*config, part); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// NewKubeconfig writes a kubeconfig for this cluster with the name NAME.kubeconfig,
// in the place of one that is there, and returns its path. Where server is empty the
// client goes straight to the API server; it may be the URL of a Gate before it.
func (c *Cluster) NewKubeconfig(name, server string, a Access) (path string, err error) {
	if a.CA == "" {
		a.CA = filepath.Join(c.API.Dir, "certificates", "apiserver.crt")
	}
	a.Server = c.API.URL
	if server != "" {
		a.Server = server
	}
	path = filepath.Join(c.dir, name+".kubeconfig")
	return path, WriteKubeconfig(path, a)
}

// Admin is a user who may do everything.
func (c *Cluster) Admin() Access { return Access{Token: token} }

// Certificate returns a user with a client certificate, which is valid for a lifetime
// from now on; the lifetime may be negative. RBAC knows the user by the name.
func (c *Cluster) Certificate(user string, lifetime time.Duration) (Access, error) {
	const before = time.Hour // when the certificates of an Authority begin
	issued, err := c.authority.Issue(mtls.Leaf{Name: user, Lifetime: before + lifetime})
	return Access{Cert: issued.Cert, Key: issued.Key}, err
}

// ServiceAccount creates a service account, or leaves the one that is there, and
// grants it what the rules say, in the whole cluster and in the place of what it had. It
// waits until the API server, which learns of rules by its own watch, has all of that; what
// it takes away may be granted for a moment more.
func (c *Cluster) ServiceAccount(ctx context.Context, namespace, name string, rules ...rbacv1.PolicyRule) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}
	if err := c.ApplyObjects(ctx, account, role, binding); err != nil {
		return err
	}
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				if err := c.granted(ctx, "system:serviceaccount:"+namespace+":"+name, rule, resource, verb); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// granted waits until a user may do what is one of the things that a rule grants.
func (c *Cluster) granted(ctx context.Context, user string, rule rbacv1.PolicyRule, resource, verb string) error {
	attributes := &authorizationv1.ResourceAttributes{Group: rule.APIGroups[0], Verb: verb}
	attributes.Resource, attributes.Subresource, _ = strings.Cut(resource, "/")
	if len(rule.ResourceNames) > 0 {
		attributes.Name = rule.ResourceNames[0]
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: attributes}}
	return until(ctx, func() error {
		reply, err := c.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && !reply.Status.Allowed {
			err = fmt.Errorf("%s may not %s %s yet: %s", user, verb, resource, reply.Status.Reason)
		}
		return err
	})
}

// Token returns a token of a service account. Its lifetime is ten minutes at least,
// as the API server has it.
func (c *Cluster) Token(ctx context.Context, namespace, account string, lifetime time.Duration) (string, error) {
	seconds := int64(lifetime.Seconds())
	reply, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return reply.Status.Token, nil
}
