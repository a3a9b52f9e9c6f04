package catalogfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// piecesOf returns what next returns for a text, of which head is in the buffer when
// reading begins. most bounds a piece.
func piecesOf(t *testing.T, text []byte, head, most int) []string {
	t.Helper()
	head = min(head, len(text))
	source := iotest.OneByteReader(bytes.NewReader(text[head:]))
	plain := newPlainText(bytes.Clone(text[:head]), source, head == len(text))
	if plain == nil {
		return nil
	}
	plain.most = most
	var got []string
	for {
		item, ok, err := plain.next()
		if err != nil {
			t.Fatal(err)
		}
		if item.size == 0 && ok {
			return append(got, fmt.Sprintf("end at line %d", item.line))
		}
		if !ok {
			return append(got, "not plain")
		}
		if (item.text == nil) != (item.size > most) || item.text != nil && len(item.text) != item.size {
			t.Errorf("piece of %d bytes has %d, and %d may be there", item.size, len(item.text), most)
		}
		got = append(got, fmt.Sprintf("%d bytes on line %d: %q", item.size, item.line, item.text))
	}
}

// checkStream compares the pieces of a text that is read byte by byte with those of the
// same text in the buffer.
func checkStream(t *testing.T, text []byte, head, most int) {
	t.Helper()
	head = max(head, 0)
	if newPlainText(text[:min(head, len(text))], nil, head >= len(text)) == nil {
		return // the services must begin in the buffer
	}
	want, got := piecesOf(t, text, len(text), most), piecesOf(t, text, head, most)
	if len(want) > 0 && want[len(want)-1] == "not plain" && len(got) > 0 && got[len(got)-1] == "not plain" {
		return // at whatever place that was found
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%q with %d bytes in the buffer, at most %d in a piece (-whole +stream):\n%s", text, head, most, diff)
	}
}

var streamTexts = append([]string{
	"services:\n- a\r\n- b\r\r\n- c\u0085\u2028\u2029--\n- d\u00c2\u0085..a.\r-.-\n",
	"services:\n- a\u2029---\n- b",
	"services: \n-0",
	"services:\n- a\n..\n.-\n--\n- b\n---\n- c",
	"services:\n  - a\n  -\n    b\n - c\n-",
}, plainTexts...)

func TestStreamSaysWhatTheWholeSays(t *testing.T) {
	for _, text := range streamTexts {
		for head := range len(text) + 1 {
			for _, most := range []int{1, 3, 8, 100} {
				checkStream(t, []byte(text), head, most)
			}
		}
	}
}

func FuzzStream(f *testing.F) {
	for _, text := range streamTexts {
		f.Add([]byte(text), 12, 5)
	}
	f.Fuzz(func(t *testing.T, text []byte, head, most int) { checkStream(t, text, head, max(most, 1)) })
}

// largeCatalog returns a catalog of more than maxPiece bytes, with the number of
// services in it.
func largeCatalog() (text []byte, services int) {
	text = []byte("# large\nservices:\n")
	for ; len(text) < maxPiece*5/4; services++ {
		text = fmt.Appendf(text, "- name: s%d\n  fqdn: s%d.example.org\n%s", services, services, strings.Repeat("# a line\n", 10_000)+rest)
	}
	return text, services
}

// A catalog that is larger than the buffer is read as a stream.
func TestLargeCatalog(t *testing.T) {
	text, services := largeCatalog()
	r := NewReader(wire.Policy{})
	for _, size := range []int64{int64(len(text)), 0} { // which may be wrong
		c, err := r.Read(iotest.HalfReader(bytes.NewReader(text)), size, never)
		if err != nil || c.Err() != nil || len(c.Services) != services {
			t.Errorf("%d services, %v, %v, expected %d", len(c.Services), err, c.Err(), services)
		}
	}
	last := bytes.LastIndex(text, []byte("port: 80"))
	wrong := bytes.Clone(text)
	copy(wrong[last:], "port: 0 ")
	line := 1 + bytes.Count(text[:last], []byte("\n"))
	want := []string{fmt.Sprintf("%d: service \"s%d\": endpoints[0].port: 0 is not in 1 to 65535", line, services-1)}
	c, err := read(r, wrong)
	if diff := cmp.Diff(want, lines(c.Problems)); err != nil || diff != "" {
		t.Errorf("%v, unexpected problems (-want +got):\n%s", err, diff)
	}
	broken := errors.New("disk error")
	if _, err := r.Read(io.MultiReader(bytes.NewReader(text), iotest.ErrReader(broken)), 0, never); !errors.Is(err, broken) {
		t.Errorf("error is %v, expected %v", err, broken)
	}
}

// endless gives the same text again and again.
type endless struct {
	text []byte
	left int // bytes
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), e.left)], e.text)
	e.left -= n
	return n, nil
}

// What is no service takes no memory, however long it is.
func TestBadStreamTakesBoundedMemory(t *testing.T) {
	const size = 8 * maxPiece
	for name, tt := range map[string]struct{ begin, again, want string }{
		"one line":         {"services:\n- ", "x", "has 67108866 bytes, the limit is 8388608"},
		"exotic breaks":    {"services:\n- ", "\r", "has 67108866 bytes, the limit is 8388608"},
		"lines":            {"services:\n- ", "xxxxxxx\n", "has 67108866 bytes, the limit is 8388608"},
		"comment":          {"#", "x", "must be JSON, or the line 'services:'"},
		"other key":        {"version: ", "x", "must be JSON, or the line 'services:'"},
		"no byte of a key": {"", "\x00", "must be JSON, or the line 'services:'"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		source := io.MultiReader(strings.NewReader(tt.begin), &endless{bytes.Repeat([]byte(tt.again), 4096), size})
		c, err := NewReader(wire.Policy{}).Read(source, size, never)
		runtime.ReadMemStats(&after)
		if err != nil || c.Err() == nil || !strings.Contains(c.Err().Error(), tt.want) {
			t.Errorf("%s: %v, %v, expected that it %s", name, err, c.Err(), tt.want)
		}
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 2*maxPiece {
			t.Errorf("%s: %d bytes were allocated, expected %d at most", name, allocated, 2*maxPiece)
		}
	}
}
