package snapshot_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/snapshot"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

var update = flag.Bool("update", false, "rewrite testdata/version1.snapshot")

const owner = "owner.example:8008"

var lastUp = time.Date(2026, 11, 20, 12, 0, 0, 123456789, time.UTC)

func parse[T any](tb testing.TB, parse func(string) (T, error), s string) T {
	tb.Helper()
	v, err := parse(s)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// example returns a snapshot in which every field is used.
func example(tb testing.TB) *snapshot.Snapshot {
	tb.Helper()
	return &snapshot.Snapshot{
		Owner:  owner,
		LastUp: lastUp,
		Services: []packed.Service{
			packed.Of(&federation.Service{
				Name:        "web",
				FQDN:        parse(tb, federation.ParseFQDN, "web.fed.example"),
				Description: "Web \\ \" ü",
				Tags:        []string{"a", "b"},
				Labels:      []federation.Pair{{Key: "App", Value: "x"}, {Key: "b", Value: ""}},
				SANs:        []string{"spiffe://o1/web"},
				Endpoints: []federation.Endpoint{
					{Address: parse(tb, federation.ParseAddress, "192.0.2.1"), Port: 8080, Labels: []string{"eu"}},
					{Address: parse(tb, federation.ParseAddress, "2001:db8::1"), Port: 65535},
					{Address: parse(tb, federation.ParseAddress, "gw.example.net"), Port: 443, Description: "gateway"},
				},
				Instances: []federation.Instance{
					{ID: "v1", Protocol: federation.HTTP, Metadata: []federation.Pair{{Key: "PORT", Value: "80"}, {Key: "zone", Value: "eu"}}, EndpointSelector: []string{"eu"}},
					{ID: "not a label", Protocol: federation.MTLS, Description: "no name"},
				},
			}),
			packed.Of(&federation.Service{
				Name:      "draft",
				FQDN:      parse(tb, federation.ParseFQDN, "draft.fed.example"),
				Endpoints: []federation.Endpoint{{Address: parse(tb, federation.ParseAddress, "192.0.2.2"), Port: 1}},
				Instances: []federation.Instance{
					{Protocol: federation.GRPC, Unnamed: true},
					{ID: "named", Protocol: federation.HTTP},
					{Protocol: federation.TCP, Unnamed: true, Metadata: []federation.Pair{{Key: "SNI", Value: "draft"}}},
				},
			}),
		},
	}
}

// compare returns how two snapshots differ.
func compare(want, got *snapshot.Snapshot) string {
	return cmp.Diff(want, got, cmp.Comparer(func(x, y packed.Service) bool { return x == y }))
}

func encode(tb testing.TB, s *snapshot.Snapshot) []byte {
	tb.Helper()
	var b bytes.Buffer
	if err := snapshot.Encode(&b, s); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func decode(b []byte) (*snapshot.Snapshot, error) {
	return snapshot.Decode(bytes.NewReader(b), snapshot.Options{Owner: owner})
}

func TestRoundTrip(t *testing.T) {
	full := example(t)
	for name, s := range map[string]*snapshot.Snapshot{
		"full":  full,
		"empty": {Owner: owner, LastUp: lastUp},
		"saved": {Owner: owner, LastUp: lastUp, Saved: lastUp.Add(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decode(encode(t, s))
			if err != nil {
				t.Fatal(err)
			}
			if diff := compare(s, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestVersion1 reads a file in testdata: an upgrade must be able to read the snapshots
// of earlier releases.
func TestVersion1(t *testing.T) {
	const file = "testdata/version1.snapshot"
	if *update {
		if err := os.WriteFile(file, encode(t, example(t)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := snapshot.Load(file, snapshot.Options{Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	if diff := compare(example(t), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDecodeDamaged(t *testing.T) {
	good := encode(t, example(t))

	t.Run("truncated", func(t *testing.T) {
		for n := range good {
			if s, err := decode(good[:n]); !errors.Is(err, snapshot.ErrTruncated) || s != nil {
				t.Fatalf("first %d of %d bytes: %v", n, len(good), err)
			}
		}
	})
	t.Run("every bit", func(t *testing.T) {
		for i := range good {
			for bit := range 8 {
				bad := bytes.Clone(good)
				bad[i] ^= 1 << bit
				want := []error{snapshot.ErrCorrupt, snapshot.ErrTruncated} // a length that grew
				if i < 8 {
					want = []error{snapshot.ErrFormat}
				}
				s, err := decode(bad)
				if s != nil || !slices.ContainsFunc(want, func(e error) bool { return errors.Is(err, e) }) {
					t.Fatalf("bit %d of byte %d: %v", bit, i, err)
				}
			}
		}
	})
	t.Run("longer", func(t *testing.T) {
		if _, err := decode(append(bytes.Clone(good), 0)); !errors.Is(err, snapshot.ErrCorrupt) {
			t.Error(err)
		}
	})
	t.Run("records exchanged", func(t *testing.T) {
		f := split(t, good)
		f[1], f[2] = f[2], f[1]
		if _, err := decode(slices.Concat(append([][]byte{good[:preamble]}, f...)...)); !errors.Is(err, snapshot.ErrCorrupt) {
			t.Error(err)
		}
	})
	t.Run("record left out", func(t *testing.T) {
		f := split(t, good)
		if _, err := decode(slices.Concat(good[:preamble], f[0], f[2])); !errors.Is(err, snapshot.ErrCorrupt) {
			t.Error(err)
		}
	})
	t.Run("read error", func(t *testing.T) {
		for _, n := range []int{0, 5, preamble, len(good) - 1, len(good)} {
			broken := errors.New("broken disk")
			r := io.MultiReader(bytes.NewReader(good[:n]), iotest.ErrReader(broken))
			if _, err := snapshot.Decode(r, snapshot.Options{Owner: owner}); !errors.Is(err, broken) {
				t.Errorf("after %d bytes: %v", n, err)
			}
		}
	})
	t.Run("slow reader", func(t *testing.T) {
		if _, err := snapshot.Decode(iotest.OneByteReader(bytes.NewReader(good)), snapshot.Options{Owner: owner}); err != nil {
			t.Error(err)
		}
	})
}

const preamble = 8 + 4 + 4

// split returns the messages of a file, with their lengths and checksums.
func split(tb testing.TB, file []byte) (messages [][]byte) {
	tb.Helper()
	for file = file[preamble:]; len(file) > 0; {
		n := 4 + int(binary.BigEndian.Uint32(file)) + 4
		messages = append(messages, file[:n])
		file = file[n:]
	}
	return messages
}

// seal corrects the checksums of a file, as far as it has the form of a snapshot.
func seal(file []byte) []byte {
	file = bytes.Clone(file)
	table := crc32.MakeTable(crc32.Castagnoli)
	var sum uint32
	for at, n := 0, preamble-4; at+n+4 <= len(file); {
		sum = crc32.Update(sum, table, file[at:at+n])
		binary.BigEndian.PutUint32(file[at+n:], sum)
		if at += n + 4; at+4 > len(file) {
			break
		}
		n = 4 + int(binary.BigEndian.Uint32(file[at:]))
	}
	return file
}

func TestDecodeForeign(t *testing.T) {
	tests := map[string]struct {
		file func() []byte
		is   error
		want string
	}{
		"another owner": {
			file: func() []byte {
				s := example(t)
				s.Owner = "other\n"
				return encode(t, s)
			},
			is:   snapshot.ErrForeign,
			want: `snapshot of another owner; give each owner a file of its own: "other\n", not "owner.example:8008"`,
		},
		"newer version": {
			file: func() []byte {
				b := encode(t, example(t))
				b[11] = 2
				return seal(b[:40]) // whatever follows
			},
			is:   snapshot.ErrNewer,
			want: `snapshot of a newer format: its version is 2, the newest known is 1`,
		},
		"version 0": {
			file: func() []byte {
				b := encode(t, example(t))
				b[11] = 0
				return seal(b)
			},
			is:   snapshot.ErrCorrupt,
			want: `snapshot is damaged: there is no version 0`,
		},
		"another file": {
			file: func() []byte { return []byte("$ORIGIN example.org.\n") },
			is:   snapshot.ErrFormat,
			want: `not a catalog snapshot; name a file that is used for nothing else`,
		},
		"damaged service": {
			file: func() []byte {
				b := encode(t, example(t))
				b[len(b)-10] ^= 1
				return b
			},
			is:   snapshot.ErrCorrupt,
			want: `service 2 of 2: snapshot is damaged`,
		},
		"no such instance": {
			file: func() []byte {
				b := encode(t, example(t))
				unnamed := []byte{2<<3 | 2, 2, 0, 2} // field 2, packed: 0, 2
				at := bytes.LastIndex(b, unnamed)
				b[at+3] = 3
				return seal(b)
			},
			is:   snapshot.ErrCorrupt,
			want: `service 2 of 2: snapshot is damaged`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := decode(tc.file())
			if s != nil || !errors.Is(err, tc.is) || err.Error() != tc.want {
				t.Errorf("got %v\nwant %s", err, tc.want)
			}
		})
	}
}

// TestPolicy decodes a snapshot with another policy than that of its owner when it was
// saved.
func TestPolicy(t *testing.T) {
	s := example(t)
	local := s.Services[0].Unpack()
	local.Name = "local"
	local.Endpoints = []federation.Endpoint{{Address: parse(t, federation.ParseAddress, "127.0.0.1"), Port: 80}}
	s.Services = slices.Insert(s.Services, 1, packed.Of(local))
	file := encode(t, s)

	var refused []string
	o := snapshot.Options{Owner: owner, Refused: func(err *federation.InvalidError) { refused = append(refused, err.Error()) }}
	got, err := snapshot.Decode(bytes.NewReader(file), o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := compare(example(t), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(refused) != 1 || !strings.HasPrefix(refused[0], `service "local": endpoints[0].address: loopback`) {
		t.Errorf("refused %q", refused)
	}

	o = snapshot.Options{Owner: owner, Policy: wire.Policy{AllowAddresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}
	if got, err = snapshot.Decode(bytes.NewReader(file), o); err != nil || len(got.Services) != 3 {
		t.Errorf("allowed: %v, %v", got, err)
	}
}

func TestProgress(t *testing.T) {
	s := many(t, 25_000)
	var got []string
	_, err := snapshot.Decode(bytes.NewReader(encode(t, s)), snapshot.Options{
		Owner:    owner,
		Progress: func(done, total int) { got = append(got, fmt.Sprint(done, "/", total)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10000/25000", "20000/25000", "25000/25000"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// many returns a snapshot of n plain services.
func many(tb testing.TB, n int) *snapshot.Snapshot {
	tb.Helper()
	s := &snapshot.Snapshot{Owner: owner, LastUp: lastUp}
	endpoints := []federation.Endpoint{
		{Address: parse(tb, federation.ParseAddress, "192.0.2.1"), Port: 8080, Labels: []string{"eu"}},
		{Address: parse(tb, federation.ParseAddress, "2001:db8::1"), Port: 8443},
	}
	instances := []federation.Instance{
		{ID: "v1", Protocol: federation.HTTP, Metadata: []federation.Pair{{Key: "PORT", Value: "80"}}},
		{ID: "v2", Protocol: federation.HTTPS},
	}
	for i := range n {
		s.Services = append(s.Services, packed.Of(&federation.Service{
			Name:      fmt.Sprintf("service-%d", i),
			FQDN:      parse(tb, federation.ParseFQDN, fmt.Sprintf("s%d.fed.example", i)),
			Labels:    []federation.Pair{{Key: "app", Value: "x"}},
			Endpoints: endpoints,
			Instances: instances,
		}))
	}
	return s
}

// TestHostileLengths decodes lengths with no data behind them, which must not take
// memory.
func TestHostileLengths(t *testing.T) {
	good := encode(t, example(t))
	length := func(at int, n uint32) []byte {
		b := bytes.Clone(good)
		binary.BigEndian.PutUint32(b[at:], n)
		return b
	}
	first := preamble + len(split(t, good)[0])
	for name, tc := range map[string]struct {
		file []byte
		want error
	}{
		"header within the limit": {length(preamble, 64<<10), snapshot.ErrTruncated},
		"header beyond the limit": {length(preamble, 64<<10+1), snapshot.ErrCorrupt},
		"record within the limit": {length(first, 1<<30), snapshot.ErrTruncated},
		"record beyond the limit": {length(first, 1<<30+1), snapshot.ErrCorrupt},
		"greatest":                {length(first, 1<<32-1), snapshot.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := decode(tc.file)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 {
				t.Errorf("took %d bytes of memory", n)
			}
		})
	}
}

func TestEncodeFails(t *testing.T) {
	t.Run("writer", func(t *testing.T) {
		for _, s := range []*snapshot.Snapshot{example(t), many(t, 10_000)} {
			if err := snapshot.Encode(full{}, s); !errors.Is(err, errFull) {
				t.Errorf("%d services: %v", len(s.Services), err)
			}
		}
	})
	t.Run("owner too long", func(t *testing.T) {
		err := snapshot.Encode(io.Discard, &snapshot.Snapshot{Owner: strings.Repeat("x", 64<<10)})
		if err == nil || !strings.Contains(err.Error(), "larger than a snapshot takes") {
			t.Error(err)
		}
	})
}

var errFull = errors.New("disk is full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// FuzzDecode decodes any bytes, and the same with correct checksums.
func FuzzDecode(f *testing.F) {
	good := encode(f, example(f))
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(good[:preamble])
	f.Add(encode(f, &snapshot.Snapshot{Owner: owner}))
	f.Add([]byte{})
	typed := []error{snapshot.ErrFormat, snapshot.ErrNewer, snapshot.ErrForeign, snapshot.ErrTruncated, snapshot.ErrCorrupt}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, file := range [][]byte{data, seal(data)} {
			refused := 0
			s, err := snapshot.Decode(bytes.NewReader(file), snapshot.Options{
				Owner:   owner,
				Refused: func(*federation.InvalidError) { refused++ },
			})
			if err != nil {
				if s != nil || !slices.ContainsFunc(typed, func(e error) bool { return errors.Is(err, e) }) {
					t.Fatalf("snapshot %v with error %v", s, err)
				}
				continue
			}
			// A snapshot that was decoded can be encoded and decoded again.
			again, err := decode(encode(t, s))
			if err != nil {
				t.Fatal(err)
			}
			if diff := compare(s, again); diff != "" {
				t.Fatalf("(-first +second):\n%s", diff)
			}
		}
	})
}
