package test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

// scriptedOwner is an owner that misbehaves.
type scriptedOwner struct {
	*faultowner.Owner

	address string
}

func startScripted(t testing.TB, files mtls.Files, script string) *scriptedOwner {
	t.Helper()
	o := faultowner.New(faultowner.Config{
		Script: must.Get(faultowner.Parse(script))(t), Credentials: must.Get(mtls.Load(files, nil))(t).Server(),
	})
	listener := listen(t, "127.0.0.1:0")
	must.Run(t, func(ctx context.Context) error { return o.Serve(ctx, listener) })
	return &scriptedOwner{o, listener.Addr().String()}
}

// goOn has the script go on behind an await.
func (o *scriptedOwner) goOn(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must.Do(t, o.Go(ctx))
}

// TestCoreDNSStoppedWithinCatalog stops the process of CoreDNS in the middle of the
// catalog of an owner that does not mark its end, for longer than settle. Time in
// which the process did not run is not silence of the owner: no name may be swept.
func TestCoreDNSStoppedWithinCatalog(t *testing.T) {
	t.Parallel()
	// The owner is silent while CoreDNS runs and is asked a few times, which on a busy
	// machine takes a while.
	const settle = 15 * time.Second
	p := newPKI(t)
	const web, old = "upsert web web.fed.example 192.0.2.1\n", "upsert old old.fed.example 192.0.2.3\n"
	o := startScripted(t, p.owner, web+old+"await\nreset\n---\n"+web+"await\nwait 2s\n"+old)
	metrics := freeAddress(t)
	d := startCoreDNS(t, federationBlock(p, "fed.example", "prometheus "+metrics, fmt.Sprintf("%s settle %v", o.address, settle)))
	state := func(want string) string {
		if n := place.Scrape(t, metrics).Sum("coredns_federation_owner_state", fmt.Sprintf("state=%q", want)); n != 1 {
			return "the owner is not " + want
		}
		return ""
	}
	d.awaitAnswer(t, "old.fed.example", dns.TypeA, "NOERROR 192.0.2.3")
	d.awaitLog(t, 1, "owner is synced")
	o.goOn(t)
	eventually(t, patience, func() string {
		if n := len(o.Answers()); n < 3 {
			return fmt.Sprintf("%d answers, want one on the second stream", n)
		}
		return ""
	})
	d.signal(syscall.SIGSTOP)
	<-time.After(settle + time.Second)
	o.goOn(t)
	d.signal(syscall.SIGCONT)
	for _, want := range []string{"syncing", "synced"} {
		eventually(t, patience, func() string {
			if got := summary(mustQuery(t, d.address, "old.fed.example", dns.TypeA)); got != "NOERROR 192.0.2.3" {
				t.Fatalf("after the stop old.fed.example is %s", got)
			}
			return state(want)
		})
	}
}
