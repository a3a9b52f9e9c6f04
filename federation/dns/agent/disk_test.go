package agent_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/consumer/snapshot"
	"github.com/hamlet-federation/coredns-federation/federation/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// disk is a store that hangs in some of its calls until it is released.
type disk struct {
	check, load, save bool // hang
	released          chan struct{}
}

func (d *disk) hang(hangs bool) {
	if hangs {
		<-d.released
	}
}

func (d *disk) Check(path string) (string, error) {
	d.hang(d.check)
	return snapshot.Check(path)
}

func (d *disk) Load(path string, o snapshot.Options) (*snapshot.Snapshot, error) {
	d.hang(d.load)
	return snapshot.Load(path, o)
}

func (d *disk) Save(path string, s *snapshot.Snapshot) error {
	d.hang(d.save)
	return snapshot.Save(path, s)
}

func (*disk) SetAside(path string) (string, error) { return snapshot.SetAside(path) }

// A disk that hangs keeps nobody from the owner, from the status, or from the end
// of the process.
func TestDiskHangs(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		disk disk
		log  string
	}{
		"load":          {disk{load: true}, `msg="catalog cannot be restored"`},
		"save":          {disk{save: true}, `msg="catalog may not be saved: the disk hangs"`},
		"load and save": {disk{load: true, save: true}, `msg="catalog may not be saved: the disk hangs"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				d := tc.disk
				d.released = make(chan struct{})
				w.store = &d
				w.start()
				w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
				began := time.Now()
				file := filepath.Join(t.TempDir(), "catalog")
				b := w.attach(w.block(1, w.kept(file)))
				at := func(what string) {
					t.Helper()
					if took := time.Since(began); took > 0 {
						t.Errorf("%s took %v", what, took)
					}
					began = time.Now()
				}
				at("attach")
				for lookAt(b, "web.fed.example", time.Now()) != "192.0.2.1 60" {
					if time.Since(began) > 10*time.Second {
						t.Fatal("the owner is not contacted")
					}
					w.agent.Owners(time.Now())
					w.agent.Ready()
					time.Sleep(time.Second)
				}
				time.Sleep(time.Minute)
				began = time.Now()
				if got := w.state(); got != "synced 1/0" || !b.Ready() {
					t.Errorf("owner is %s", got)
				}
				c := w.kept(file)
				c.Rules.Retention = time.Minute // another keeper of the same file
				next := w.attach(w.block(2, c))
				at("attach of a reload")
				w.agent.Detach(b)
				if took := time.Since(began); took > 6*time.Second {
					t.Errorf("detach of a reload took %v", took)
				}
				began = time.Now()
				w.agent.Detach(next)
				if took := time.Since(began); took > 6*time.Second {
					t.Errorf("detach took %v", took)
				}
				if !strings.Contains(strings.Join(w.log.Lines(), ""), tc.log) {
					t.Errorf("the disk is not reported:\n%s", strings.Join(w.log.Lines(), ""))
				}
				failures := w.counted("persist " + ownerAddress)
				if close(d.released); failures == 0 {
					t.Error("the disk is not counted")
				}
				synctest.Wait()
				if n := w.counted("persist " + ownerAddress); n != failures {
					t.Errorf("%d more failures after the owner was forgotten", n-failures)
				}
			})
		})
	}
}

// Where no catalog can be kept, the block is refused, and nothing is changed.
func TestPersistIsChecked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	must.Do(t, syscall.Mkfifo(fifo, 0o600))
	// A device would do as well, but root would replace one that has become a plain file.
	socket := must.Get(new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(dir, "socket")))(t)
	defer socket.Close()
	for name, tc := range map[string]struct {
		path string
		want error
		text string
	}{
		"missing directory":  {filepath.Join(dir, "missing", "catalog"), os.ErrNotExist, ""},
		"directory":          {dir, file.ErrNotRegular, ""},
		"FIFO":               {fifo, file.ErrNotRegular, ""},
		"socket":             {socket.Addr().String(), file.ErrNotRegular, ""},
		"link to a key file": {link, nil, "is a file of tls and would be written over"},
		"disk that hangs":    {filepath.Join(dir, "catalog"), nil, "no answer from the disk"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				d := &disk{check: name == "disk that hangs", released: make(chan struct{})}
				w.store = d
				w.start()
				if tc.path == link {
					must.Do(t, os.Symlink(w.files.Key, link))
				}
				_, err := w.agent.Attach(w.block(1, w.kept(tc.path)))
				var ownerError *agent.OwnerError
				if !errors.As(err, &ownerError) || tc.want != nil && !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) ||
					!strings.Contains(err.Error(), "persist: ") {
					t.Errorf("error is %v", err)
				}
				if all := w.agent.Owners(time.Now()); len(all) > 0 {
					t.Errorf("status is %v", all)
				}
				close(d.released)
			})
		})
	}
}

// Paths that lead to one file are one file.
func TestPathsToOneFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Do(t, errors.Join(os.Mkdir(filepath.Join(dir, "p"), 0o700), os.Symlink("p/x", filepath.Join(dir, "link")), os.Symlink("p", filepath.Join(dir, "q"))))
	for _, path := range []string{"p/../p/x", "p/./x", "link", "q/x", "q/../link"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			other := w.owner("other.example:8008")
			other.Subscription.File = dir + "/" + path
			_, err := w.agent.Attach(w.block(1, w.kept(filepath.Join(dir, "p/x")), other))
			if err == nil || !strings.Contains(err.Error(), "is the file of owner "+ownerAddress) {
				t.Errorf("%s: error is %v", path, err)
			}
		})
	}
}
