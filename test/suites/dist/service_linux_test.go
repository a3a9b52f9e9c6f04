package dist

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// service is a unit that runs as systemd would run it, as far as a root without
// systemd has it: with its command, user, folders and capabilities.
type service struct {
	*root
	unit   map[string]string
	cmd    *exec.Cmd
	socket *net.UnixConn // it tells its state there
	log    *testlog.Buffer
}

// directives returns the last value of each directive of an installed unit.
func (r *root) directives(t *testing.T, name string) map[string]string {
	t.Helper()
	unit := make(map[string]string)
	lines := bufio.NewScanner(strings.NewReader(r.read(t, "/usr/lib/systemd/system/"+name+".service")))
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), "="); ok && !strings.HasPrefix(key, "#") {
			unit[key] = value
		}
	}
	return unit
}

// launch starts the command of a unit.
func (r *root) launch(t *testing.T, name string) *service {
	t.Helper()
	s := &service{root: r, unit: r.directives(t, name), log: new(testlog.Buffer)}
	if s.unit["Type"] != "notify" {
		t.Fatalf("the type of %s is %q, want notify", name, s.unit["Type"])
	}
	user := s.unit["User"]
	r.in(t, "install", "--directory", "--owner="+user, "--group="+s.unit["Group"], "--mode="+s.unit["StateDirectoryMode"], "/var/lib/"+s.unit["StateDirectory"])

	// The path of a socket is short; inside it is another one.
	folder, err := os.MkdirTemp(r.folder+"/run", "n") //nolint:usetesting // it must be in the root
	must.Do(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	address := &net.UnixAddr{Name: filepath.Join(folder, "s"), Net: "unixgram"}
	s.socket = must.Get(net.ListenUnixgram(address.Net, address))(t)
	t.Cleanup(func() { s.socket.Close() })
	for path, mode := range map[string]os.FileMode{folder: 0o755, address.Name: 0o666} {
		must.Do(t, os.Chmod(path, mode))
	}

	capabilities := s.capabilities()
	args := []string{
		"--net=" + r.network, "chroot", r.folder, "setpriv", "--reuid=" + user, "--regid=" + s.unit["Group"], "--init-groups", "--no-new-privs",
	}
	if capabilities == "" {
		args = append(args, "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")
	} else {
		args = append(args, "--bounding-set=-all,+"+capabilities, "--inh-caps=-all,+"+capabilities, "--ambient-caps=-all,+"+capabilities)
	}
	args = append(args, "env", "-i", "--chdir="+s.unit["WorkingDirectory"], "NOTIFY_SOCKET="+strings.TrimPrefix(address.Name, r.folder))
	// A process takes the place of the other, so the last one is the child.
	s.cmd = exec.CommandContext(t.Context(), "nsenter", append(args, strings.Fields(s.unit["ExecStart"])...)...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.WaitDelay = patience
	must.Do(t, s.cmd.Start())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s", s.unit["ExecStart"], s.log)
		}
	})
	return s
}

// capabilities returns those of the unit, which are one at most, without the prefix.
func (s *service) capabilities() string {
	return strings.ToLower(strings.TrimPrefix(s.unit["AmbientCapabilities"], "CAP_"))
}

// refused starts a unit that cannot start: it ends with an error, and a text in what it
// says, and never was ready.
func (r *root) refused(t *testing.T, name, want string) {
	t.Helper()
	s := r.launch(t, name)
	bound := time.AfterFunc(patience, func() { _ = s.cmd.Process.Kill() })
	defer bound.Stop()
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() <= 0 || !strings.Contains(s.log.String(), want) {
		t.Errorf("%s ends with %v and\n%s, want an error with %q", name, err, s.log, want)
	}
	if told := s.last(t); told != "" {
		t.Errorf("%s told %q, and does not run", name, told)
	}
}

// start starts a unit, and returns when it is ready.
func (r *root) start(t *testing.T, name string) *service {
	t.Helper()
	s := r.launch(t, name)
	if told := s.told(t); told != "READY=1" {
		t.Fatalf("%s told %q first, want READY=1", name, told)
	}

	status := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid)))(t)
	id := strings.TrimSpace(r.in(t, "id", "--user", s.unit["User"]))
	effective := "0000000000000000"
	if s.capabilities() != "" {
		effective = "0000000000000400" // CAP_NET_BIND_SERVICE, see capability.h
	}
	for _, want := range []string{"\nUid:\t" + id + "\t" + id + "\t" + id + "\t" + id + "\n", "\nCapEff:\t" + effective + "\n", "\nCapBnd:\t" + effective + "\n"} {
		if id == "0" || !strings.Contains(string(status), want) {
			t.Errorf("the process of %s has not %q:\n%s", name, want, status)
		}
	}
	return s
}

// told returns the next state that the service tells.
func (s *service) told(t *testing.T) string {
	t.Helper()
	must.Do(t, s.socket.SetReadDeadline(time.Now().Add(patience)))
	state := make([]byte, 100)
	n, err := s.socket.Read(state)
	if err != nil {
		_ = s.cmd.Cancel() // it may have ended already
		_ = s.cmd.Wait()
		t.Fatalf("%s: %v\n%s", s.unit["ExecStart"], err, s.log)
	}
	return string(state[:n])
}

// reload runs what the unit says for it.
func (s *service) reload(t *testing.T) {
	t.Helper()
	command, ok := strings.CutPrefix(s.unit["ExecReload"], "/bin/sh -c ")
	if !ok {
		t.Fatalf("ExecReload is %q", s.unit["ExecReload"])
	}
	// The root has the processes of the machine.
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", strings.Trim(command, "'"))
	cmd.Env = []string{fmt.Sprintf("MAINPID=%d", s.cmd.Process.Pid)}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("reload: %v\n%s", err, out)
	}
}

// stop ends the service as systemd does, and returns what it told then, if anything.
func (s *service) stop(t *testing.T) (told string) {
	t.Helper()
	must.Do(t, s.cmd.Process.Signal(syscall.SIGTERM))
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("%s: %v\n%s", s.unit["ExecStart"], err, s.log)
	}
	return s.last(t)
}

// last returns what a service that has ended told last, if anything.
func (s *service) last(t *testing.T) string {
	t.Helper()
	must.Do(t, s.socket.SetReadDeadline(time.Now().Add(time.Second)))
	state := make([]byte, 100)
	n, _ := s.socket.Read(state) // what it has told is there already
	return string(state[:n])
}
