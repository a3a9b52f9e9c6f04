package mtls

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/hamlet-federation/coredns-federation/internal/file"
)

const (
	// burst is how long after the first notification the files are read: a
	// certificate and its key are replaced one after the other. Later notifications
	// do not delay it: a busy directory must not keep a new certificate from being
	// seen.
	burst = 200 * time.Millisecond

	// pollInterval is how often the files are read without a notification. The poll
	// also finds certificates that have expired.
	pollInterval = time.Minute
)

// Source is the certificate, the key and the CA bundle of one side, its material, as its origin gives
// them now. [Load] and [Open] make one. A Source is safe for concurrent use.
type Source struct {
	logger   *slog.Logger                // read-only after Open
	origin   *followedOrigin             // read-only after Open
	material atomic.Pointer[tlsMaterial] // in use; replaced by replaceMaterial

	judging sync.Mutex                // held while material is replaced
	open    map[*guardedConn]struct{} // which were judged by it; guarded by judging

	mu     sync.Mutex // held by whoever has material that is to be used
	broken string     // why the files cannot be used, as logged; guarded by mu
}

// Origin says where a Source gets its certificate, its key and its CA bundle from: files or a SPIFFE agent.
type Origin struct {
	Files  Files
	SPIFFE SPIFFE // instead of Files, where its Socket is set
}

// followedOrigin is an Origin that a Source follows.
type followedOrigin struct {
	// read-only
	files Files        // where there is no agent
	watch *file.Watch  // of the files
	agent *spiffeAgent // nil for files
}

// Open returns a Source of what the origin gives. It fails only for what can never work, such
// as a socket of a SPIFFE agent that is no address. Files that cannot be used, such as a
// certificate that has expired, are no error: as with an agent that has issued nothing yet,
// handshakes fail until Run has got the first certificate, and Missing says why. Without a
// logger nothing is logged.
func Open(o Origin, logger *slog.Logger) (*Source, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	s := &Source{logger: logger, open: make(map[*guardedConn]struct{})}
	m, err := s.openOrigin(o)
	if err != nil {
		return nil, err
	}
	s.material.Store(m)
	return s, nil
}

// Load is Open for files that are in order. Its errors name the file and what is wrong:
// it cannot be read, holds no PEM certificate, the key does not belong to the
// certificate, the certificate or the whole CA bundle is expired or not valid
// yet. They may have a method Remedy, which says what to do.
func Load(files Files, logger *slog.Logger) (*Source, error) {
	s, err := Open(Origin{Files: files}, logger)
	if err == nil {
		err = s.Missing()
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openOrigin sets the origin, and returns what it gives now: of an agent nothing, and of files
// that cannot be used why.
func (s *Source) openOrigin(o Origin) (*tlsMaterial, error) {
	s.origin = &followedOrigin{files: o.Files}
	if o.SPIFFE.Socket == "" {
		s.origin.watch = s.newWatch(o.Files, nil)
		m, err := o.Files.readMaterial(time.Now())
		if err != nil {
			m = &tlsMaterial{trouble: err, replaced: make(chan struct{})}
		}
		return m, nil
	}
	var err error
	s.origin.agent, err = o.SPIFFE.newAgent()
	return &tlsMaterial{agent: s.origin.agent, replaced: make(chan struct{})}, err
}

// newWatch returns what follows the files. In tests, events take the place of the
// system's notifications.
func (s *Source) newWatch(files Files, events <-chan fsnotify.Event) *file.Watch {
	return file.NewWatch(file.WatchConfig{
		Paths:    []string{files.Cert, files.Key, files.CA},
		Interval: pollInterval,
		Quiet:    burst,
		Patience: burst,
		Reload:   func(context.Context) { s.Reload() },
		Trouble:  s.logWatching,
		Events:   events,
	})
}

// Run follows the origin until ctx ends, and returns nil then. What it gives newly is used
// from the next handshake on. Of the open connections, only those end whose peers' authority
// is no longer trusted: with files within a second where the file system sends
// notifications, and within a minute or so where it does not, with a SPIFFE agent as soon
// as it says so. Whether Run runs or not, connections end when the certificate of the peer
// has expired for longer than a minute.
//
// Files that Load would refuse, and what an agent sends against the rules, leave the old
// material in use, if there is any: Trouble says why. So does an agent that is away, until its
// certificate expires.
//
// It may run several times at once, as a consumer and an owner of one process may
// share a Source: the origin is followed until the last of the Runs ends.
func (s *Source) Run(ctx context.Context) error {
	if s.origin.agent != nil {
		s.origin.agent.feedSource(ctx, s)
		return nil
	}
	return s.origin.watch.Run(ctx)
}

// logWatching logs that a directory cannot be watched, or that all of them are
// watched again.
func (s *Source) logWatching(err error) {
	if err != nil {
		s.logger.Error("certificate files cannot be watched; they are polled", "interval", pollInterval, "error", err)
	} else {
		s.logger.Info("certificate files can be watched again")
	}
}

// Reload reads the files now, as Run does when they change. What they hold takes
// the place of the material in use if it is new and good. With a SPIFFE agent there are
// none, and it does nothing.
func (s *Source) Reload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.origin
	if o.agent != nil {
		return
	}
	m, err := o.files.readMaterial(time.Now())
	s.logReading(err)
	if err == nil {
		s.useMaterial(m, "file", o.files.Cert)
	} else {
		s.noteTrouble(err)
	}
}

// noteTrouble notes why what the files hold now is not used, or nil. What is in use stays.
func (s *Source) noteTrouble(trouble error) {
	s.judging.Lock()
	defer s.judging.Unlock()
	m := *s.material.Load()
	m.trouble = trouble
	s.material.Store(&m)
}

// useMaterial puts m in the place of the material in use, if it is another one. origin says in the log
// where it is from. The caller holds the lock.
func (s *Source) useMaterial(m *tlsMaterial, origin ...any) {
	if m.sum == s.material.Load().sum {
		s.noteTrouble(nil)
		return
	}
	old, ended := s.replaceMaterial(m)
	text := "certificates changed; the new ones are used from the next handshake on"
	if !old.hasCertificate() {
		text = "the first certificate is here"
	}
	s.logger.Info(text, append(origin, "expires", m.expiry)...)
	if ended > 0 {
		s.logger.Warn("connections closed: the CA bundle no longer has the authority of their peers", append(origin, "connections", ended)...)
	}
}

// logReading logs why the files cannot be used, once for each reason, and that
// they can be used again.
func (s *Source) logReading(err error) {
	switch {
	case err != nil && err.Error() != s.broken:
		s.broken = err.Error()
		text := "certificate files cannot be used; the old certificates stay in use"
		if !s.material.Load().hasCertificate() {
			text = "certificate files cannot be used, and no connection can be made until they are repaired"
		}
		log := s.logger
		if file, ok := errors.AsType[*fileError](err); ok {
			log = log.With("remedy", file.Remedy())
		}
		log.Error(text, "error", err)
	case err == nil && s.broken != "":
		s.broken = ""
		s.logger.Info("certificate files are in order again")
	}
}

// Changed returns a channel that is closed when the material in use now has been
// replaced. Whoever has seen that asks for the next channel.
func (s *Source) Changed() <-chan struct{} { return s.material.Load().replaced }

// Expiry returns when the certificate in use expires, or the first of its chain
// to do so, and when the next of the trusted authorities does. Both are zero while there is
// no certificate; see Missing.
func (s *Source) Expiry() (certificate, ca time.Time) {
	m := s.material.Load()
	return m.expiry, m.authorityExpiry(time.Now())
}

// Missing returns why there is no certificate yet: it names the file that cannot be used, or
// the SPIFFE agent. It is nil once there is one.
func (s *Source) Missing() error {
	if m := s.material.Load(); !m.hasCertificate() {
		return m.whyMissing()
	}
	return nil
}

// Trouble returns the error of Missing, or why what the files hold now does not take the place
// of what is in use. It is nil where neither is so.
func (s *Source) Trouble() error {
	if m := s.material.Load(); m.hasCertificate() {
		return m.trouble
	}
	return s.Missing()
}

// ForClients reports whether the certificate in use may identify the client of a
// connection: a server refuses any other, mostly without saying why. It is true while
// there is no certificate.
func (s *Source) ForClients() bool {
	leaf := s.material.Load().certificate.Leaf
	return leaf == nil || len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) == 0 || slices.ContainsFunc(leaf.ExtKeyUsage, func(usage x509.ExtKeyUsage) bool {
		return usage == x509.ExtKeyUsageAny || usage == x509.ExtKeyUsageClientAuth
	})
}
