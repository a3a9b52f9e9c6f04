package deploy

import (
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
)

// rendering is what is rendered of an example, and what is not.
type rendering struct {
	example   string
	args      []string
	want, not []string
}

// What is rendered follows the values, and the owner or the importer accepts the configuration in it.
func TestRendered(t *testing.T) {
	helm := helm(t, "")
	const (
		logs   = "--set=owner.logFormat=json,dns.logFormat=json"
		etcd   = `{"etcd":{"endpoints":["https://etcd.example:2379"],"tls":{"ca":"/etc/federation/registration/ca.crt"}}}`
		owners = `[
			{"zones": ["a.fed.example"], "addresses": ["relay.example:8008"], "properties": ["ttl 5", "tls_servername a.example"]},
			{"zones": ["b.fed.example"], "addresses": ["relay.example:8008"], "properties": ["tls_servername b.example"]},
			{"zones": ["c.fed.example"], "addresses": ["relay.example:8008"]},
			{"zones": ["d.fed.example"], "addresses": ["relay.example:8008"]}
		]`
		file = "persist /var/lib/federation/relay.example-8008"
	)
	relay := []string{
		"{protocol: TCP, port: 8008}", "{protocol: UDP, port: 53}",
		"{name: relays, mountPath: /var/cache/federation}", "- name: relays\n          emptyDir:\n            sizeLimit: 2048Mi",
	}
	rows := []rendering{
		// A registration is the whole way from the Service to the pod: of one at a time or, with a
		// way to etcd and a Secret, of several.
		{"owner", nil, nil, []string{"registration"}},
		{"owner-registration", nil, []string{
			"{name: registration, port: 8009, targetPort: registration, protocol: TCP, appProtocol: grpc}",
			"{name: registration, containerPort: 8009, protocol: TCP}", "ports: [{protocol: TCP, port: registration}]",
			"strategy: {type: Recreate}",
		}, []string{"2379", "LoadBalancer"}},
		{"owner-registration", []string{"--set", "owner.replicas=2,owner.registration.secretName=etcd", "--set-json", "owner.registration.settings.store=" + etcd}, []string{
			"https://etcd.example:2379", "{protocol: TCP, port: 2379}", "secretName: etcd", "{name: registration-secret, mountPath: /etc/federation/registration, readOnly: true}",
			"maxSurge: 1",
		}, []string{"Recreate"}},

		// The status is on the loopback address only, and is no port of the container.
		{"both", []string{logs}, []string{
			`status: "localhost:9156"`, "owner.yaml, --log-format, json]", "status localhost:9154", "Corefile, -log-format, json]",
		}, []string{"containerPort: 9154", "containerPort: 9156"}},
		{"both", []string{"--set=owner.status=false,dns.status=false"}, nil, []string{"localhost:9156", "localhost:9154"}},
		{"cluster-dns", []string{logs}, []string{"status localhost:9154", "Corefile, -log-format, json]"}, []string{"containerPort: 9154"}},

		// Owners behind one address, which a relay of several catalogs is, have a file each, and
		// blocks of one owner share theirs.
		{"beside", []string{"--set-json", "dns.owners=" + owners}, []string{file + "-a.example\n", file + "-b.example\n", file + "\n"}, nil},

		// A relay has its catalog, a way to the other owner, and a file that outlives the
		// container, also where the whole configuration is given.
		{"owner", nil, nil, []string{"/var/cache/federation"}},
		{"owner-relay", nil, append(
			relay, "server_name: west.hub.example", "persist: /var/cache/federation/west.hub.example.catalog", "max_catalog: 51MiB",
		), []string{"{protocol: TCP, port: 9443}"}},
		{"owner-relay", []string{"--set", "owner.relays[0].relay.addresses={a.example:9443},owner.relays[0].relay.persist=/tmp/kept"}, append(
			relay, "{protocol: TCP, port: 9443}", "persist: /tmp/kept",
		), []string{"west.hub.example.catalog"}},
		{"owner", []string{"--set", "owner.config=catalogs: [{relay: {}}]"}, relay, []string{"persist"}},

		// A kubeconfig brings its own rights, in another cluster, and what the values add is there.
		{"owner", []string{
			"--set=owner.kubernetes.kubeconfig=/etc/kube/config,owner.kubernetes.context=west",
			`--set-json=owner.extraVolumes=[{"name":"kube","secret":{"secretName":"kube"}}]`,
			`--set-json=owner.extraVolumeMounts=[{"name":"kube","mountPath":"/etc/kube","readOnly":true}]`,
			`--set-json=owner.extraEnv=[{"name":"GOGC","value":"200"}]`,
			`--set-json=owner.serviceAccount.annotations={"iam.example/role":"owner"}`,
		}, []string{
			"kubeconfig: /etc/kube/config", "secretName: kube\n", "mountPath: /etc/kube\n", "name: GOGC\n", "name: GOMEMLIMIT\n",
			"iam.example/role: owner\n", "automountServiceAccountToken: false",
		}, []string{"kind: ClusterRole", "kind: Role"}},

		// An importer has its owners, a volume for their catalogs and a way to them and to the API server. Its
		// configuration is in no ConfigMap that the importer itself would write.
		{"import", []string{"--set=import.logFormat=json,import.owners[0].addresses={west.example:9443},import.owners[0].name=west"}, []string{
			`status: "localhost:9157"`, `metrics: ":9158"`, "persist: /var/lib/federation-import\n", "- west.example:9443\n", "max_catalog: 102MiB\n",
			"{name: catalogs, mountPath: /var/lib/federation-import}", "sizeLimit: 2048Mi", "{protocol: TCP, port: 9443}", "{protocol: TCP, port: 6443}",
			"import.yaml, --log-format, json]", "name: federation-import-config\n", "replicas: 2\n",
		}, []string{"containerPort: 9157", "kind: ConfigMap\nmetadata:\n  name: federation-import\n", "kind: ClusterRole"}},
		{"import", []string{"--set=import.persist=false,import.status=false"}, nil, []string{"/var/lib/federation-import", "catalogs", "9157"}},
		{"import", []string{
			"--set=import.kubernetes.kubeconfig=/etc/kube/config,import.kubernetes.context=east",
			`--set-json=import.extraVolumes=[{"name":"kube","secret":{"secretName":"kube"}}]`,
			`--set-json=import.extraVolumeMounts=[{"name":"kube","mountPath":"/etc/kube","readOnly":true}]`,
		}, []string{"kubeconfig: /etc/kube/config", "secretName: kube\n", "mountPath: /etc/kube\n", "automountServiceAccountToken: false"}, []string{"kind: Role"}},
		{"import-mcs", nil, []string{"as: mcs\n", "cluster: east\n"}, nil},
		{"import", []string{"--set", "import.config=owners: [{addresses: [a.example:8008]}]"}, []string{"owners: [{addresses: [a.example:8008]}]"}, []string{"max_catalog"}},

		// Metrics are for nobody where no peer is named.
		{"both", []string{"--set-json=owner.networkPolicy.monitoring=[]", "--set-json=dns.networkPolicy.monitoring=[]"}, nil, []string{"port: metrics}]"}},
		{"import", []string{"--set-json=import.networkPolicy.monitoring=[]"}, nil, []string{"port: metrics}]", "ingress:"}},
	}
	for example := range examples(t) {
		rows = append(rows, rendering{example, nil, nil, []string{"containerPort: 9154", "containerPort: 9156", "containerPort: 9157", "log-format"}})
	}
	for _, r := range rows {
		rendered := helm.template(t, r.example, r.args...)
		for _, text := range r.want {
			if !strings.Contains(rendered, text) {
				t.Errorf("%s %v: %q is not rendered", r.example, r.args, text)
			}
		}
		for _, text := range r.not {
			if strings.Contains(rendered, text) {
				t.Errorf("%s %v: %q is rendered", r.example, r.args, text)
			}
		}
		if text := fileOf(t, rendered, "owner.yaml"); text != "" && !strings.Contains(text, "relay: {}") {
			if _, wrong := config.Parse([]byte(text)); len(wrong) > 0 {
				t.Errorf("%s %v: %v, in\n%s", r.example, r.args, wrong, text)
			}
		}
		if text := fileOf(t, rendered, "import.yaml"); strings.Contains(text, "identity:") {
			if _, wrong, doubts := config.CheckImport([]byte(text)); len(wrong)+len(doubts) > 0 {
				t.Errorf("%s: %v %v, in\n%s", r.example, wrong, doubts, text)
			}
		}
		if text := fileOf(t, rendered, "registrations.yaml"); text != "" {
			if _, wrong := rules.Parse([]byte(text)); len(wrong) > 0 {
				t.Errorf("%s: %v, in\n%s", r.example, wrong, text)
			}
		}
	}
}
