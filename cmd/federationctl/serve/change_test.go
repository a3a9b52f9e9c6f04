package serve

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
)

// TestAdmit changes who may subscribe. While an edit is put in force, those may who could
// before it and shall after it.
func TestAdmit(t *testing.T) {
	ids := func(names ...string) (ids []federation.ID) {
		for _, name := range names {
			ids = append(ids, must.Get(federation.ParseID(name))(t))
		}
		return ids
	}
	p := &Publisher{allowed: &named[[]federation.ID]{}, server: must.Get(owner.New(owner.Config{
		Registry: registry.New(), Credentials: insecure.NewCredentials(), Logger: slog.New(slog.DiscardHandler),
	}))(t)}
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for id := range p.admitted {
			got = append(got, id.String())
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("unexpected identities (-want +got):\n%s", diff)
		}
	}
	p.admit()
	expect()
	p.allowed.take(ids("too-early"))
	expect()
	p.allowed.tell = func([]federation.ID) { p.admit() }
	p.apply(func() {
		p.config.Allow.IDs = ids("goes", "stays")
		p.admit()
		expect()
		p.allowed.take(ids("file", "old-file"))
		expect()
	})
	expect("file", "goes", "old-file", "stays")
	p.apply(func() {
		p.allowed.take(ids("file", "new-file"))
		expect("file", "goes", "stays")
		p.config.Allow.IDs = ids("new", "stays")
		p.admit()
		expect("file", "stays")
	})
	expect("file", "new", "new-file", "stays")
}

// TestChangeByAnyFile edits a configuration and a catalog file at once. Whichever of them is
// noticed first, which may be one that the edit leaves out, what is new goes on after that.
func TestChangeByAnyFile(t *testing.T) {
	dir := t.TempDir()
	files := pki.Issue(t, pki.New(t), pki.Named("owner.example"))
	version := 0
	edit := func() {
		version++
		of := filepath.Join(dir, fmt.Sprintf("..%d", version))
		must.Do(t, os.Mkdir(of, 0o700))
		write := func(name, text string) {
			must.Do(t, os.WriteFile(filepath.Join(of, name), []byte(text), 0o600))
			if version == 1 || name != "owner.yaml" {
				must.Do(t, os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
			}
		}
		catalog := fmt.Sprintf("%d.yaml", version)
		write(catalog, fmt.Sprintf("services: [{name: s%d, fqdn: a.example, endpoints: [{address: 192.0.2.20, port: 80}], instances: [{id: v1, protocol: HTTP}]}]\n", version))
		write("owner.yaml", fmt.Sprintf(`listen: "127.0.0.1:0"
identity: {files: {cert: %s, key: %s, ca: %s}}
allow: {ids: [consumer.example]}
catalogs:
- sources: [file: {path: %s}]
  exports: [{match: {tags: [t%d]}, to: ["*"]}]
`, files.Cert, files.Key, files.CA, catalog, version))
		must.Do(t, os.Symlink(filepath.Base(of), filepath.Join(dir, "..next")))
		must.Do(t, os.Rename(filepath.Join(dir, "..next"), filepath.Join(dir, "..data")))
	}
	edit()
	p := must.Get(New(t.Context(), Config{File: filepath.Join(dir, "owner.yaml"), Logger: slog.New(slog.DiscardHandler)}))(t)
	must.Run(t, func(ctx context.Context) error { return p.Run(ctx, http.NotFoundHandler(), func() {}) })
	for range 10 {
		await.Eventually(t, func() string {
			names := slices.Sorted(maps.Keys(p.Catalogs()[""].Sources.Services()))
			if want := fmt.Sprint("s", version); !slices.Equal(names, []string{want}) {
				return fmt.Sprintf("%v is published, expected %s", names, want)
			}
			return ""
		})
		edit()
	}
}
