package kubernetes

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
)

// testPermissions runs with exactly the permissions of the manifest, and without the
// first resource of each rule.
func testPermissions(t *testing.T, c *cluster) {
	for kind, plural := range map[string]string{
		"Gateway": "gateways", "HTTPRoute": "httproutes", "GRPCRoute": "grpcroutes", "TLSRoute": "tlsroutes", "TCPRoute": "tcproutes",
	} {
		version := "v1"
		if kind == "TCPRoute" {
			version = "v1alpha2"
		}
		c.must(c.Install(t.Context(), custom(kind, plural, version)))
	}
	text, err := os.ReadFile("testdata/rbac.yaml")
	c.must(err)
	var role rbacv1.ClusterRole
	c.must(yaml.UnmarshalStrict(text, &role))

	c.namespace("permissions")
	c.create(labelled(service("permissions", "a", "192.0.2.1")))
	c.create(service("permissions", "b", "192.0.2.1"))
	c.export("v1beta1", "permissions", "b")
	c.export("v1beta1", "permissions", "refused")
	// as returns a source that runs with the rules, and what gives it others.
	as := func(t *testing.T, user string, grace time.Duration, rules []rbacv1.PolicyRule, namespaces ...string) (r *runner, set func([]rbacv1.PolicyRule)) {
		t.Helper()
		in := *c
		in.TB = t
		set = in.role(user, rules)
		r = in.prepare(func(config *Config) {
			config.Kubeconfig = in.kubeconfig(func(config *clientcmdapi.Config) { config.AuthInfos["test"].Impersonate = user })
			config.RoutablePods, config.Namespaces = true, namespaces
		})
		r.state.health.grace = grace
		in.start(r)
		return r, set
	}
	t.Run("all", func(t *testing.T) {
		r, _ := as(t, "system:serviceaccount:dns:all", patience, role.Rules) // a machine that is busy is no outage
		until(t, "everything", func() bool {
			return strings.Contains(r.names(), "west/permissions/a west/permissions/b") && r.back()
		})
		until(t, "a condition", func() bool {
			_, reason, _ := c.condition("permissions", "refused", "Valid")
			return reason == "NoService"
		})
		c.unexport("v1beta1", "permissions", "b")
		until(t, "a deletion", func() bool { return !strings.Contains(r.names(), "west/permissions/b") })
		if strings.Contains(r.log.String(), "RBAC") || len(r.said) > 0 {
			t.Errorf("log: %s\nsaid: %q", &r.log, r.said)
		}
	})
	for i, rule := range role.Rules {
		resource, namespace := rule.Resources[0], fmt.Sprintf("permissions-%d", i)
		c.namespace(namespace)
		c.export("v1beta1", namespace, "gone")
		t.Run(resource+"."+rule.APIGroups[0], func(t *testing.T) {
			t.Parallel()
			rules := make([]rbacv1.PolicyRule, len(role.Rules))
			for k := range rules {
				role.Rules[k].DeepCopyInto(&rules[k])
			}
			if rules[i].Resources = rules[i].Resources[1:]; len(rules[i].Resources) == 0 {
				rules = slices.Delete(rules, i, i+1)
			}
			r, set := as(t, "system:serviceaccount:dns:"+namespace, quick.grace, rules, namespace)
			in := *c
			in.TB = t
			in.lacks(r, rule.Verbs, resource, rule.APIGroups[0], namespace, func() { set(role.Rules) })
		})
	}
}

// role gives a user the rules, and returns what gives it others.
func (c *cluster) role(user string, rules []rbacv1.PolicyRule) (set func([]rbacv1.PolicyRule)) {
	c.Helper()
	name := strings.ReplaceAll(user, ":", "-")
	set = func(rules []rbacv1.PolicyRule) {
		c.Helper()
		c.must(c.ApplyObjects(c.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}))
	}
	set(rules)
	c.must(c.ApplyObjects(c.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	}))
	until(c, "the role of "+user, func() bool { // the server learns of roles by a watch
		review, err := c.Client.AuthorizationV1().SubjectAccessReviews().Create(c.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: rules[0].Verbs[0], Group: rules[0].APIGroups[0], Resource: rules[0].Resources[0],
			}},
		}, metav1.CreateOptions{})
		c.must(err)
		return review.Status.Allowed
	})
	return set
}

// lacks checks what a source says that lacks a permission, and that it recovers once
// it is granted.
func (c *cluster) lacks(r *runner, verbs []string, resource, group, namespace string, grant func()) {
	c.Helper()
	what, in := `resource "`+resource+`"`, `in API group "`+group+`"`
	told := func() bool {
		_, reason, _ := c.condition(namespace, "gone", "Valid")
		return reason == string(export.NoService)
	}
	if slices.Contains(verbs, "list") {
		until(c, "the reason", func() bool { return r.awayFor(what) && r.awayFor(in) && r.awayFor("RBAC: User") })
		if r.view(func() bool { return r.complete }) {
			c.Error("the part is complete")
		}
		grant()
		until(c, "everything once it is granted", r.back)
		return
	}
	until(c, "everything", r.back)
	verb := verbs[0]
	if resource == "leases" {
		verb = "get" // comes first
	}
	what = "cannot " + verb + " " + what
	until(c, "the line in the log", func() bool {
		return strings.Contains(strings.ReplaceAll(r.log.String(), `\"`, `"`), what+" "+in)
	})
	grant()
	until(c, "the condition once it is granted", told)
}
