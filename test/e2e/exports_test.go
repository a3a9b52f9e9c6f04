package e2e

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// A Service that flips between exported and not is published as it was left, and
// nobody else notices.
func TestFlips(t *testing.T) {
	west, east := two(t)
	const space = "flips"
	p, _ := crowd(t, west, east, space, 3)
	f := follow(t, west)
	f.holds(t, "west/flips/db", "west/flips/svc-0", "west/flips/svc-1", "west/flips/svc-2")
	flips := question{"svc-0." + space + "." + west.Zone, dns.TypeA}
	p.expect(flips, "")
	for range 20 {
		remove(t, west, export(space, "svc-0"))
		apply(t, west, export(space, "svc-0"))
	}
	answers(t, east, flips.name, flips.qtype, "NOERROR 203.0.113.1")
	says(t, west, space, "svc-0", "Ready", "True", "Exported")
	remove(t, west, export(space, "svc-0"))
	answers(t, east, flips.name, flips.qtype, "NXDOMAIN")
	f.holds(t, "west/flips/db", "west/flips/svc-1", "west/flips/svc-2")
	p.check(t)
}

// What cannot be published says so on its ServiceExport, and harms nobody.
func TestRefusals(t *testing.T) {
	west, east := two(t)
	const space = "refusals"
	p, _ := crowd(t, west, east, space, 3)
	for _, tt := range []struct {
		name, service, kind, reason, message string
	}{
		{"nowhere", "{apiVersion: v1, kind: Service, metadata: {name: nowhere, namespace: refusals}, spec: {ports: [{port: 80}]}}", "Ready", "NoAddress", ""},
		{
			"datagrams", "{apiVersion: v1, kind: Service, metadata: {name: datagrams, namespace: refusals}, spec: {externalIPs: [203.0.113.9], ports: [{port: 53, protocol: UDP}]}}",
			"Valid", "UDPOnly", "UDP",
		},
		{"absent", "", "Valid", "NoService", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			apply(t, west, tt.service, export(space, tt.name))
			if message := says(t, west, space, tt.name, tt.kind, "False", tt.reason); !strings.Contains(message, tt.message) {
				t.Errorf("the message is %q, want one with %q", message, tt.message)
			}
			answers(t, east, tt.name+"."+space+"."+west.Zone, dns.TypeA, "NXDOMAIN")
		})
	}
	p.check(t)
}
