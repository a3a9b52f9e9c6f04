// Package dist holds the tests of a release: it makes one from a clone of the commit,
// checks it, installs its packages into a root of Debian's, and runs what their units say,
// in a network of its own. `make e2e-dist` runs it.
package dist

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const (
	repository = "../../.."
	// base is an archive of a minimal Debian, made once.
	base = repository + "/bin/tools/debian-bookworm-completion.tar"
	// suite is the oldest Debian that the packages are for.
	suite = "bookworm"
	// exposure is the most that `systemd-analyze security` may say of a unit, in tenths.
	exposure = "20"
)

// patience bounds each wait for something that must happen.
const patience = time.Minute

// eventually waits until a condition has nothing to complain of.
var eventually = await.Eventually

// need skips the test where REAL_SERVERS=required is not set, as it builds for minutes;
// it fails where a program is missing, or the user is not root.
func need(t *testing.T, programs ...string) {
	t.Helper()
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("REAL_SERVERS=required is not set; make e2e-dist sets it")
	}
	if os.Getuid() != 0 {
		t.Fatal("needs root, for namespaces and packages")
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("needs %s: %v", program, err)
		}
	}
}

// run runs a program to its end, which must be a success, and returns what it wrote.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// version is that of the release that the tests make.
const version = "v0.2.0-rc.1"

// released are the folders of a release of this commit that was made twice, at different
// places.
var released = sync.OnceValues(func() (folders [2]string, err error) {
	clone, err := newClone("HEAD") // somebody may commit meanwhile
	if err != nil {
		return folders, err
	}
	for i := range folders {
		place := filepath.Join(clone, "bin", strings.Repeat("deeper/", i)+"place")
		if err := os.MkdirAll(place, 0o755); err != nil {
			return folders, err
		}
		folders[i] = filepath.Join(place, "release")
		cmd := exec.Command("make", "--no-print-directory", "-C", clone, "release", "VERSION="+version, "REGISTRY=registry.example/dns", "RELEASE="+folders[i])
		cmd.Env = append(os.Environ(), "TMPDIR="+place)
		if out, err := cmd.CombinedOutput(); err != nil {
			return folders, fmt.Errorf("make release: %w\n%s", err, out)
		}
	}
	return folders, nil
})

// newClone returns a clone of a commit.
func newClone(commit string) (folder string, err error) {
	if folder, err = os.MkdirTemp("", "dist"); err != nil {
		return "", err
	}
	temporary = append(temporary, folder)
	folder = filepath.Join(folder, "clone")
	for _, args := range [][]string{{"clone", "--quiet", repository, folder}, {"-C", folder, "checkout", "--quiet", "--detach", commit}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return folder, nil
}

// temporary are the folders that the end of all tests removes.
var temporary []string

func TestMain(m *testing.M) {
	code := m.Run()
	for _, folder := range temporary {
		os.RemoveAll(folder)
	}
	os.Exit(code)
}

// packages returns the Debian packages in a folder, for this machine.
func packages(t *testing.T, folder string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(folder, "*_amd64.deb"))
	if err != nil || len(found) != 2 {
		t.Fatalf("packages are %q, %v; want two", found, err)
	}
	return found
}

// root is a folder with a Debian in it, and a network of its own.
type root struct {
	folder  string
	network string // file of the network namespace
}

// mirror returns the one of Debian that the apt of this machine has, if any; debootstrap
// has a default.
func mirror(t *testing.T) []string {
	t.Helper()
	for line := range strings.Lines(run(t, "apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)", "Created-By: Packages")) {
		uri, ok := strings.CutPrefix(strings.TrimSpace(line), "Debian Debian main ")
		if ok && strings.HasPrefix(uri, "http") { // others are apt's own
			return []string{uri}
		}
	}
	return nil
}

// newRoot returns a root with a network until the end of the test.
func newRoot(t *testing.T) *root {
	t.Helper()
	r := newFolder(t)
	holder := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat")
	stdin := must.Get(holder.StdinPipe())(t)
	stdout := must.Get(holder.StdoutPipe())(t)
	must.Do(t, holder.Start())
	t.Cleanup(func() {
		stdin.Close()
		_ = holder.Wait() // it ends with its input, or with the test
	})
	if n, err := stdout.Read(make([]byte, 10)); err != nil || n != len("up\n") {
		t.Fatalf("no network: %d octets, %v", n, err)
	}
	r.network = fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid)
	return r
}

// newFolder returns a root without a network.
func newFolder(t *testing.T) *root {
	t.Helper()
	if _, err := os.Stat(base); errors.Is(err, fs.ErrNotExist) {
		folder := filepath.Join(t.TempDir(), "root")
		run(t, "debootstrap", append([]string{"--variant=minbase", "--include=adduser,bash-completion,init-system-helpers", suite, folder}, mirror(t)...)...)
		must.Do(t, os.MkdirAll(filepath.Dir(base), 0o755))
		run(t, "tar", "-C", folder, "--numeric-owner", "--exclude=./var/cache/apt/archives/*", "--exclude=./var/lib/apt/lists/*", "--exclude=./proc/*", "--exclude=./sys/*", "-cf", base+".new", ".")
		must.Do(t, os.Rename(base+".new", base))
	}
	r := &root{folder: t.TempDir()}
	must.Do(t, os.Chmod(r.folder, 0o755))
	run(t, "tar", "-C", r.folder, "--numeric-owner", "-xpf", base)
	r.write(t, "/etc/hosts", "127.0.0.1 localhost\n", 0o644)
	return r
}

// in runs a program in the root and its network, as its root.
func (r *root) in(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "nsenter", append([]string{"--net=" + r.network, "chroot", r.folder, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"}, args...)...)
}

// write writes a file of the root.
func (r *root) write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	must.Do(t, os.WriteFile(r.folder+name, []byte(text), mode))
}

// edit replaces a text in a file of the root, which must have it.
func (r *root) edit(t *testing.T, name, old, replacement string) {
	t.Helper()
	text := r.read(t, name)
	if !strings.Contains(text, old) {
		t.Fatalf("%s has no %q:\n%s", name, old, text)
	}
	r.write(t, name, strings.ReplaceAll(text, old, replacement), 0o644)
}

// read returns the content of a file of the root.
func (r *root) read(t *testing.T, name string) string {
	t.Helper()
	content := must.Get(os.ReadFile(r.folder + name))(t)
	return string(content)
}

// install installs packages, which are files. What was configured stays as it is.
func (r *root) install(t *testing.T, packages []string) {
	t.Helper()
	var inside []string
	for _, p := range packages {
		run(t, "cp", p, r.folder+"/tmp/")
		inside = append(inside, "/tmp/"+filepath.Base(p))
	}
	r.in(t, append([]string{"dpkg", "--force-confold", "--install"}, inside...)...)
	r.in(t, append([]string{"rm"}, inside...)...)
}

// changing are the files of every Debian that an installation changes: the package
// manager's, and the list of users, who stay.
var changing = []string{"/var/lib/dpkg/", "/var/log/", "/etc/passwd", "/etc/shadow", "/etc/group", "/etc/gshadow", "/etc/subuid", "/etc/subgid", "/var/cache/", "/run/"}

// files returns what is in the root but for what changes, with owners and modes.
func (r *root) files(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for line := range strings.Lines(r.in(t, "find", "/", "-xdev", "-path", "/proc", "-prune", "-o", "-printf", "%p\t%M %u:%g\n")) {
		name, attributes, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !slices.ContainsFunc(changing, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			all[name] = attributes
		}
	}
	return all
}

// difference returns what files has that others has not, or with other attributes.
func difference(files, others map[string]string) (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if others[name] != files[name] {
			lines = append(lines, files[name]+" "+name)
		}
	}
	return lines
}

// dig returns what dig prints of a question to the server in the root.
func (r *root) dig(t *testing.T, args ...string) string {
	t.Helper()
	out, _ := exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=" + r.network, "dig", "@127.0.0.1", "+time=1", "+tries=1"}, args...)...).CombinedOutput()
	return string(bytes.TrimSpace(out)) // an error is in it
}

// certify makes certificates, as the comments of the configuration say.
func (r *root) certify(t *testing.T) {
	t.Helper()
	r.in(t, "federationctl", "pki", "/root/pki")
	for unit, party := range map[string]string{"coredns-federation": "consumer", "federation-owner": "owner"} {
		for _, name := range []string{party + ".pem", party + "-key.pem", "ca.pem"} {
			r.in(t, "install", "--owner=root", "--group="+unit, "--mode=0640", "/root/pki/"+name, "/etc/"+unit+"/tls/"+name)
		}
	}
	r.in(t, "rm", "-r", "/root/pki")
}

func TestInstall(t *testing.T) {
	need(t, "git", "make", "debootstrap", "dpkg-deb", "tar", "unshare", "nsenter", "ip", "chroot", "dig", "systemd-analyze")
	folders := must.Get(released())(t)
	r := newRoot(t)
	before := r.files(t)
	r.install(t, packages(t, folders[0]))

	want := `drwxr-xr-x root:root /etc/coredns-federation
-rw-r--r-- root:root /etc/coredns-federation/Corefile
drwxr-x--- root:coredns-federation /etc/coredns-federation/tls
drwxr-xr-x root:root /etc/federation-owner
-rw-r--r-- root:root /etc/federation-owner/catalog.yaml
-rw-r--r-- root:root /etc/federation-owner/owner.yaml
drwxr-x--- root:federation-owner /etc/federation-owner/tls
-rwxr-xr-x root:root /usr/bin/coredns-federation
-rwxr-xr-x root:root /usr/bin/federationctl
-rw-r--r-- root:root /usr/lib/systemd/system/coredns-federation.service
-rw-r--r-- root:root /usr/lib/systemd/system/federation-owner.service
`
	var got string
	for _, line := range difference(r.files(t), before) {
		if !strings.Contains(line, " /usr/share/") && !strings.HasSuffix(line, " /usr/lib/systemd/system") {
			got += line + "\n"
		}
	}
	if got != want {
		t.Errorf("installed are\n%s, want\n%s", got, want)
	}

	t.Run("units", func(t *testing.T) {
		for _, name := range []string{"coredns-federation", "federation-owner"} {
			unit := r.folder + "/usr/lib/systemd/system/" + name + ".service"
			// The root has no systemd, and so none of its targets.
			if out := run(t, "systemd-analyze", "verify", "--recursive-errors=no", "--man=no", "--root="+r.folder, unit); out != "" {
				t.Errorf("systemd-analyze verify %s:\n%s", name, out)
			}
			run(t, "systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold="+exposure, unit)
		}
	})

	t.Run("completion", func(t *testing.T) {
		const script = `compopt() { :; } # outside of a completion it is an error
. /usr/share/bash-completion/bash_completion; _completion_loader federationctl
COMP_WORDS=(federationctl ser) COMP_CWORD=1 COMP_LINE="federationctl ser" COMP_POINT=17 COMP_TYPE=9
__start_federationctl; echo "${COMPREPLY[@]%% *}"`
		// Completion reads from processes by way of /proc.
		const mounted = `mount --bind /proc "$1/proc" && exec chroot "$1" env -i PATH=/usr/bin:/bin bash -c "$2"`
		if got := run(t, "unshare", "--mount", "sh", "-c", mounted, "sh", r.folder, script); got != "serve services\n" {
			t.Errorf("bash completes federationctl ser with %q", got)
		}
	})

	// As it is installed the server runs, and resolves nothing.
	dns := r.start(t, "coredns-federation")
	eventually(t, func() string {
		if got := r.dig(t, "web.fed.example"); !strings.Contains(got, "status: SERVFAIL") {
			return "before it is configured it answers\n" + got
		}
		return ""
	})
	if told := dns.stop(t); told != "STOPPING=1" {
		t.Errorf("CoreDNS told %q at the end, want STOPPING=1", told)
	}

	// A start that fails is none for systemd: it is not told that the service is ready.
	corefile := r.read(t, "/etc/coredns-federation/Corefile")
	for mistake, want := range map[string]string{
		"mistake\n":              "Unknown directive 'mistake'",
		"bind 192.0.2.1\n":       "cannot assign requested address",
		"tls gone.pem key.pem\n": "gone.pem",
	} {
		r.edit(t, "/etc/coredns-federation/Corefile", "errors\n", mistake)
		r.refused(t, "coredns-federation", want)
		r.write(t, "/etc/coredns-federation/Corefile", corefile, 0o644)
	}

	// An owner without certificates is ready for systemd, and says what it lacks.
	owner := r.start(t, "federation-owner")
	eventually(t, func() string {
		if text := owner.log.String(); !strings.Contains(text, "certificate files cannot be used") || !strings.Contains(text, "tls/owner.pem") {
			return "without certificates the owner logs\n" + text
		}
		return ""
	})
	if got := r.in(t, "federationctl", "status", "--at", "http://localhost:9156"); !strings.Contains(got, "this owner: unusable") {
		t.Errorf("without certificates the status of the owner is\n%s", got)
	}
	owner.stop(t)

	r.certify(t)
	r.edit(t, "/etc/federation-owner/owner.yaml", "ids: []", `ids: ["spiffe://federation.example/consumer"]`)
	r.write(t, "/etc/federation-owner/catalog.yaml", `services:
- name: web
  fqdn: web.fed.example
  endpoints: [{address: 192.0.2.10, port: 443}]
  instances: [{id: v1, protocol: HTTPS}]
`, 0o644)
	r.in(t, "federationctl", "check", "/etc/federation-owner/owner.yaml")
	owner = r.start(t, "federation-owner")
	dns = r.start(t, "coredns-federation")
	r.edit(t, "/etc/coredns-federation/Corefile", "    #", "    ")
	r.edit(t, "/etc/coredns-federation/Corefile", "west.fed.example", "fed.example")
	r.edit(t, "/etc/coredns-federation/Corefile", "owner.west.example", "localhost")
	for _, comment := range []string{"The services of", "/etc/coredns-federation/tls, with", "All other"} {
		r.edit(t, "/etc/coredns-federation/Corefile", comment, "# "+comment)
	}
	dns.reload(t)
	resolves := func() string {
		if got := r.dig(t, "+short", "web.fed.example"); got != "192.0.2.10" {
			return fmt.Sprintf("web.fed.example is %q, want 192.0.2.10", got)
		}
		return ""
	}
	eventually(t, resolves)
	if got := r.in(t, "federationctl", "why", "web.fed.example", "A", "--at", "http://localhost:9154"); !strings.Contains(got, "web.fed.example A: 192.0.2.10,") {
		t.Errorf("CoreDNS says why:\n%s", got)
	}
	if got := r.in(t, "federationctl", "why", "web.fed.example", "--at", "http://localhost:9156"); !strings.Contains(got, "web.fed.example: published in catalog") {
		t.Errorf("the owner says why:\n%s", got)
	}
	eventually(t, func() string {
		kept, err := filepath.Glob(r.folder + "/var/lib/coredns-federation/*")
		if err != nil || len(kept) == 0 {
			return fmt.Sprintf("nothing is in /var/lib/coredns-federation: %v", err)
		}
		return ""
	})
	// A reload that fails changes nothing.
	corefile = r.read(t, "/etc/coredns-federation/Corefile")
	r.edit(t, "/etc/coredns-federation/Corefile", "errors\n", "mistake\n")
	dns.reload(t)
	eventually(t, func() string {
		if !strings.Contains(dns.log.String(), "Unknown directive 'mistake'") {
			return "a reload with a mistake is not logged"
		}
		return resolves()
	})
	r.write(t, "/etc/coredns-federation/Corefile", corefile, 0o644)
	dns.stop(t)
	if told := owner.stop(t); told != "STOPPING=1" {
		t.Errorf("the owner told %q at the end, want STOPPING=1", told)
	}

	r.in(t, "dpkg", "--remove", "coredns-federation", "federationctl")
	if got := r.read(t, "/etc/coredns-federation/Corefile"); got != corefile {
		t.Errorf("the removal has changed the Corefile to\n%s", got)
	}
	r.in(t, "rm", "-r", "/etc/coredns-federation/tls", "/etc/federation-owner/tls") // the keys are not the packages'
	r.in(t, "dpkg", "--purge", "coredns-federation", "federationctl")
	if left := difference(r.files(t), before); left != nil {
		t.Errorf("after the purge there still are\n%s", strings.Join(left, "\n"))
	}
}
