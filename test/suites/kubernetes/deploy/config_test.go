package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// The owner accepts the configuration that each example gives it.
func TestOwnerConfig(t *testing.T) {
	helm := helm(t, "")
	texts, registrations := make(map[string]string), make(map[string]string)
	for example := range examples(t) {
		rendered := helm.template(t, example)
		if text := fileOf(t, rendered, "owner.yaml"); text != "" {
			texts[example] = text
		}
		if text := fileOf(t, rendered, "registrations.yaml"); text != "" {
			registrations[example] = text
		}
	}
	if len(registrations) != 1 {
		t.Errorf("%d examples have registrations, expected 1", len(registrations))
	}
	for name, text := range registrations {
		if _, wrong := rules.Parse([]byte(text)); len(wrong) > 0 {
			t.Errorf("%s: %v, in\n%s", name, wrong, text)
		}
	}
	if len(texts) < 3 {
		t.Errorf("only %d examples have an owner", len(texts))
	}
	overlay := must.Get(os.ReadFile(filepath.Join(manifests, "overlays", "owner", "owner.yaml")))(t)
	texts["overlay"] = string(overlay)
	for name, text := range texts {
		if _, wrong := config.Parse([]byte(text)); len(wrong) > 0 {
			t.Errorf("%s: %v, in\n%s", name, wrong, text)
		}
	}
}

// rendering is what is rendered of an example, and what is not.
type rendering struct {
	example string
	args    []string
	want    []string
	not     string
}

func (r rendering) check(t *testing.T, helm command) {
	t.Helper()
	rendered := helm.template(t, r.example, r.args...)
	for _, text := range r.want {
		if !strings.Contains(rendered, text) {
			t.Errorf("%s %v: %q is not rendered", r.example, r.args, text)
		}
	}
	if strings.Contains(rendered, r.not) {
		t.Errorf("%s %v: %q is rendered", r.example, r.args, r.not)
	}
}

// A registration is the whole way from the Service to the pod: of one at a time or, with a way
// to etcd and a Secret, of several.
func TestRegistration(t *testing.T) {
	helm := helm(t, "")
	const etcd = `{"etcd":{"endpoints":["https://etcd.example:2379"],"tls":{"ca":"/etc/federation/registration/ca.crt"}}}`
	for _, r := range []rendering{
		{"owner", nil, nil, "registration"},
		{"owner-registration", nil, []string{
			"{name: registration, port: 8009, targetPort: registration, protocol: TCP, appProtocol: grpc}",
			"{name: registration, containerPort: 8009, protocol: TCP}", "ports: [{protocol: TCP, port: registration}]",
			"strategy: {type: Recreate}",
		}, "2379"},
		{"owner-registration", []string{"--set", "owner.replicas=2,owner.registration.secretName=etcd", "--set-json", "owner.registration.settings.store=" + etcd}, []string{
			"https://etcd.example:2379", "{protocol: TCP, port: 2379}", "secretName: etcd", "{name: registration-secret, mountPath: /etc/federation/registration, readOnly: true}",
			"maxSurge: 1",
		}, "Recreate"},
	} {
		r.check(t, helm)
	}
}

// The status is on the loopback address only, and logs have a format, where the values
// say so; the owner and CoreDNS accept it with every example.
func TestStatus(t *testing.T) {
	helm := helm(t, "")
	const owner, dns = `status: "localhost:9156"`, "status localhost:9154"
	for example := range examples(t) {
		rendered := helm.template(t, example)
		for _, text := range []string{"9154", "9156", "log-format"} {
			if strings.Contains(rendered, text) {
				t.Errorf("%s: %q is rendered", example, text)
			}
		}
		rendered = helm.template(t, example, "--set=owner.status=true,dns.status=true,owner.logFormat=json,dns.logFormat=json")
		if strings.Contains(rendered, "containerPort: 9154") || strings.Contains(rendered, "containerPort: 9156") {
			t.Errorf("%s: the status is a port of the container", example)
		}
		var served, logged int
		if text := fileOf(t, rendered, "owner.yaml"); text != "" {
			served += strings.Count(text, owner)
			if _, wrong := config.Parse([]byte(text)); len(wrong) > 0 {
				t.Errorf("%s: %v, in\n%s", example, wrong, text)
			}
		}
		served += min(strings.Count(fileOf(t, rendered, "Corefile"), dns), 1) // of the process, though every block says it
		for _, args := range []string{"owner.yaml, --log-format, json]", "Corefile, -log-format, json]"} {
			logged += strings.Count(rendered, args)
		}
		if workloads := len(ofKind(objects(t, rendered), "Deployment")); served != workloads || logged != workloads {
			t.Errorf("%s: %d of %d workloads have the status, and %d JSON logs", example, served, workloads, logged)
		}
	}
}

// Owners behind one address, which a relay of several catalogs is, have a file each, and
// blocks of one owner share theirs.
func TestPersistFiles(t *testing.T) {
	const owners = `[
		{"zones": ["a.fed.example"], "addresses": ["relay.example:8008"], "properties": ["ttl 5", "tls_servername a.example"]},
		{"zones": ["b.fed.example"], "addresses": ["relay.example:8008"], "properties": ["tls_servername b.example"]},
		{"zones": ["c.fed.example"], "addresses": ["relay.example:8008"]},
		{"zones": ["d.fed.example"], "addresses": ["relay.example:8008"]}
	]`
	rendered := helm(t, "").template(t, "beside", "--set-json", "dns.owners="+owners)
	got := regexp.MustCompile(`(?m)^ *persist (.*)$`).FindAllStringSubmatch(rendered, -1)
	const file = "/var/lib/federation/relay.example-8008"
	want := []string{file + "-a.example", file + "-b.example", file, file}
	if len(got) != len(want) {
		t.Fatalf("%d files, expected %d, in\n%s", len(got), len(want), rendered)
	}
	for i := range want {
		if got[i][1] != want[i] {
			t.Errorf("owner %d has the file %s, expected %s", i, got[i][1], want[i])
		}
	}
}

// A relay has its catalog, a way to the other owner, and a file that outlives the
// container, also where the whole configuration is given.
func TestRelay(t *testing.T) {
	helm := helm(t, "")
	ways := []string{
		"{protocol: TCP, port: 8008}", "{protocol: UDP, port: 53}",
		"{name: relays, mountPath: /var/cache/federation}", "- name: relays\n          emptyDir:\n            sizeLimit: 2048Mi",
	}
	for _, r := range []rendering{
		{"owner", nil, nil, "/var/cache/federation"},
		{"owner-relay", nil, append(ways, "server_name: west.hub.example", "persist: /var/cache/federation/west.hub.example.catalog", "max_catalog: 51MiB"), "{protocol: TCP, port: 9443}"},
		{"owner-relay", []string{"--set", "owner.relays[0].relay.addresses={a.example:9443},owner.relays[0].relay.persist=/tmp/kept"}, append(ways,
			"{protocol: TCP, port: 9443}", "persist: /tmp/kept"), "west.hub.example.catalog"},
		{"owner", []string{"--set", "owner.config=catalogs: [{relay: {}}]"}, ways, "persist"},
	} {
		r.check(t, helm)
	}
}
