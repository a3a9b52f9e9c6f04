package spiffe

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// workload is a process that takes its certificates from an agent: this one.
type workload struct{ source *workloadapi.X509Source }

// newWorkload waits for the first certificate.
func newWorkload(t *testing.T, s *realserver.SPIRE) workload {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	source := must.Get(workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr(s.Socket))))(t)
	t.Cleanup(func() { source.Close() })
	return workload{source}
}

// certificate returns the one that the workload has now.
func (w workload) certificate(t *testing.T) *x509svid.SVID {
	t.Helper()
	svid := must.Get(w.source.GetX509SVID())(t)
	return svid
}

// trusts returns nil if the workload takes a chain of certificates for one of its ID.
func (w workload) trusts(chain ...*x509.Certificate) error {
	_, _, err := x509svid.Verify(chain, w.source)
	return err
}

// after waits for another certificate than the one that the workload had.
func (w workload) after(t *testing.T, old *x509svid.SVID) *x509svid.SVID {
	t.Helper()
	eventually(t, func() string {
		if w.certificate(t).Certificates[0].Equal(old.Certificates[0]) {
			return "the certificate is still the same"
		}
		return ""
	})
	return w.certificate(t)
}

// knows waits until the workload has, or has not, the bundle of a trust domain.
func (w workload) knows(t *testing.T, s *realserver.SPIRE, want bool) {
	t.Helper()
	eventually(t, func() string {
		_, err := w.source.GetX509BundleForTrustDomain(spiffeid.RequireTrustDomainFromString(s.TrustDomain))
		if (err == nil) != want {
			return fmt.Sprintf("the bundle of %s: %v, want it: %t", s.TrustDomain, err, want)
		}
		return ""
	})
}

// Two trust domains that federate give this process its certificates, replace them
// before they expire, and go on after each component was ended.
func TestSPIRE(t *testing.T) {
	enabled(t)
	ctx := t.Context()
	const ttl = 20 * time.Second
	west := realserver.StartSPIRE(t, realserver.SPIREOptions{TrustDomain: "west.test", TTL: ttl})
	east := realserver.StartSPIRE(t, realserver.SPIREOptions{TrustDomain: "east.test", TTL: ttl})
	program, err := os.Executable()
	must.Do(t, err)
	must.Do(t, errors.Join(west.Trust(ctx, east), east.Trust(ctx, west)))
	must.Do(t, west.Register(ctx, "ns/dns", []string{"unix:path:" + program}, east))
	must.Do(t, west.Register(ctx, "other", []string{"unix:path:/bin/sh"}))
	must.Do(t, east.Register(ctx, "owner", []string{fmt.Sprintf("unix:uid:%d", os.Getuid())}, west))
	w, e := newWorkload(t, west), newWorkload(t, east)
	first := w.certificate(t)
	if got := first.ID.String(); got != west.ID("ns/dns") {
		t.Errorf("ID is %s, want %s", got, west.ID("ns/dns"))
	}
	if got := time.Until(first.Certificates[0].NotAfter); got > ttl {
		t.Errorf("the certificate is valid for %v, want %v at most", got, ttl)
	}
	must.Do(t, errors.Join(w.trusts(e.certificate(t).Certificates...), e.trusts(first.Certificates...)))
	second := w.after(t, first)
	if !second.Certificates[0].NotAfter.After(first.Certificates[0].NotAfter) || time.Now().After(first.Certificates[0].NotAfter) {
		t.Errorf("a certificate until %v follows one until %v", second.Certificates[0].NotAfter, first.Certificates[0].NotAfter)
	}

	// Whoever has the key of an authority can sign for any domain, and is believed for
	// one only.
	for id, want := range map[string]bool{east.ID("anybody"): true, west.ID("ns/dns"): false} {
		forged, err := east.Forge(ctx, id)
		must.Do(t, err)
		if err := w.trusts(forged.Leaf); (err == nil) != want {
			t.Errorf("verifying %s, signed by the authority of %s: %v", id, east.TrustDomain, err)
		}
	}

	must.Do(t, errors.Join(west.Agent.Stop(), west.Server.Stop()))
	must.Do(t, errors.Join(west.Server.Start(ctx), west.Agent.Start(ctx)))
	third := w.after(t, second)
	if err := e.trusts(third.Certificates...); err != nil {
		t.Errorf("after a new start of the server: %v", err)
	}

	must.Do(t, west.Distrust(ctx, east))
	w.knows(t, east, false)
	if err := w.trusts(e.certificate(t).Certificates...); err == nil {
		t.Error("a domain is trusted whose bundle was removed")
	}
	must.Do(t, errors.Join(west.Trust(ctx, east), west.Register(ctx, "ns/dns", []string{"unix:path:" + program}, east)))
	w.knows(t, east, true)
	must.Do(t, w.trusts(e.certificate(t).Certificates...))
}
