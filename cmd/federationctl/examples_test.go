package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// commandLines returns the command lines in an example. It leaves out comments, and
// joins lines that end in a backslash with the next one.
func commandLines(example string) []string {
	var found []string
	for line := range strings.SplitSeq(strings.ReplaceAll(example, "\\\n", " "), "\n") {
		line = strings.Join(strings.Fields(line), " ")
		if line != "" && !strings.HasPrefix(line, "#") {
			found = append(found, line)
		}
	}
	return found
}

// TestExamples runs the examples of all commands, in a directory with the files that
// they name. Only the addresses are replaced.
func TestExamples(t *testing.T) {
	all := []*cobra.Command{rootCommand(t.Context())}
	for i := 0; i < len(all); i++ {
		all = append(all, all[i].Commands()...)
	}
	for _, command := range all {
		if command.Name() == "help" {
			continue // cobra's
		}
		t.Run(command.CommandPath(), func(t *testing.T) {
			found := commandLines(command.Example)
			if len(found) == 0 {
				t.Fatal("the command has no example")
			}
			dir := prepared(t)
			_, address := runServe(t, dir, filepath.Join(dir, "catalog.yaml"))
			address = strings.Replace(address, "127.0.0.1", "localhost", 1)
			for _, line := range found {
				if served := runExample(t, dir, line, address, "api.fed.example\nshop.fed.example\n"); served != "" {
					address = served // by an example before
				}
			}
		})
	}
}

// shellBlock matches a code block of Markdown.
var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// TestREADME runs the lines of the README beside this file that are commands of
// this one, in order, with the files of the repository.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files, err := filepath.Abs("../../corefile-examples")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(files, filepath.Join(dir, "corefile-examples")); err != nil {
		t.Fatal(err)
	}
	address, ran := "", 0
	for _, block := range shellBlock.FindAllStringSubmatch(string(readme), -1) {
		for _, line := range commandLines(block[1]) {
			line, ours := strings.CutPrefix(line, "bin/")
			if !ours {
				continue
			}
			ran++
			if served := runExample(t, dir, line, address, "orders.fed.example\nshop.fed.example\nstock.db.fed.example\n"); served != "" {
				address = served
			}
		}
	}
	if ran == 0 || address == "" {
		t.Errorf("%d lines ran, the owner is at %q", ran, address)
	}
}

// answerBlock matches a code block of Markdown with commands and what they print, and
// configBlock one with a configuration.
var (
	answerBlock = regexp.MustCompile("(?s)```console\n(.*?)```")
	configBlock = regexp.MustCompile("(?s)```yaml\n# owner.yaml\n(.*?)```")
)

// TestREADMEAnswers runs the lines of the README that begin with $, and compares what
// they print.
func TestREADMEAnswers(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Abs("../../corefile-examples")
	if err != nil {
		t.Fatal(err)
	}
	config := configBlock.FindSubmatch(readme)
	if config == nil {
		t.Fatal("there is no configuration")
	}
	dir := t.TempDir()
	if err := os.Symlink(files, filepath.Join(dir, "corefile-examples")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "owner.yaml"), "# owner.yaml\n"+string(config[1]))
	blocks := answerBlock.FindAllStringSubmatch(string(readme), -1)
	for _, block := range blocks {
		var printed strings.Builder
		for line := range strings.Lines(block[1]) {
			command, ok := strings.CutPrefix(line, "$ ")
			if !ok {
				continue
			}
			_, stdout, stderr := shell(t, dir, strings.ReplaceAll(command, "bin/", ""))
			printed.WriteString(line + stdout + stderr)
		}
		if diff := cmp.Diff(block[1], printed.String()); diff != "" {
			t.Errorf("unexpected output (-README +got):\n%s", diff)
		}
	}
	if len(blocks) == 0 {
		t.Error("there is no command")
	}
}

// prepared returns a directory with the files that the examples name.
func prepared(t *testing.T) string {
	t.Helper()
	dir := pkiIn(t)
	for _, name := range []string{"catalogs", ".local/share/bash-completion/completions", ".zfunc", ".config/fish/completions", ".config/powershell"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "catalog.yaml"), strings.Replace(catalogText, "v 2", "v2", 1))
	for _, name := range []string{"Corefile", "Corefile.new"} {
		write(t, filepath.Join(dir, name), "fed.example {\nfederation {\nowner owner.example:8008\ntls consumer.pem consumer-key.pem ca.pem\n}\n}\n")
	}
	write(t, filepath.Join(dir, "owner.yaml"), ownerText)
	write(t, filepath.Join(dir, "new-owner.yaml"), ownerText+"  exports: []\n")
	write(t, filepath.Join(dir, "catalogs", "one.json"), `{"services": []}`)
	write(t, filepath.Join(dir, "catalogs", "two.json"), `{"services": []}`)
	return dir
}

var (
	exampleOwner  = regexp.MustCompile(`\b(owner\.example(\.org)?|localhost):8008\b`)
	exampleListen = regexp.MustCompile(`--(listen|metrics)[ =]\S+`)
	exampleOf     = regexp.MustCompile(`--of \S+`)
	exampleSource = regexp.MustCompile(`--source \S+`)
	exampleAllow  = regexp.MustCompile(`--allow-file[ =](\S+)`)
)

// runExample runs one command line. A line with a pipe to jq must print the fqdns. A
// line that starts an owner runs until the test ends; runExample returns its address,
// and otherwise "".
func runExample(t *testing.T, dir, line, address, fqdns string) string {
	t.Helper()
	script := exampleOwner.ReplaceAllString(line, address)
	if inspects.MatchString(line) {
		script = inspectExample(t, dir, script)
	}
	serves := strings.HasPrefix(line, "federationctl serve ")
	if serves {
		script = exampleListen.ReplaceAllString(script, "--$1 127.0.0.1:0")
		if !strings.Contains(script, "--listen") && !strings.Contains(script, "--config") {
			script += " --listen 127.0.0.1:0" // no fixed port in a test
		}
		if match := exampleAllow.FindStringSubmatch(line); match != nil {
			write(t, filepath.Join(dir, match[1]), pkiConsumerID+"\n")
		}
	}
	if strings.HasPrefix(line, "federationctl register ") {
		registerExample(t, dir, line)
		return ""
	}
	if serves || strings.HasPrefix(line, "federationctl watch ") && !strings.Contains(line, "--once") {
		return endlessExample(t, dir, script)
	}
	before, filter, piped := strings.Cut(script, "| jq ")
	if _, err := exec.LookPath("jq"); piped && err != nil {
		script = before
	}
	code, stdout, stderr := shell(t, dir, script)
	if code != 0 || exampleCount.ReplaceAllString(stderr, "") != "" {
		t.Errorf("%s\nended with exit code %d; standard output:\n%s\nstandard error:\n%s", script, code, stdout, stderr)
	}
	switch {
	case piped && script == before:
		t.Logf("no jq to run %s", filter)
		stdout = fqdnsIn(t, stdout)
		fallthrough
	case piped:
		if stdout != fqdns {
			t.Errorf("%s\nprinted %q, expected %q", script, stdout, fqdns)
		}
	}
	return ""
}

// exampleCount matches what services says of how many there are.
var exampleCount = regexp.MustCompile(`^federationctl: [0-9,]+ of [0-9,]+ services?\n$`)

// inspects matches the commands that ask a running process.
var inspects = regexp.MustCompile(`^federationctl (why|status|services|retry|confirm|dump|diff)\b`)

// inspectExample returns a command line that asks a process, with an endpoint of this test.
func inspectExample(t *testing.T, dir, script string) string {
	t.Helper()
	file := filepath.Join(dir, "catalog.yaml")
	if _, err := os.Stat(file); err != nil {
		file = filepath.Join(dir, "corefile-examples", "quickstart", "catalog.yaml") // for the README
	}
	at := statusOf(t, file)
	switch { // which are about an owner and a source that the process has
	case strings.HasPrefix(script, "federationctl retry"):
		script = exampleOf.ReplaceAllString(script, "--of o1:8008")
	case strings.HasPrefix(script, "federationctl confirm"):
		at, script = statusAt(t, relaying{}), exampleSource.ReplaceAllString(exampleOf.ReplaceAllString(script, ""), "--source mesh")
	}
	script = strings.ReplaceAll(script, "http://localhost:9154", at)
	if !strings.Contains(script, at) {
		script = strings.Replace(script, " ", " "+"--at="+at+" ", 1) // cobra takes flags of a command before its name
	}
	return script
}

// fqdnsIn does the same as the example with jq.
func fqdnsIn(t *testing.T, text string) string {
	t.Helper()
	var found strings.Builder
	decoder := json.NewDecoder(strings.NewReader(text))
	for {
		var event struct {
			Op      string `json:"op"`
			Service struct {
				FQDN string `json:"fqdn"`
			} `json:"service"`
		}
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			return found.String()
		} else if err != nil {
			t.Fatal(err)
		}
		if event.Op == "upsert" {
			found.WriteString(event.Service.FQDN + "\n")
		}
	}
}

// endlessExample starts a command line that runs until it is interrupted, at the end
// of the test. It waits until the command has written that it works, and returns the
// address if it is an owner, and otherwise "".
func endlessExample(t *testing.T, dir, script string) (address string) {
	t.Helper()
	command := shellCommand(context.WithoutCancel(t.Context()), t, dir, "exec "+script)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output := startWithOutput(t, command)
	t.Cleanup(func() {
		for output.Scan() { // or Wait would close the pipe too early
		}
		if err := command.Wait(); err != nil {
			t.Errorf("%s\nended with %v, expected exit code 0; standard error:\n%s", script, err, &stderr)
		}
	})
	t.Cleanup(func() {
		if err := command.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
	})
	for output.Scan() {
		if _, on, ok := strings.Cut(output.Text(), " services on 127.0.0.1"); ok {
			return "localhost" + strings.Fields(on)[0]
		}
		if strings.HasPrefix(output.Text(), "end ") || strings.HasPrefix(output.Text(), "serving owner.yaml on ") {
			return ""
		}
	}
	t.Errorf("%s\nended too early; standard error:\n%s", script, &stderr)
	return ""
}
