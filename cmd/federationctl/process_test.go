package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const patience = 2 * time.Minute // bounds each wait for something that must happen

// binary is the path of this binary by the name federationctl, by which it is that command.
var binary = sync.OnceValues(func() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "federationctl")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "federationctl")
	return path, os.Symlink(self, path)
})

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "federationctl" {
		main() // which ends the process
	}
	code := m.Run()
	if linked {
		if path, err := binary(); err == nil {
			os.RemoveAll(filepath.Dir(path))
		}
	}
	os.Exit(code)
}

// linked is set once a test has asked for the binary, which must then be removed.
var linked bool

// realBinary returns the path of a binary that is federationctl.
func realBinary(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	linked = true
	return must.Get(binary())(t)
}

// shell runs a script in dir, and returns the exit code and what it wrote. What needs a shell
// is run by bash, with the real binary in its PATH, and a mere command in this process.
func shell(t *testing.T, dir, script string) (code int, stdout, stderr string) {
	t.Helper()
	if args, ok := strings.CutPrefix(script, "federationctl "); ok && !strings.ContainsAny(args, "|&;<>*'") {
		t.Chdir(dir)
		return ctl(t, strings.Fields(os.ExpandEnv(args))...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	command := shellCommand(ctx, t, dir, script)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), out.String(), errs.String()
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, &errs)
	}
	return 0, out.String(), errs.String()
}

// shellCommand returns the command that runs a script in bash, as for shell.
func shellCommand(ctx context.Context, t *testing.T, dir, script string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(ctx, "bash", "-c", script)
	command.Dir = dir
	command.WaitDelay = patience
	command.Env = append(os.Environ(),
		"PATH="+filepath.Dir(realBinary(t))+string(os.PathListSeparator)+os.Getenv("PATH"), "HOME="+dir)
	return command
}

// startWithOutput starts a command and returns the lines of its standard output.
// They must be read to the end before Wait is called.
func startWithOutput(t *testing.T, command *exec.Cmd) *bufio.Scanner {
	t.Helper()
	stdout := must.Get(command.StdoutPipe())(t)
	must.Do(t, command.Start())
	return bufio.NewScanner(stdout)
}

// TestPipelines uses the commands as shell scripts do.
func TestPipelines(t *testing.T) {
	realBinary(t)
	dir := pkiIn(t)
	_, address := runServe(t, dir, write(t, filepath.Join(dir, "catalog.yaml"), catalogText))
	large := "services:\n"
	for i := range 1000 {
		large += fmt.Sprintf("- {name: s%06[1]d, fqdn: s%06[1]d.fed.example, endpoints: [{address: 192.0.2.1, port: 443}], instances: [{id: v1, protocol: HTTPS}]}\n", i)
	}
	write(t, filepath.Join(dir, "large.yaml"), large)
	watch := strings.Join(append([]string{"federationctl watch", address}, files(".", "consumer")...), " ")
	for _, tt := range []struct {
		name, script string
		code         int
		stdout       string
		stderr       string
	}{
		{"all of it", watch + " --once -o json", 0, wantJSON, ""},
		{"the first line of a watch that ends", watch + " --once | head -n 1; echo ${PIPESTATUS[0]}", 0, strings.SplitAfter(wantTable, "\n")[0] + "0\n", ""},
		{"the first line of a catalog", "federationctl dump --at " + statusOf(t, filepath.Join(dir, "large.yaml")) + " | head -n 2 | tail -n 1 | cut -c 1-17; echo ${PIPESTATUS[0]}", 0, "{\"name\":\"s000000\"\n0\n", ""},
		{"a full disk", watch + " --once >/dev/full", 1, "", "federationctl: write /dev/stdout: no space left on device\n"},
		{"check of what has no end", "federationctl check --max-catalog 1MiB - </dev/zero", 1, "<stdin>: error: there are more than 1048576 bytes; --max-catalog raises the limit\n", "federationctl: problems found: 1; fix them and check again\n"},
		{"check of a pipe", "printf 'services:\\n- name: a\\n' | federationctl check -", 1, `<stdin>:2: error: service "a": fqdn: required
<stdin>:2: error: service "a": endpoints: at least one is required
`, "federationctl: problems found: 2; fix them and check again\n"},
	} {
		if _, err := os.Stat("/dev/full"); err != nil && strings.Contains(tt.script, "/dev/full") {
			continue
		}
		code, stdout, stderr := shell(t, dir, tt.script)
		if code != tt.code || stdout != tt.stdout || stderr != tt.stderr {
			t.Errorf("%s: exit code %d, standard output %q, standard error %q; expected %d, %q, %q",
				tt.name, code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
		}
	}
}

// TestNobodyReads has each command whose exit code is an answer write to a pipe that nobody reads:
// the code is not that of a yes, nor that of a no. The others are done.
func TestNobodyReads(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "owner.yaml", ownerText)
	write(t, "catalog.yaml", oneService("a"))
	write(t, "Corefile", ".:53 {\n}\n") // has a warning
	at := statusOf(t, "catalog.yaml")
	for _, tt := range []struct {
		command string
		code    int
	}{
		{"check catalog.yaml", exitUsage},
		{"check owner.yaml --elsewhere", exitUsage},
		{"check Corefile", exitUsage},
		{"policy test owner.yaml --catalog catalog.yaml --as " + pkiConsumerID + " a", exitUsage},
		{"policy test owner.yaml --catalog catalog.yaml --as stranger.example a", exitUsage},
		{"policy who-can owner.yaml --catalog catalog.yaml a", exitUsage},
		{"status --check --at " + at, inspect.Unknown},
		{"status --check -o json --at " + at, inspect.Unknown},
		{"status --check --at localhost:1", inspect.Critical},
		{"status --at " + at, exitDone},
		{"dump --at " + at, exitDone},
	} {
		var pipe [2]int
		must.Do(t, syscall.Pipe(pipe[:]))
		must.Do(t, syscall.Close(pipe[0]))
		stdout := os.NewFile(uintptr(pipe[1]), os.Stdout.Name())
		var stderr bytes.Buffer
		code := runCommandLine(t.Context(), strings.Fields(tt.command), stdout, &stderr)
		stdout.Close()
		if code != tt.code {
			t.Errorf("%s: exit code %d, expected %d; standard error %q", tt.command, code, tt.code, &stderr)
		}
		if said := stderr.String(); tt.code == exitUsage && !strings.HasPrefix(tt.command, "status") && !strings.HasSuffix(said, "federationctl: write /dev/stdout: broken pipe\n") {
			t.Errorf("%s: standard error %q", tt.command, said)
		}
	}
}

// complete returns the words that a shell would offer for the last argument, and
// which files it would offer, by the directive for cobra's scripts.
func complete(t *testing.T, args ...string) (words []string, directive string) {
	t.Helper()
	code, stdout, stderr := ctl(t, append([]string{"__complete"}, args...)...)
	if code != 0 {
		t.Fatalf("%q: exit code %d: %s", args, code, stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	for _, line := range lines[:len(lines)-1] {
		word, _, _ := strings.Cut(line, "\t")
		words = append(words, word)
	}
	names := map[string]string{":0": "any file", ":4": "no file", ":8": "file with extension", ":16": "directory"}
	return words, names[lines[len(lines)-1]]
}

// TestCompletion asks for completions as the scripts of the shells do.
func TestCompletion(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "catalog.yaml"), strings.ReplaceAll(catalogText, "v 2", "v2"))
	for _, tt := range []struct {
		args      []string
		words     []string
		directive string
	}{
		{[]string{""}, []string{"check", "completion", "confirm", "dump", "explain", "help", "import", "pki", "policy", "register", "retry", "serve", "services", "status", "watch", "why"}, "no file"},
		{[]string{"wa"}, []string{"watch"}, "no file"},
		{[]string{"completion", ""}, []string{"bash", "fish", "powershell", "zsh"}, "no file"},
		{[]string{"check", ""}, nil, "any file"},
		{[]string{"check", "a.yaml", ""}, nil, "any file"},
		{[]string{"pki", ""}, []string{"init", "issue"}, "directory"},
		{[]string{"watch", ""}, []string{"--cert", "--spiffe"}, "no file"}, // one of which is required
		{[]string{"watch", "-o", ""}, []string{"table", "json"}, "no file"},
		{[]string{"watch", "--output", ""}, []string{"table", "json"}, "no file"},
		{[]string{"watch", "--api", ""}, apis, "no file"},
		{[]string{"serve", "--catalog", ""}, nil, "any file"},
		{[]string{"why", ""}, nil, "no file"},
		{[]string{"why", "web.fed.example", ""}, []string{"A", "AAAA", "SRV", "TXT", "SOA", "NS"}, "no file"},
		{[]string{"status", "-o", ""}, formats, "no file"},
		{[]string{"policy", ""}, []string{"test", "who-can"}, "no file"},
	} {
		words, directive := complete(t, tt.args...)
		if !slices.Equal(words, tt.words) || directive != tt.directive {
			t.Errorf("%q is completed with %q and %s, expected %q and %s", tt.args, words, directive, tt.words, tt.directive)
		}
	}
	if words, _ := complete(t, "watch", "--o"); !slices.Equal(words, []string{"--once", "--output", "--owner-id"}) {
		t.Errorf("the flags that begin with --o are %q", words)
	}
}
