package export

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var update = flag.Bool("update", false, "write what comes out as what is wanted to testdata")

// TestTranslate reads testdata/*.txt. A file has cases that begin with '## ' and what
// they show: objects of a cluster, and after '=>' what becomes of the Service shop/web.
func TestTranslate(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in testdata: %v", err)
	}
	for _, file := range files {
		text := must.Get(os.ReadFile(file))(t)
		var written strings.Builder
		for i, section := range strings.Split("\n"+string(text), "\n## ") {
			if i == 0 {
				written.WriteString(strings.TrimPrefix(section, "\n"))
				continue
			}
			title, body, _ := strings.Cut(section, "\n")
			objects, want, _ := strings.Cut(body, "=>\n")
			want = strings.Trim(want, "\n") + "\n"
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+title, func(t *testing.T) {
				w := read(t, objects)
				v := w.rules.Translate(w.input())
				checkVerdict(t, w, v, rand.New(rand.NewPCG(1, 2)))
				got := show(v)
				written.WriteString("\n## " + title + "\n" + objects + "=>\n" + got)
				if diff := cmp.Diff(want, got); diff != "" && !*update {
					t.Errorf("verdict (-want +got):\n%s", diff)
				}
			})
		}
		if *update {
			must.Do(t, os.WriteFile(file, []byte(strings.TrimPrefix(written.String(), "\n")), 0o600))
		}
	}
}

// byValue are the types of package federation that are equal where == says so.
var byValue = cmp.Options{
	cmp.Comparer(func(a, b federation.FQDN) bool { return a == b }),
	cmp.Comparer(func(a, b federation.Address) bool { return a == b }),
}

// mayHave says whether the namespace shop owns a name, and whether it is given the name, label by
// label.
func mayHave(w *testCase, text string) (own, granted bool) {
	name := must.Value(federation.ParseFQDN(text))
	labels := strings.Split(strings.TrimSuffix(name.String(), ".west.fed.example."), ".")
	own = len(labels) > 1 && labels[len(labels)-1] == "shop"
	for _, g := range w.rules.Grants {
		for _, p := range g.Names {
			matches := p.Matches(name) && p.String() != "*" && p.String() != "*.west.fed.example" && p.String() != "*.fed.example"
			granted = granted || matches && (slices.Contains(g.Namespaces, "shop") || slices.Contains(g.Namespaces, AnyNamespace))
		}
	}
	return own, granted
}

// checkNames checks that the namespace shop may have the name, and those of instances.
func checkNames(t *testing.T, w *testCase, v Verdict) {
	t.Helper()
	name := v.Service.FQDN
	if own, granted := mayHave(w, name.String()); name == w.rules.Zone || !own && !granted || v.Claim.Granted == own {
		t.Errorf("%s has the name %s, granted %v by %v", v.Service.Name, name, v.Claim.Granted, w.rules.Grants)
	}
	for _, in := range v.Service.Instances {
		label := strings.TrimPrefix(in.ID, "shop/web/")
		own, granted := mayHave(w, label+"."+name.String())
		if named := isLabel(in.ID); named != (own || granted) || !isLabel(label) {
			t.Errorf("instance %q of %s has a name: %v, by %v", in.ID, name, named, w.rules.Grants)
		}
	}
}

// checkExport checks that a ServiceExport, and nothing else, describes itself in a label which others
// read, that each of its TCP targets is an endpoint, and that a label which is missing is a warning.
func checkExport(t *testing.T, w *testCase, v Verdict) {
	t.Helper()
	i := slices.IndexFunc(v.Service.Labels, func(p federation.Pair) bool { return p.Key == mcs.Label })
	warned := slices.ContainsFunc(v.Warnings, func(f Finding) bool { return f.Rule == NoExportLabel })
	if len(v.Warnings) < maxWarnings && (i >= 0) != (w.export != nil && !warned) {
		t.Errorf("labels %v of an export %v, with warning %v", v.Service.Labels, w.export != nil, warned)
	}
	if i < 0 {
		return
	}
	e := must.Get(mcs.Parse(v.Service.Labels[i].Value))(t)
	if v.Service.Name != e.Cluster+"/"+e.Namespace+"/"+e.Name || len(e.Ports) != len(w.service.Spec.Ports) {
		t.Errorf("%s says %+v of itself", v.Service.Name, e)
	}
	for _, p := range e.Ports {
		for _, target := range e.Targets[mcs.PortKey(p)] {
			if p.Protocol == corev1.ProtocolTCP && !slices.ContainsFunc(v.Service.Endpoints, func(e federation.Endpoint) bool { return e.Port == target }) {
				t.Errorf("no endpoint has target %d of port %s", target, p.Name)
			}
		}
	}
}

// checkVerdict checks what holds for the verdict of every case.
func checkVerdict(t *testing.T, w *testCase, v Verdict, random *rand.Rand) {
	t.Helper()
	before := w.shuffled(nil)
	if (v.Service == nil) == (v.Refusal == nil) {
		t.Fatalf("service %v and refusal %v", v.Service, v.Refusal)
	}
	if v.Service != nil {
		if err := v.Service.Validate(); err != nil {
			t.Errorf("not valid: %v", err)
		}
		if !v.Service.FQDN.Within(w.rules.Zone) {
			t.Errorf("%s is outside the zone", v.Service.FQDN)
		}
		checkNames(t, w, v)
		checkExport(t, w, v)
		for _, in := range v.Service.Instances {
			reached := false
			for _, e := range v.Service.Endpoints {
				reached = reached || in.Selects(e.Labels)
			}
			if !reached {
				t.Errorf("instance %s has no endpoint", in.ID)
			}
		}
	}
	for _, f := range v.Warnings {
		if len(f.Message) > maxMessage || f.Message == "" {
			t.Errorf("a message of %d bytes", len(f.Message))
		}
	}
	for range 3 {
		s := w.shuffled(random)
		if got := s.rules.Translate(s.input()); !reflect.DeepEqual(v, got) {
			t.Errorf("in another order (-as given +shuffled):\n%s", cmp.Diff(v, got, byValue))
		}
	}
	trimmed := w.trimmed()
	if got := trimmed.rules.Translate(trimmed.input()); !reflect.DeepEqual(v, got) {
		t.Errorf("after Trim (-original +trimmed):\n%s", cmp.Diff(v, got, byValue))
	}
	w.rules.Translate(w.input())
	if !reflect.DeepEqual(before, w) {
		t.Errorf("Translate or Trim changed its input (-before +after):\n%s", cmp.Diff(before, w, cmp.AllowUnexported(testCase{}), byValue))
	}
	if twice := trimmed.trimmed(); !reflect.DeepEqual(trimmed, twice) {
		t.Errorf("Trim twice (-once +twice):\n%s", cmp.Diff(trimmed, twice, cmp.AllowUnexported(testCase{}), byValue))
	}
}
