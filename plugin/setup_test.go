package federationplugin

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/bind"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// followed returns the names of the owners that the process follows.
func followed() (names []string) {
	for _, o := range owners.OwnerReports(time.Now()) {
		names = append(names, o.ID)
	}
	return names
}

// Owners are followed until other plugins have stopped, such as health, which answers for as
// long as lameduck says. A reload leaves what it has replaced at once, and one that fails does
// not change that.
func TestOwnersAreLeftLast(t *testing.T) {
	var ducked []string // the owners while another plugin stops
	plugin.Register("duck", func(c *caddy.Controller) error {
		c.OnFinalShutdown(func() error {
			ducked = followed()
			return nil
		})
		return nil
	})
	before := dnsserver.Directives
	dnsserver.Directives = []string{"bind", "duck", corefile.Directive} // releases before 1.15 have no function for it
	t.Cleanup(func() { dnsserver.Directives = before })
	caddy.Quiet, dnsserver.Quiet = true, true

	authority := must.Get(mtls.NewAuthority("test", 24*time.Hour))(t)
	issued := must.Get(authority.Issue(mtls.Leaf{Name: "consumer", IPs: []netip.Addr{netip.IPv6Loopback()}}))(t)
	dir := t.TempDir()
	files := mtls.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem")}
	must.Do(t, issued.WriteFiles(files))
	input := func(owner, more string) caddy.Input {
		const block = "%s.example:0 {\nbind 127.0.0.1\n%sfederation {\nowner 127.0.0.1:1\nname %s\ntls %s %s %s\n%s\n}\n}\n"
		text := fmt.Sprintf(block, "one", "duck\n", owner, files.Cert, files.Key, files.CA, more) +
			fmt.Sprintf(block, "two", "", "other", files.Cert, files.Key, files.CA, "")
		return caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"}
	}

	instance := must.Get(caddy.Start(input("old", "")))(t)
	instance = must.Get(instance.Restart(input("new", "")))(t)
	if got, want := followed(), []string{"new", "other"}; !slices.Equal(got, want) {
		t.Errorf("after a reload %q are followed, want %q", got, want)
	}
	if _, err := instance.Restart(input("newer", "nonsense")); err == nil {
		t.Error("a reload with a mistake succeeded")
	}
	instance.ShutdownCallbacks()
	must.Do(t, instance.Stop())
	if want := []string{"new", "other"}; !slices.Equal(ducked, want) {
		t.Errorf("while another plugin stops %q are followed, want %q", ducked, want)
	}
	if got := followed(); len(got) > 0 {
		t.Errorf("in the end %q are followed", got)
	}
}
