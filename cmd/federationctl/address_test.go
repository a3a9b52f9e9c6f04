package main

import "testing"

// TestOwnerAddress adds the port of an owner where it is missing.
func TestOwnerAddress(t *testing.T) {
	for text, want := range map[string]string{
		"owner.example": "owner.example:8008", "owner.example:1": "owner.example:1", "192.0.2.1": "192.0.2.1:8008",
		"[2001:db8::1]": "[2001:db8::1]:8008", "2001:db8::1": "[2001:db8::1]:8008", "[2001:db8::1]:1": "[2001:db8::1]:1",
		"": "", ":1": "", "a:": "", "a:1:2": "", "a b": "", "a/b": "",
	} {
		if got, ok := ownerAddress(text); ok != (want != "") || ok && got != want {
			t.Errorf("%q is %q, %v", text, got, ok)
		}
	}
	for text, want := range map[string]string{"https://owner.example": "owner.example:8008", "https://[::1]": "[::1]:8008", "https://a:1/": "a:1"} {
		if got, err := parseTarget(text); err != nil || got != want {
			t.Errorf("%q is %q, %v", text, got, err)
		}
	}
}
