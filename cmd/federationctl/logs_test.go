package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// object returns the JSON object that a line of the log is.
func object(t *testing.T, line string) map[string]any {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(line), &fields); err != nil {
		t.Fatalf("%v in the line %q", err, line)
	}
	for _, key := range []string{slog.TimeKey, slog.LevelKey, slog.MessageKey} {
		if _, ok := fields[key].(string); !ok {
			t.Errorf("the line %q has no %s", line, key)
		}
	}
	return fields
}

// TestLogJSON reads every line that an owner writes to standard error: of the start, of a
// run, and why it has failed.
func TestLogJSON(t *testing.T) {
	dir := pkiIn(t)
	catalog := write(t, filepath.Join(dir, "catalog.yaml"), catalogText)
	args := slices.Concat([]string{"serve", "--log-format", "json", "--listen", "127.0.0.1:0", "--catalog", catalog, "--allow-any"}, files(dir, "owner"))

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	process := exec.CommandContext(ctx, realBinary(t), args...)
	stderr := must.Get(process.StderrPipe())(t)
	must.Do(t, process.Start())
	lines := bufio.NewScanner(stderr)
	var seen []string
	stopped := ""
	for lines.Scan() {
		fields := object(t, lines.Text())
		message, _ := fields[slog.MessageKey].(string)
		seen = append(seen, message)
		switch message {
		case "catalog has warnings":
			write(t, catalog, "{")
		case "file is not used: fix it":
			if fields["what"] != "catalog file" || fields["file"] != catalog || fields["error"] == "" {
				t.Errorf("the line is %v", fields)
			}
			must.Do(t, process.Process.Signal(os.Interrupt))
		case "the owner stops; consumers keep what they hold":
			stopped, _ = fields["reason"].(string)
		}
	}
	if err := process.Wait(); err != nil {
		t.Errorf("%v after %q", err, seen)
	}
	if stopped != "interrupt signal received" {
		t.Errorf("the reason of the end is %q", stopped)
	}
	if all := strings.Join(seen, "\n"); !strings.Contains(all, "catalog applied") || !strings.Contains(all, "not used") {
		t.Errorf("the log has only\n%s", all)
	}

	for name, tc := range map[string]struct {
		args []string
		code int
		want string
		hint bool
	}{
		"files":     {args, exitFailed, catalog, false},
		"usage":     {slices.Concat(args, []string{"--config", "x"}), exitUsage, "none of the others can be", true},
		"no config": {[]string{"serve", "--log-format=json", "--config", filepath.Join(dir, "none")}, exitFailed, "no such file", false},
	} {
		code, stdout, stderr := ctl(t, tc.args...)
		fields := object(t, stderr)
		text, _ := fields["error"].(string)
		if _, hint := fields["remedy"]; code != tc.code || stdout != "" || !strings.Contains(text, tc.want) || hint != tc.hint {
			t.Errorf("%s: exit code %d, and %s", name, code, stderr)
		}
	}
	if code, _, stderr := ctl(t, "serve", "--log-format", "xml"); code != exitUsage || !strings.Contains(stderr, "is not one of text, json") {
		t.Errorf("exit code %d, and %s", code, stderr)
	}
}

// TestLogOfLibraries checks that what gRPC reports is one line of the log.
func TestLogOfLibraries(t *testing.T) {
	var text strings.Builder
	w := lineWriter{slog.New(logHandler(&text, logJSON))}
	must.Get(io.WriteString(w, "ERROR: 2000/01/01 [core] two\nlines\n"))(t)
	if fields := object(t, text.String()); fields["error"] != "ERROR: 2000/01/01 [core] two\nlines" || strings.Count(text.String(), "\n") != 1 {
		t.Errorf("the line is %q", text.String())
	}
}
