package zone_test

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// catalogSizes are what costs must not depend on.
var catalogSizes = []int{1_000, 100_000}

// plain is a service as most are: two endpoints, two instances, some metadata.
func plain(n int) *federation.Service {
	s := service(fmt.Sprintf("service-%d s%d.team%d.fed.example 192.0.2.%d@8080[v1] 2001:db8::%x@8443[v2] v1/HTTP[v1] v2/GRPC[v2]",
		n, n, n%100, n%250, n%65536))
	s.Description, s.Tags = "one of many", []string{"bench"}
	s.SANs = []string{"spiffe://owner.example/" + s.Name}
	s.Instances[0].Metadata = []federation.Pair{{Key: "SNI", Value: s.FQDN.String()}, {Key: "version", Value: "1"}}
	return s
}

// filled returns a builder with n plain services.
func filled(n int) *zonetest.Builder {
	b := builder(owner("o", "fed.example"))
	for i := range n {
		b.Put(0, plain(i), 1)
	}
	b.Publish(now)
	return b
}

// answered keeps the records from being optimized away.
var answered []dns.RR

func BenchmarkLookup(b *testing.B) {
	queries := []struct {
		name  string
		asked string
		qtype uint16
	}{
		{"A", "s7.team7.fed.example.", dns.TypeA},
		{"A-instance", "v1.s7.team7.fed.example.", dns.TypeA},
		{"A-address", "192-0-2-7.addr.s7.team7.fed.example.", dns.TypeA},
		{"NODATA", "s7.team7.fed.example.", dns.TypeMX},
		{"NXDOMAIN", "nope.team7.fed.example.", dns.TypeA},
		{"SRV", "s7.team7.fed.example.", dns.TypeSRV},
		{"TXT", "s7.team7.fed.example.", dns.TypeTXT},
	}
	for _, size := range catalogSizes {
		builder := filled(size)
		z := builder.Publish(now)
		for _, q := range queries {
			b.Run(fmt.Sprintf("%s/%d", q.name, size), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if r := z.Lookup(q.asked, q.qtype, now); r.Kind == zone.Success {
						answered = reply.AppendAnswer(nil, &r, q.asked, 0)
						reply.AppendGlue(nil, &r, answered, 0, now)
					} else {
						answered = reply.AppendAuthority(nil, &r)
					}
				}
			})
		}
	}
}

// largest is a service as large as the limits of package wire allow, and as
// expensive in every other respect as one can be that still fits a message.
func largest() *federation.Service {
	const most, strings = 1000, 64 // limits.Endpoints, limits.Metadata and others
	s := &federation.Service{Name: "largest", FQDN: origin("largest.fed.example")}
	for i := range strings {
		s.Tags = append(s.Tags, fmt.Sprintf("tag-%d", i))
		s.SANs = append(s.SANs, fmt.Sprintf("spiffe://owner.example/%d", i))
		s.Labels = append(s.Labels, federation.Pair{Key: fmt.Sprintf("Label-%02d", i), Value: "value"})
	}
	for i := range most {
		ep := federation.Endpoint{Address: address(fmt.Sprintf("198.18.%d.%d", i/256, i%256)), Port: uint16(1 + i)}
		in := federation.Instance{ID: fmt.Sprintf("i%d", i), Protocol: federation.HTTP}
		for j := range strings {
			ep.Labels = append(ep.Labels, fmt.Sprintf("label-%d-%d", i, j))
			in.EndpointSelector = append(in.EndpointSelector, fmt.Sprintf("label-%d-%d", (i+j)%most, j))
			in.Metadata = append(in.Metadata, federation.Pair{Key: fmt.Sprintf("K%02d", (strings-j)%strings), Value: "value"})
		}
		slices.SortFunc(in.Metadata, func(a, b federation.Pair) int { return cmp.Compare(a.Key, b.Key) })
		s.Endpoints, s.Instances = append(s.Endpoints, ep), append(s.Instances, in)
	}
	return s
}

// BenchmarkLargest measures what clients can ask of the largest service, over
// UDP with the buffer that most have, and over TCP.
func BenchmarkLargest(b *testing.B) {
	builder := builder(owner("o", "fed.example"))
	builder.Put(0, largest(), 1)
	z := builder.Publish(now)
	for _, q := range []struct {
		name  string
		asked string
		qtype uint16
	}{
		{"A", "largest.fed.example.", dns.TypeA},
		{"AAAA", "largest.fed.example.", dns.TypeAAAA},
		{"SRV", "largest.fed.example.", dns.TypeSRV},
		{"TXT", "largest.fed.example.", dns.TypeTXT},
		{"TXT-instance", "i500.largest.fed.example.", dns.TypeTXT},
		{"ANY", "largest.fed.example.", dns.TypeANY},
		{"NXDOMAIN", "nope.largest.fed.example.", dns.TypeA},
		{"NXDOMAIN-address", "192-0-2-1.addr.largest.fed.example.", dns.TypeA},
	} {
		for _, room := range []int{1232, dns.MaxMsgSize} {
			b.Run(fmt.Sprintf("%s/%d", q.name, room), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r := z.Lookup(q.asked, q.qtype, now)
					if r.Kind == zone.Success {
						answered = reply.AppendAnswer(nil, &r, q.asked, room)
						reply.AppendGlue(nil, &r, answered, room, now)
					} else {
						answered = reply.AppendAuthority(nil, &r)
					}
				}
			})
		}
	}
}

// BenchmarkPutLargest measures how long the writer takes for the most expensive
// service.
func BenchmarkPutLargest(b *testing.B) {
	builder := builder(owner("o", "fed.example"))
	versions := []*federation.Service{largest(), largest()}
	versions[1].Description = "changed"
	b.Run("Put", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			builder.Put(0, versions[i%2], 1)
		}
	})
	b.Run("PutPrepared", func(b *testing.B) {
		var was packed.Service
		for i := 0; b.Loop(); i++ {
			b.StopTimer()
			now := packed.PackService(versions[i%2])
			prepared := builder.Prepare(0, now, versions[i%2])
			b.StartTimer()
			builder.Builder.Put(prepared, was, 1, 0)
			was = now
		}
	})
}

// BenchmarkPublish measures one change and the version that holds it.
func BenchmarkPublish(b *testing.B) {
	for _, size := range catalogSizes {
		builder := filled(size)
		var unpacker packed.Unpacker
		prepare := func(p packed.Service) zone.PreparedOffer { return builder.Prepare(0, p, unpacker.Unpack(p)) }
		b.Run(fmt.Sprintf("update/%d", size), func(b *testing.B) {
			changed := plain(7)
			changed.Description = "changed"
			versions := []packed.Service{packed.PackService(plain(7)), packed.PackService(changed)}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				builder.Builder.Put(prepare(versions[i%2]), versions[1-i%2], 1, 0)
				builder.Publish(now)
			}
		})
		b.Run(fmt.Sprintf("confirm/%d", size), func(b *testing.B) {
			name := plain(7).Name
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				builder.Confirm(0, name, uint64(2+i%2))
				builder.Publish(now)
			}
		})
		b.Run(fmt.Sprintf("insert+delete/%d", size), func(b *testing.B) {
			s := packed.PackService(plain(size))
			b.ReportAllocs()
			for b.Loop() {
				builder.Builder.Put(prepare(s), packed.Service{}, 1, 0)
				builder.Publish(now)
				builder.Builder.Remove(0, s)
				builder.Publish(now)
			}
		})
	}
}

// BenchmarkHistory is one update of 1,000 a second, all of them of different services,
// with the history that incremental transfers are made of: the time of an update,
// what the history holds in the end, and a difference of a second beside the whole zone.
func BenchmarkHistory(b *testing.B) {
	const size, rate, seconds = 100_000, 1000, 60
	builder := filled(size)
	at, n := now, 0
	change := func() *zone.Zone {
		s := plain(n * 7919 % size)
		n++
		s.Endpoints[0].Port = uint16(1 + n%60_000)
		if n%rate == 0 {
			at = at.Add(time.Second)
		}
		builder.Put(0, s, 1)
		return builder.Publish(at)
	}
	b.Run("update", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			change()
		}
	})
	for range seconds * rate {
		change()
	}
	z := change()
	for _, run := range []struct {
		name   string
		serial uint32
	}{{"difference", z.SOA("fed.example.").Serial - 1}, {"whole", 0}} {
		b.Run(run.name, func(b *testing.B) {
			b.ReportAllocs()
			octets := 0
			for b.Loop() {
				for rrs := range reply.IncrementalTransfer(z, "fed.example.", run.serial, at) {
					for _, rr := range rrs {
						octets += dns.Len(rr) // CoreDNS does not compress transfers
					}
				}
			}
			b.ReportMetric(float64(octets)/float64(b.N), "octets")
		})
	}
	with := heap()
	builder.NoteRival(z) // which ends the history
	for range 3 * rate {
		z = change()
	}
	b.Run("memory", func(b *testing.B) {
		b.ReportMetric(0, "ns/op")
		b.ReportMetric((float64(with)-float64(heap()))/(1<<20), "MiB")
	})
	runtime.KeepAlive(z)
}

// BenchmarkFill measures the first version of a whole catalog, in time and in
// live memory for each service beside the services themselves.
func BenchmarkFill(b *testing.B) {
	const size = 100_000
	services := make([]*federation.Service, size)
	for i := range services {
		services[i] = plain(i)
	}
	b.ReportAllocs()
	for b.Loop() {
		before := heap()
		builder := builder(owner("o", "fed.example"))
		builder.Publish(now) // as a server block does before it has services
		for _, s := range services {
			builder.Put(0, s, 1)
		}
		z := builder.Publish(now)
		b.ReportMetric(float64(heap()-before)/size, "bytes/service")
		runtime.KeepAlive(z)
		runtime.KeepAlive(builder)
	}
	runtime.KeepAlive(services)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/service")
}

// TestMemoryWithoutShare holds a catalog with and without a block that shares other names: it takes
// as much.
func TestMemoryWithoutShare(t *testing.T) {
	const size = 5_000
	services := make([]*federation.Service, size)
	for i := range services {
		services[i] = plain(i)
	}
	held := func(share string) float64 {
		before := heap()
		b := builder(sharer("o", share, nil))
		for _, s := range services {
			b.Put(0, s, 1)
		}
		z := b.Publish(now)
		bytes := float64(heap()-before) / size
		runtime.KeepAlive(z)
		runtime.KeepAlive(b)
		return bytes
	}
	held("") // the first one pays for what stays
	without, other, all := held(""), held("web.fed.example *.other.fed.example"), held("*")
	if other > 1.05*without {
		t.Errorf("%.0f bytes for each service, and %.0f where other names are shared", without, other)
	}
	if all < 1.1*other {
		t.Errorf("%.0f bytes for each service, and %.0f if all are shared: what share costs is not noticed", other, all)
	}
	t.Logf("bytes for each service: %.0f, %.0f where other names are shared, %.0f if all are", without, other, all)
	runtime.KeepAlive(services)
}

// heap returns the live bytes.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkShared asks for the addresses and the SRV records of a name with so many endpoints,
// which one owner has alone or two share, and changes it.
func BenchmarkShared(b *testing.B) {
	for _, endpoints := range []int{2, 10, 100, 1000} {
		text := "web web.fed.example v1/HTTP"
		for i := range endpoints {
			text += fmt.Sprintf(" 10.%d.%d.1@80", i/250, i%250)
		}
		for _, name := range []string{"alone", "shared"} {
			first, second := owner("a", "fed.example"), owner("b", "fed.example")
			if name == "shared" {
				first, second = sharer("a", "web.fed.example", nil), sharer("b", "web.fed.example", nil)
			}
			builder := builder(first, second)
			web := service(text)
			builder.Put(0, web, 1)
			builder.Put(1, web, 1)
			z := builder.Publish(now)
			for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV} {
				b.Run(fmt.Sprintf("%s/endpoints=%d/%s", dns.Type(qtype), endpoints, name), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						r := z.Lookup("web.fed.example.", qtype, now)
						_ = reply.AppendAnswer(nil, &r, "web.fed.example.", 0)
					}
				})
			}
			b.Run(fmt.Sprintf("change/endpoints=%d/%s", endpoints, name), func(b *testing.B) {
				b.ReportAllocs()
				at := now
				for b.Loop() {
					at = at.Add(time.Second)
					other := *web
					other.Endpoints = other.Endpoints[at.Unix()%2:]
					builder.Put(1, &other, 1)
					builder.Publish(at)
				}
			})
		}
	}
}

// BenchmarkSharedLoss loses an owner that shares each of its 10,000 services, and has it come
// back.
func BenchmarkSharedLoss(b *testing.B) {
	for _, names := range []string{"", "*"} {
		b.Run("share="+names, func(b *testing.B) {
			o := sharer("a", names, nil)
			builder := builder(o)
			for i := range 10_000 {
				builder.Put(0, plain(i), 1)
			}
			builder.Publish(now)
			at, generation := now, uint64(1)
			for b.Loop() {
				at = at.Add(time.Second)
				if generation++; generation%2 == 0 {
					builder.SetStatus(0, zone.Status{Live: generation, Known: true, Lost: at})
				} else {
					builder.SetStatus(0, zone.Status{Live: 1, Known: true})
				}
				builder.Publish(at)
			}
		})
	}
}
