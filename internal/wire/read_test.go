package wire_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// accepted is a message with what is read from it.
type accepted[M, V any] struct {
	name    string
	message M
	want    V
}

// refused is a message that breaks a rule.
type refused[M any] struct {
	name    string
	message M
	reason  federation.Reason
	text    string // of the error
}

// expectRead reads messages that are accepted, and others that are refused.
func expectRead[M, V any](t *testing.T, read func(M) (V, error), good []accepted[M, V], bad []refused[M]) {
	t.Helper()
	for _, tt := range good {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, must.Get(read(tt.message))(t), comparers); diff != "" {
				t.Errorf("read (-want +got):\n%s", diff)
			}
		})
	}
	for _, tt := range bad {
		t.Run(tt.name, func(t *testing.T) {
			_, err := read(tt.message)
			expectInvalid(t, err, tt.reason, tt.text)
		})
	}
}

// expectGolden encodes a message, and reads what was encoded.
func expectGolden[M proto.Message, V any](t *testing.T, name string, golden []byte, m M, read func(M) (V, error), want V) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		expectBytes(t, m, golden)
		again := m.ProtoReflect().New().Interface()
		must.Do(t, proto.Unmarshal(golden, again))
		if diff := cmp.Diff(want, must.Get(read(again.(M)))(t), comparers); diff != "" { //nolint:forcetypeassert // of the same type
			t.Errorf("read (-want +got):\n%s", diff)
		}
	})
}

// unmarked returns what a stream without the header of marks says by an event.
func unmarked(event wire.Event) wire.Event {
	if event.Operation == wire.End {
		event.Operation = wire.Alive
	}
	return event
}

// hostileBytes is the size of messages that are filled with as many entries as fit.
const hostileBytes = 4 << 20

func fill(entry []byte) []byte { return bytes.Repeat(entry, hostileBytes/len(entry)) }

// expectCheap decodes a message of that size. Strings are copied once to be decoded and once
// to be named.
func expectCheap(t *testing.T, name, text string, decode func() (wire.Event, error)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := decode()
		runtime.ReadMemStats(&after)
		if err == nil || err.Error() != text {
			t.Errorf("error is %v, want %s", err, text)
		}
		if spent := after.TotalAlloc - before.TotalAlloc; spent > 3*hostileBytes {
			t.Errorf("%d MiB were allocated for a message of 4 MiB", spent>>20)
		}
	})
}
