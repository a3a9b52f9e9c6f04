package deploy

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// What docs/import.md says is done word by word, with two API servers, and with an address in the
// status of a Service in the place of a load balancer. The last line, a pod, needs a node.
func TestImportPage(t *testing.T) {
	west, east := realserver.StartAPIServer(t), realserver.StartAPIServer(t)
	dir, kubectl, federationctl := t.TempDir(), kubectl(t, west.Kubeconfig), newCommand(t, place.Built(t, "federationctl"), "")
	kubectl.must(t, "", "create", "namespace", "shop")
	kubectl.must(t, "", "--namespace=shop", "create", "service", "loadbalancer", "web", "--tcp=80")
	kubectl.must(t, "", "--namespace=shop", "patch", "service", "web", "--subresource=status", `--patch={"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.10"}]}}}`)
	for name, server := range map[string]*realserver.APIServer{"west.kubeconfig": west, "east.kubeconfig": east} {
		must.Do(t, os.Symlink(server.Kubeconfig, filepath.Join(dir, name)))
	}

	page := string(must.Get(os.ReadFile(root + "/docs/import.md"))(t))
	address := loopback.Address(t)
	_, port, err := net.SplitHostPort(address)
	must.Do(t, err)
	ports := strings.NewReplacer("localhost:8008", "localhost:"+port, "localhost:9157", loopback.Address(t), "identity:", "listen: "+address+"\nidentity:")
	for _, name := range []string{"owner.yaml", "import.yaml"} {
		_, text, found := strings.Cut(page, "```yaml\n# "+name+"\n")
		text, _, _ = strings.Cut(text, "```")
		text = ports.Replace(text)
		if name == "import.yaml" {
			text = strings.Replace(text, "listen: "+address+"\n", "", 1)
		}
		if !found {
			t.Fatalf("the page has no %s", name)
		}
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}

	t.Chdir(dir)
	_, lines, _ := strings.Cut(page, "```sh\n")
	lines, _, _ = strings.Cut(lines, "```")
	printed := make(map[string]string) // by the begin of the line
	for line := range strings.Lines(lines) {
		line, begun := strings.CutSuffix(strings.TrimSpace(line), " &")
		words := strings.Fields(line)
		switch program := words[0]; {
		case begun:
			p := &realserver.Process{Name: words[1], Path: federationctl.path, Dir: dir, Args: words[1:]}
			p.StartFor(t)
		case program == "federationctl":
			printed[line] = federationctl.must(t, "", words[1:]...)
		case strings.Contains(line, " get "):
			await.Until(t, patience, func() string {
				got := kubectl.must(t, "", words[1:]...)
				if regexp.MustCompile(`service/web-shop +ClusterIP +10\.\S+ +<none> +80/TCP`).MatchString(got) && strings.Contains(got, "192.0.2.10") {
					return ""
				}
				return line + " prints\n" + got
			})
		case !strings.Contains(line, " run "):
			kubectl.must(t, "", words[1:]...)
		}
	}
	if dry := printed["federationctl import --dry-run import.yaml"]; !strings.Contains(dry, "name: web-shop\n") || !strings.Contains(dry, "- 192.0.2.10\n") {
		t.Errorf("without a cluster it would make\n%s", dry)
	}
	for _, name := range []string{"owner.yaml", "import.yaml"} {
		federationctl.must(t, "", "check", name)
	}
}
