package catalogentry_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/internal/catalogentry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// fromYAML returns the entry that a text is, which begins on line 11 of its file.
func fromYAML(t *testing.T, text string) *catalogentry.Entry {
	t.Helper()
	var document yaml.Node
	must.Do(t, yaml.Unmarshal([]byte(strings.Repeat("\n", 10)+text), &document))
	return catalogentry.FromYAML(document.Content[0])
}

// fromJSON returns the entry that the same text is in JSON, on one line.
func fromJSON(t *testing.T, text string) *catalogentry.Entry {
	t.Helper()
	var value any
	must.Do(t, yaml.Unmarshal([]byte(text), &value))
	data := must.Get(json.Marshal(value))(t)
	return catalogentry.FromJSON(data, 11)
}

func lines(list problem.List) []string {
	var lines []string
	for _, p := range list.Kept {
		lines = append(lines, fmt.Sprintf("%d: %s", p.Line, p))
	}
	return lines
}

const good = `name: web
fqdn: web.example
endpoints:
- {address: 192.0.2.1, port: 80, labels: [eu]}
instances:
- {id: v1, protocol: HTTP, endpointSelector: [us]}
`

func TestServiceAndDoubts(t *testing.T) {
	for name, e := range map[string]*catalogentry.Entry{"YAML": fromYAML(t, good), "JSON": fromJSON(t, good)} {
		found, doubts := problem.List{Room: 10}, problem.List{Room: 10}
		service := e.Service("services[0]", wire.Policy{}, &found)
		if service == nil {
			t.Errorf("%s: no service, but %q", name, lines(found))
			continue
		}
		if service.Name != "web" || service.Endpoints[0].Port != 80 || service.Instances[0].Protocol != federation.HTTP {
			t.Errorf("%s: service is %+v", name, service)
		}
		e.Doubts(service, &doubts)
		want := fmt.Sprintf("%d: service \"web\": instances[0].endpoint_selector: no endpoint has one of these labels, so the instance gets every endpoint",
			e.Line("instances[0].endpoint_selector"))
		if diff := cmp.Diff([]string{want}, lines(doubts)); diff != "" {
			t.Errorf("%s: unexpected doubts (-want +got):\n%s", name, diff)
		}
	}
}

func TestEveryMistakeIsFound(t *testing.T) {
	bad := strings.NewReplacer("web.example", "7", "port: 80", "port: 0", "protocol", "protokoll").Replace(good)
	want := []string{
		`16: service "web": instances[0]: there is no field "protokoll"`,
		`12: service "web": fqdn: must be a string, not 7`,
		`14: service "web": endpoints[0].port: 0 is not in 1 to 65535`,
		`16: service "web": instances[0].protocol: required`,
	}
	found := problem.List{Room: 10}
	if service := fromYAML(t, bad).Service("services[0]", wire.Policy{}, &found); service != nil {
		t.Errorf("service is %+v, expected none", service)
	}
	if diff := cmp.Diff(want, lines(found)); diff != "" {
		t.Errorf("unexpected problems (-want +got):\n%s", diff)
	}
	found = problem.List{Room: 2}
	fromYAML(t, bad).Service("services[0]", wire.Policy{}, &found)
	if len(found.Kept) != 2 || found.More == 0 {
		t.Errorf("with room for 2: %q and %d more", lines(found), found.More)
	}
}

func TestBrokenEntryHasItsPlace(t *testing.T) {
	for name, tt := range map[string]struct {
		entry *catalogentry.Entry
		want  string
	}{
		"broken":                 {catalogentry.Broken(3, "is broken"), "3: service services[2]: is broken"},
		"number that is too big": {catalogentry.FromJSON([]byte(`{"port": 1e999}`), 4), "4: service services[2]: json: cannot unmarshal number 1e999 into Go value of type float64"},
		"no mapping":             {fromYAML(t, "- a"), "11: service services[2]: a service must be a mapping"},
	} {
		found := problem.List{Room: 10}
		if service := tt.entry.Service("services[2]", wire.Policy{}, &found); service != nil {
			t.Errorf("%s: service is %+v, expected none", name, service)
		}
		if diff := cmp.Diff([]string{tt.want}, lines(found)); diff != "" {
			t.Errorf("%s: unexpected problems (-want +got):\n%s", name, diff)
		}
	}
}

func TestLine(t *testing.T) {
	e := fromYAML(t, good)
	for field, want := range map[string]int{
		"": 11, "fqdn": 12, "endpoints[0].port": 14, "endpoints[7].port": 13, "instances[0].endpoint_selector[0]": 16, "none": 11,
	} {
		if got := e.Line(field); got != want {
			t.Errorf("field %q is on line %d, expected %d", field, got, want)
		}
	}
}
