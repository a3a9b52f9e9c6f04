package federation_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// FuzzParseName parses a string as every kind of name, and renames what it finds.
func FuzzParseName(f *testing.F) {
	for _, tt := range nameTests {
		f.Add(tt.s, "example", "partner.example")
	}
	f.Add("web.fed.example", "fed.example", ".")
	f.Fuzz(func(t *testing.T, s, from, to string) {
		name, err := federation.ParseFQDN(s)
		checkParsed(t, s, name.String(), err, federation.ParseFQDN)
		origin, originErr := federation.ParseOrigin(s)
		checkParsed(t, s, origin.String(), originErr, federation.ParseOrigin)
		if err == nil && origin != name {
			t.Errorf("%q is the name %q and the origin %q", s, name, origin)
		}
		label, labelErr := federation.ParseLabel(s)
		if labelErr == nil && strings.HasSuffix(label.String(), ".") {
			t.Errorf("label %q has a final dot", label)
		}
		checkParsed(t, s, label.String(), labelErr, federation.ParseLabel)
		if err == nil && labelErr == nil && label.String()+"." != name.String() {
			t.Errorf("%q is the name %q and the label %q", s, name, label)
		}

		checked := fullService(t)
		if checked.FQDN = origin; originErr == nil && (checked.Validate() == nil) != (err == nil) {
			t.Errorf("ParseFQDN says %v of %q, and Validate of the origin %v", err, s, checked.Validate())
		}

		below, fromErr := federation.ParseOrigin(from)
		target, toErr := federation.ParseOrigin(to)
		if originErr != nil || fromErr != nil || toErr != nil {
			return
		}
		renamed, err := origin.Rename(below, target)
		switch {
		case err != nil:
			if !errors.Is(err, federation.ErrNameTooLong) || !renamed.IsZero() {
				t.Errorf("%q with %q as %q is %q with the error %v", origin, below, target, renamed, err)
			}
		case !origin.Within(below):
			if renamed != origin {
				t.Errorf("%q, which is not within %q, was renamed to %q", origin, below, renamed)
			}
		case !renamed.Within(target):
			t.Errorf("%q with %q as %q is %q, which is not within it", origin, below, target, renamed)
		case origin != below && target.String() != ".":
			// The way back is the same.
			if back, err := renamed.Rename(target, below); err != nil || back != origin {
				t.Errorf("%q with %q as %q is %q, and back it is %q, %v", origin, below, target, renamed, back, err)
			}
		}
	})
}

// checkParsed checks what holds for a name of any kind.
func checkParsed[T interface{ String() string }](t *testing.T, s, name string, err error, parse func(string) (T, error)) {
	t.Helper()
	if err != nil {
		if name != "" {
			t.Errorf("%q is %q with the error %v", s, name, err)
		}
		return
	}
	if name == "" || len(name) > 254 && strings.HasSuffix(name, ".") || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		t.Errorf("%q is %q", s, name)
	}
	if name != "." {
		for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
			if label == "" || len(label) > 63 {
				t.Errorf("%q is %q with the label %q", s, name, label)
			}
		}
	}
	again, err := parse(name)
	if err != nil || again.String() != name {
		t.Errorf("%q is %q, and that is %q with the error %v", s, name, again, err)
	}
}

// FuzzParseAddress parses a string as an address.
func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", "fe80::1%1", "web.example", "192.0.2.1:80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := federation.ParseAddress(s)
		ip, isIP := a.IP()
		host, isHost := a.Host()
		if err != nil {
			if a != (federation.Address{}) || isIP || isHost || !errors.Is(err, federation.ErrAddressForm) && !errors.Is(err, federation.ErrAddressZone) {
				t.Errorf("%q is %q with the error %v", s, a, err)
			}
			return
		}
		if isIP == isHost || isIP && (ip.Is4In6() || ip.Zone() != "") {
			t.Errorf("%q is the IP address %v and the host %q", s, ip, host)
		}
		if name, err := federation.ParseFQDN(s); isHost && (err != nil || name != host) {
			t.Errorf("%q is the host %q and the name %q, %v", s, host, name, err)
		}
		if again, err := federation.ParseAddress(a.String()); err != nil || again != a {
			t.Errorf("%q is %q, and that is %q with the error %v", s, a, again, err)
		}
	})
}
