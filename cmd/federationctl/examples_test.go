package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
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
	for _, command := range commandsBelow(rootCommand(t.Context())) {
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

// readme returns the README beside this file, and a folder with the files of the repository
// that it names.
func readme(t *testing.T) (text, dir string) {
	t.Helper()
	dir = t.TempDir()
	examples := must.Get(filepath.Abs("../../corefile-examples"))(t)
	must.Do(t, os.Symlink(examples, filepath.Join(dir, "corefile-examples")))
	return string(must.Get(os.ReadFile("README.md"))(t)), dir
}

// TestREADME runs the lines of the README that are commands of this one, in order.
func TestREADME(t *testing.T) {
	text, dir := readme(t)
	address, ran := "", 0
	for _, block := range shellBlock.FindAllStringSubmatch(text, -1) {
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

// TestREADMEAnswers runs the lines of the README that begin with $, with the configuration
// that it has, and compares what they print.
func TestREADMEAnswers(t *testing.T) {
	text, dir := readme(t)
	write(t, filepath.Join(dir, "owner.yaml"), "# owner.yaml\n"+configBlock.FindStringSubmatch(text)[1])
	blocks := answerBlock.FindAllStringSubmatch(text, -1)
	for _, block := range blocks {
		var printed strings.Builder
		for line := range strings.Lines(block[1]) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				_, stdout, stderr := shell(t, dir, strings.ReplaceAll(command, "bin/", ""))
				printed.WriteString(line + stdout + stderr)
			}
		}
		if diff := cmp.Diff(block[1], printed.String()); diff != "" {
			t.Errorf("unexpected output (-README +got):\n%s", diff)
		}
	}
	if len(blocks) == 0 {
		t.Error("there is no command")
	}
}

// The code blocks of the README: of shells, with commands and what they print, and a
// configuration.
var (
	shellBlock  = regexp.MustCompile("(?s)```sh\n(.*?)```")
	answerBlock = regexp.MustCompile("(?s)```console\n(.*?)```")
	configBlock = regexp.MustCompile("(?s)```yaml\n# owner.yaml\n(.*?)```")
)

// prepared returns a directory with the files that the examples name.
func prepared(t *testing.T) string {
	t.Helper()
	dir := pkiIn(t)
	for _, name := range []string{"catalogs", ".local/share/bash-completion/completions", ".zfunc", ".config/fish/completions", ".config/powershell"} {
		must.Do(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
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
	imports := strings.HasPrefix(line, "federationctl import ")
	if imports {
		writeImport(t, dir, address, "")
	}
	if strings.HasPrefix(line, "federationctl register ") {
		registerExample(t, dir, line)
		return ""
	}
	if serves || imports && !strings.Contains(line, "--dry-run") || strings.HasPrefix(line, "federationctl watch ") && !strings.Contains(line, "--once") {
		return endlessExample(t, dir, script)
	}
	before, _, piped := strings.Cut(script, "| jq ")
	if _, err := exec.LookPath("jq"); piped && err != nil {
		script, piped = before, false
	}
	code, stdout, stderr := shell(t, dir, script)
	if code != 0 || exampleCount.ReplaceAllString(stderr, "") != "" && !imports {
		t.Errorf("%s\nended with exit code %d; standard output:\n%s\nstandard error:\n%s", script, code, stdout, stderr)
	}
	if piped && stdout != fqdns {
		t.Errorf("%s\nprinted %q, expected %q", script, stdout, fqdns)
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
	if strings.HasPrefix(script, "federationctl confirm") { // a source that the process has, or else an owner
		at, script = statusAt(t, relaying{}), exampleSource.ReplaceAllString(exampleOf.ReplaceAllString(script, ""), "--source mesh")
	} else {
		script = exampleOf.ReplaceAllString(script, "--of o1:8008")
	}
	script = strings.ReplaceAll(script, "http://localhost:9154", at)
	if !strings.Contains(script, at) {
		script = strings.Replace(script, " ", " "+"--at="+at+" ", 1) // cobra takes flags of a command before its name
	}
	return script
}

// endlessExample starts a command line that runs until the end of the test. It waits until
// the command has written that it works, and returns the address if it is an owner, and
// otherwise "".
func endlessExample(t *testing.T, dir, script string) (address string) {
	t.Helper()
	t.Chdir(dir)
	command := background(t, strings.Fields(script)[1:]...)
	t.Cleanup(func() {
		if code := command.stop(); code != exitDone {
			t.Errorf("%s\nended with exit code %d; standard error:\n%s", script, code, command.errs)
		}
	})
	for {
		line := command.line()
		if _, on, ok := strings.Cut(line, " services on 127.0.0.1"); ok {
			return "localhost" + strings.Fields(on)[0]
		}
		if strings.HasPrefix(line, "end ") || strings.HasPrefix(line, "serving owner.yaml on ") || strings.HasPrefix(line, "importing import.yaml into ") {
			return ""
		}
	}
}
