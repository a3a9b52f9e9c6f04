package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// certify returns a certificate that parent signs, with its key as an authority of its
// own. change makes it something else than a good leaf.
func certify(t *testing.T, parent *Authority, change func(*x509.Certificate), uris ...string) *Authority {
	t.Helper()
	template := &x509.Certificate{
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	for _, s := range uris {
		uri := must.Get(url.Parse(s))(t)
		template.URIs = append(template.URIs, uri)
	}
	if change != nil {
		change(template)
	}
	key, der, err := signCertificate(template, parent.certificate, parent.key)
	must.Do(t, err)
	certificate := must.Get(x509.ParseCertificate(der))(t)
	return &Authority{certificate, key}
}

// intermediate makes a certificate one of an authority.
func intermediate(c *x509.Certificate) {
	c.IsCA, c.KeyUsage, c.ExtKeyUsage = true, x509.KeyUsageCertSign, nil
}

// holder returns a Source as if a SPIFFE agent had issued the first certificate of chain,
// whether or not it may, and the bundles of trust domains.
func holder(bundles map[string][]*x509.Certificate, leaf *Authority, rest ...*Authority) *Source {
	m := &tlsMaterial{
		certificate: tls.Certificate{Certificate: [][]byte{leaf.certificate.Raw}, PrivateKey: leaf.key, Leaf: leaf.certificate},
		trust:       trustAnchors{domains: make(map[spiffeid.TrustDomain]*x509bundle.Bundle)},
		replaced:    make(chan struct{}),
	}
	for _, a := range rest {
		m.certificate.Certificate = append(m.certificate.Certificate, a.certificate.Raw)
	}
	for name, authorities := range bundles {
		domain := spiffeid.RequireTrustDomainFromString(name)
		m.trust.domains[domain] = x509bundle.FromX509Authorities(domain, authorities)
	}
	m.agent = &spiffeAgent{}
	s := &Source{logger: slog.New(slog.DiscardHandler), open: make(map[*guardedConn]struct{}), origin: &followedOrigin{agent: m.agent}}
	s.material.Store(m)
	return s
}

// Each rule of X509-SVID is kept on either side: nobody is let in, and no owner taken,
// by a certificate that breaks one, or that another trust domain has issued.
func TestX509SVID(t *testing.T) {
	one, two, shared := newAuthority(t), newAuthority(t), newAuthority(t)
	bundles := map[string][]*x509.Certificate{
		"one.example":   {one.certificate},
		"two.example":   {two.certificate},
		"three.example": {shared.certificate},
		"four.example":  {shared.certificate},
	}
	oneUnderTwo := certify(t, two, intermediate, "spiffe://one.example")
	threeUnderShared := certify(t, shared, intermediate, "spiffe://three.example")
	plainUnderOne := certify(t, one, intermediate)
	twoUnderOne := certify(t, one, intermediate, "spiffe://two.example")
	oneUnderOne := certify(t, one, intermediate, "spiffe://one.example")

	const unsigned = "by the bundle of trust domain one.example: x509svid: could not verify leaf certificate: x509: certificate signed by unknown authority"
	for name, tc := range map[string]struct {
		leaf *Authority
		rest []*Authority
		want string // "": none
	}{
		"good":                             {certify(t, one, nil, alice), nil, ""},
		"of a federated trust domain":      {certify(t, two, nil, bob), nil, ""},
		"with DNS names":                   {certify(t, one, func(c *x509.Certificate) { c.DNSNames = []string{"a.example"} }, alice), nil, ""},
		"no extended usage":                {certify(t, one, func(c *x509.Certificate) { c.ExtKeyUsage = nil }, alice), nil, ""},
		"by an intermediate":               {certify(t, oneUnderOne, nil, alice), []*Authority{oneUnderOne}, ""},
		"by an intermediate without an ID": {certify(t, plainUnderOne, nil, alice), []*Authority{plainUnderOne}, ""},

		"no ID":              {certify(t, one, func(c *x509.Certificate) { c.DNSNames = []string{"a.example"} }), nil, "no URI SAN"},
		"two IDs":            {certify(t, one, nil, alice, bob), nil, "more than one URI SAN"},
		"another URI":        {certify(t, one, nil, "https://one.example/alice"), nil, "scheme is missing or invalid"},
		"trust domain alone": {certify(t, one, nil, "spiffe://one.example"), nil, "the path is missing"},
		"too long":           {certify(t, one, nil, alice+strings.Repeat("a", 2048)), nil, "longer than 2048 bytes"},
		"an authority":       {certify(t, one, func(c *x509.Certificate) { c.IsCA = true }, alice), nil, "CA flag"},
		"signs certificates": {certify(t, one, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }, alice), nil, "KeyCertSign"},
		"signs revocations":  {certify(t, one, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign }, alice), nil, "KeyCrlSign"},
		"signs nothing":      {certify(t, one, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment }, alice), nil, "no digitalSignature"},
		"no key usage":       {certify(t, one, func(c *x509.Certificate) { c.KeyUsage = 0 }, alice), nil, "no digitalSignature"},
		"for servers only":   {certify(t, one, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }, alice), nil, "both serverAuth and clientAuth"},
		"for clients only":   {certify(t, one, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] }, alice), nil, "both serverAuth and clientAuth"},
		"expired":            {certify(t, one, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, alice), nil, "expired"},

		"rogue authority of a federated trust domain": {certify(t, two, nil, alice), nil, unsigned},
		"rogue authority that is sent along":          {certify(t, two, nil, alice), []*Authority{two}, unsigned},
		"unlisted trust domain":                       {certify(t, one, nil, "spiffe://five.example/eve"), nil, "there is no bundle of trust domain five.example"},
		"rogue intermediate of the trust domain":      {certify(t, oneUnderTwo, nil, alice), []*Authority{oneUnderTwo}, unsigned},
		"foreign intermediate":                        {certify(t, twoUnderOne, nil, alice), []*Authority{twoUnderOne}, errIntermediate.Error()},
		"sister under a shared root":                  {certify(t, threeUnderShared, nil, "spiffe://four.example/eve"), []*Authority{threeUnderShared}, errIntermediate.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			good, peer := holder(bundles, certify(t, one, nil, alice)), holder(bundles, tc.leaf, tc.rest...)
			var ids []federation.ID
			if len(tc.leaf.certificate.URIs) > 0 {
				if id, err := federation.ParseID(tc.leaf.certificate.URIs[0].String()); err == nil {
					ids = append(ids, id)
				}
			}
			ofOwner, _ := handshake(good.Client("", ids), peer.Server())
			_, ofConsumer := handshake(peer.Client("", parseIDs(t, []string{alice})), good.Server())
			for side, err := range map[string]error{"consumer": ofOwner, "owner": ofConsumer} {
				var refused *tls.CertificateVerificationError
				switch {
				case tc.want == "" && err != nil:
					t.Errorf("%s refuses it: %v", side, err)
				case tc.want != "" && (!errors.As(err, &refused) || !strings.Contains(err.Error(), tc.want)):
					t.Errorf("%s: got %v, expected %q", side, err, tc.want)
				}
			}
		})
	}
}

// An identity that no owner is pinned to is none.
func TestSPIFFEIDOfTheOwner(t *testing.T) {
	one := newAuthority(t)
	bundles := map[string][]*x509.Certificate{"one.example": {one.certificate}}
	owner := holder(bundles, certify(t, one, func(c *x509.Certificate) { c.DNSNames = []string{"owner.example"} }, alice))
	for _, tc := range []struct {
		ids  []string
		want string
	}{
		{[]string{alice}, ""},
		{[]string{bob, alice}, ""},
		{[]string{bob}, "not for [" + bob + "]"},
		{[]string{"owner.example"}, "not for [owner.example]"},
		{nil, "no SPIFFE ID is named that the owner must have"},
	} {
		err, _ := handshake(owner.Client("owner.example", parseIDs(t, tc.ids)), owner.Server())
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("pinned to %v: %v, expected %q", tc.ids, err, tc.want)
		}
	}
}
