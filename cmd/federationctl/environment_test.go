package main

import (
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/status/page"
)

// TestEnvironment has each variable stand for its flag, which wins, and give way to flags
// that say something else in its place.
func TestEnvironment(t *testing.T) {
	dir := pkiIn(t)
	server := httptest.NewServer(page.Handler(&asked{}))
	t.Cleanup(server.Close)
	t.Setenv("FEDERATION_AT", server.URL)
	for flag, variable := range environment() {
		if flag != "at" {
			t.Setenv(variable, filepath.Join(dir, map[string]string{"cert": "consumer.pem", "key": "consumer-key.pem", "ca": "ca.pem"}[flag]))
		}
	}
	_, address := runServe(t, dir, write(t, filepath.Join(dir, "catalog.yaml"), catalogText))
	for _, tt := range []struct {
		line           string
		code           int
		stdout, stderr string // a part of it
	}{
		{"status", 0, "CoreDNS with federation", ""},
		{"status --at http://127.0.0.1:1", 1, "", "http://127.0.0.1:1"},
		{"status --at https://127.0.0.1:1", 1, "", "https://127.0.0.1:1: dial"},
		{"status --cert a.pem", 2, "", "--cert, --key and --ca are for https"},
		{"watch --once " + address, 0, "shop.fed.example", ""},
		{"watch --once --ca no.pem " + address, 1, "", "no.pem"},
		{"watch --once --spiffe tcp://127.0.0.1 --owner-id spiffe://a/b " + address, 1, "", "check --spiffe"},
		{"serve --config no.yaml", 1, "", "no.yaml"},
		{"serve --allow-any --catalog no.yaml", 1, "", "no.yaml"},
		{"watch --help", 0, "[$FEDERATION_CERT]", ""},
	} {
		code, stdout, stderr := ctl(t, strings.Fields(tt.line)...)
		if code != tt.code || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) || tt.stderr == "" && stderr != "" {
			t.Errorf("%s: exit code %d, %q, %q", tt.line, code, stdout, stderr)
		}
	}
}

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
