package dist

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// formerVersion is lower than any version to come.
const formerVersion = "0.1.99"

// formerPackages are those of the commit that upgrades begin at.
var formerPackages = sync.OnceValues(func() (folder string, err error) {
	folder, err = os.MkdirTemp("", "dist")
	if err != nil {
		return "", err
	}
	temporary = append(temporary, folder)
	clone := filepath.Join(folder, "clone")
	if _, err := realserver.CloneFormer(repository, clone); err != nil {
		return "", err
	}
	out, err := exec.Command("make", "--no-print-directory", "-C", clone, "dist", "ARCHES=amd64", "VERSION="+formerVersion).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make dist: %w\n%s", err, out)
	}
	return filepath.Join(clone, "bin/dist"), nil
})

// load asks two servers as a resolver does: the second one where the first does not answer.
type load struct {
	servers []string
	answers map[string]string // the address of each name
	stop    chan struct{}
	done    chan struct{}

	// Of the goroutine, until done is closed.
	asked, second int
	lost          []string
}

// startLoad asks in the network of a root, one question after another, until end is called.
func startLoad(t *testing.T, r *root, answers map[string]string, servers ...string) *load {
	t.Helper()
	l := &load{servers: servers, answers: answers, stop: make(chan struct{}), done: make(chan struct{})}
	network := must.Get(os.Open(r.network))(t)
	entered := make(chan error, 1)
	go func() {
		defer close(l.done)
		defer network.Close()
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET)
		entered <- err
		for err == nil {
			for name := range answers {
				l.ask(name)
			}
			select {
			case <-l.stop:
				return
			default:
			}
		}
	}()
	must.Do(t, <-entered)
	return l
}

// ask asks the servers in turn for a name. It is lost where none has the right answer; a
// wrong one is never right, as a client would take it.
func (l *load) ask(name string) {
	l.asked++
	var failures []error
	for i, server := range l.servers {
		client := &dns.Client{Timeout: 5 * time.Second} // the resolv.conf of the C library has the same
		answer, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), server)
		switch {
		case err != nil:
			failures = append(failures, err)
			continue
		case answer.Rcode == dns.RcodeServerFailure:
			failures = append(failures, errors.New(server+" fails"))
			continue
		case len(answer.Answer) != 1 || answer.Answer[0].(*dns.A).A.String() != l.answers[name]:
			failures = append(failures, fmt.Errorf("%s answers\n%v", server, answer))
		default:
			l.second += i
			return
		}
		break
	}
	l.lost = append(l.lost, fmt.Sprintf("%s at %v: %v", name, time.Now(), errors.Join(failures...)))
}

// end ends it. Nothing must have been lost, and both servers have been needed.
func (l *load) end(t *testing.T) {
	t.Helper()
	close(l.stop)
	<-l.done
	t.Logf("%d questions, of which the second server has answered %d, and %d were lost", l.asked, l.second, len(l.lost))
	if len(l.lost) > 0 || l.second == 0 || l.second == l.asked {
		t.Errorf("%d of %d questions were lost, and the second server has answered %d: %q", len(l.lost), l.asked, l.second, l.lost[:min(3, len(l.lost))])
	}
}

const ownerConfig = `listen: ":8008"
metrics: "localhost:9155"
status: "localhost:9156"
identity:
  files: {cert: tls/owner.pem, key: tls/owner-key.pem, ca: tls/ca.pem}
allow:
  ids: ["spiffe://federation.example/consumer"]
catalogs:
- sources:
  - file: {path: catalog.yaml}
  - registration:
      rules: registrations.yaml
      convergence: 10s
`

const kept = "/var/lib/coredns-federation/owner"

// replica returns the Corefile of a CoreDNS that has an address of its own.
func replica(address string) string {
	return strings.ReplaceAll(`fed.example:53 {
    bind ADDRESS
    errors
    health ADDRESS:8080
    ready ADDRESS:8181
    federation {
        owner localhost:8008
        tls tls/consumer.pem tls/consumer-key.pem tls/ca.pem
        persist `+kept+`
        status ADDRESS:9154
    }
}
`, "ADDRESS", address)
}

// synced waits until a CoreDNS that has just started follows its owner.
func (s *service) synced(t *testing.T) {
	t.Helper()
	eventually(t, func() string {
		if !strings.Contains(s.log.String(), "owner is synced") {
			return "CoreDNS does not say that its owner is synced"
		}
		return ""
	})
}

// resolves waits until a server answers a name with an address.
func (r *root) resolves(t *testing.T, server, name, want string) {
	t.Helper()
	eventually(t, func() string {
		if got := r.dig(t, "@"+server, "+short", name); got != want {
			return fmt.Sprintf("%s is %q at %s, want %q", name, got, server, want)
		}
		return ""
	})
}

// A machine with an owner and CoreDNS, and a second CoreDNS, are upgraded and rolled back, as
// docs/operating.md says: one replica after the other. No question is lost of a client that
// asks both. The catalogs of CoreDNS are those that the other version has kept: when it starts,
// nobody is there to tell it again. The owner knows of no registration until its program is back.
func TestUpgrade(t *testing.T) {
	need(t, "git", "make", "debootstrap", "dpkg-deb", "tar", "unshare", "nsenter", "ip", "chroot", "dig")
	older, newer := packages(t, must.Get(formerPackages())(t)), packages(t, must.Get(released())(t)[0])
	first, second := newRoot(t), newFolder(t)
	second.network = first.network
	first.install(t, older)
	second.install(t, older[:1])
	first.certify(t)
	for _, name := range []string{"consumer.pem", "consumer-key.pem", "ca.pem"} {
		second.write(t, "/etc/coredns-federation/tls/"+name, first.read(t, "/etc/coredns-federation/tls/"+name), 0o640)
		second.in(t, "chgrp", "coredns-federation", "/etc/coredns-federation/tls/"+name)
	}
	first.write(t, "/etc/federation-owner/owner.yaml", ownerConfig, 0o644)
	first.write(t, "/etc/federation-owner/catalog.yaml", "services:\n- {name: web, fqdn: web.fed.example, endpoints: [{address: 192.0.2.10, port: 443}], instances: [{id: v1, protocol: HTTPS}]}\n", 0o644)
	first.write(t, "/etc/federation-owner/registrations.yaml",
		"rules:\n- {name: shop, providers: [\"spiffe://federation.example/consumer\"], services: [shop.fed.example], addresses: [192.0.2.0/24]}\n", 0o644)
	answers := map[string]string{"web.fed.example.": "192.0.2.10", "shop.fed.example.": "192.0.2.11"}
	addresses := []string{"127.0.0.1", "127.0.0.2"}
	for i, r := range []*root{first, second} {
		r.write(t, "/etc/coredns-federation/Corefile", replica(addresses[i]), 0o644)
	}

	owner := first.start(t, "federation-owner")
	here, beside := first.start(t, "coredns-federation"), second.start(t, "coredns-federation")
	provider := exec.CommandContext(t.Context(), "nsenter", "--net="+first.network, "chroot", first.folder, "/usr/bin/federationctl", "register",
		"--server", "localhost:8008", "--cert", "/etc/coredns-federation/tls/consumer.pem", "--key", "/etc/coredns-federation/tls/consumer-key.pem",
		"--ca", "/etc/coredns-federation/tls/ca.pem", "--service", "shop.fed.example", "--node", "https://192.0.2.11:443", "--ttl", "5m")
	must.Do(t, provider.Start())
	t.Cleanup(func() {
		_ = provider.Process.Kill()
		_ = provider.Wait() // it was killed
	})
	for _, server := range addresses {
		for name, address := range answers {
			first.resolves(t, server, name, address)
		}
	}
	keptBy(t, first, second)

	l := startLoad(t, first, answers, "127.0.0.1:53", "127.0.0.2:53")
	for _, to := range []struct {
		packages []string
		version  string
	}{{newer, strings.ReplaceAll(strings.TrimPrefix(version, "v"), "-", "~")}, {older, formerVersion}} {
		must.Do(t, provider.Process.Signal(syscall.SIGSTOP))
		here.stop(t)
		owner.stop(t)
		first.install(t, to.packages)
		if got, want := first.in(t, "dpkg-query", "--show", "coredns-federation", "federationctl"), "coredns-federation\t"+to.version+"\nfederationctl\t"+to.version+"\n"; got != want {
			t.Errorf("installed are %q, want %q", got, want)
		}
		here = first.start(t, "coredns-federation")
		for name, address := range answers {
			first.resolves(t, addresses[0], name, address)
		}
		owner = first.start(t, "federation-owner")
		must.Do(t, provider.Process.Signal(syscall.SIGCONT))
		here.synced(t)
		first.resolves(t, addresses[0], "shop.fed.example.", answers["shop.fed.example."])
		if text := here.log.String(); strings.Contains(text, "another version of the format") {
			t.Errorf("version %s cannot read all that the other one has kept:\n%s", to.version, text)
		}

		beside.stop(t)
		second.install(t, to.packages[:1])
		beside = second.start(t, "coredns-federation")
		beside.synced(t)
	}
	l.end(t)
	here.stop(t)
	owner.stop(t)
	beside.stop(t)
}

// keptBy waits until CoreDNS in each root has written a catalog.
func keptBy(t *testing.T, roots ...*root) {
	t.Helper()
	for _, r := range roots {
		eventually(t, func() string {
			content, err := os.ReadFile(r.folder + kept)
			if err != nil {
				return err.Error()
			}
			if !strings.Contains(string(content), "shop") {
				return kept + " has no shop yet"
			}
			return ""
		})
	}
}
