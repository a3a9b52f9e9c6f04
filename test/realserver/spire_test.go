package realserver

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
)

// workload is a process that takes its certificates from an agent: this one.
type workload struct{ source *workloadapi.X509Source }

// newWorkload waits for the first certificate.
func newWorkload(t *testing.T, s *SPIRE) workload {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr(s.Socket)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { source.Close() })
	return workload{source}
}

// certificate returns the one that the workload has now.
func (w workload) certificate(t *testing.T) *x509svid.SVID {
	t.Helper()
	svid, err := w.source.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
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
	var now *x509svid.SVID
	err := until(t.Context(), func() error {
		if now = w.certificate(t); now.Certificates[0].Equal(old.Certificates[0]) {
			return errors.New("the certificate is still the same")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// Two trust domains that federate give this process its certificates, replace them
// before they expire, and go on after each component was ended.
func TestSPIRE(t *testing.T) {
	ctx := t.Context()
	const ttl = 20 * time.Second
	west, east := StartSPIRE(t, SPIREOptions{TrustDomain: "west.test", TTL: ttl}), StartSPIRE(t, SPIREOptions{TrustDomain: "east.test", TTL: ttl})
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]*SPIRE{{west, east}, {east, west}} {
		if err := pair[0].Trust(ctx, pair[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := west.Register(ctx, "ns/dns", []string{"unix:path:" + program}, east); err != nil {
		t.Fatal(err)
	}
	if err := west.Register(ctx, "other", []string{"unix:path:/bin/sh"}); err != nil {
		t.Fatal(err)
	}
	if err := east.Register(ctx, "owner", []string{fmt.Sprintf("unix:uid:%d", os.Getuid())}, west); err != nil {
		t.Fatal(err)
	}
	w, e := newWorkload(t, west), newWorkload(t, east)
	first := w.certificate(t)
	if got := first.ID.String(); got != west.ID("ns/dns") {
		t.Errorf("ID is %s, want %s", got, west.ID("ns/dns"))
	}
	if got := time.Until(first.Certificates[0].NotAfter); got > ttl {
		t.Errorf("the certificate is valid for %v, want %v at most", got, ttl)
	}
	if err := errors.Join(w.trusts(e.certificate(t).Certificates...), e.trusts(first.Certificates...)); err != nil {
		t.Error(err)
	}
	second := w.after(t, first)
	if !second.Certificates[0].NotAfter.After(first.Certificates[0].NotAfter) || time.Now().After(first.Certificates[0].NotAfter) {
		t.Errorf("a certificate until %v follows one until %v", second.Certificates[0].NotAfter, first.Certificates[0].NotAfter)
	}

	// Whoever has the key of an authority can sign for any domain, and is believed for
	// one only.
	for id, want := range map[string]bool{east.ID("anybody"): true, west.ID("ns/dns"): false} {
		forged, err := east.Forge(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.trusts(forged.Leaf); (err == nil) != want {
			t.Errorf("verifying %s, signed by the authority of %s: %v", id, east.TrustDomain, err)
		}
	}

	if err := errors.Join(west.Agent.Stop(), west.Server.Stop()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(west.Server.Start(ctx), west.Agent.Start(ctx)); err != nil {
		t.Fatal(err)
	}
	third := w.after(t, second)
	if err := e.trusts(third.Certificates...); err != nil {
		t.Errorf("after a new start of the server: %v", err)
	}

	bundle := func(want bool) {
		t.Helper()
		err := until(ctx, func() error {
			_, err := w.source.GetX509BundleForTrustDomain(spiffeid.RequireTrustDomainFromString(east.TrustDomain))
			if (err == nil) != want {
				return fmt.Errorf("the bundle of %s: %w, want it: %t", east.TrustDomain, err, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := west.Distrust(ctx, east); err != nil {
		t.Fatal(err)
	}
	bundle(false)
	if err := w.trusts(e.certificate(t).Certificates...); err == nil {
		t.Error("a domain is trusted whose bundle was removed")
	}
	if err := errors.Join(west.Trust(ctx, east), west.Register(ctx, "ns/dns", []string{"unix:path:" + program}, east)); err != nil {
		t.Fatal(err)
	}
	bundle(true)
	if err := w.trusts(e.certificate(t).Certificates...); err != nil {
		t.Error(err)
	}
}
