package test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// insideVariable is the environment variable that tells this test binary that it
// runs in namespaces of its own.
const insideVariable = "FEDERATION_TEST_INSIDE"

// checkGo looks names up as a program in Go does.
func checkGo(t *testing.T) {
	r := &net.Resolver{PreferGo: true}
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	check := func(what string, want, got any, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	hosts, err := r.LookupHost(ctx, "web.fed.example")
	slices.Sort(hosts)
	check("LookupHost", []string{"192.0.2.1", "198.51.100.7", "2001:db8::1"}, hosts, err)
	_, srv, err := r.LookupSRV(ctx, "http", "tcp", "web.fed.example")
	check("LookupSRV", []*net.SRV{{Target: "192-0-2-1.addr.web.fed.example.", Port: 8080, Weight: 100}}, srv, err)
	_, srv, err = r.LookupSRV(ctx, "", "", "forty.fed.example")
	check("LookupSRV of the service's name", 40, len(srv), err)
	if len(srv) > 0 {
		hosts, err = r.LookupHost(ctx, srv[0].Target)
		check("LookupHost of a target", 1, len(hosts), err)
	}
	txt, err := r.LookupTXT(ctx, "v1.web.fed.example")
	check("LookupTXT", []string{`txtvers=1id=v1protocol=HTTPhostname=web.intport=80md.zone=eu`}, txt, err)
	var notFound *net.DNSError
	if _, err := r.LookupHost(ctx, "nope.fed.example"); !errors.As(err, &notFound) || !notFound.IsNotFound {
		t.Errorf("LookupHost of a name that does not exist: %v, want not found", err)
	}
}

// TestSystemResolver runs TestInNamespaces in another process, which has the
// network and /etc/resolv.conf to itself.
func TestSystemResolver(t *testing.T) {
	program(t, "ip", "iproute2")
	cmd := exec.Command(os.Args[0], "-test.run=^TestInNamespaces$", "-test.v")
	cmd.Env = append(os.Environ(), insideVariable+"=true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("namespaces are not permitted here: %v", err)
	}
	if strings.Contains(string(out), "--- SKIP: TestInNamespaces ") {
		t.Skipf("%s", out)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: TestInNamespaces ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestInNamespaces has what needs port 53, the addresses of the name server, or
// the resolver of the whole machine.
func TestInNamespaces(t *testing.T) {
	if os.Getenv(insideVariable) == "" {
		t.Skip("run by TestSystemResolver")
	}
	for _, args := range []string{"link set lo up", "addr add 192.0.2.53/32 dev lo", "addr add 2001:db8::53/128 dev lo nodad"} {
		out, err := exec.Command(program(t, "ip", "iproute2"), strings.Fields(args)...).CombinedOutput()
		if strings.Contains(string(out), "not permitted") {
			t.Skipf("ip %s: %s", args, out)
		}
		if err != nil {
			t.Fatalf("ip %s: %v\n%s", args, err, out)
		}
	}
	for path, content := range map[string]string{
		"/etc/resolv.conf":   "nameserver 192.0.2.53\nsearch fed.example\noptions timeout:5 attempts:2\n",
		"/etc/nsswitch.conf": "hosts: files dns\n",
	} {
		if _, err := os.Stat(path); err != nil {
			continue // the defaults of glibc do
		}
		ours := filepath.Join(t.TempDir(), filepath.Base(path))
		writeFile(t, ours, content)
		must.Do(t, os.Chmod(ours, 0o644))
		err := syscall.Mount(ours, path, "", syscall.MS_BIND, "")
		if errors.Is(err, fs.ErrPermission) {
			t.Skipf("mount over %s: %v", path, err)
		}
		if err != nil {
			t.Fatalf("mount over %s: %v", path, err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(path, syscall.MNT_DETACH) })
	}
	p := newPlace(t)
	next := startNameserver(t, map[string]string{"gw.example.net.": "20 A 198.51.100.7"})
	o := startOwner(t, p, firstOwner()...)
	const bind = "bind 127.0.0.1 192.0.2.53 2001:db8::53"
	d := startCoreDNS(t, fmt.Sprintf("fed.example:PORT fed.example:53 {\n%s\ntransfer {\nto *\n}\nfederation {\nowner %s\n%s\n}\n}\n.:PORT .:53 {\n%[1]s\nforward . %[4]s\n}\n",
		bind, o.address, tlsOf(p), next))
	d.awaitAnswer(t, "nope.fed.example", dns.TypeA, "NXDOMAIN")
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1 198.51.100.7") // its host has been looked up
	for _, address := range []string{d.address, "192.0.2.53:53", "[2001:db8::53]:53"} {
		checkTable(t, address, "fed.example.", []tableRow{
			{"", "NS", "NOERROR, 5 NS ns.dns.fed.example., + ns.dns.fed.example. 5 IN A 192.0.2.53, + ns.dns.fed.example. 5 IN AAAA 2001:db8::53"},
			{"ns.dns", "A", "NOERROR, 5 A 192.0.2.53"},
			{"ns.dns", "AAAA", "NOERROR, 5 AAAA 2001:db8::53"},
			{"ns.dns", "TXT SRV MX NS SOA", noData},
			{"dns", "A AAAA TXT", noData},
		})
	}
	all := transferZone(t, d.address, "fed.example.")
	if d := cmp.Diff(lines(all[1:4]), []string{
		"fed.example.\t5\tIN\tNS\tns.dns.fed.example.", "ns.dns.fed.example.\t5\tIN\tA\t192.0.2.53", "ns.dns.fed.example.\t5\tIN\tAAAA\t2001:db8::53",
	}); d != "" {
		t.Errorf("behind the SOA (-got +want):\n%s", d)
	}
	t.Run("glibc", func(t *testing.T) {
		getent := program(t, "getent", "libc-bin")
		for _, tt := range []struct {
			name string
			want []string
		}{
			{"web.fed.example", []string{"192.0.2.1", "198.51.100.7", "2001:db8::1"}},
			{"web", []string{"192.0.2.1", "198.51.100.7", "2001:db8::1"}}, // by the search list
			{"V1.Web.fed.example", []string{"192.0.2.1"}},
			{"ula.fed.example", []string{"fd00::1"}},
			{"fed.example", []string{"192.0.2.80"}},
			{"192-0-2-1.addr.web.fed.example", []string{"192.0.2.1"}},
			{"nope.fed.example", nil},
			{"b.fed.example", nil},
		} {
			out, err := exec.Command(getent, "ahosts", tt.name).Output()
			var got []string
			for line := range strings.Lines(string(out)) {
				if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "STREAM" {
					got = append(got, fields[0])
				}
			}
			slices.Sort(got)
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("%s: %v (-want +got):\n%s", tt.name, err, d)
			}
		}
	})
	t.Run("Go", checkGo)
}
