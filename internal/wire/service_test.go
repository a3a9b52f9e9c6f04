package wire_test

import (
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// minimal returns a service with only the required fields.
func minimal() *typespb.FederatedService {
	return &typespb.FederatedService{
		Name:      "web",
		Fqdn:      "web.fed.example",
		Endpoints: []*typespb.FederatedService_Endpoint{{Address: "192.0.2.1", Port: 80}},
		Instances: []*typespb.FederatedService_Instance{{Id: "v1", Protocol: "HTTP"}},
	}
}

// upsert returns the response that carries m.
func upsert(t testing.TB, m *typespb.FederatedService) *rdpb.StreamResponse {
	t.Helper()
	resource := must.Get(anypb.New(m))(t)
	return &rdpb.StreamResponse{
		ResourceUrl: wire.ResourceURL,
		ResourceId:  m.GetName(),
		Resource:    resource,
		Operation:   rdpb.StreamResponse_UPSERT,
	}
}

// expectInvalid checks the whole text of an error, and its reason.
func expectInvalid(t *testing.T, err error, reason federation.Reason, text string) {
	t.Helper()
	var invalid *federation.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("error is %v, want %s", err, text)
	}
	if diff := cmp.Diff(text, err.Error()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	if invalid.Reason != reason {
		t.Errorf("reason is %s, want %s", invalid.Reason, reason)
	}
}

func TestDecodeServiceRefuses(t *testing.T) {
	const protocols = "is none of HTTP, HTTPS, GRPC, HTTP2, MONGO, TCP, TLS, MTLS"
	address := func(s string) func(*typespb.FederatedService) {
		return func(m *typespb.FederatedService) { m.Endpoints[0].Address = s }
	}
	name := func(s string) func(*typespb.FederatedService) {
		return func(m *typespb.FederatedService) { m.Fqdn = s }
	}
	tests := []struct {
		name   string
		change func(*typespb.FederatedService)
		reason federation.Reason
		text   string // without the service
	}{
		// Required fields.
		{"no name", func(m *typespb.FederatedService) { m.Name = "" }, federation.ReasonMissing, `name: required`},
		{"no fqdn", name(""), federation.ReasonMissing, `fqdn: required`},
		{"no endpoints", func(m *typespb.FederatedService) { m.Endpoints = nil }, federation.ReasonMissing, `endpoints: at least one is required`},
		{"no instances", func(m *typespb.FederatedService) { m.Instances = nil }, federation.ReasonMissing, `instances: at least one is required`},
		{"no address", address(""), federation.ReasonMissing, `endpoints[0].address: required`},
		{"no id", func(m *typespb.FederatedService) { m.Instances[0].Id = "" }, federation.ReasonMissing, `instances[0].id: required`},
		{"no protocol", func(m *typespb.FederatedService) { m.Instances[0].Protocol = "" }, federation.ReasonMissing, `instances[0].protocol: required`},
		{"an empty tag", func(m *typespb.FederatedService) { m.Tags = []string{"a", ""} }, federation.ReasonMissing, `tags[1]: is empty; leave it out`},
		{"an empty SAN", func(m *typespb.FederatedService) { m.Sans = []string{""} }, federation.ReasonMissing, `sans[0]: is empty; leave it out`},
		{"an empty label of an endpoint", func(m *typespb.FederatedService) { m.Endpoints[0].Labels = []string{""} }, federation.ReasonMissing, `endpoints[0].labels[0]: is empty; leave it out`},
		{"an empty selector", func(m *typespb.FederatedService) { m.Instances[0].EndpointSelector = []string{"eu", ""} }, federation.ReasonMissing, `instances[0].endpoint_selector[1]: is empty; leave it out`},
		{"two instances with one ID", func(m *typespb.FederatedService) {
			m.Instances = append(m.Instances, &typespb.FederatedService_Instance{Id: "v2", Protocol: "TCP"}, proto.CloneOf(m.Instances[0]))
		}, federation.ReasonName, `instances[2].id: "v1" is the ID of instances[0] as well`},
		{"the index of a later entry", func(m *typespb.FederatedService) {
			m.Endpoints = append(m.Endpoints, proto.CloneOf(m.Endpoints[0]), &typespb.FederatedService_Endpoint{Port: 1})
		}, federation.ReasonMissing, `endpoints[2].address: required`},

		// The name of the service in DNS.
		{"fqdn is the root", name("."), federation.ReasonName, `fqdn: name is empty: "."`},
		{"fqdn is not UTF-8", name("w\xffb.example"), federation.ReasonName, `fqdn: name is not a valid internationalized name: "w\xffb.example"`},

		// Where it is.
		{"address with a port", address("192.0.2.1:80"), federation.ReasonAddress, `endpoints[0].address: address is neither an IP address nor a host name: "192.0.2.1:80"`},
		{"address with a zone", address("fe80::1%eth0"), federation.ReasonAddress, `endpoints[0].address: address has a zone identifier: "fe80::1%eth0"`},
		{"address of three octets", address("1.2.3"), federation.ReasonAddress, `endpoints[0].address: address is neither an IP address nor a host name: last label is a number, so the name looks like an address: "1.2.3"`},
		{"address is a number", address("2130706433"), federation.ReasonAddress, `endpoints[0].address: address is neither an IP address nor a host name: last label is a number, so the name looks like an address: "2130706433"`},
		{"address with a space", address("gw example"), federation.ReasonAddress, `endpoints[0].address: address is neither an IP address nor a host name: label has a character other than a-z, 0-9, '-' and '_': "gw example"`},
		{"address with a long label", address(strings.Repeat("a", 64)), federation.ReasonAddress, `endpoints[0].address: address is neither an IP address nor a host name: label is longer than 63 octets: "` + strings.Repeat("a", 64) + `"`},
		{"port 0", func(m *typespb.FederatedService) { m.Endpoints[0].Port = 0 }, federation.ReasonPort, `endpoints[0].port: 0 is not in 1 to 65535`},
		{"port 2^32-1", func(m *typespb.FederatedService) { m.Endpoints[0].Port = math.MaxUint32 }, federation.ReasonPort, `endpoints[0].port: 4294967295 is not in 1 to 65535`},

		// What it speaks.
		{"unknown protocol", func(m *typespb.FederatedService) { m.Instances[0].Protocol = "UDP" }, federation.ReasonProtocol, `instances[0].protocol: "UDP" ` + protocols},
		{"protocol that is long", func(m *typespb.FederatedService) { m.Instances[0].Protocol = strings.Repeat("HTTP", 1000) }, federation.ReasonProtocol, `instances[0].protocol: "` + strings.Repeat("HTTP", 32) + `"... (4000 bytes) ` + protocols},

		// Strings that are not UTF-8.
		{"description is not UTF-8", func(m *typespb.FederatedService) { m.Description = "\xff" }, federation.ReasonUndecodable, `description: not valid UTF-8: "\xff"`},
		{"label value is not UTF-8", func(m *typespb.FederatedService) { m.Labels = map[string]string{"a": "", "b": "\xff"} }, federation.ReasonUndecodable, `labels["b"].value: not valid UTF-8: "\xff"`},
		{"id is not UTF-8", func(m *typespb.FederatedService) { m.Instances[0].Id = "\xff" }, federation.ReasonUndecodable, `instances[0].id: not valid UTF-8: "\xff"`},
		{"metadata is not UTF-8", func(m *typespb.FederatedService) { m.Instances[0].Metadata = map[string]string{"SNI": "\xff"} }, federation.ReasonUndecodable, `instances[0].metadata["SNI"].value: not valid UTF-8: "\xff"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := minimal()
			tt.change(m)
			text := tt.text
			if m.Name != "" {
				text = `service "web": ` + text
			}
			_, err := wire.DecodeService(m, wire.AddressPolicy{})
			expectInvalid(t, err, tt.reason, text)

			resource, err := anypb.New(m)
			if err != nil {
				return // a string that is not UTF-8 has no encoding
			}
			_, err = wire.Decode(&rdpb.StreamResponse{Resource: resource, Operation: rdpb.StreamResponse_UPSERT})
			expectInvalid(t, err, tt.reason, text)
		})
	}
}

// TestDecodeServiceNil decodes messages with nil in lists, as only messages can have
// that were not decoded from bytes.
func TestDecodeServiceNil(t *testing.T) {
	_, err := wire.DecodeService(nil, wire.AddressPolicy{})
	expectInvalid(t, err, federation.ReasonMissing, `name: required`)

	m := minimal()
	m.Endpoints = append(m.Endpoints, nil)
	_, err = wire.DecodeService(m, wire.AddressPolicy{})
	expectInvalid(t, err, federation.ReasonMissing, `service "web": endpoints[1].address: required`)

	m = minimal()
	m.Instances[0] = nil
	_, err = wire.DecodeService(m, wire.AddressPolicy{})
	expectInvalid(t, err, federation.ReasonMissing, `service "web": instances[0].id: required`)
}

func TestDecodeServiceAccepts(t *testing.T) {
	tests := []struct {
		name   string
		change func(*typespb.FederatedService)
		want   func(*federation.Service)
	}{
		{"only what is required", func(*typespb.FederatedService) {}, func(*federation.Service) {}},
		{
			"fqdn in upper case with a final dot",
			func(m *typespb.FederatedService) { m.Fqdn = "Web.FED.Example." },
			func(*federation.Service) {},
		},
		{
			"fqdn with U-labels",
			func(m *typespb.FederatedService) { m.Fqdn = "Bücher.example" },
			func(s *federation.Service) { s.FQDN = services.FQDN("xn--bcher-kva.example") },
		},
		{
			"address of a host in upper case with a final dot",
			func(m *typespb.FederatedService) { m.Endpoints[0].Address = "GW.Example.net." },
			func(s *federation.Service) { s.Endpoints[0].Address = address(t, "gw.example.net") },
		},
		{
			"IPv4 in IPv6",
			func(m *typespb.FederatedService) { m.Endpoints[0].Address = "::ffff:192.0.2.1" },
			func(*federation.Service) {},
		},
		{
			"the highest port",
			func(m *typespb.FederatedService) { m.Endpoints[0].Port = 65535 },
			func(s *federation.Service) { s.Endpoints[0].Port = 65535 },
		},
		{
			"protocol in lower case, as the examples of the specification have it",
			func(m *typespb.FederatedService) { m.Instances[0].Protocol = "https" },
			func(s *federation.Service) { s.Instances[0].Protocol = federation.HTTPS },
		},
		{
			"instance IDs that differ in case",
			func(m *typespb.FederatedService) {
				m.Instances = append(m.Instances, &typespb.FederatedService_Instance{Id: "V1", Protocol: "TCP"})
			},
			func(s *federation.Service) {
				s.Instances = append(s.Instances, federation.Instance{ID: "V1", Protocol: federation.TCP})
			},
		},
		{
			"instance ID that is no DNS name",
			func(m *typespb.FederatedService) { m.Instances[0].Id = "v 1/x\x00" },
			func(s *federation.Service) { s.Instances[0].ID = "v 1/x\x00" },
		},
		{
			"strings that do harm in a TXT record",
			func(m *typespb.FederatedService) {
				m.Description = "\\065\"\x00\n"
				m.Labels = map[string]string{"": "=", "a=b": "\x7f", "A=b": strings.Repeat("x", 256)}
			},
			func(s *federation.Service) {
				s.Description = "\\065\"\x00\n"
				s.Labels = []federation.Pair{{Key: "", Value: "="}, {Key: "A=b", Value: strings.Repeat("x", 256)}, {Key: "a=b", Value: "\x7f"}}
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := minimal()
			tt.change(m)
			want := &federation.Service{
				Name:      "web",
				FQDN:      services.FQDN("web.fed.example"),
				Endpoints: []federation.Endpoint{{Address: address(t, "192.0.2.1"), Port: 80}},
				Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTP}},
			}
			tt.want(want)
			got := must.Get(wire.DecodeService(m, wire.AddressPolicy{}))(t)
			if diff := cmp.Diff(want, got, comparers); diff != "" {
				t.Errorf("service (-want +got):\n%s", diff)
			}
			again := must.Get(wire.DecodeService(must.Get(wire.EncodeService(got))(t), wire.AddressPolicy{}))(t)
			if diff := cmp.Diff(want, again, comparers); diff != "" {
				t.Errorf("after encoding and decoding (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPolicy(t *testing.T) {
	tests := []struct{ address, shown, kind string }{
		{"127.0.0.1", "127.0.0.1", "loopback"},
		{"127.255.255.254", "127.255.255.254", "loopback"},
		{"::1", "::1", "loopback"},
		{"::ffff:127.0.0.1", "127.0.0.1", "loopback"},
		{"64:ff9b::7f00:1", "64:ff9b::7f00:1", "loopback"},
		{"169.254.169.254", "169.254.169.254", "link-local"},
		{"::ffff:169.254.169.254", "169.254.169.254", "link-local"},
		{"64:ff9b::169.254.169.254", "64:ff9b::a9fe:a9fe", "link-local"},
		{"fe80::1", "fe80::1", "link-local"},
		{"0.0.0.0", "0.0.0.0", "unspecified"},
		{"::ffff:0.0.0.0", "0.0.0.0", "unspecified"},
		{"::", "::", "unspecified"},
		{"224.0.0.1", "224.0.0.1", "multicast"},
		{"239.255.255.255", "239.255.255.255", "multicast"},
		{"::ffff:224.0.0.251", "224.0.0.251", "multicast"},
		{"ff02::fb", "ff02::fb", "multicast"},
		{"0.1.2.3", "0.1.2.3", "unspecified"},
		{"255.255.255.255", "255.255.255.255", "broadcast"},
		{"::ffff:255.255.255.255", "255.255.255.255", "broadcast"},
		{"64:ff9b::255.255.255.255", "64:ff9b::ffff:ffff", "broadcast"},

		// Metadata services that are not link-local.
		{"fd00:ec2::254", "fd00:ec2::254", "cloud metadata"},
		{"fd00:ec2::23", "fd00:ec2::23", "cloud metadata"},
		{"fd20:ce::254", "fd20:ce::254", "cloud metadata"},
		{"fd00:c1::a9fe:a9fe", "fd00:c1::a9fe:a9fe", "cloud metadata"},
		{"fd00:42::42", "fd00:42::42", "cloud metadata"},
		{"100.100.100.200", "100.100.100.200", "cloud metadata"},
		{"::ffff:100.100.100.200", "100.100.100.200", "cloud metadata"},
		{"64:ff9b::100.100.100.200", "64:ff9b::6464:64c8", "cloud metadata"},
		{"168.63.129.16", "168.63.129.16", "cloud metadata"},
		{"192.0.0.192", "192.0.0.192", "cloud metadata"},

		// NAT64 of RFC 8215 with each of the lengths of RFC 6052, which lists the forms of 192.0.2.33.
		{"64:ff9b:1::7f00:1", "64:ff9b:1::7f00:1", "loopback"},
		{"64:ff9b:1:ffff:ffff:ffff:a9fe:a9fe", "64:ff9b:1:ffff:ffff:ffff:a9fe:a9fe", "link-local"},
		{"64:ff9b:1:7f00:0:100::", "64:ff9b:1:7f00:0:100::", "loopback"},
		{"64:ff9b:1:7f:0:1::", "64:ff9b:1:7f:0:1::", "loopback"},
		{"64:ff9b:1:1:7f:0:100:0", "64:ff9b:1:1:7f:0:100:0", "loopback"},

		// Other addresses that end at an IPv4 address.
		{"::127.0.0.1", "::7f00:1", "loopback"},
		{"2002:7f00:1::1", "2002:7f00:1::1", "loopback"},
		{"2002:a9fe:a9fe::", "2002:a9fe:a9fe::", "link-local"},
		{"2001:0:5ef5:79fd:0:0:80ff:fffe", "2001:0:5ef5:79fd::80ff:fffe", "loopback"},

		// RFC 6761 section 6.3.
		{"localhost", "localhost", "loopback"},
		{"LOCALHOST.", "localhost", "loopback"},
		{"db.LocalHost", "db.localhost", "loopback"},
	}
	decode := func(address string, policy wire.AddressPolicy) error {
		m := minimal()
		m.Endpoints[0].Address = address
		_, err := wire.DecodeService(m, policy)
		return err
	}
	for _, tt := range tests {
		t.Run(tt.address, func(t *testing.T) {
			expectInvalid(t, decode(tt.address, wire.AddressPolicy{}), federation.ReasonAddress,
				`service "web": endpoints[0].address: `+tt.shown+`: consumers refuse `+tt.kind+` addresses unless their allow_addresses has them`)

			shown, err := netip.ParseAddr(tt.shown)
			if err != nil {
				shown = netip.MustParseAddr("127.0.0.1") // what a name of this host is
			}
			if (wire.AddressPolicy{}).Admits(shown) {
				t.Error("a host may turn out to be there")
			}
			open := netip.PrefixFrom(shown, shown.BitLen())
			if err := decode(tt.address, wire.AddressPolicy{AllowAddresses: []netip.Prefix{open}}); err != nil {
				t.Errorf("with %s opened: %v", open, err)
			}
			other := netip.PrefixFrom(shown.Next(), shown.BitLen())
			if err := decode(tt.address, wire.AddressPolicy{AllowAddresses: []netip.Prefix{other}}); err == nil {
				t.Errorf("accepted with %s opened", other)
			}
		})
	}
	for _, address := range []string{
		"10.0.0.1", "192.168.1.1", "100.64.0.1", "fd00::1", "64:ff9b::192.0.2.1", "2001:db8::1", "240.0.0.1", "255.255.255.254",
		"64:ff9b:1::192.0.2.33", "64:ff9b:1:c000:2:2100::", "64:ff9b:1::10.0.0.1", "2002:c000:201::1", "fd00:ec2::1", "100.100.100.100",
		"localhost.example", "notlocalhost",
	} {
		if err := decode(address, wire.AddressPolicy{}); err != nil {
			t.Errorf("%s: %v", address, err)
		}
		if ip, err := netip.ParseAddr(address); err == nil && !(wire.AddressPolicy{}).Admits(ip) {
			t.Errorf("%s: no host may be there", address)
		}
	}
	// An IPv4 prefix does not open IPv6 addresses that embed its addresses.
	open := wire.AddressPolicy{AllowAddresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	for _, address := range []string{"64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::", "::7f00:1"} {
		if err := decode(address, open); err == nil {
			t.Errorf("%s was accepted with 127.0.0.0/8 opened", address)
		}
	}
	for _, tt := range tests {
		if err := decode(tt.address, wire.AnyAddress()); err != nil {
			t.Errorf("with everything opened: %v", err)
		}
	}
}

// TestPolicyReadsEveryOctet embeds an IPv4 address in every form of IPv6 address that
// is delivered to it. A single address is refused there, so one that differs from it
// in any octet is admitted.
func TestPolicyReadsEveryOctet(t *testing.T) {
	refused := [4]byte{168, 63, 129, 16} // of which no other address is near
	for _, form := range []struct {
		prefix string
		octets [4]int
		mask   byte
		behind bool // whether all octets behind the IPv4 address are zero
	}{
		{"::", [4]int{12, 13, 14, 15}, 0, false},
		{"64:ff9b::", [4]int{12, 13, 14, 15}, 0, false},
		{"64:ff9b:1::", [4]int{12, 13, 14, 15}, 0, true},
		{"64:ff9b:1::", [4]int{9, 10, 11, 12}, 0, true},
		{"64:ff9b:1::", [4]int{7, 9, 10, 11}, 0, true},
		{"64:ff9b:1::", [4]int{6, 7, 9, 10}, 0, true},
		{"2002::", [4]int{2, 3, 4, 5}, 0, false},
		{"2001::", [4]int{12, 13, 14, 15}, 0xff, false},
	} {
		embed := func(v4 [4]byte) [16]byte {
			ip := netip.MustParseAddr(form.prefix).As16()
			for i, at := range form.octets {
				ip[at] = v4[i] ^ form.mask
			}
			return ip
		}
		expect := func(ip [16]byte, admitted bool) {
			t.Helper()
			if got := (wire.AddressPolicy{}).Admits(netip.AddrFrom16(ip)); got != admitted {
				t.Errorf("%s with the IPv4 address at %v: admitted is %v", netip.AddrFrom16(ip), form.octets, got)
			}
		}
		expect(embed(refused), false)
		for i := range refused {
			other := refused
			other[i]++
			expect(embed(other), true)
		}
		last := form.octets[3]
		for at := last + 1; at < 16; at++ {
			ip := embed(refused)
			ip[at] = 1
			expect(ip, form.behind)
		}
		if form.behind {
			// Of a form among several, an address with 0 in front is none.
			expect(embed([4]byte{0, 63, 129, 16}), true)
		}
	}
}

// TestPolicyCheck decodes with AnyAddress and applies the policy afterwards, which gives
// the same error as decoding with the policy.
func TestPolicyCheck(t *testing.T) {
	m := minimal()
	m.Endpoints = append(m.Endpoints, &typespb.FederatedService_Endpoint{Address: "127.0.0.1", Port: 80})
	s := must.Get(wire.DecodeService(m, wire.AnyAddress()))(t)
	_, want := wire.DecodeService(m, wire.AddressPolicy{})
	if got := (wire.AddressPolicy{}).Check(s); got == nil || want == nil || got.Error() != want.Error() {
		t.Errorf("error is %v, want %v", got, want)
	}
	open := wire.AddressPolicy{AllowAddresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	if got := open.Check(s); got != nil {
		t.Errorf("error is %v", got)
	}
}
