package main

import "testing"

// TestOwnerAddress adds the port of an owner where it is missing.
func TestOwnerAddress(t *testing.T) {
	for text, want := range map[string]string{
		"owner.example": "owner.example:8008", "owner.example:1": "owner.example:1", "192.0.2.1": "192.0.2.1:8008", "Owner.example:8008": "owner.example:8008",
		"[2001:db8::1]": "[2001:db8::1]:8008", "2001:db8::1": "[2001:db8::1]:8008", "[2001:db8::1]:1": "[2001:db8::1]:1", "::1": "[::1]:8008",
		"https://owner.example": "owner.example:8008", "https://[::1]": "[::1]:8008", "https://a:1/": "a:1",
		"": "", ":1": "", "a:": "", "a:1:2": "", "a b": "", "a/b": "", ":8008": "", "owner.example:": "", "https://%zz:1": "", "grpc://owner.example:8008": "",
		"https://user@owner.example:8008": "", "https://owner.example:8008/path": "", "https://owner.example:8008?q": "",
	} {
		if got, err := parseOwnerAddress(text); (err == nil) != (want != "") || got != want {
			t.Errorf("%q is %q, %v", text, got, err)
		}
	}
}
