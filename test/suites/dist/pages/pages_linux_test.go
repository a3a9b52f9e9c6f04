// Package pages holds the test of the pages that somebody new reads: it does what the
// README, docs/install.md and docs/tutorial.md say, word by word, in a root of Debian's that
// has Go, git and make. `make e2e-docs` runs it.
package pages

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const (
	repository = "../../../.."
	// base is an archive of a Debian with git, make and dig, made once.
	base  = repository + "/bin/tools/debian-bookworm-git.tar"
	suite = "bookworm"
	// include is what the pages ask for, but for Go, and what makes git and Go download.
	include = "adduser,bind9-dnsutils,ca-certificates,git,init-system-helpers,make,openssl"

	// The addresses of the two machines of the tutorial.
	ownerAddress, dnsAddress = "198.18.0.1", "198.18.0.2"
)

// stays matches the commands that run until Ctrl-C.
var stays = regexp.MustCompile(`^(make run|federationctl serve .*|coredns-federation -conf .*)$`)

// root is a root of Debian's.
type root struct {
	folder      string
	environment []string
}

// machine is a shell in a root, in a network and with processes of its own.
type machine struct {
	*root
	name, home string
	command    *exec.Cmd
	in         io.Writer
	out        *bufio.Reader
	pid        int // as others see it
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

// goEnvironment returns variables of Go.
func goEnvironment(t *testing.T, names ...string) map[string]string {
	t.Helper()
	values := make(map[string]string)
	must.Do(t, json.Unmarshal([]byte(run(t, "go", append([]string{"env", "-json"}, names...)...)), &values))
	return values
}

// newRoot returns a root in which the addresses of repositories in the pages lead to
// this commit, and to the CoreDNS of go.mod.
func newRoot(t *testing.T) *root {
	t.Helper()
	if _, err := os.Stat(base); errors.Is(err, fs.ErrNotExist) {
		folder := filepath.Join(t.TempDir(), "root")
		args := []string{"--variant=minbase", "--include=" + include, suite, folder}
		for line := range strings.Lines(run(t, "apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)", "Created-By: Packages")) {
			if uri, ok := strings.CutPrefix(strings.TrimSpace(line), "Debian Debian main "); ok && strings.HasPrefix(uri, "http") {
				args = append(args, uri) // the mirror of this machine
				break
			}
		}
		run(t, "debootstrap", args...)
		must.Do(t, os.MkdirAll(filepath.Dir(base), 0o755))
		run(t, "tar", "-C", folder, "--numeric-owner", "--exclude=./var/cache/apt/archives/*", "--exclude=./var/lib/apt/lists/*", "--exclude=./proc/*", "--exclude=./sys/*", "-cf", base+".new", ".")
		must.Do(t, os.Rename(base+".new", base))
	}
	r := &root{folder: t.TempDir()}
	must.Do(t, os.Chmod(r.folder, 0o755))
	run(t, "tar", "-C", r.folder, "--numeric-owner", "-xpf", base)

	values := goEnvironment(t, "GOROOT", "GOMODCACHE", "GOCACHE", "GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE")
	for _, name := range []string{"GOMODCACHE", "GOCACHE", "GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE"} {
		r.environment = append(r.environment, name+"="+values[name])
	}
	// With -trimpath `make dist` and the others compile everything once.
	r.environment = append(r.environment, "GOFLAGS=-trimpath", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
		"PATH="+values["GOROOT"]+"/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	r.clone(t, "github.com/hamlet-federation/coredns-federation", repository, "HEAD")
	tree := filepath.Join(t.TempDir(), "coredns")
	run(t, "cp", "-R", strings.TrimSpace(run(t, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/coredns/coredns")), tree)
	run(t, "chmod", "-R", "u+w", tree)
	version := strings.TrimSpace(run(t, "go", "list", "-m", "-f", "{{.Version}}", "github.com/coredns/coredns"))
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--all"}, {"-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "--message=" + version}, {"tag", version}} {
		run(t, "git", append([]string{"-C", tree}, args...)...)
	}
	r.clone(t, "github.com/coredns/coredns", tree, version)
	r.write(t, "/root/.gitconfig", "[url \"/srv/\"]\n\tinsteadOf = https://\n[safe]\n\tdirectory = *\n[advice]\n\tdetachedHead = false\n")
	r.write(t, "/etc/hosts", "127.0.0.1 localhost\n"+ownerAddress+" owner.example\n"+dnsAddress+" dns.example\n")
	return r
}

// clone has the address of a repository lead to a commit of another one.
func (r *root) clone(t *testing.T, name, from, commit string) {
	t.Helper()
	bare := filepath.Join(r.folder, "srv", name)
	run(t, "git", "clone", "--quiet", "--bare", "--no-hardlinks", from, bare)
	hash := strings.TrimSpace(run(t, "git", "-C", from, "rev-parse", commit))
	run(t, "git", "-C", bare, "update-ref", "--no-deref", "HEAD", hash)
}

func (r *root) write(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(r.folder, name)
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, []byte(content), 0o644))
}

// start starts a machine, whose shell begins in an empty folder. One that is online has the
// network of this machine, to download what is not in Go's cache; others can reach nothing.
func (r *root) start(t *testing.T, name string, online bool) *machine {
	t.Helper()
	m := &machine{root: r, name: name, home: "/root/" + strings.ReplaceAll(name, " ", "-")}
	must.Do(t, os.MkdirAll(r.folder+m.home, 0o755))
	values := goEnvironment(t, "GOROOT", "GOMODCACHE", "GOCACHE")
	script := "set -e\nmount --make-rprivate /\n"
	for _, path := range []string{values["GOROOT"], values["GOMODCACHE"], values["GOCACHE"], "/dev", "/etc/ssl/certs", "/etc/resolv.conf"} {
		if info, err := os.Stat(path); err == nil {
			kind := "mkdir -p"
			if !info.IsDir() {
				kind = "touch"
			}
			script += fmt.Sprintf("mkdir -p %[2]q; %[1]s %[3]q; mount --bind %[4]q %[3]q\n", kind, filepath.Dir(r.folder+path), r.folder+path, path)
		}
	}
	script += fmt.Sprintf("mount -t proc proc %q\n", r.folder+"/proc")
	args := []string{"--mount", "--pid", "--fork", "--kill-child"}
	if !online {
		args = append(args, "--net")
		script += "ip link set lo up\n"
	}
	script += fmt.Sprintf("exec chroot %q bash --norc\n", r.folder)
	m.command = exec.Command("unshare", append(args, "bash", "-c", script)...)
	m.command.Env = r.environment
	m.command.Env = append(m.command.Env, "PATH="+os.Getenv("PATH"))
	m.in = must.Get(m.command.StdinPipe())(t)
	out := must.Get(m.command.StdoutPipe())(t)
	m.command.Stderr = m.command.Stdout
	m.out = bufio.NewReader(out)
	must.Do(t, m.command.Start())
	t.Cleanup(func() {
		_ = m.command.Process.Kill() // and with it, all that it has started
		_ = m.command.Wait()
	})
	for _, variable := range r.environment {
		if strings.HasPrefix(variable, "PATH=") {
			m.do(t, "export "+variable)
		}
	}
	m.do(t, "cd "+m.home)
	children := strings.Fields(string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", m.command.Process.Pid)))(t)))
	m.pid = must.Get(strconv.Atoi(children[0]))(t)
	return m
}

// connect lays a cable between two machines.
func connect(t *testing.T, a, b *machine, addressA, addressB string) {
	t.Helper()
	run(t, "nsenter", "--net=/proc/"+strconv.Itoa(a.pid)+"/ns/net", "ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", strconv.Itoa(b.pid))
	for m, address := range map[*machine]string{a: addressA, b: addressB} {
		in := "--net=/proc/" + strconv.Itoa(m.pid) + "/ns/net"
		run(t, "nsenter", in, "ip", "address", "add", address+"/30", "dev", "cable")
		run(t, "nsenter", in, "ip", "link", "set", "cable", "up")
	}
}

// end marks the end of what a command writes.
const end = "-- the command has ended with "

// try runs a command in the shell of the machine, and returns its exit code and what it
// wrote. A command that stays runs in the background.
func (m *machine) try(t *testing.T, command string) (code int, output string) {
	t.Helper()
	if stays.MatchString(command) {
		command += " >>/tmp/background.log 2>&1 </dev/null &"
	} else {
		command = "{ " + command + "\n} </dev/null"
	}
	if _, err := io.WriteString(m.in, command+"\nprintf '\\n"+end+"%d\\n' $?\n"); err != nil {
		t.Fatalf("%s: %s: %v", m.name, command, err)
	}
	var b strings.Builder
	for {
		line, err := m.out.ReadString('\n')
		if err != nil {
			t.Fatalf("%s: %s: the shell has ended: %v\n%s", m.name, command, err, b.String())
		}
		if number, ok := strings.CutPrefix(line, end); ok {
			return must.Get(strconv.Atoi(strings.TrimSpace(number)))(t), strings.TrimSpace(b.String())
		}
		b.WriteString(line)
	}
}

// do runs a command that must be a success.
func (m *machine) do(t *testing.T, command string) {
	t.Helper()
	began := time.Now()
	code, output := m.try(t, command)
	if code != 0 {
		t.Fatalf("%s: %s\nended with exit code %d:\n%s\nin the background:\n%s", m.name, command, code, output, m.background())
	}
	t.Logf("%s: %s (%.1f s)\n%s", m.name, command, time.Since(began).Seconds(), output)
}

// answers runs a command until it answers as it must; it must be a success at least. What
// it asks may be starting.
func (m *machine) answers(t *testing.T, command, want string) {
	t.Helper()
	spaces := regexp.MustCompile(`[ \t]+`)
	await.Until(t, 10*time.Minute, func() string {
		code, output := m.try(t, command)
		if got := spaces.ReplaceAllString(output, " "); code != 0 || want != "" && got != want {
			return fmt.Sprintf("%s: %s\nended with exit code %d and\n%s\nwant\n%s\nin the background:\n%s", m.name, command, code, got, want, m.background())
		}
		t.Logf("%s: %s\n%s", m.name, command, want)
		return ""
	})
}

func (m *machine) background() string {
	text, err := os.ReadFile(filepath.Join(m.folder, "tmp/background.log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// page returns the fenced blocks of a page, by its sections, in order.
func page(t *testing.T, name string) (sections [][]block) {
	t.Helper()
	text := string(must.Get(os.ReadFile(filepath.Join(repository, name)))(t))
	for section := range strings.SplitSeq(text, "\n## ") {
		var blocks []block
		for _, match := range regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$").FindAllStringSubmatch(section, -1) {
			blocks = append(blocks, block{match[1], match[2]})
		}
		sections = append(sections, blocks)
	}
	return sections
}

type block struct{ language, text string }

// prompt matches the line of a command in a block with answers.
var prompt = regexp.MustCompile(`^([a-z]*)\$ (.*)$`)

// follow does what a block says, on the machines that its prompts name.
func (b block) follow(t *testing.T, machines map[string]*machine) {
	t.Helper()
	switch b.language {
	case "sh":
		for line := range strings.Lines(strings.ReplaceAll(b.text, "\\\n", "")) {
			machines[""].do(t, strings.TrimSpace(line))
		}
	case "console":
		lines := strings.Split(strings.TrimSpace(b.text), "\n")
		for i := 0; i < len(lines); i++ {
			match := prompt.FindStringSubmatch(lines[i])
			if match == nil || machines[match[1]] == nil {
				t.Fatalf("no prompt of a machine: %s", lines[i])
			}
			var want []string
			for i+1 < len(lines) && !prompt.MatchString(lines[i+1]) {
				i++
				want = append(want, lines[i])
			}
			machines[match[1]].answers(t, match[2], strings.Join(want, "\n"))
		}
	case "txt", "yaml":
		first, content, _ := strings.Cut(b.text, "\n")
		if match := regexp.MustCompile(`^# ([a-z]+): (\S+)$`).FindStringSubmatch(first); match != nil && machines[match[1]] != nil {
			m := machines[match[1]]
			m.write(t, filepath.Join(m.home, match[2]), content)
		}
	}
}

func TestPages(t *testing.T) {
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("REAL_SERVERS=required is not set; make e2e-docs sets it")
	}
	if os.Getuid() != 0 {
		t.Fatal("needs root, for namespaces and packages")
	}
	for _, program := range []string{"git", "debootstrap", "tar", "unshare", "nsenter", "ip", "chroot"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("needs %s: %v", program, err)
		}
	}
	r := newRoot(t)
	// The page with packages comes first: it needs the network, and the others what it installs.
	t.Run("install", func(t *testing.T) {
		for i, section := range page(t, "docs/install.md") {
			m := r.start(t, fmt.Sprintf("install %d", i), true)
			for _, b := range section {
				b.follow(t, map[string]*machine{"": m})
			}
		}
	})
	t.Run("README", func(t *testing.T) {
		// The first day, from the first line of the page to the first service of one's own, has twelve
		// concepts: the plugin in a Corefile, owner, consumer, catalog, service, fqdn, endpoint, instance,
		// zone, mutual TLS (certificate, key and authority), stale answers, and the status page with why.
		m := r.start(t, "readme", false)
		for _, b := range page(t, "README.md")[1] { // Try it
			b.follow(t, map[string]*machine{"": m})
		}
	})
	t.Run("tutorial", func(t *testing.T) {
		owner, dns := r.start(t, "owner", false), r.start(t, "dns", false)
		connect(t, owner, dns, ownerAddress, dnsAddress)
		machines := map[string]*machine{"owner": owner, "dns": dns}
		given := regexp.MustCompile("(?m)^\\| (owner|dns) \\| (owner|dns) \\| `([^`]+)`, as `([^`]+)` ").
			FindAllStringSubmatch(string(must.Get(os.ReadFile(repository+"/docs/tutorial.md"))(t)), -1)
		if len(given) < 2 {
			t.Errorf("%d files are given to the other side", len(given))
		}
		for i, section := range page(t, "docs/tutorial.md") {
			if i == 2 { // What each gives the other
				for _, g := range given {
					text := must.Get(os.ReadFile(filepath.Join(r.folder, machines[g[1]].home, g[3])))(t)
					r.write(t, filepath.Join(machines[g[2]].home, g[4]), string(text))
				}
			}
			for _, b := range section {
				b.follow(t, machines)
			}
		}
	})
}
