package federation_test

import (
	"errors"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
)

func TestParseAddress(t *testing.T) {
	for _, tt := range []struct {
		s    string
		ip   string
		host string
		err  error
	}{
		{s: "192.0.2.1", ip: "192.0.2.1"},
		{s: "127.0.0.1", ip: "127.0.0.1"}, // which a consumer may refuse
		{s: "2001:DB8:0::1", ip: "2001:db8::1"},
		{s: "::ffff:192.0.2.1", ip: "192.0.2.1"},
		{s: "::ffff:c000:201", ip: "192.0.2.1"},
		{s: "::", ip: "::"},
		{s: "Web.example.", host: "web.example."},
		{s: "bücher.example", host: "xn--bcher-kva.example."},
		{s: "localhost", host: "localhost."},

		{s: "fe80::1%eth0", err: federation.ErrAddressZone},
		{s: "::ffff:192.0.2.1%1", err: federation.ErrAddressZone},
		{s: "[2001:db8::1]", err: federation.ErrAddressForm},
		{s: "192.0.2.1:80", err: federation.ErrAddressForm},
		{s: "web.example:80", err: federation.ErrAddressForm},
		{s: "http://web.example", err: federation.ErrAddressForm},
		{s: "192.0.2.0/24", err: federation.ErrAddressForm},
		{s: "2001:db8::/32", err: federation.ErrAddressForm},
		{s: "2001:db8:::1", err: federation.ErrAddressForm},
		{s: "192.0.2.01", err: federation.ErrAddressForm},
		{s: "192.0.2.256", err: federation.ErrAddressForm},
		{s: "192.0.2", err: federation.ErrNameNumeric},
		{s: "3221225985", err: federation.ErrNameNumeric},
		{s: "0xa9fea9fe", err: federation.ErrNameNumeric},
		{s: "0251.0376.0251.0xfe.", err: federation.ErrNameNumeric},
		{s: "", err: federation.ErrNameEmpty},
		{s: ".", err: federation.ErrNameEmpty},
		{s: " 192.0.2.1", err: federation.ErrLabelCharacter},
		{s: "web_1.-example", err: federation.ErrLabelHyphen},
	} {
		t.Run(tt.s, func(t *testing.T) {
			got, err := federation.ParseAddress(tt.s)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error is %v, expected %v", err, tt.err)
			}
			if tt.err != nil && tt.err != federation.ErrAddressZone && !errors.Is(err, federation.ErrAddressForm) { //nolint:errorlint // of the table
				t.Errorf("error %v is no ErrAddressForm", err)
			}
			ip, isIP := got.IP()
			if isIP != (tt.ip != "") || isIP && ip.String() != tt.ip {
				t.Errorf("IP address is %v, %v, expected %q", ip, isIP, tt.ip)
			}
			host, isHost := got.Host()
			if isHost != (tt.host != "") || host.String() != tt.host {
				t.Errorf("host is %q, %v, expected %q", host, isHost, tt.host)
			}
			if got.String() != tt.ip+tt.host {
				t.Errorf("written as %q, expected %q", got, tt.ip+tt.host)
			}
		})
	}
}
