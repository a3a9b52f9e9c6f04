package main

import "testing"

func TestParseTarget(t *testing.T) {
	for _, tt := range []struct{ target, address string }{
		{"owner.example:8008", "owner.example:8008"},
		{"[2001:db8::1]:8008", "[2001:db8::1]:8008"},
		{"https://owner.example:8008", "owner.example:8008"},
		{"https://150.214.141.1:8008/", "150.214.141.1:8008"},
		{"owner.example", "owner.example:8008"},
		{"owner.example:", ""},
		{":8008", ""},
		{"https://owner.example", "owner.example:8008"},
		{"https://user@owner.example:8008", ""},
		{"https://owner.example:8008/path", ""},
		{"https://owner.example:8008?q", ""},
		{"grpc://owner.example:8008", ""},
		{"https://%zz:1", ""},
	} {
		address, err := parseTarget(tt.target)
		if address != tt.address || (err == nil) != (tt.address != "") {
			t.Errorf("%q is %q with the error %v, expected %q", tt.target, address, err, tt.address)
		}
	}
}
