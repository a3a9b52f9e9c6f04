package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// Whatever is wrong with what an owner is given, its log has one clear line about it,
// and nothing that is published is lost.
func TestBadInput(t *testing.T) {
	d := world(t, both("west", -1))[0]
	for name, test := range map[string]func(*testing.T, *domain.Domain){
		"access": testBadAccess, "feedback": testBadFeedback, "configuration": testBadConfiguration, "start": testBadStart,
		"sources": testSourcesComeAndGo, "definitions": testDefinitionsComeAndGo,
	} {
		t.Run(name, func(t *testing.T) { test(t, d) })
	}
}

// input is an owner that gets something wrong, with an account and a namespace of its
// own, in which web and moving are exported, and one consumer.
type input struct {
	*domain.Owner

	domain     *domain.Domain
	space      string // the namespace, and the account
	kubeconfig string // its path
	access     realserver.Access
	follower   *follower
	moves      int
}

// newInput makes an owner that has not been started.
func newInput(t *testing.T, d *domain.Domain, name string) *input {
	t.Helper()
	in := &input{domain: d, space: "bad-" + name}
	namespace(t, d, in.space)
	apply(t, d, balanced(in.space, "web", "192.0.2.1"), export(in.space, "web"),
		balanced(in.space, "moving", "198.51.100.1"), export(in.space, "moving"))
	in.access = in.account(t, in.space, rules(t))
	in.mend(t)
	var err error
	in.Owner, err = d.NewOwner("kubeconfig: " + in.kubeconfig + "\nnamespaces: [" + in.space + "]")
	must.Do(t, err)
	return in
}

// account returns the access of an account that has these permissions.
func (in *input) account(t *testing.T, name string, rules []rbacv1.PolicyRule) realserver.Access {
	t.Helper()
	must.Do(t, in.domain.Cluster.ServiceAccount(t.Context(), "default", name, rules...))
	token, err := in.domain.Cluster.Token(t.Context(), "default", name, time.Hour)
	must.Do(t, err)
	return realserver.Access{Token: token}
}

// use writes the kubeconfig.
func (in *input) use(t *testing.T, server string, a realserver.Access) {
	t.Helper()
	var err error
	in.kubeconfig, err = in.domain.Cluster.NewKubeconfig(in.space, server, a)
	must.Do(t, err)
}

// mend writes the right kubeconfig.
func (in *input) mend(t *testing.T) { t.Helper(); in.use(t, "", in.access) }

// start starts the owner, and a consumer of it.
func (in *input) start(t *testing.T) {
	t.Helper()
	must.Do(t, in.Start(t.Context()))
	in.follower = follow(t, in.domain, in.Owner)
}

// services are the names that the owner publishes while it knows its namespace.
func (in *input) services(more ...string) []string {
	return append([]string{"west/" + in.space + "/moving", "west/" + in.space + "/web"}, more...)
}

// move moves a Service, and arrives waits until the consumer has that.
func (in *input) move(t *testing.T) {
	t.Helper()
	in.moves++
	apply(t, in.domain, balanced(in.space, "moving", in.place()))
}

func (in *input) place() string { return fmt.Sprintf("198.51.100.%d", 1+in.moves) }

func (in *input) arrives(t *testing.T) {
	t.Helper()
	eventually(t, func() string {
		s := in.follower.now()["west/"+in.space+"/moving"]
		if s == nil || s.Endpoints[0].Address.String() != in.place() {
			return fmt.Sprintf("%s: the Service has not moved to %s", in.space, in.place())
		}
		return ""
	})
}

// troubles returns the warnings and errors in the log of an owner.
func troubles(t *testing.T, o *domain.Owner) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(o.Log())
	must.Do(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			lines = append(lines, line)
		}
	}
	return lines
}

// complains waits until the log of an owner has n warnings and errors, of which the last
// has all the words.
func complains(t *testing.T, o *domain.Owner, n int, words ...string) {
	t.Helper()
	eventually(t, func() string {
		lines := troubles(t, o)
		if len(lines) < n {
			return fmt.Sprintf("the log of %s has no line about %q", o.Name, words)
		}
		lacks := func(word string) bool { return !strings.Contains(lines[n-1], word) }
		if len(lines) > n || slices.ContainsFunc(words, lacks) {
			t.Fatalf("%s logs %q, want %d lines, the last with %q", o.Name, lines, n, words)
		}
		return ""
	})
}

// without returns the permissions of owners but for some verbs on one resource, such as
// services or serviceexports/status.
func without(t *testing.T, resource string, lacking ...string) []rbacv1.PolicyRule {
	t.Helper()
	var left []rbacv1.PolicyRule
	for _, rule := range rules(t) {
		if !slices.Contains(rule.Resources, resource) {
			left = append(left, rule)
			continue
		}
		others, verbs := *rule.DeepCopy(), *rule.DeepCopy()
		others.Resources = slices.DeleteFunc(others.Resources, func(r string) bool { return r == resource })
		verbs.Resources, verbs.Verbs = []string{resource}, slices.DeleteFunc(verbs.Verbs, func(v string) bool { return slices.Contains(lacking, v) })
		for _, rule := range []rbacv1.PolicyRule{others, verbs} {
			if len(rule.Resources) > 0 && len(rule.Verbs) > 0 {
				left = append(left, rule)
			}
		}
	}
	return left
}

// rules returns the permissions of owners.
func rules(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	rules, err := domain.Rules()
	must.Do(t, err)
	return rules
}

// wrong is something wrong with the access of an owner to its cluster.
type wrong struct {
	name   string
	breaks func(*testing.T, *input)
	mends  func(*testing.T, *input) // nil: the right kubeconfig is written
	words  []string                 // of the line that says so
	stays  bool                     // the access of before stays in use
	early  bool                     // it is wrong when the owner starts
}

// permission is a wrong: the account may not do some things with a resource, and the line
// names one of them. They are granted later. To list is not needed by itself: the server
// begins a watch with what there is.
func permission(resource, group string, verbs ...string) wrong {
	small := func(in *input) string { return in.space + "-small" }
	verb := "cannot " // which of several is tried first is for client-go to say
	if len(verbs) == 1 {
		verb += verbs[0] + " resource"
	}
	return wrong{
		name: strings.Join(verbs, "-") + "-" + strings.ReplaceAll(resource, "/", "-"),
		breaks: func(t *testing.T, in *input) {
			t.Helper()
			in.use(t, "", in.account(t, small(in), without(t, resource, verbs...)))
		},
		mends: func(t *testing.T, in *input) { t.Helper(); in.account(t, small(in), rules(t)) },
		words: []string{"RBAC", "-small", verb, resource, group},
	}
}

// wrongs are what can be wrong with the access of an owner.
func wrongs() []wrong {
	text := func(change func(string) string) func(*testing.T, *input) {
		return func(t *testing.T, in *input) {
			t.Helper()
			text, err := os.ReadFile(in.kubeconfig)
			must.Do(t, err)
			must.Do(t, writeText(in.kubeconfig, change(string(text))))
		}
	}
	rejected := func(t *testing.T, in *input) { t.Helper(); in.use(t, "", realserver.Access{Token: "wrong"}) }
	nobody := func(t *testing.T, in *input) {
		t.Helper()
		address, err := loopback.FreeAddress()
		must.Do(t, err)
		in.use(t, "https://"+address, in.access)
	}
	away := "source is away; its published services stay"
	inUse := "the kubeconfig is unusable; the previous one stays in use"
	services := permission("services", "", "list", "watch")
	services.name, services.early = "early-permission", true
	return []wrong{
		{name: "missing", stays: true, words: []string{inUse, "no such file"}, breaks: func(t *testing.T, in *input) {
			t.Helper()
			must.Do(t, os.Remove(in.kubeconfig))
		}},
		{name: "broken", stays: true, words: []string{inUse, "yaml"}, breaks: text(func(string) string { return "clusters: {]" })},
		{name: "context", stays: true, words: []string{inUse, "there is no context", "nowhere"}, breaks: text(func(s string) string {
			return strings.Replace(s, "current-context: test", "current-context: nowhere", 1)
		})},
		{name: "authority", words: []string{away, "certificate signed by unknown authority"}, breaks: func(t *testing.T, in *input) {
			t.Helper()
			other := in.access
			other.CA = in.domain.OwnerFiles().CA
			in.use(t, "", other)
		}},
		{name: "token", words: []string{away, "does not accept the credentials", "401"}, breaks: rejected},
		{name: "expired", words: []string{away, "does not accept the credentials", "expired", "401"}, breaks: func(t *testing.T, in *input) {
			t.Helper()
			expired, err := in.domain.Cluster.Certificate("system:serviceaccount:default:"+in.space, -time.Minute)
			must.Do(t, err)
			in.use(t, "", expired)
		}},
		{name: "nobody", words: []string{away, "connection refused"}, breaks: nobody},
		{name: "early-nobody", early: true, words: []string{away, "connection refused"}, breaks: nobody},
		{name: "early-token", early: true, words: []string{away, "does not accept the credentials"}, breaks: rejected},
		services,
		permission("services", "", "list", "watch"),
		permission("services", "", "watch"),
		permission("nodes", "", "list", "watch"),
		permission("serviceexports", "multicluster.x-k8s.io", "list", "watch"),
		permission("httproutes", "gateway.networking.k8s.io", "watch"),
	}
}

// Whatever is wrong with the access of an owner to its cluster, its log says so in one
// line, consumers keep what they have, and it goes on once that is mended.
func testBadAccess(t *testing.T, d *domain.Domain) {
	t.Helper()
	cases := wrongs()
	var all []*input
	for _, c := range cases {
		in := newInput(t, d, c.name)
		if c.early {
			c.breaks(t, in)
		}
		in.start(t)
		all = append(all, in)
	}
	for i, in := range all {
		if !cases[i].early {
			in.follower.holds(t, in.services()...)
			cases[i].breaks(t, in)
		}
	}
	for i, in := range all {
		complains(t, in.Owner, 1, cases[i].words...)
		in.move(t)
		switch {
		case cases[i].early:
			eventually(t, func() string {
				in.follower.mu.Lock()
				defer in.follower.mu.Unlock()
				if s := in.follower.status; s.State == catalog.Synced || s.Failure == nil || !strings.Contains(s.Failure.Error(), "Unavailable") {
					return fmt.Sprintf("%s: the consumer is %s, %v", in.space, s.StateName(), s.Failure)
				}
				return ""
			})
		case cases[i].stays:
			in.arrives(t)
		}
	}
	for i, in := range all {
		if mends := cases[i].mends; mends != nil {
			mends(t, in)
		} else {
			in.mend(t)
		}
	}
	for i, in := range all {
		if !cases[i].stays {
			eventually(t, func() string {
				if n := in.Logged("level=INFO", "source is back"); n != 1 {
					return fmt.Sprintf("%s: the log says %d times that the source is back", in.space, n)
				}
				return ""
			})
		}
		in.arrives(t)
		in.move(t)
		in.arrives(t)
		in.follower.holds(t, in.services()...)
		in.follower.undisturbed(t, "")
		complains(t, in.Owner, 1, cases[i].words...)
	}
}

// An owner that may not write conditions or Events says which of them, in one line, and
// publishes; they are written once it may.
func testBadFeedback(t *testing.T, d *domain.Domain) {
	t.Helper()
	for _, c := range []wrong{
		permission("serviceexports/status", "multicluster.x-k8s.io", "patch"),
		permission("events", "events.k8s.io", "create"),
	} {
		in := newInput(t, d, c.name)
		c.breaks(t, in)
		in.start(t)
		in.follower.holds(t, in.services()...)
		told := listen(t, d, in.space)
		begin := told.apply(t, export(in.space, "absent"))
		complains(t, in.Owner, 1, append(c.words, "conditions and Events cannot be written; trying again")...)
		in.move(t)
		in.arrives(t)
		c.mends(t, in)
		told.await(t, "absent", condValid, "False NoService", begin)
		event(t, d, in.space, "ServiceExport", "absent", "NoService")
		complains(t, in.Owner, 1, c.words...)
		in.follower.undisturbed(t, "")
	}
}

// The definition of ServiceExports goes, with all of them: what they export stays. An
// owner that starts without the definition publishes what labels export, and reads the
// others once the definition is there.
func testDefinitionsComeAndGo(t *testing.T, d *domain.Domain) {
	t.Helper()
	in := newInput(t, d, "definitions")
	apply(t, d, strings.Replace(balanced(in.space, "marked", "192.0.2.3"), "{name: marked,", "{name: marked, labels: {"+annotation+"export: \"true\"},", 1))
	in.start(t)
	labelled := "west/" + in.space + "/marked"
	in.follower.holds(t, in.services(labelled)...)

	must.Do(t, d.Cluster.Uninstall(t.Context(), realserver.ServiceExports))
	complains(t, in.Owner, 1, "source is away; its published services stay", realserver.ServiceExports+" are not served any more")
	eventually(t, func() string {
		if in.Logged("level=INFO", "the cluster serves fewer resources", realserver.ServiceExports) != 1 {
			return "the log does not say which resources are gone"
		}
		return ""
	})
	in.move(t)
	in.arrives(t)

	late, err := d.NewOwner("kubeconfig: " + in.kubeconfig + "\nnamespaces: [" + in.space + "]")
	must.Do(t, err)
	must.Do(t, late.Start(t.Context()))
	consumer := follow(t, d, late)
	consumer.holds(t, labelled)
	if n := late.Logged("level=INFO", "the cluster does not serve these resources; they will be read when it does", realserver.ServiceExports); n != 1 {
		t.Errorf("%d lines about the resource that is absent, want one", n)
	}
	in.follower.holds(t, in.services(labelled)...)
	in.follower.undisturbed(t, "")

	must.Do(t, d.Cluster.InstallMCS(t.Context(), realserver.MCSBoth()...))
	apply(t, d, export(in.space, "web"), export(in.space, "moving"))
	consumer.holds(t, in.services(labelled)...)
	in.follower.holds(t, in.services(labelled)...)
	consumer.undisturbed(t, "")
	for _, o := range []*domain.Owner{in.Owner, late} {
		if n := o.Logged("level=INFO", "the cluster serves more resources", realserver.ServiceExports); n != 1 {
			t.Errorf("%d lines of %s about the resource that is new, want one", n, o.Name)
		}
	}
	in.move(t)
	in.arrives(t)
	complains(t, in.Owner, 1)
	if lines := troubles(t, late); len(lines) != 0 {
		t.Errorf("%s logs %q, and nothing is wrong", late.Name, lines)
	}
}

// A configuration file with mistakes changes nothing, and the log has all mistakes with
// their lines, once, as lint has them. An owner does not start with it.
func testBadConfiguration(t *testing.T, d *domain.Domain) {
	t.Helper()
	in := newInput(t, d, "configuration")
	in.start(t)
	in.follower.holds(t, in.services()...)
	text, err := os.ReadFile(in.Config)
	must.Do(t, err)

	broken := strings.NewReplacer("window: 256", "window: many", "allow:", "alow:", "zone: west.fed.example", "zone: west..example").Replace(string(text))
	must.Do(t, writeText(in.Config, broken))
	complains(t, in.Owner, 1, `"file is not used: fix it" what="configuration file"`, "everything stays as it was")
	mistakes := lint(t, in.Owner)
	if len(mistakes) < 3 {
		t.Errorf("lint finds %q, want three mistakes and more", mistakes)
	}
	line := troubles(t, in.Owner)[0]
	if all := strings.ReplaceAll(strings.Join(mistakes, "; "), `"`, `\"`); !strings.Contains(line, all) {
		t.Errorf("the log has\n%s, and lint has\n%s", line, all)
	}
	in.move(t)
	in.arrives(t)

	second, err := d.NewOwner("")
	must.Do(t, err)
	must.Do(t, writeText(second.Config, broken))
	output, code := run(t, second, "serve", "--config", second.Config)
	if all := strings.Join(mistakes, "; "); code != 1 || !strings.Contains(output, all) || !strings.Contains(output, "federationctl lint") {
		t.Errorf("serve ends with %d and\n%s, want 1 and %s", code, output, all)
	}

	must.Do(t, writeText(in.Config, string(text)))
	eventually(t, func() string {
		if in.Logged("level=INFO", `"file is in order again" what="configuration file"`) != 1 {
			return "the log does not say that the file is in order again"
		}
		return ""
	})
	in.move(t)
	in.arrives(t)
	complains(t, in.Owner, 1, `"file is not used: fix it" what="configuration file"`)
	in.follower.undisturbed(t, "")
	if mistakes := lint(t, in.Owner); len(mistakes) > 0 {
		t.Errorf("lint finds %q in a file that is in order", mistakes)
	}
}

// An owner does not start with a kubeconfig that is not usable, and says why in a line.
func testBadStart(t *testing.T, d *domain.Domain) {
	t.Helper()
	in := newInput(t, d, "start")
	for _, c := range wrongs() {
		if !c.stays {
			continue
		}
		in.mend(t)
		c.breaks(t, in)
		output, code := run(t, in.Owner, "serve", "--config", in.Config)
		if code != 1 || strings.Count(strings.TrimSpace(output), "\n") != 0 {
			t.Errorf("%s: serve ends with %d and\n%s", c.name, code, output)
		}
		for _, word := range append(c.words[1:], in.kubeconfig, in.Config) {
			if !strings.Contains(output, word) {
				t.Errorf("%s: serve says\n%s, want %q", c.name, output, word)
			}
		}
	}
}

// A source that a reload adds, whose cluster cannot be reached, withdraws nothing and
// keeps nothing from changing; once it is complete it is published; and what it has
// published goes when it is removed.
func testSourcesComeAndGo(t *testing.T, d *domain.Domain) {
	t.Helper()
	in, other := newInput(t, d, "sources"), newInput(t, d, "other")
	in.start(t)
	in.follower.holds(t, in.services()...)
	text, err := os.ReadFile(in.Config)
	must.Do(t, err)
	more := string(text) + "  - kubernetes: {cluster: other, zone: other.fed.example, kubeconfig: %q, namespaces: [" + other.space + "]}\n"

	must.Do(t, writeText(in.Config, fmt.Sprintf(more, filepath.Join(d.Dir, "none"))))
	complains(t, in.Owner, 1, `"file is not used: fix it" what="configuration file"`, "everything stays as it was", "kubernetes:other", "no such file")
	in.move(t)
	in.arrives(t)

	wrongs()[6].breaks(t, other) // nobody is there
	must.Do(t, writeText(in.Config, fmt.Sprintf(more, other.kubeconfig)))
	complains(t, in.Owner, 2, "source is away", "source=kubernetes:other", "connection refused")
	in.move(t)
	in.arrives(t)
	in.follower.holds(t, in.services()...)

	other.mend(t)
	added := []string{"other/" + other.space + "/moving", "other/" + other.space + "/web"}
	in.follower.holds(t, in.services(added...)...)
	in.follower.undisturbed(t, "")
	in.move(t)
	in.arrives(t)

	must.Do(t, writeText(in.Config, string(text)))
	in.follower.holds(t, in.services()...)
	for _, name := range added {
		if _, withdrawn := in.follower.told(name); withdrawn != 1 {
			t.Errorf("%s was withdrawn %d times, want once", name, withdrawn)
		}
	}
	in.follower.undisturbed(t, "west/")
	in.move(t)
	in.arrives(t)
	if lines := troubles(t, in.Owner); len(lines) != 2 {
		t.Errorf("the log has %q, want two lines", lines)
	}
}

// lint returns what federationctl lint says of the configuration of an owner, in the
// form of serve: "line 3: what is wrong".
func lint(t *testing.T, o *domain.Owner) (mistakes []string) {
	t.Helper()
	output, code := run(t, o, "lint", o.Config)
	mistake := regexp.MustCompile(`^` + regexp.QuoteMeta(o.Config) + `:(\d+): error: (.*)$`)
	for line := range strings.Lines(output) {
		if found := mistake.FindStringSubmatch(strings.TrimSpace(line)); found != nil {
			mistakes = append(mistakes, "line "+found[1]+": "+found[2])
		}
	}
	if (code == 0) != (len(mistakes) == 0) {
		t.Errorf("lint ends with %d and\n%s", code, output)
	}
	return mistakes
}

// run runs federationctl, and returns what it has written and its exit code.
func run(t *testing.T, o *domain.Owner, args ...string) (output string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	text, err := exec.CommandContext(ctx, o.Path, args...).CombinedOutput()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return string(text), exit.ExitCode()
	}
	must.Do(t, err)
	return string(text), 0
}
