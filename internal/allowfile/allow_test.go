package allowfile

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))
}

func names(ids []federation.ID) string {
	var all []string
	for _, id := range ids {
		all = append(all, id.String())
	}
	return strings.Join(all, " ")
}

func TestParse(t *testing.T) {
	const nobody = "0: the file names nobody; [] on a line of its own allows nobody"
	for _, tt := range []struct {
		name, data string
		ids        string
		problems   []string
	}{
		{"one", "spiffe://consumer.example/coredns\n", "spiffe://consumer.example/coredns", nil},
		{"no newline", "consumer.example", "consumer.example", nil},
		{"comments and blanks", "# ours\n\n  spiffe://a.example/x\t# the first\r\n\t#\nB.example.\n", "spiffe://a.example/x b.example", nil},
		{"nobody", "# closed for today\n[]\n", "", nil},
		{"empty", "", "", []string{nobody}},
		{"blank", "\n \n", "", []string{nobody}},
		{"comments only", "# spiffe://a.example/x\n", "", []string{nobody}},
		{"nobody and somebody", "a.example\n[]\n", "", []string{"2: [] stands for nobody, and other lines name somebody"}},
		{"broken", "a.example\nspiffe://b.example\n*.example\n", "", []string{
			`2: identity "spiffe://b.example": names a trust domain and no workload in it: the path is missing`,
			`3: identity "*.example": label has a character other than a-z, 0-9, '-' and '_'`,
		}},
		{"no comment", "a.example#b\n", "", []string{`1: identity "a.example#b": label has a character other than a-z, 0-9, '-' and '_'`}},
		{"two on a line", "a.example b.example\n", "", []string{`1: identity "a.example b.example": label has a character other than a-z, 0-9, '-' and '_'`}},
		{"not a text", "\x00\xff\n", "", []string{`1: identity "\x00\xff": name is not a valid internationalized name`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ids, problems := parseIDs([]byte(tt.data))
			if got := names(ids); got != tt.ids {
				t.Errorf("identities are %q, expected %q", got, tt.ids)
			}
			var lines []string
			for _, p := range problems {
				lines = append(lines, fmt.Sprintf("%d: %s", p.Line, p))
			}
			if diff := cmp.Diff(tt.problems, lines); diff != "" {
				t.Errorf("unexpected problems (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("spiffe://a.example/x # y\n[]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ids, problems := parseIDs(data)
		if len(problems) > 0 && len(ids) > 0 {
			t.Errorf("a file with problems allows %s", names(ids))
		}
		// Nobody is let in by what is not there to be read; other scripts have a
		// spelling of their own.
		ascii := !bytes.ContainsFunc(data, func(r rune) bool { return r > unicode.MaxASCII })
		for _, id := range ids {
			if ascii && !strings.Contains(strings.ToLower(string(data)), strings.ToLower(id.String())) {
				t.Errorf("identity %s is not in the file", id)
			}
		}
		if len(ids) == 0 && len(problems) == 0 && !strings.Contains(string(data), "[]") {
			t.Error("nobody may subscribe, and the file does not say so")
		}
	})
}

func TestOpenFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "allow")
	for _, tt := range []struct{ name, text, want string }{
		{"missing", "", "allow file: stat " + path + ": no such file or directory"},
		{"broken", "a.example\n*\n", "allow file " + path + `: line 2: identity "*": label has a character other than a-z, 0-9, '-' and '_'`},
		{"empty", "\n", "allow file " + path + ": the file names nobody; [] on a line of its own allows nobody"},
	} {
		if tt.text != "" {
			write(t, path, tt.text)
		}
		set := func(ids []federation.ID) { t.Errorf("%s: %q are allowed", tt.name, names(ids)) }
		if _, err := Open(t.Context(), Config{Path: path, Set: set, Logger: slog.New(slog.DiscardHandler)}); err == nil || err.Error() != tt.want {
			t.Errorf("%s: error is %v, expected %s", tt.name, err, tt.want)
		}
	}
}

// TestFollows edits the file in good ways and in bad ones.
func TestFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "allow")
	synctest.Test(t, func(t *testing.T) {
		write(t, path, "a.example\n")
		var mu sync.Mutex
		var sets []string
		logged := &testlog.Buffer{}
		config := Config{Path: path, Set: func(ids []federation.ID) {
			mu.Lock()
			defer mu.Unlock()
			sets = append(sets, names(ids))
		}, Logger: slog.New(slog.NewTextHandler(logged, nil))}.fileConfig()
		config.Events = make(chan fsnotify.Event) // there are no notifications
		f := file.New(config)
		must.Do(t, f.Load(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = f.Run(ctx) })
		defer running.Wait()
		defer cancel()
		synctest.Wait() // until the file has been read once more

		want := []string{"a.example"} // as it was opened
		const gone = "-"
		for i, step := range []struct{ text, set, trouble string }{
			{"a.example\nb.example\n", "a.example b.example", ""},
			{gone, "", "no such file"},
			{"# nobody\n", "", "names nobody"},
			{"a.example\nspiffe:/\n", "", "line 2: identity"},
			{"b.example # only\n", "b.example", ""},
			{"[]\n", "", ""},
			{"a.example\n", "a.example", ""},
		} {
			if step.text != gone {
				write(t, path, step.text)
			} else if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if step.trouble == "" {
				want = append(want, step.set)
			}
			time.Sleep(time.Minute) // longer than any poll takes
			synctest.Wait()
			mu.Lock()
			if diff := cmp.Diff(want, sets); diff != "" {
				t.Errorf("step %d: unexpected identities (-want +got):\n%s", i, diff)
			}
			mu.Unlock()
			if got := fmt.Sprint(f.Err()); (step.trouble == "") != (f.Err() == nil) || !strings.Contains(got, step.trouble) {
				t.Errorf("step %d: trouble is %s, expected %q", i, got, step.trouble)
			}
		}
		if n := logged.Count(`"file is not used: fix it" what="allow file"`); n != 3 {
			t.Errorf("%d log lines tell of a broken file, expected 3:\n%s", n, logged)
		}
	})
}
