package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestDrainingDocument follows docs/draining.md with its examples, at an owner that has a consumer:
// each waits for the withdrawal that is made while it waits, and is told that it is over.
func TestDrainingDocument(t *testing.T) {
	t.Parallel()
	document := string(must.Get(os.ReadFile("../../docs/draining.md"))(t))
	blocks := make(map[string][]string)
	for _, block := range regexp.MustCompile("(?s)```([a-z]+)\n(.*?)```").FindAllStringSubmatch(document, -1) {
		blocks[block[1]] = append(blocks[block[1]], block[2])
	}
	if len(blocks["sh"]) != 1 || len(blocks["ini"]) != 1 || len(blocks["yaml"]) != 2 {
		t.Fatalf("docs/draining.md has the blocks %v", slices.Sorted(maps.Keys(blocks)))
	}

	t.Run("sh", func(t *testing.T) {
		t.Parallel()
		d := drain(t, blocks["yaml"][0])
		script := strings.TrimSpace(strings.ReplaceAll(blocks["sh"][0], "bin/", ""))
		d.asks(script, script+" --timeout 100ms")
	})
	t.Run("systemd", func(t *testing.T) {
		t.Parallel()
		d := drain(t, blocks["yaml"][0])
		script := "set -e\n"
		for line := range strings.Lines(blocks["ini"][0]) {
			if command, ok := strings.CutPrefix(line, "ExecStop="); ok {
				script += strings.TrimPrefix(command, "-")
			}
		}
		script = strings.NewReplacer("/etc/federation-owner", d.dir, "/usr/bin/", "").Replace(script)
		if code, stdout, stderr := d.shell(script); code != 0 || !strings.Contains(stdout, settledText) {
			t.Errorf("exit code %d: %s%s", code, stdout, stderr)
		}
	})
	t.Run("Kubernetes", func(t *testing.T) {
		t.Parallel()
		d := drain(t, blocks["yaml"][0])
		var pod struct {
			Spec struct {
				Containers []struct {
					Lifecycle struct {
						PreStop struct{ Exec struct{ Command []string } } `yaml:"preStop"` //nolint:tagliatelle // as Kubernetes has it
					}
				}
			}
		}
		must.Do(t, yaml.Unmarshal([]byte(blocks["yaml"][1]), &pod))
		hook := pod.Spec.Containers[0].Lifecycle.PreStop.Exec.Command
		if len(hook) != 3 || hook[0] != "sh" || hook[1] != "-c" {
			t.Fatalf("the hook is %q", hook)
		}
		script := "POD_IP=192.0.2.1\n" + strings.NewReplacer(
			"/certs/tls.crt", "consumer.pem", "/certs/tls.key", "consumer-key.pem", "/certs/ca.crt", "ca.pem",
			"federation-owner.federation:9156", d.status, "web.shop.west.fed.example", "web.fed.example",
		).Replace(hook[2])
		d.asks(script, strings.Replace(script, "timeout=90s", "timeout=100ms", 1))
	})
}

// settledText is what wait says at the end.
const settledText = "web.fed.example with 192.0.2.1 is gone for everybody: 1 of 1 consumer settled"

// draining is an owner of web.fed.example, at 192.0.2.1 and 192.0.2.2, with a consumer.
type draining struct{ *configured }

// drain starts one, with the keys that the document has.
func drain(t *testing.T, keys string) draining {
	t.Helper()
	const at = "- {address: 192.0.2.1, port: 8443}\n  "
	with := "services:\n- name: web\n  fqdn: web.fed.example\n  endpoints:\n  " + at +
		"- {address: 192.0.2.2, port: 8443}\n  instances: [{id: v1, protocol: HTTPS}]\n"
	without := strings.Replace(with, at, "", 1)
	keys = strings.NewReplacer("localhost:9156", "127.0.0.1:0", "/var/lib/federation-owner/", "").Replace(keys)
	keys = strings.Replace(keys, `status: "127.0.0.1:0"`, `status: {listen: "127.0.0.1:0", cert: owner.pem, key: owner-key.pem, ca: ca.pem}`, 1)
	c := serveConfig(t, keys+ownerText, map[string]string{"catalog.yaml": with, "with-web.yaml": with, "without-web.yaml": without})
	consumer := background(t, slices.Concat([]string{"watch", strings.Replace(c.address, "127.0.0.1", "localhost", 1)}, files(c.dir, "consumer"))...)
	for line := ""; !strings.HasPrefix(line, "end "); {
		line = consumer.line()
	}
	go func() {
		for consumer.lines.Scan() { // or the consumer could not go on
		}
	}()
	c.status = strings.Replace(c.status, "127.0.0.1", "localhost", 1)
	return draining{c}
}

// shell runs a script with the files and the address of the owner.
func (d draining) shell(script string) (code int, stdout, stderr string) {
	d.t.Helper()
	return shell(d.t, d.dir, "export FEDERATION_AT=https://"+d.status+
		" FEDERATION_CERT=consumer.pem FEDERATION_KEY=consumer-key.pem FEDERATION_CA=ca.pem\n"+script)
}

// asks runs a script that waits, once before 192.0.2.1 is withdrawn, when it may not wait for
// long, and once after that.
func (d draining) asks(script, hurried string) {
	d.t.Helper()
	if code, stdout, stderr := d.shell(hurried); code == 0 || !strings.Contains(stdout, "not yet") && !strings.Contains(stdout, `"settled":false`) {
		d.t.Errorf("it is published, and the exit code is %d: %s%s", code, stdout, stderr)
	}
	write(d.t, filepath.Join(d.dir, "catalog.yaml"), string(must.Get(os.ReadFile(filepath.Join(d.dir, "without-web.yaml")))(d.t)))
	if code, stdout, stderr := d.shell(script); code != 0 || !strings.Contains(stdout, settledText) && !strings.Contains(stdout, `"settled":true`) {
		d.t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}
