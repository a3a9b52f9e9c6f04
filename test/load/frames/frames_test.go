// Package frames bounds the stack of a query.
//
// The goroutine of a query begins with 2 KiB of stack. When it runs out of it, the
// runtime copies all of it to a stack of twice the size, which took a quarter of the
// time of a query while our own frames made it happen twice. The first time is in the
// library, as it reads the query. Of the 4 KiB after it, about 3,170 octets can be
// used; the server with the plugin errors takes 1,250 of them before us, and 1,050
// below us, to pack and send the reply.
package frames_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	_ "github.com/hamlet-federation/coredns-federation/plugin" // so that a result is not cached when the plugin changes
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const (
	module = "github.com/hamlet-federation/coredns-federation/"

	// serve is where a query enters our code, and from where its reply is written.
	serve = "plugin.(*Federation).ServeDNS"

	// maxWriting is how many octets of ours may be on the stack while the reply is
	// packed and sent.
	maxWriting = 250

	// maxDeepest is how many octets of ours may be on the stack while the answer is
	// found and made. The allocator needs some 300 below that.
	maxDeepest = 1625
)

// rare are the functions that common queries do not call, with who does.
var rare = map[string]string{
	"plugin.(*Federation).askNext":                                  "names of another plugin",
	"plugin.(*Federation).fallsThrough":                             "zones that fall through",
	"plugin.(*Federation).answerIndirect":                           "endpoints that are hosts elsewhere",
	"plugin.(*Federation).answerTargets":                            "SRV records of endpoints that are hosts",
	"plugin.trimGlue":                                               "glue that does not fit the client's buffer",
	"internal/dns/zone.(*Result).decideTargets":                     "SRV records of endpoints that are hosts",
	"internal/dns/zone.(*Result).followHosts":                       "endpoints that are hosts",
	"internal/dns/zone/internal/subtree.(*SharedName).endpointsOf":  "names that owners share",
	"internal/dns/zone.(*Result).limitShared":                       "names that owners share",
	"internal/dns/zone.(*Zone).isShadowed":                          "services below instances of services",
	"internal/dns/zone/internal/precedence.(*Tree).appendHolders":   "names that several owners have",
	"internal/dns/zone/reply.hostGlue":                              "endpoints that are hosts",
	"internal/dns/zone/reply.otherTypes":                            "SOA, NS and ANY",
	"internal/dns/zone/internal/record.NewAddress":                  "names of addresses, which few ask for: they come as glue",
	"internal/dns/zone.(*zoneOrigin).addressesOf":                   "names of name servers",
	"internal/dns/zone/internal/subtree.(*Subtree).isAboveInstance": "empty non-terminals",
}

// TestFrames compiles the plugin and adds up the frames of our own functions, on
// the deepest way down from ServeDNS.
func TestFrames(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skipf("the bounds are those of amd64, this is %s", runtime.GOARCH)
	}
	program := compile(t)
	for name := range rare {
		if program[name] == nil {
			t.Errorf("%s is not called any more, or is inlined: remove it from rare", name)
		}
	}
	if program[serve] == nil {
		t.Fatalf("there is no %s", serve)
	}
	if size := program[serve].size; size > maxWriting {
		t.Errorf("%d octets of ours are on the stack while the reply is written, at most %d may be", size, maxWriting)
	}
	size, path := program.deepest(serve, nil)
	var lines strings.Builder
	for _, name := range path {
		fmt.Fprintf(&lines, "\n%6d %s", program[name].size, name)
	}
	t.Logf("the deepest path takes %d octets, at most %d may be:%s", size, maxDeepest, lines.String())
	if size > maxDeepest {
		t.Error("it is too deep")
	}
}

// function is a compiled function of ours.
type function struct {
	size  int // of its frame, with the address that it returns to, in octets
	calls []string
}

type program map[string]*function

// deepest returns the size and the path of the largest sum of frames from a
// function downwards. Functions that call each other count once.
func (p program) deepest(name string, above []string) (size int, path []string) {
	f := p[name]
	if f == nil || rare[name] != "" || slices.Contains(above, name) {
		return 0, nil
	}
	above = append(slices.Clip(above), name)
	for _, callee := range f.calls {
		if n, below := p.deepest(callee, above); n > size {
			size, path = n, below
		}
	}
	return f.size + size, append([]string{name}, path...)
}

var (
	// A function begins with its name, the size of its arguments and that of its
	// frame but for the saved frame pointer.
	begin = regexp.MustCompile(`^(\S+) STEXT .*\blocals=0x([0-9a-f]+)`)
	call  = regexp.MustCompile(`\t(?:CALL|JMP)\t(\S+)\(SB\)`)
)

// compile returns the functions of ours that the plugin consists of, by name
// without the module.
func compile(t *testing.T) program {
	t.Helper()
	cmd := exec.Command("go", "build", "-gcflags="+module+"...=-S", module+"plugin")
	cmd.Env = append(cmd.Environ(), "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out[max(0, len(out)-1000):])
	}
	p := make(program)
	var current *function
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if m := begin.FindStringSubmatch(line); m != nil {
			locals := must.Get(strconv.ParseInt(m[2], 16, 32))(t)
			const saved = 16 // the frame pointer and the address to return to
			current = &function{size: int(locals) + saved}
			p[strings.TrimPrefix(m[1], module)] = current
		} else if m := call.FindStringSubmatch(line); m != nil && current != nil {
			current.calls = append(current.calls, strings.TrimPrefix(m[1], module))
		}
	}
	must.Do(t, lines.Err())
	return p
}
