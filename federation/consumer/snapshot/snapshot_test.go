package snapshot_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/snapshot"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
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
	must.Do(tb, snapshot.Encode(&b, s))
	return b.Bytes()
}

func decode(b []byte) (*snapshot.Snapshot, error) {
	return snapshot.Decode(bytes.NewReader(b), int64(len(b)), snapshot.Options{Owner: owner})
}

func TestRoundTrip(t *testing.T) {
	full := example(t)
	for name, s := range map[string]*snapshot.Snapshot{
		"full":  full,
		"empty": {Owner: owner, LastUp: lastUp},
		"scope": {Owner: owner, LastUp: lastUp, Services: full.Services, Scope: "only 7f3a"},
		"IDs":   {Owner: owner, LastUp: lastUp, Services: full.Services, IDs: map[string]string{"web": "7f3a"}},
		"none":  {Owner: owner, LastUp: lastUp, Services: full.Services, IDs: map[string]string{}},
		"saved": {Owner: owner, LastUp: lastUp, Saved: lastUp.Add(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			got := must.Get(decode(encode(t, s)))(t)
			if diff := compare(s, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// split returns the parts of a file, each with its mark.
func split(file []byte) (parts [][]byte) {
	mark := []byte("fedsnap\x02")
	for _, part := range bytes.Split(file, mark)[1:] {
		parts = append(parts, slices.Concat(mark, part))
	}
	return parts
}

// framed returns the octets of a Part as a part of a file, with their checksum.
func framed(tb testing.TB, part []byte) []byte {
	tb.Helper()
	b := bytes.NewBufferString("fedsnap\x02")
	frame := &snapshotpb.Frame{Checksum: crc32.Checksum(part, crc32.MakeTable(crc32.Castagnoli)), Part: part}
	must.Get(protodelim.MarshalTo(b, frame))(tb)
	return b.Bytes()
}

// edited returns a file with one part as edit changes it, and its checksum.
func edited(tb testing.TB, file []byte, edit func(*snapshotpb.Part)) []byte {
	tb.Helper()
	var frame snapshotpb.Frame
	must.Do(tb, protodelim.UnmarshalFrom(bytes.NewReader(file[8:]), &frame))
	var part snapshotpb.Part
	must.Do(tb, proto.Unmarshal(frame.GetPart(), &part))
	edit(&part)
	octets := must.Get(proto.Marshal(&part))(tb)
	return framed(tb, octets)
}

// wantLost decodes a file of which these services are lost, and all others are there.
func wantLost(t *testing.T, what string, file []byte, all []packed.Service, from, to int) {
	t.Helper()
	got, err := decode(file)
	text := fmt.Sprintf("%d of %d services cannot be read: snapshot is damaged", to-from, len(all))
	if !errors.Is(err, snapshot.ErrCorrupt) || err.Error() != text {
		t.Fatalf("%s: got %v\nwant %s", what, err, text)
	}
	if want := slices.Concat(all[:from], all[to:]); !slices.Equal(got.Services, want) {
		t.Fatalf("%s: there are %d services, not the %d that are whole", what, len(got.Services), len(want))
	}
}

// Damage costs the part in which it is, and no other: in its mark, its length, its
// checksum or its services.
func TestDamage(t *testing.T) {
	s := many(t, 1_100)
	good := encode(t, s)
	parts := split(good)
	var ends []int
	for i, part := range parts {
		ends = append(ends, len(part))
		if i > 0 {
			ends[i] += ends[i-1]
		}
	}
	services := []int{0, 512, 1024, 1100}
	if len(parts) != 3 {
		t.Fatalf("there are %d parts", len(parts))
	}
	whole := func(at int) int { // the part that the octet is in
		n, _ := slices.BinarySearch(ends, at+1)
		return n
	}
	t.Run("one bit", func(t *testing.T) {
		for i := range good {
			n := whole(i)
			begin := 0
			if n > 0 {
				begin = ends[n-1]
			}
			if i-begin > 80 && ends[n]-i > 20 && i%4999 != 0 || testing.Short() && i%8 != 0 {
				continue // one of many that are alike
			}
			for bit := range 8 {
				bad := bytes.Clone(good)
				bad[i] ^= 1 << bit
				wantLost(t, fmt.Sprintf("bit %d of octet %d", bit, i), bad, s.Services, services[n], services[n+1])
			}
		}
	})
	t.Run("truncated", func(t *testing.T) {
		for i := ends[0]; i < len(good); i += 997 {
			wantLost(t, fmt.Sprintf("first %d octets", i), good[:i], s.Services, services[whole(i)], 1_100)
		}
		for i := range 200 {
			if got, err := decode(good[:i]); got != nil || !errors.Is(err, snapshot.ErrCorrupt) {
				t.Fatalf("first %d octets: %v", i, err)
			}
		}
	})
	t.Run("a hole", func(t *testing.T) {
		bad := bytes.Clone(good)
		clear(bad[ends[0]-10 : ends[1]-10])
		wantLost(t, "zeros", bad, s.Services, 0, 1024)
	})
	t.Run("read error", func(t *testing.T) {
		broken := errors.New("broken disk")
		for i, want := range map[int]int{5: -1, ends[0] - 1: -1, ends[1] - 1: 512, len(good) - 1: 1024} {
			got, err := snapshot.Decode(failing{bytes.NewReader(good[:i]), broken}, int64(len(good)), snapshot.Options{Owner: owner})
			if !errors.Is(err, broken) || (got == nil) != (want < 0) || got != nil && !slices.Equal(got.Services, s.Services[:want]) {
				t.Errorf("after %d octets: %v", i, err)
			}
		}
	})
	t.Run("part left out", func(t *testing.T) {
		wantLost(t, "first", slices.Concat(parts[1], parts[2]), s.Services, 0, 512)
		wantLost(t, "second", slices.Concat(parts[0], parts[2]), s.Services, 512, 1024)
	})
	t.Run("parts exchanged", func(t *testing.T) {
		wantLost(t, "second and third", slices.Concat(parts[0], parts[2], parts[1]), s.Services, 512, 1024)
	})
	t.Run("part twice", func(t *testing.T) {
		got, err := decode(slices.Concat(parts[0], parts[1], parts[1], parts[2]))
		if err != nil || !slices.Equal(got.Services, s.Services) {
			t.Errorf("%v", err)
		}
	})
	t.Run("part of an earlier file", func(t *testing.T) {
		for what, change := range map[string]func(*snapshot.Snapshot){
			"up before":    func(s *snapshot.Snapshot) { s.LastUp = s.LastUp.Add(-time.Hour) },
			"saved before": func(s *snapshot.Snapshot) { s.Saved = s.LastUp },
			"larger":       func(s *snapshot.Snapshot) { s.Services = append(s.Services, s.Services[0]) },
		} {
			earlier := *s
			change(&earlier)
			wantLost(t, what, slices.Concat(parts[0], split(encode(t, &earlier))[1], parts[2]), s.Services, 512, 1024)
		}
	})
	t.Run("something between", func(t *testing.T) {
		got, err := decode(slices.Concat([]byte("x"), parts[0], []byte("fedsnap\x02"), parts[1], parts[2], make([]byte, 1<<20)))
		if err != nil || !slices.Equal(got.Services, s.Services) {
			t.Errorf("%v", err)
		}
	})
}

// failing reads nothing behind its end.
type failing struct {
	*bytes.Reader

	err error
}

func (f failing) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.Reader.ReadAt(p, off)
	if err != nil {
		err = f.err
	}
	return n, err
}

// A part with a checksum that fits may still say what cannot be.
func TestContradictoryPart(t *testing.T) {
	good := encode(t, example(t))
	for name, edit := range map[string]func(*snapshotpb.Part){
		"services":    func(p *snapshotpb.Part) { p.Services = 1 << 31 },
		"before":      func(p *snapshotpb.Part) { p.Before = 3 },
		"last up":     func(p *snapshotpb.Part) { p.LastUp.Nanos = -1 },
		"saved":       func(p *snapshotpb.Part) { p.Saved = &timestamppb.Timestamp{Seconds: math.MaxInt64} },
		"no services": func(p *snapshotpb.Part) { p.Records = []byte{0xff} },
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := decode(edited(t, good, edit)); got != nil && len(got.Services) > 0 || !errors.Is(err, snapshot.ErrCorrupt) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	t.Run("one record", func(t *testing.T) {
		bad := edited(t, good, func(p *snapshotpb.Part) {
			unnamed := []byte{2<<3 | 2, 2, 0, 2} // field 2, packed: 0, 2
			p.Records[bytes.LastIndex(p.GetRecords(), unnamed)+3] = 3
		})
		wantLost(t, "no such instance", bad, example(t).Services, 1, 2)
	})
	t.Run("more than it says", func(t *testing.T) {
		got, err := decode(edited(t, good, func(p *snapshotpb.Part) { p.Services = 1 }))
		if err != nil || len(got.Services) != 1 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

func TestDecodeForeign(t *testing.T) {
	foreign := example(t)
	foreign.Owner = "other\n"
	tests := map[string]struct {
		file []byte
		is   error
		want string
	}{
		"another owner": {
			encode(t, foreign), snapshot.ErrForeign,
			`snapshot of another owner; give each owner a file of its own: "other\n", not "owner.example:8008"`,
		},
		"another owner, damaged": {
			append([]byte("fedsnap\x02"), encode(t, foreign)...), snapshot.ErrForeign,
			`snapshot of another owner; give each owner a file of its own: "other\n", not "owner.example:8008"`,
		},
		"earlier format": {
			[]byte("fedsnap\n\x00\x00\x00\x01"), snapshot.ErrVersion,
			`snapshot of another version of the format; the owner sends its catalog again`,
		},
		"another file": {
			[]byte("$ORIGIN example.org.\n"), snapshot.ErrFormat,
			`not a catalog snapshot; name a file that is used for nothing else`,
		},
		"large file": {make([]byte, 1<<20), snapshot.ErrFormat, `not a catalog snapshot; name a file that is used for nothing else`},
		"empty file": {nil, snapshot.ErrCorrupt, `snapshot is damaged`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := decode(tc.file)
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
	got, err := snapshot.Decode(bytes.NewReader(file), int64(len(file)), o)
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
	if got, err = snapshot.Decode(bytes.NewReader(file), int64(len(file)), o); err != nil || len(got.Services) != 3 {
		t.Errorf("allowed: %v, %v", got, err)
	}
}

// Somebody waits for what is read, and gives up when nothing is: also where there is
// nothing to be found.
func TestProgress(t *testing.T) {
	progress := func(file []byte) (all []string) {
		_, _ = snapshot.Decode(bytes.NewReader(file), int64(len(file)), snapshot.Options{
			Owner:    owner,
			Progress: func(done, total int) { all = append(all, fmt.Sprint(done, "/", total)) },
		})
		return all
	}
	if diff := cmp.Diff([]string{"512/1200", "1024/1200", "1200/1200"}, progress(encode(t, many(t, 1_200)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := slices.Compact(progress(make([]byte, 1<<20))); !slices.Equal(got, []string{"0/0"}) {
		t.Errorf("without a part: %s", got)
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

// TestHostileLengths decodes lengths and counts with no data behind them, which must not
// take memory.
func TestHostileLengths(t *testing.T) {
	good := encode(t, many(t, 1000))
	length := func(octets ...byte) []byte { return slices.Concat([]byte("fedsnap\x02"), octets, good) }
	for name, file := range map[string][]byte{
		"a frame of 1 GiB":   length(0x80, 0x80, 0x80, 0x80, 4),
		"a frame of 2^63-1":  length(0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f),
		"a frame of 2^64-1":  length(0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1),
		"no number":          length(bytes.Repeat([]byte{0xff}, 11)...),
		"a million services": edited(t, good, func(p *snapshotpb.Part) { p.Services = math.MaxInt32 }),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			total := 0
			runtime.ReadMemStats(&before)
			_, _ = snapshot.Decode(bytes.NewReader(file), int64(len(file)), snapshot.Options{
				Owner: owner, Part: func(s *snapshot.Snapshot) bool {
					total = s.Total
					return true
				},
			})
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 {
				t.Errorf("took %d bytes of memory", n)
			}
			if total == 0 || total > len(file) {
				t.Errorf("there are said to be %d services in %d octets", total, len(file))
			}
		})
	}
}

// TestManyMarks decodes a file whose parts are none, each of them as long as the rest: what
// it costs to find that out is in proportion to the file.
func TestManyMarks(t *testing.T) {
	none := append([]byte("fedsnap\x02"), 0x80, 0x80, 0x40) // a frame of 1 MiB
	file := slices.Concat(encode(t, many(t, 100)), bytes.Repeat(none, 200_000))
	r := &counting{Reader: bytes.NewReader(file)}
	s, err := snapshot.Decode(r, int64(len(file)), snapshot.Options{Owner: owner})
	if err != nil || len(s.Services) != 100 {
		t.Errorf("decoded %v, failed with %v", s, err)
	}
	if most := 20 * len(file); r.octets > most {
		t.Errorf("read %d octets of a file of %d", r.octets, len(file))
	}
}

// counting counts what is read.
type counting struct {
	*bytes.Reader
	octets int
}

func (c *counting) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.Reader.ReadAt(p, off)
	c.octets += n
	return n, err
}

func TestEncodeFails(t *testing.T) {
	t.Run("writer", func(t *testing.T) {
		for _, s := range []*snapshot.Snapshot{example(t), many(t, 10_000)} {
			if err := snapshot.Encode(full{}, s); !errors.Is(err, errFull) {
				t.Errorf("%d services: %v", len(s.Services), err)
			}
		}
	})
	t.Run("message", func(t *testing.T) {
		if err := snapshot.Encode(io.Discard, &snapshot.Snapshot{Owner: "\xff"}); err == nil {
			t.Error("an owner that is no UTF-8 was written")
		}
	})
}

var errFull = errors.New("disk is full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// FuzzDecode decodes any bytes, as a file and as what a part with the right checksum has,
// alone and between the parts of a good file.
func FuzzDecode(f *testing.F) {
	good := encode(f, example(f))
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte("fedsnap\x02"))
	f.Add([]byte{})
	edited(f, good, func(p *snapshotpb.Part) {
		octets := must.Get(proto.Marshal(p))(f)
		f.Add(octets)
	})
	typed := []error{snapshot.ErrFormat, snapshot.ErrVersion, snapshot.ErrForeign, snapshot.ErrCorrupt}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, file := range [][]byte{data, framed(t, data), slices.Concat(data, good), slices.Concat(good, framed(t, data))} {
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
