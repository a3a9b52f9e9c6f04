package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// These tests are about hostile files and peers: files that are not regular files,
// and text that a terminal would interpret.

// TestServeWithAStuckLogEndsOnSIGTERM has a log that is a full pipe without a
// reader: each write to it blocks.
func TestServeWithAStuckLogEndsOnSIGTERM(t *testing.T) {
	t.Parallel() // it waits for shutdownGrace
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), catalogText)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	args := slices.Concat([]string{"serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--catalog", file, "--allow-any"}, files(dir, "owner"))
	command := exec.CommandContext(t.Context(), realBinary(t), args...)
	command.Stderr = writer
	output := startWithOutput(t, command)
	timer := time.AfterFunc(patience, func() { _ = command.Process.Kill() })
	defer timer.Stop()
	var url string
	for url == "" && output.Scan() {
		_, url, _ = strings.Cut(output.Text(), "metrics on ")
	}
	fd := int(writer.Fd()) // only once, as Fd makes the pipe blocking again
	must.Do(t, syscall.SetNonblock(fd, true))
	for _, size := range []int{1 << 16, 1} { // until there is no room for another byte
		for chunk := make([]byte, size); err == nil; {
			_, err = syscall.Write(fd, chunk)
		}
		if !errors.Is(err, syscall.EAGAIN) {
			t.Fatal(err)
		}
		err = nil
	}
	must.Do(t, syscall.SetNonblock(fd, false))
	write(t, file, "services: [")
	eventually(t, func() string {
		if scrape(t, url)[`federation_owner_file_broken{file="catalog"}`] == 0 {
			return "the broken catalog was not found"
		}
		return ""
	})
	must.Do(t, command.Process.Signal(syscall.SIGTERM))
	_ = command.Wait()
	if code := command.ProcessState.ExitCode(); code != exitFailed {
		t.Errorf("exit code %d, expected 1: %v", code, command.ProcessState)
	}
}

// TestIrregularFiles checks and serves files that are not regular or too large.
func TestIrregularFiles(t *testing.T) {
	t.Chdir(pkiIn(t))
	must.Do(t, syscall.Mkfifo("fifo.yaml", 0o600))
	write(t, "large.yaml", "services: []"+strings.Repeat(" ", 1024))
	const one = "federationctl: problems found: 1; fix them and check again\n"
	for _, tt := range []struct {
		args, stdout, stderr string
	}{
		{"check fifo.yaml", "fifo.yaml: error: fifo.yaml is not a regular file; 'federationctl check -' reads standard input\n", one},
		{"check --max-catalog 1KiB large.yaml", "large.yaml: error: large.yaml is larger than allowed: it has 1036 bytes, the limit is 1024; --max-catalog raises it\n", one},
		{"serve --catalog fifo.yaml --allow-any --cert owner.pem --key owner-key.pem --ca ca.pem", "", "federationctl: catalog file: fifo.yaml is not a regular file\n"},
	} {
		expectCtl(t, exitFailed, tt.stdout, tt.stderr, strings.Fields(tt.args)...)
	}
}

// TestCheckEndsWhileItReads ends check while it waits for standard input.
func TestCheckEndsWhileItReads(t *testing.T) {
	reader, writer := io.Pipe()
	defer writer.Close()
	defer reader.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	command := checkCommand(ctx)
	command.SetArgs([]string{"-"})
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetIn(reader)
	command.SetOut(io.Discard)
	if err := command.Execute(); err == nil || err.Error() != "interrupted" {
		t.Errorf("error is %v, expected interrupted", err)
	}
}

// terrible has characters that must not reach a terminal as they are, and two that
// may.
const terrible = "a\x1b[31m\n\r\x7f\u009b2J\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029\u0085é\U0001F578"

// raw reports whether a character must be escaped in output.
func raw(r rune) bool {
	return r != '\n' && unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}

// terribleCatalogs returns catalogs with terrible text in each place whose content
// an error may repeat.
func terribleCatalogs(t *testing.T) map[string]string {
	t.Helper()
	quoted := must.Get(json.Marshal(terrible + strings.Repeat("\x1b[2J\n", 5_000)))(t)
	text := string(quoted)
	plain := strings.Repeat("\U0001F578x", 10_000)
	return map[string]string{
		"name":        "services:\n- name: " + text + "\n",
		"key":         "services:\n- {" + text + ": 1}\n",
		"top key":     text + ": 1\n",
		"key twice":   "services:\n- ? " + text + "\n  : 1\n  ? " + text + "\n  : 1\n",
		"value":       "services:\n- {name: a, fqdn: " + text + ", tags: " + text + ", endpoints: [{port: " + text + "}], instances: [{protocol: " + text + "}]}\n",
		"anchor":      "services:\n- *" + plain + "\n",
		"tag":         "services:\n- !!int " + text + "\n",
		"handle":      "services:\n- !" + plain + "!a b\n",
		"JSON":        `{"services": [{"name": ` + text + `, ` + text + `: 1, "port": ` + text + `}]}`,
		"JSON key":    `{` + text + `: 1}`,
		"JSON number": `{"services": [{"endpoints": [{"port": 1` + strings.Repeat("0", 100_000) + `}]}]}`,
	}
}

// TestFileErrorsAreEscapedAndBounded checks what check and serve print about terrible
// catalogs.
func TestFileErrorsAreEscapedAndBounded(t *testing.T) {
	dir := pkiIn(t)
	for name, text := range terribleCatalogs(t) {
		file := write(t, filepath.Join(dir, "catalog.yaml"), text)
		for _, args := range [][]string{
			{"check", file},
			slices.Concat([]string{"serve", "--listen", "127.0.0.1:0", "--catalog", file, "--allow-any"}, files(dir, "owner")),
		} {
			code, stdout, stderr := ctl(t, args...)
			output := stdout + stderr
			if code != exitFailed {
				t.Errorf("%s: %s: exit code %d, expected 1", name, args[0], code)
			}
			if len(output) > 10_000 || strings.ContainsFunc(output, raw) {
				t.Errorf("%s: %s: %d bytes: %.1000q", name, args[0], len(output), output)
			}
			if lines := strings.Count(stderr, "\n"); args[0] == "serve" && lines != 1 {
				t.Errorf("%s: serve writes %d lines, expected 1: %.1000q", name, lines, stderr)
			}
		}
	}
}

// TestCheckIsBounded counts the problems that check prints of a file with thousands.
func TestCheckIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "catalog.yaml")
	write(t, file, "services:\n- name: a\n"+strings.Repeat("  name: a\n", 8000)+strings.Repeat("- name: b\n", 100))
	_, stdout, stderr := ctl(t, "check", file)
	if lines := strings.Count(stdout, "\n"); lines != 101 || !strings.HasSuffix(stdout, "\n"+file+": error: and at least 8000 more\n") {
		t.Errorf("%d lines:\n%.2000s", lines, stdout)
	}
	if want := "federationctl: problems found: at least 8100; fix them and check again\n"; stderr != want {
		t.Errorf("standard error %q, expected %q", stderr, want)
	}
}
