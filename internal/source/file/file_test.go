package file

import (
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

	"github.com/fsnotify/fsnotify"

	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))
}

// told renders an event as "upsert web 2", "delete web" or "end".
func told(e wire.Event) string {
	text := e.Operation.String()
	if e.Name != "" {
		text += " " + e.Name
	}
	if e.Service != nil {
		text += " " + e.Service.Description[len("version "):]
	}
	return text
}

// published returns the catalog of a registry, such as "upsert web 2, upsert shop 1", or
// why it is unavailable.
func published(t *testing.T, r *registry.Registry) string {
	t.Helper()
	s := registrytest.Listen(r)
	defer s.Close()
	var services []string
	for {
		event, err := s.NextEvent(t.Context())
		if err != nil {
			return err.Error()
		}
		if event.Operation == wire.End {
			return strings.Join(services, ", ")
		}
		services = append(services, told(event))
	}
}

// newFile returns a source that gets no notifications.
func newFile(path string, logger *slog.Logger) *File {
	f := New(Config{Path: path, Logger: logger})
	c := f.fileConfig()
	c.Events = make(chan fsnotify.Event)
	f.file = file.New(c)
	return f
}

// follow publishes a file, which is loaded before if load says so, until the test ends.
func follow(t *testing.T, path string, load bool) (*File, *registry.Registry, *source.Catalog, *testlog.Buffer) {
	t.Helper()
	logged := &testlog.Buffer{}
	logger := slog.New(slog.NewTextHandler(logged, nil))
	f := newFile(path, logger)
	if load {
		must.Do(t, f.Load(t.Context()))
	}
	registry := registry.New()
	catalog := source.NewCatalog(source.Config{Registry: registry, Logger: logger, Sources: []source.Entry{{Name: "file", Source: f}}})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = catalog.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	synctest.Wait() // until the file has been read once more
	return f, registry, catalog, logged
}

// settle waits until the file has been read again, if it has changed.
func settle() {
	time.Sleep(time.Minute) // longer than any poll takes
	synctest.Wait()
}

func TestLoadFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.yaml")
	for _, tt := range []struct{ name, text, want string }{
		{"missing", "", "catalog file: stat " + path + ": no such file or directory"},
		{"broken", "services:\n- name: a\n  endpoints: [{address: 192.0.2.1, port: 80}]\n", "catalog file " + path + `: line 2: service "a": fqdn: required`},
	} {
		if tt.text != "" {
			write(t, path, tt.text)
		}
		if err := New(Config{Path: path, Logger: slog.New(slog.DiscardHandler)}).Load(t.Context()); err == nil || err.Error() != tt.want {
			t.Errorf("%s: error is %v, expected %s", tt.name, err, tt.want)
		}
	}
	write(t, path, services.CatalogFile("a 1"))
	err := New(Config{Path: path, MaxBytes: 10, Logger: slog.New(slog.DiscardHandler)}).Load(t.Context())
	if err == nil || !strings.Contains(err.Error(), "is larger than allowed") {
		t.Errorf("error is %v, expected that the file is too large", err)
	}
}

// TestRunsAfterItsGroup has a group that has read a broken file, and another time a good one, before the
// source runs.
func TestRunsAfterItsGroup(t *testing.T) {
	for text, want := range map[string]string{"services:": "away", services.CatalogFile("a 1"): "upsert a 1"} {
		path := filepath.Join(t.TempDir(), "catalog.yaml")
		write(t, path, text)
		logged := &testlog.Buffer{}
		logger := slog.New(slog.NewTextHandler(logged, nil))
		group, r := file.NewGroup(nil), registry.New()
		f := New(Config{Path: path, Logger: logger, Group: group})
		catalog := source.NewCatalog(source.Config{Registry: r, Logger: logger, Sources: []source.Entry{{Name: "file", Source: f}}})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = group.Run(ctx) })
		logged.Await(map[string]string{"away": "file is not used", "upsert a 1": "catalog applied"}[want])
		running.Go(func() { _ = catalog.Run(ctx) })
		await.Eventually(t, func() string {
			if s := catalog.Status().Sources[0]; (want == "away") != (s.Away != "") || (want != "away") != s.Complete {
				return fmt.Sprintf("the source is %+v, expected %s", s, want)
			}
			return ""
		})
		if got := published(t, r); want != "away" && got != want {
			t.Errorf("published is %s, expected %s", got, want)
		}
		cancel()
		running.Wait()
	}
}

// TestFollows edits the file in good ways and in bad ones.
func TestFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.yaml")
	synctest.Test(t, func(t *testing.T) {
		write(t, path, services.CatalogFile("a 1", "b 1"))
		f, registry, catalog, logged := follow(t, path, true)
		doubtful := func(text string) string { return strings.Replace(text, "id: i1", "id: -", 1) }
		for _, step := range []struct {
			name, text, want, trouble string
			logs                      map[string]int // lines so far
		}{
			{"unchanged", services.CatalogFile("a 1", "b 1"), "upsert a 1, upsert b 1", "", map[string]int{"services=2 added=2 changed=0 removed=0": 1}},
			{"broken", "services: [", "upsert a 1, upsert b 1", "line 1", map[string]int{"not used": 1}},
			{"empty", "", "upsert a 1, upsert b 1", "the file is empty", map[string]int{"not used": 2}},
			{"as it was", services.CatalogFile("a 1", "b 1"), "upsert a 1, upsert b 1", "", map[string]int{"applied": 3, "in order again": 1}},
			{"new", services.CatalogFile("c 1", "a 20"), "upsert a 20, upsert c 1", "", map[string]int{"services=2 added=1 changed=1 removed=1": 1, "catalog has warnings": 0}},
			{"doubtful", doubtful(services.CatalogFile("a 30")), "upsert a 30", "", map[string]int{"applied": 5, "catalog has warnings": 1}},
			{"as doubtful", doubtful(services.CatalogFile("a 400")), "upsert a 400", "", map[string]int{"applied": 6, "catalog has warnings": 1}},
			{"nothing", services.CatalogFile(), "", "", map[string]int{"services=0 added=0 changed=0 removed=1": 1, "level=ERROR": 2, "is away": 0, "is back": 0}},
		} {
			write(t, path, step.text)
			settle()
			if got := published(t, registry); got != step.want {
				t.Errorf("%s: the catalog is %s, expected %s", step.name, got, step.want)
			}
			broken := f.Err()
			if away := catalog.Status().Sources[0].Away; (step.trouble != "") != (broken != nil) || !strings.Contains(away, step.trouble) || (broken == nil) != (away == "") {
				t.Errorf("%s: the trouble is %v, the status says %q, expected %q", step.name, broken, away, step.trouble)
			}
			for text, want := range step.logs {
				if n := logged.Count(text); n != want {
					t.Errorf("%s: %d log lines have %q, expected %d:\n%s", step.name, n, text, want, logged)
				}
			}
		}
	})
}

// A file that is broken from the start publishes nothing until it is in order.
func TestBrokenAtFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.yaml")
	synctest.Test(t, func(t *testing.T) {
		f, registry, catalog, _ := follow(t, path, false)
		settle()
		if got := published(t, registry); !strings.Contains(got, "Unavailable") {
			t.Errorf("the catalog is %s, expected that it is unavailable", got)
		}
		if reason := catalog.Status().Unavailable; !strings.Contains(reason, "waiting for the first state of file") {
			t.Errorf("the catalog is unavailable for the reason %q, expected that the file is waited for", reason)
		}
		if away := catalog.Status().Sources[0].Away; !strings.Contains(away, "no such file") || f.Err() == nil {
			t.Errorf("the source is away for the reason %q (%v), expected that there is no file", away, f.Err())
		}
		write(t, path, services.CatalogFile("a 1"))
		settle()
		if got := published(t, registry); got != "upsert a 1" {
			t.Errorf("the catalog is %s, expected what the file says", got)
		}
	})
}
