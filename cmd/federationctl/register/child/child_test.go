//go:build linux

package child

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// role says, in the environment, what the binary of this test does in place of tests.
const role = "CHILD_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "parent":
		signals, _ := Signals()
		c, err := Start(os.Args[1:])
		if err != nil {
			panic(err) // TestStartErrors has these
		}
		for {
			select {
			case s := <-signals:
				c.Signal(s)
			case <-c.Done():
				os.Exit(c.Wait())
			}
		}
	case "init":
		if os.Getpid() == 1 {
			code, err := Init()
			if err != nil {
				panic(err)
			}
			os.Exit(code)
		}
		os.Setenv(role, "parent")
		path, err := os.Executable()
		if err != nil {
			panic(err)
		}
		panic(syscall.Exec(path, os.Args, os.Environ()))
	}
}

// self returns this binary in a role, with arguments.
func self(t *testing.T, as string, args ...string) *exec.Cmd {
	t.Helper()
	path := must.Get(os.Executable())(t)
	command := exec.CommandContext(t.Context(), path, args...)
	command.Env = append(os.Environ(), role+"="+as)
	command.Stderr = os.Stderr
	return command
}

// code runs a command to its end and returns its exit code.
func code(t *testing.T, command *exec.Cmd) int {
	t.Helper()
	if err := command.Run(); command.ProcessState == nil {
		t.Fatal(err)
	}
	return command.ProcessState.ExitCode()
}

func TestCodes(t *testing.T) {
	for line, want := range map[string]int{
		"exit 0":              0,
		"exit 7":              7,
		"kill -TERM $$":       128 + 15,
		"kill -KILL $$":       128 + 9,
		"kill -PIPE $$; true": 128 + 13, // although this process handles it
	} {
		if got := code(t, self(t, "parent", "sh", "-c", line)); got != want {
			t.Errorf("%s: exit code %d, want %d", line, got, want)
		}
	}
}

func TestStartErrors(t *testing.T) {
	for name, want := range map[string]int{"no-such-command": 127, "/no/such/command": 127, "/dev/null": 126} {
		if _, err := Start([]string{name}); err == nil || Code(err) != want {
			t.Errorf("%s: %v has exit code %d", name, err, Code(err))
		}
	}
}

// The streams are those of the parent, and the process group is another one.
func TestStreams(t *testing.T) {
	command := self(t, "parent", "sh", "-c", "cat; ps -o pgid= -p $$ | tr -d ' '; echo $$")
	command.Stdin = strings.NewReader("in\n")
	var out bytes.Buffer
	command.Stdout = &out
	if got := code(t, command); got != 0 {
		t.Fatalf("exit code %d", got)
	}
	lines := strings.Fields(out.String())
	if len(lines) != 3 || lines[0] != "in" || lines[1] != lines[2] {
		t.Errorf("it writes %q", out.String())
	}
}

// Signals are passed on, and those that nohup has ignored stay so.
func TestSignals(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2} {
		if signal.Ignored(s) { // as under nohup: a shell cannot trap it
			t.Logf("%v is ignored here, and not tried", s)
			continue
		}
		command := self(t, "parent", "sh", "-c", "trap 'exit 42' "+strconv.Itoa(int(s))+"; echo ready; while :; do sleep 0.01; done")
		command.Stdout = nil
		out := must.Get(command.StdoutPipe())(t)
		must.Do(t, command.Start())
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Fatalf("%v: it writes %q, %v", s, line, err)
		}
		must.Do(t, command.Process.Signal(s))
		_ = command.Wait()
		if got := command.ProcessState.ExitCode(); got != 42 {
			t.Errorf("%v: exit code %d", s, got)
		}
	}
	command := exec.CommandContext(t.Context(), "sh", "-c", `trap '' HUP; exec "$0" sh -c 'kill -HUP $$; exit 3'`, self(t, "").Path)
	command.Env = append(os.Environ(), role+"=parent")
	if got := code(t, command); got != 3 {
		t.Errorf("with nohup: exit code %d", got)
	}
}

// As the first process it reaps what has lost its parent, passes signals on, and ends
// with the other one.
func TestInit(t *testing.T) {
	first := func(line string) *exec.Cmd {
		command := self(t, "init", "sh", "-c", line)
		command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
		return command
	}
	if err := first("exit 0").Run(); err != nil {
		t.Skipf("no process namespace can be made: %v", err)
	}
	// A hundred orphans, of which none may be left as a zombie.
	command := first(`mount --make-rprivate / && mount -t proc proc /proc || exit 77
		for i in $(seq 100); do (sh -c 'sleep 0.01' &) ; done
		echo begun
		until [ $(cat /proc/[0-9]*/status 2>/dev/null | grep -c '^PPid:[[:space:]]1$') = 1 ]; do sleep 0.02; done
		echo none left
		trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done`)
	out := must.Get(command.StdoutPipe())(t)
	must.Do(t, command.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == "ready" {
			if err := command.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	_ = command.Wait()
	if got := command.ProcessState.ExitCode(); got == 77 {
		t.Skip("/proc cannot be mounted")
	} else if got != 9 {
		t.Errorf("exit code %d", got)
	}
	if got := code(t, first("kill -KILL $$")); got != 128+9 {
		t.Errorf("a command that is killed: exit code %d", got)
	}
}
