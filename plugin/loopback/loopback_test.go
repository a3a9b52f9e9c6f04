package loopback

import "testing"

func TestAddressOf(t *testing.T) {
	for listen, want := range map[string]string{
		"dns://:53": "127.0.0.1:53", "dns://0.0.0.0:1053": "127.0.0.1:1053", "tls://[::]:853": "127.0.0.1:853",
		"dns://192.0.2.53:53": "192.0.2.53:53", "https://[2001:db8::53]:443": "[2001:db8::53]:443",
		"dns://[fe80::1%eth0]:53": "[fe80::1%eth0]:53", "192.0.2.53:53": "192.0.2.53:53", "": "127.0.0.1:0",
	} {
		if got := AddressOf(listen); got.String() != want || got.Network() != "tcp" {
			t.Errorf("address of a server on %q is %v, want %s", listen, got, want)
		}
	}
}
