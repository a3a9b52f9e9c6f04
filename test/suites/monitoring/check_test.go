package monitoring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// TestCheck asks a CoreDNS what it holds, and has a monitoring system ask it with
// 'federationctl status --check', all of them real processes: while its owner is there, lost
// for a while, lost for most of the retention, and back; when the process is gone, and when
// another one answers.
func TestCheck(t *testing.T) {
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("not run: it takes real processes, and half a minute; make e2e-monitoring runs it")
	}
	w := &world{Place: place.For(t, nil)}
	w.Put(t, "catalog.yaml", "services:\n"+web("192.0.2.1"))
	address, metrics, status, dns := loopback.Address(t), loopback.Address(t), loopback.Address(t), loopback.Address(t)
	owner := place.Owner{Address: address, Metrics: metrics, TLS: w.issue(t, "checked-owner", ownerID, long), Allow: []string{coreDNSID}, More: "catalogs:\n- sources: [{file: {path: catalog.yaml}}]\n"}
	program, err := place.Program("federationctl")
	must.Do(t, err)
	w.Run(t, "checked-owner", program, metrics, "serve", "--config", w.Put(t, "checked-owner.yaml", owner.Config()))
	gate := realserver.StartGate(t, address)
	const retention = 20 * time.Second
	corefile := place.DNS{
		Zone: zone, Address: dns, Owners: []string{gate.Address}, OwnerID: ownerID, TLS: w.issue(t, "checked", coreDNSID, long),
		Properties: []string{fmt.Sprintf("retention %v", retention), "status " + status},
	}
	coredns, err := place.Program("coredns")
	must.Do(t, err)
	d := w.Run(t, "checked", coredns, status, "-conf", w.Put(t, "checked.corefile", corefile.Corefile()))

	// says waits until a check has an exit code, and a line that begins so.
	says := func(code int, line string, endpoint string) {
		t.Helper()
		eventually(t, func() string {
			got, text := check(t.Context(), program, endpoint)
			if got != code || !strings.HasPrefix(text, line) {
				return fmt.Sprintf("exit code %d, expected %d and %q: %s", got, code, line, text)
			}
			return ""
		})
	}
	says(0, "FEDERATION OK - 1 owner synced, 1 service. | act=0;;0;0 look=0;0;;0 well=1;;;0\n", status)
	for command, want := range map[string]string{
		"services":           "NAME                  FQDN                              STATE  ENDPOINTS\nweb                   web.fed.example                   live   192.0.2.1:80\n",
		"services 192.0.2.2": "",
	} {
		text := must.Get(exec.CommandContext(t.Context(), program, append(strings.Fields(command), "--at", status)...).Output())(t)
		if string(text) != want {
			t.Errorf("%s: it is\n%sexpected\n%s", command, text, want)
		}
	}
	gate.Refuse(true)
	gate.Cut()
	says(1, "FEDERATION WARNING - Look at 1 of 1 owner: 1 stale.", status)
	says(2, "FEDERATION CRITICAL - Act on 1 of 1 owner: 1 stale.", status)   // most of the retention is over
	says(2, "FEDERATION CRITICAL - Act on 1 of 1 owner: 1 expired.", status) // and all of it
	gate.Refuse(false)
	w.issue(t, "checked", coreDNSID, long) // has it try at once
	says(0, "FEDERATION OK - ", status)
	says(3, "FEDERATION UNKNOWN - ", metrics) // of the owner
	d.Kill()
	says(2, "FEDERATION CRITICAL - http://"+status, status)
}

// check runs a check as a monitoring system does.
func check(ctx context.Context, program, endpoint string) (code int, text string) {
	out, err := exec.CommandContext(ctx, program, "status", "--check", "--timeout", "10s", "--at", endpoint).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), string(out)
	} else if err != nil {
		return -1, err.Error()
	}
	return 0, string(out)
}
