package node

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestParseURI(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")
	long := strings.Repeat("a", 63) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("c", 63) + "." + strings.Repeat("d", 61)
	// The rules of package federation.
	errZone := errors.New("address has a zone identifier")
	errForm := errors.New("address is neither an IP address nor a host name")
	for _, tc := range []struct {
		in   string
		peer netip.Addr
		want string
		err  error
	}{
		{in: "https://192.0.2.1:8443", want: "https://192.0.2.1:8443"},
		{in: "HTTPS://192.0.2.1/", want: "https://192.0.2.1:443"},
		{in: "http://host.Example.", want: "http://host.example:80"},
		{in: "grpc://[2001:DB8::0:1]:50051", want: "grpc://[2001:db8::1]:50051"},
		{in: "http2://[::ffff:192.0.2.1]:1", want: "http2://192.0.2.1:1"},
		{in: "mongo://db.example:27017", want: "mongo://db.example:27017"},
		{in: "tcp://a:65535", want: "tcp://a:65535"},
		{in: "tls://bücher.example:1", want: "tls://xn--bcher-kva.example:1"},
		{in: "mtls://a:1", want: "mtls://a:1"},
		{in: "mTLS://" + long + ":1", want: "mtls://" + long + ":1"},
		{in: "https://:8443", peer: v4, want: "https://192.0.2.9:8443"},
		{in: "https://", peer: netip.AddrFrom16(v4.As16()), want: "https://192.0.2.9:443"},
		{in: "tcp://:1/", peer: v6.WithZone("eth0"), want: "tcp://[2001:db8::9]:1"},
		{in: "tcp://192.0.2.1:1", peer: v6, want: "tcp://192.0.2.1:1"},

		{in: "", err: errScheme},
		{in: "192.0.2.1:80", err: errScheme},
		{in: "//192.0.2.1:80", err: errScheme},
		{in: "://192.0.2.1:80", err: errScheme},
		{in: "udp://192.0.2.1:80", err: errScheme},
		{in: "httpſ://192.0.2.1:80", err: errScheme},
		{in: " https://192.0.2.1:80", err: errScheme},
		{in: "https://192.0.2.1//", err: errExtra},
		{in: "https://192.0.2.1/a", err: errExtra},
		{in: "https://192.0.2.1?a", err: errExtra},
		{in: "https://192.0.2.1#", err: errExtra},
		{in: "https://user@192.0.2.1", err: errExtra},
		{in: "https://192.0.2.1:80:80", err: errBrackets},
		{in: "https://2001:db8::1:80", err: errBrackets},
		{in: "https://[192.0.2.1]:80", err: errBrackets},
		{in: "https://[a.example]:80", err: errBrackets},
		{in: "https://[]:80", err: errBrackets},
		{in: "https://[::1", err: errBrackets},
		{in: "https://[::1]]:80", err: errBrackets},
		{in: "https://[::1]80", err: errPort},
		{in: "https://[fe80::1%eth0]:80", err: errZone},
		{in: "https://192.0.2.1:", err: errPort},
		{in: "https://192.0.2.1:0", err: errPort},
		{in: "https://192.0.2.1:080", err: errPort},
		{in: "https://192.0.2.1:+80", err: errPort},
		{in: "https://192.0.2.1:65536", err: errPort},
		{in: "https://192.0.2.1:http", err: errPort},
		{in: "grpc://192.0.2.1", err: errNoPort},
		{in: "tcp://", peer: v4, err: errNoPort},
		{in: "https://", err: errNoHost},
		{in: "https://:8443", err: errNoHost},
		{in: "https://.", err: errForm},
		{in: "https://*.example", err: errForm},
		{in: "https://192.0.2.256", err: errForm},
		{in: "https://a%2eb", err: errForm},
		{in: "https://a\x00b", err: errForm},
		{in: "https://" + long + "dd", err: errForm},
		{in: "https://" + strings.Repeat("a", maxURIBytes), err: errLong},
	} {
		u, err := ParseURI(tc.in, tc.peer)
		if tc.err != nil {
			if err == nil || !strings.Contains(err.Error(), tc.err.Error()) || u != (URI{}) {
				t.Errorf("ParseURI(%q) = %v, %v; want %v", tc.in, u, err, tc.err)
			}
			continue
		}
		if err != nil || u.String() != tc.want {
			t.Errorf("ParseURI(%q) = %v, %v; want %s", tc.in, u, err, tc.want)
		}
	}
	if s := (URI{}).String(); s != "" {
		t.Errorf("the zero value is spelled %q", s)
	}
}

func TestCompareURI(t *testing.T) {
	ordered := []string{
		"http://192.0.2.1:80", "https://192.0.2.1:80", "http://192.0.2.1:81", "http://192.0.2.2:80", "http://[2001:db8::1]:80",
		"http://a:80", "http://a:81", "http://b:80",
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := uri(t, a).Compare(uri(t, b)); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s and %s compare as %d", a, b, got)
			}
		}
	}
}

func uri(tb testing.TB, text string) URI {
	tb.Helper()
	return must.Get(ParseURI(text, netip.Addr{}))(tb)
}

func FuzzParseURI(f *testing.F) {
	for _, text := range []string{"https://192.0.2.1:8443", "HTTP://[::1]/", "mtls://:1", "tcp://a.example:1?b#c@d", "grpc://[fe80::1%1]:1", "://"} {
		f.Add(text, []byte{192, 0, 2, 1})
	}
	f.Fuzz(func(t *testing.T, text string, octets []byte) {
		peer, _ := netip.AddrFromSlice(octets)
		u, err := ParseURI(text, peer)
		if (err == nil) == (u == URI{}) {
			t.Fatalf("ParseURI(%q) = %v, %v: want either a URI or an error", text, u, err)
		}
		if err != nil {
			if len(err.Error()) > 1200 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		again, err := ParseURI(u.String(), netip.Addr{})
		if err != nil || again != u || again.String() != u.String() {
			t.Fatalf("%q is %v, and that is %v, %v", text, u, again, err)
		}
		if u.Port == 0 || u.Protocol.String() == "" || u.Address == (federation.Address{}) {
			t.Fatalf("%q is %+v", text, u)
		}
		if ip, ok := u.Address.IP(); ok && (ip.Zone() != "" || ip.Is4In6()) {
			t.Fatalf("%q has the address %v", text, ip)
		}
	})
}
