package snapshot_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	snapshotpb "github.com/hamlet-federation/coredns-federation/proto/snapshot/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const owner = "owner.example:8008"

var lastUp = time.Date(2026, 11, 20, 12, 0, 0, 123456789, time.UTC)

func parse[T any](tb testing.TB, parse func(string) (T, error), s string) T {
	tb.Helper()
	v := must.Get(parse(s))(tb)
	return v
}

// example returns a snapshot in which every field is used.
func example(tb testing.TB) *snapshot.Snapshot {
	tb.Helper()
	return &snapshot.Snapshot{
		Owner:  owner,
		LastUp: lastUp,
		Services: []packed.Service{
			packed.PackService(&federation.Service{
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
			packed.PackService(&federation.Service{
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
	return cmp.Diff(want, got, cmp.Comparer(func(x, y packed.Service) bool { return x == y }), cmpopts.EquateEmpty())
}

func encode(tb testing.TB, s *snapshot.Snapshot) []byte {
	tb.Helper()
	var b bytes.Buffer
	must.Do(tb, snapshot.Encode(&b, s))
	return b.Bytes()
}

func decode(b []byte) (*snapshot.Snapshot, error) {
	return snapshot.Decode(bytes.NewReader(b), int64(len(b)), snapshot.ReadOptions{Owner: owner})
}

func TestRoundTrip(t *testing.T) {
	full := example(t)
	for name, s := range map[string]*snapshot.Snapshot{
		"full":   full,
		"empty":  {Owner: owner, LastUp: lastUp},
		"admits": {Owner: owner, LastUp: lastUp, Services: full.Services, Admits: "7f3a"},
		"saved":  {Owner: owner, LastUp: lastUp, Saved: lastUp.Add(time.Hour)},
		"long":   {Owner: owner, LastUp: lastUp, Services: []packed.Service{full.Services[0], long(t), full.Services[1]}},
	} {
		t.Run(name, func(t *testing.T) {
			got := must.Get(decode(encode(t, s)))(t)
			if diff := compare(s, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// long returns a service that is longer than the buffers of a reader.
func long(tb testing.TB) packed.Service {
	tb.Helper()
	s := &federation.Service{Name: "long", FQDN: parse(tb, federation.ParseFQDN, "long.fed.example"), Instances: []federation.Instance{{ID: "v1", Protocol: federation.TCP}}}
	for i := range limits.Endpoints {
		s.Endpoints = append(s.Endpoints, federation.Endpoint{
			Address: parse(tb, federation.ParseAddress, "192.0.2.1"), Port: uint16(i + 1), Description: strings.Repeat("x", 2_000),
		})
	}
	return packed.PackService(s)
}

// sealed returns content as a file with the right checksum.
func sealed(content ...[]byte) []byte {
	file := slices.Concat([]byte("fedsnap\x04"), slices.Concat(content...))
	return binary.LittleEndian.AppendUint32(file, crc32.Checksum(file, crc32.MakeTable(crc32.Castagnoli)))
}

// headOf returns a head as it stands in a file.
func headOf(tb testing.TB, edit func(*snapshotpb.Head)) []byte {
	tb.Helper()
	head := &snapshotpb.Head{Owner: owner, LastUp: timestamppb.New(lastUp), Saved: timestamppb.New(lastUp), Services: 1}
	edit(head)
	return protowire.AppendBytes(nil, must.Get(proto.Marshal(head))(tb))
}

// wantNone decodes a file of which nothing is used, and nothing is handed on.
func wantNone(t *testing.T, what string, file []byte, is error) {
	t.Helper()
	s, err := snapshot.Decode(bytes.NewReader(file), int64(len(file)), snapshot.ReadOptions{Owner: owner, Part: func(*snapshot.Snapshot) bool {
		t.Errorf("%s: a part was handed on", what)
		return true
	}})
	if s != nil || !errors.Is(err, is) {
		t.Errorf("%s: got %v, %v", what, s, err)
	}
}

// A file that is damaged anywhere counts as none.
func TestDamage(t *testing.T) {
	good := encode(t, many(t, 1_100))
	for i := range good {
		if i > 80 && len(good)-i > 20 && i%997 != 0 {
			continue // one of many that are alike
		}
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		is := snapshot.ErrCorrupt
		if i < 7 {
			is = snapshot.ErrFormat
		} else if i == 7 {
			is = snapshot.ErrVersion
		}
		wantNone(t, fmt.Sprintf("octet %d", i), bad, is)
		wantNone(t, fmt.Sprintf("first %d octets", i), good[:i], snapshot.ErrCorrupt)
	}
	wantNone(t, "more", append(bytes.Clone(good), 0), snapshot.ErrCorrupt)
	wantNone(t, "hole", slices.Concat(good[:5_000], make([]byte, 5_000), good[10_000:]), snapshot.ErrCorrupt)
}

// A disk that fails is no damage to the file: at the first reading, and at the second.
func TestReadError(t *testing.T) {
	broken := errors.New("broken disk")
	s := many(t, 1_100)
	good := encode(t, s)
	for _, at := range []int{0, 5, 100, len(good) / 2, len(good) - 5, len(good) - 1} {
		for _, after := range []int{0, len(good)} { // octets that can be read before
			handed := 0
			_, err := snapshot.Decode(&failing{Reader: bytes.NewReader(good), at: int64(at), after: after, err: broken}, int64(len(good)),
				snapshot.ReadOptions{Owner: owner, Part: func(s *snapshot.Snapshot) bool {
					handed += len(s.Services)
					return true
				}})
			if again := after > 0 && at >= 8 && at < len(good)-4; err != nil != (after == 0 || again) || err != nil && !errors.Is(err, broken) || !again && err != nil && handed > 0 {
				t.Errorf("octet %d after %d: %v, with %d services", at, after, err, handed)
			}
		}
	}
}

// failing cannot read one octet any more when it has read some.
type failing struct {
	*bytes.Reader

	at    int64
	after int
	err   error
	read  int
}

func (f *failing) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.Reader.ReadAt(p, off)
	if f.at >= off && f.at < off+int64(n) && f.read >= f.after {
		return int(f.at - off), f.err
	}
	f.read += n
	return n, err
}

// A file with the right checksum may still say what cannot be. It takes no memory for what it
// only claims.
func TestContradictoryFile(t *testing.T) {
	good := headOf(t, func(*snapshotpb.Head) {})
	whole := protowire.AppendString(nil, example(t).Services[1].Octets())
	if _, err := decode(sealed(good, whole)); err != nil {
		t.Fatal(err)
	}
	unnamed := bytes.Clone(whole)
	unnamed[bytes.LastIndex(whole, []byte{2<<3 | 2, 2, 0, 2})+3] = 3 // field 2, packed: 0, 2
	for name, content := range map[string][]byte{
		"nothing":             {},
		"no head":             {3, 0xff, 0xff, 0xff},
		"last up":             headOf(t, func(h *snapshotpb.Head) { h.LastUp.Nanos = -1 }),
		"saved":               headOf(t, func(h *snapshotpb.Head) { h.Saved = &timestamppb.Timestamp{Seconds: math.MaxInt64} }),
		"not saved":           headOf(t, func(h *snapshotpb.Head) { h.Saved = nil }),
		"no service":          good,
		"two services":        slices.Concat(good, whole, whole),
		"no such instance":    slices.Concat(good, unnamed),
		"no record":           slices.Concat(good, protowire.AppendString(nil, "\xff")),
		"many services":       slices.Concat(headOf(t, func(h *snapshotpb.Head) { h.Services = math.MaxInt32 }), whole),
		"a head of 1 GiB":     slices.Concat([]byte{0x80, 0x80, 0x80, 0x80, 4}, good, whole),
		"a service of 1 GiB":  slices.Concat(good, []byte{0x80, 0x80, 0x80, 0x80, 4}, whole),
		"a service of 2^64-1": slices.Concat(good, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, whole),
		"no length":           slices.Concat(good, bytes.Repeat([]byte{0xff}, 11), whole),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s, err := decode(sealed(content))
			runtime.ReadMemStats(&after)
			if s != nil || !errors.Is(err, snapshot.ErrCorrupt) {
				t.Errorf("got %v, %v", s, err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 {
				t.Errorf("took %d bytes of memory", n)
			}
		})
	}
}

func TestDecodeForeign(t *testing.T) {
	foreign := example(t)
	foreign.Owner = "other\n"
	for name, tc := range map[string]struct {
		file []byte
		is   error
		want string
	}{
		"another owner": {
			encode(t, foreign), snapshot.ErrForeign,
			`snapshot of another owner; give each owner a file of its own: "other\n", not "owner.example:8008"`,
		},
		"earlier format": {
			[]byte("fedsnap\x03\x00\x00\x00\x01"), snapshot.ErrVersion,
			`snapshot of another version of the format; the owner sends its catalog again`,
		},
		"another file": {
			[]byte("$ORIGIN example.org.\n"), snapshot.ErrFormat,
			`not a catalog snapshot; name a file that is used for nothing else`,
		},
		"large file": {make([]byte, 1<<20), snapshot.ErrFormat, `not a catalog snapshot; name a file that is used for nothing else`},
		"empty file": {nil, snapshot.ErrCorrupt, `snapshot is damaged; the owner sends its catalog again`},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := decode(tc.file)
			if s != nil || !errors.Is(err, tc.is) || err.Error() != tc.want {
				t.Errorf("got %v\nwant %s", err, tc.want)
			}
		})
	}
}

// Somebody waits for what is read, and gives up when nothing is: also while the checksum is
// verified.
func TestProgress(t *testing.T) {
	var all []string
	file := encode(t, many(t, 1_200))
	_ = must.Get(snapshot.Decode(bytes.NewReader(file), int64(len(file)), snapshot.ReadOptions{
		Owner:    owner,
		Progress: func(done, total int) { all = append(all, fmt.Sprint(done, "/", total)) },
		Part:     func(*snapshot.Snapshot) bool { return true },
	}))(t)
	if diff := cmp.Diff([]string{"0/0", "512/1200", "1200/1200"}, slices.Compact(all)); diff != "" {
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
		s.Services = append(s.Services, packed.PackService(&federation.Service{
			Name:      fmt.Sprintf("service-%d", i),
			FQDN:      parse(tb, federation.ParseFQDN, fmt.Sprintf("s%d.fed.example", i)),
			Labels:    []federation.Pair{{Key: "app", Value: "x"}},
			Endpoints: endpoints,
			Instances: instances,
		}))
	}
	return s
}

func TestEncodeFails(t *testing.T) {
	for _, s := range []*snapshot.Snapshot{example(t), many(t, 10_000)} { // which the buffer has room for, and not
		if err := snapshot.Encode(full{}, s); !errors.Is(err, errFull) {
			t.Errorf("%d services: %v", len(s.Services), err)
		}
	}
}

var errFull = errors.New("disk is full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// FuzzDecode decodes any bytes, as a file and as the content of one with the right checksum.
func FuzzDecode(f *testing.F) {
	good := encode(f, example(f))
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(good[8 : len(good)-4])
	f.Add([]byte("fedsnap\x04"))
	f.Add([]byte{})
	typed := []error{snapshot.ErrFormat, snapshot.ErrVersion, snapshot.ErrForeign, snapshot.ErrCorrupt}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, file := range [][]byte{data, sealed(data), sealed(headOf(t, func(*snapshotpb.Head) {}), data)} {
			s, err := decode(file)
			if err != nil && !slices.ContainsFunc(typed, func(e error) bool { return errors.Is(err, e) }) {
				t.Fatalf("error %v", err)
			}
			if s == nil {
				continue
			}
			// A snapshot that was decoded can be encoded and decoded again.
			again := must.Get(decode(encode(t, s)))(t)
			if diff := compare(s, again); diff != "" {
				t.Fatalf("(-first +second):\n%s", diff)
			}
		}
	})
}
