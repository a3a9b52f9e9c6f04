package mtls

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// SPIFFE says which SPIFFE agent issues the certificate of a Source, by the SPIFFE Workload API,
// and whose peers are accepted.
type SPIFFE struct {
	Socket       string   `yaml:"socket" as:"socket" doc:"The address of the agent, such as unix:///run/spire/agent.sock or tcp://127.0.0.1:8081."`
	TrustDomains []string `yaml:"trust_domains" as:"trust" least:"one is required; leave it out for none" doc:"Further trust domains whose members are accepted, by default only the own one."`
}

// spiffeAgent is the SPIFFE agent of a Source. One of its Runs follows the agent at a time, as turn
// says, and passes each update to the Source. It keeps no update itself, only why there is nothing
// newer.
type spiffeAgent struct {
	// read-only
	socket   string
	accepted []spiffeid.TrustDomain
	options  []workloadapi.ClientOption
	turn     chan struct{} // of capacity 1, full while one of the Runs follows the agent

	mu      sync.Mutex
	trouble error // why there is nothing newer from the agent, or nil; guarded by mu
}

// An agent is on this machine and has few clients. When it is away or has nothing to issue,
// it is asked again after minRetry at first and maxRetry at last.
const (
	minRetry = time.Second
	maxRetry = 5 * time.Second
)

// The reasons why there is nothing newer from an agent.
var (
	errNotAsked = errors.New("it has not been asked yet")
	errAway     = errors.New("it is away")
	errNothing  = errors.New("it issues no identity to this process: check its registration entries")
	errBroken   = errors.New("what it sends cannot be used")
)

// Check returns why the socket, unless it is empty, is no address of an agent, or why one of the
// trust domains is no trust domain, or nil. It asks no agent.
func (s SPIFFE) Check() error {
	_, err := s.acceptedDomains()
	return err
}

// acceptedDomains returns the trust domains whose peers are accepted beside the own one, or the
// error of Check.
func (s SPIFFE) acceptedDomains() (domains []spiffeid.TrustDomain, err error) {
	if err := checkSocket(s.Socket); s.Socket != "" && err != nil {
		return nil, fmt.Errorf("SPIFFE socket %s: %w", safetext.Quote(s.Socket), err)
	}
	for _, name := range s.TrustDomains {
		domain, err := spiffeid.TrustDomainFromString(name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("trust domain %s: %w", safetext.Quote(name), err)
		case domain.Name() != name: // it may be a whole SPIFFE ID
			return nil, fmt.Errorf("trust domain %s: name it alone, as in %s", safetext.Quote(name), domain)
		}
		if _, err := federation.ParseID(domain.IDString() + "/workload"); err != nil { // its length
			return nil, fmt.Errorf("trust domain %s: %w", safetext.Quote(name), errors.Unwrap(err)) // without that ID
		}
		domains = append(domains, domain)
	}
	return domains, nil
}

// newAgent returns the agent, or the error of Check.
func (s SPIFFE) newAgent() (*spiffeAgent, error) {
	accepted, err := s.acceptedDomains()
	if err != nil {
		return nil, err
	}
	a := &spiffeAgent{socket: s.Socket, accepted: accepted, turn: make(chan struct{}, 1), trouble: errNotAsked}
	a.options = []workloadapi.ClientOption{
		workloadapi.WithAddr(s.Socket),
		workloadapi.WithBackoffStrategy(retryStrategy{}),
		workloadapi.WithDialOptions(grpc.WithNoProxy(), grpc.WithConnectParams(grpc.ConnectParams{
			// Below ours, which is the one that matters.
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: minRetry},
			MinConnectTimeout: maxRetry,
		})),
	}
	return a, nil
}

// checkSocket returns why s is not the address of an agent (SPIFFE Workload Endpoint section 4), or
// nil.
func checkSocket(s string) error {
	if err := workloadapi.ValidateAddress(s); err != nil {
		return fmt.Errorf("%w; it is unix:///path or tcp://ip:port", err)
	}
	// What gRPC would refuse, but not before the first call.
	if u, err := url.Parse(s); err == nil && u.Scheme == "unix" && (u.Host != "" || !path.IsAbs(u.Path)) {
		return errors.New("the path is not absolute: write unix:///path")
	}
	return nil
}

// retryStrategy makes the delays before an agent is asked again. It implements
// workloadapi.BackoffStrategy. The delays of that package itself grow to half the life of a
// short-lived certificate.
type retryStrategy struct{}

// NewBackoff implements workloadapi.BackoffStrategy.
func (retryStrategy) NewBackoff() workloadapi.Backoff { return new(retryDelay) }

// retryDelay is the last delay before the agent was asked again.
type retryDelay time.Duration

// Next implements workloadapi.Backoff.
func (d *retryDelay) Next() time.Duration {
	*d = min(*d+retryDelay(minRetry), retryDelay(maxRetry))
	return time.Duration(*d)
}

// Reset implements workloadapi.Backoff.
func (d *retryDelay) Reset() { *d = 0 }

// feedSource follows the agent for a Source until ctx ends. It may run several times at once: one
// run follows, and when that ends another one takes over.
func (a *spiffeAgent) feedSource(ctx context.Context, s *Source) {
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return
	}
	var wait retryDelay
	for ctx.Err() == nil {
		a.watchUpdates(ctx, s)
		// The watch goes on by itself, except after two codes that an agent may well send which shuts
		// down, or is behind a proxy.
		again := time.NewTimer(wait.Next())
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
		}
	}
}

func (a *spiffeAgent) watchUpdates(ctx context.Context, s *Source) {
	client, err := workloadapi.New(ctx, a.options...)
	if err != nil {
		a.reportTrouble(s, fmt.Errorf("%w: %w", errAway, err))
		return
	}
	defer client.Close()
	_ = client.WatchX509Context(ctx, &agentWatcher{ctx, a, s}) // which has reported it
}

// agentWatcher passes the updates of the agent to the Source. It implements
// workloadapi.X509ContextWatcher.
type agentWatcher struct {
	ctx    context.Context //nolint:containedctx // it lives as long as the call that it is handed to
	agent  *spiffeAgent
	source *Source
}

// OnX509ContextUpdate implements workloadapi.X509ContextWatcher.
func (w *agentWatcher) OnX509ContextUpdate(update *workloadapi.X509Context) {
	m, err := w.agent.parseUpdate(update, time.Now())
	if err != nil {
		w.agent.reportTrouble(w.source, fmt.Errorf("%w: %w", errBroken, err))
		return
	}
	w.agent.reportTrouble(w.source, nil)
	w.source.mu.Lock()
	defer w.source.mu.Unlock()
	w.source.useMaterial(m, "id", update.SVIDs[0].ID.String())
}

// OnX509ContextWatchError implements workloadapi.X509ContextWatcher.
func (w *agentWatcher) OnX509ContextWatchError(err error) {
	if w.ctx.Err() != nil {
		return
	}
	s, ofStream := status.FromError(err)
	switch {
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("%w: it has closed the stream", errAway)
	case !ofStream: // the stream goes on
		err = fmt.Errorf("%w: %w", errBroken, printableError(err))
	case s.Code() == codes.PermissionDenied: // SPIFFE Workload API section 5.1: it is not known to the agent
		err = fmt.Errorf("%w (%s)", errNothing, safetext.Printable(s.Message()))
	default:
		err = fmt.Errorf("%w: %v: %s", errAway, s.Code(), safetext.Printable(s.Message()))
	}
	w.agent.reportTrouble(w.source, err)
}

// reportTrouble records why there is nothing newer from the agent, or nil, and logs that once.
func (a *spiffeAgent) reportTrouble(s *Source, trouble error) {
	a.mu.Lock()
	before := a.trouble
	a.trouble = trouble
	a.mu.Unlock()
	log := s.logger.With("socket", a.socket)
	meanwhile := "there is no certificate yet, and connections fail"
	if m := s.material.Load(); m.hasCertificate() {
		meanwhile = "the old certificate stays in use until it expires at " + m.expiry.Format(time.RFC3339)
	}
	switch {
	case trouble == nil && errors.Is(before, errBroken):
		log.Info("responses of the SPIFFE agent are valid again")
	case trouble == nil && before != nil && !errors.Is(before, errNotAsked):
		log.Info("the SPIFFE agent is back")
	case errors.Is(trouble, errBroken) && (before == nil || before.Error() != trouble.Error()):
		log.Error("response of the SPIFFE agent is invalid", "meanwhile", meanwhile, "error", trouble)
	case errors.Is(trouble, errNothing) && !errors.Is(before, errNothing):
		log.Warn("the SPIFFE agent issues no identity", "meanwhile", meanwhile, "error", trouble)
	case errors.Is(trouble, errAway) && !errors.Is(before, errAway):
		log.Warn("the SPIFFE agent is away", "meanwhile", meanwhile, "error", trouble)
	}
}

// whyNothing returns why there is no certificate yet.
func (a *spiffeAgent) whyNothing() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Errorf("there is no certificate yet from the SPIFFE agent at %s: %w", a.socket, a.trouble)
}

// parseUpdate returns the material of an update, if the update keeps the rules and is valid now. Of
// several certificates the first one is the identity (SPIFFE Workload API section 5.3). Only
// bundles of the own trust domain and of the accepted ones count. An empty bundle counts as none:
// its trust domain has withdrawn all its authorities.
func (a *spiffeAgent) parseUpdate(update *workloadapi.X509Context, now time.Time) (*tlsMaterial, error) {
	svid := update.SVIDs[0] // there is one at least, or there is no update
	m := &tlsMaterial{
		certificate: tls.Certificate{PrivateKey: svid.PrivateKey, Leaf: svid.Certificates[0]},
		expiry:      firstExpiry(svid.Certificates),
		trust:       trustAnchors{domains: make(map[spiffeid.TrustDomain]*x509bundle.Bundle)},
		agent:       a,
		replaced:    make(chan struct{}),
	}
	sum := sha256.New()
	add := func(data []byte) {
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(data))))
		sum.Write(data)
	}
	for _, c := range svid.Certificates {
		if err := checkValidity(c, now); err != nil {
			return nil, fmt.Errorf("certificate for %s: %w", svid.ID, err)
		}
		m.certificate.Certificate = append(m.certificate.Certificate, c.Raw)
		add(c.Raw)
	}
	for _, domain := range append([]spiffeid.TrustDomain{svid.ID.TrustDomain()}, a.accepted...) {
		bundle, ok := update.Bundles.Get(domain)
		if !ok || len(bundle.X509Authorities()) == 0 {
			continue
		}
		m.trust.domains[domain] = bundle
		add([]byte(domain.Name()))
		for _, authority := range bundle.X509Authorities() {
			add(authority.Raw)
		}
	}
	if err := verifySVID(svid.Certificates, m.trust.domains, now); err != nil {
		return nil, err
	}
	sum.Sum(m.sum[:0])
	return m, nil
}
