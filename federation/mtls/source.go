package mtls

import (
	"cmp"
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

// Source is the certificate, the key and the CA bundle of one side, its material, as its origin
// gives them now. [Load] and [Open] make one. A Source is safe for concurrent use.
//
// Run and Reload replace the material as a whole, and a handshake reads it once, without a lock. A
// Source also keeps the open connections that its handshakes have let in, so that newer material
// can end them; a connection that ends is removed. It keeps no earlier material.
type Source struct {
	logger   *slog.Logger                // read-only after Open
	origin   *followedOrigin             // read-only after Open
	material atomic.Pointer[tlsMaterial] // in use; replaced by replaceMaterial

	judging sync.Mutex                // held while material is replaced
	open    map[*guardedConn]struct{} // connections that the material in use has judged; guarded by judging

	mu     sync.Mutex // held while the origin is read and its material put into use
	broken string     // why the files cannot be used, as logged; guarded by mu
}

// Origin says where a Source gets its certificate, its key and its CA bundle from: files or a SPIFFE agent.
type Origin struct {
	Files  Files  `yaml:"files" needs:"cert key ca" doc:"The certificate, the key and the authorities of the other side as files, all of which are needed."`
	SPIFFE SPIFFE `yaml:"spiffe" needs:"socket" doc:"The SPIFFE agent that issues certificate, key and authorities."` // instead of Files, where its Socket is set
}

// followedOrigin is an Origin that a Source follows.
type followedOrigin struct {
	// read-only
	files Files        // where there is no agent
	watch *file.Watch  // of the files
	agent *spiffeAgent // nil for files
}

// Open returns a Source of the origin. It fails only for what can never work, such as a socket of a
// SPIFFE agent that is no address. Files that cannot be used, such as a certificate that has
// expired, are no error: as with an agent that has issued nothing yet, handshakes fail until Run
// has got the first certificate, and Missing says why. Without a logger nothing is logged.
func Open(o Origin, logger *slog.Logger) (*Source, error) {
	s := &Source{logger: cmp.Or(logger, slog.New(slog.DiscardHandler)), open: make(map[*guardedConn]struct{})}
	m, err := s.openOrigin(o)
	if err != nil {
		return nil, err
	}
	s.material.Store(m)
	return s, nil
}

// Load returns a Source of files that can be used. Its errors name the file and what is wrong: it
// cannot be read, it has no PEM certificate, the key does not belong to the certificate, or the
// certificate or the whole CA bundle is expired or not valid yet. An error may have a method
// Remedy, which returns what to do.
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

// openOrigin sets the origin, and returns its material: for an agent an empty one, and for files
// that cannot be used the reason.
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

// newWatch returns a watch of the files. In tests, events replace the notifications of the system.
func (s *Source) newWatch(files Files, events <-chan fsnotify.Event) *file.Watch {
	return file.NewWatch(file.WatchConfig{
		Paths:    []string{files.Cert, files.Key, files.CA},
		Interval: pollInterval,
		Quiet:    burst,
		Patience: burst,
		Reload:   func(context.Context) { s.Reload() },
		Logger:   s.logger,
		Events:   events,
	})
}

// Run follows the origin until ctx ends, and then returns nil. Newer material is used from the next
// handshake on. Of the open connections, only those end whose peers' authority is no longer
// trusted: with files within a second where the file system sends notifications, and within a
// minute or so where it does not; with a SPIFFE agent as soon as the agent says so. Whether Run
// runs or not, a connection ends when the certificate of the peer has expired for longer than a
// minute.
//
// Files that Load would refuse, and updates of an agent that break a rule, leave the material in
// use as it is, and Trouble says why. So does an agent that is away, until its certificate expires.
//
// Run may run several times at once, because a consumer and an owner of one process may share a
// Source. The origin is followed until the last of the Runs ends.
func (s *Source) Run(ctx context.Context) error {
	if s.origin.agent != nil {
		s.origin.agent.feedSource(ctx, s)
		return nil
	}
	return s.origin.watch.Run(ctx)
}

// Reload reads the files now, as Run does when they change. Their material replaces that in use if
// it is new and good. With a SPIFFE agent there are no files, and Reload does nothing.
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

// noteTrouble records why the current files are not used, or nil. The material in use stays.
func (s *Source) noteTrouble(trouble error) {
	s.judging.Lock()
	defer s.judging.Unlock()
	m := *s.material.Load()
	m.trouble = trouble
	s.material.Store(&m)
}

// useMaterial replaces the material in use by m, unless both are the same. Origin says in the log
// where m is from. The caller holds the lock.
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

// logReading logs why the files cannot be used, once for each reason, and that they can be used
// again.
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

// Expiry returns when the first certificate of the chain in use expires, and when the next of the
// trusted authorities does. Both are zero while there is no certificate; see Missing.
func (s *Source) Expiry() (certificate, ca time.Time) {
	m := s.material.Load()
	return m.expiry, m.authorityExpiry(time.Now())
}

// Missing returns why there is no certificate yet, or nil: it names the file that cannot be used,
// or the SPIFFE agent.
func (s *Source) Missing() error {
	if m := s.material.Load(); !m.hasCertificate() {
		return m.whyMissing()
	}
	return nil
}

// Trouble returns the error of Missing, or why the current files do not replace the material in
// use, or nil.
func (s *Source) Trouble() error {
	if m := s.material.Load(); m.hasCertificate() {
		return m.trouble
	}
	return s.Missing()
}

// ForClients reports whether the certificate in use may identify the client of a connection. A
// server refuses any other certificate, mostly without saying why. ForClients is true while there
// is no certificate.
func (s *Source) ForClients() bool {
	leaf := s.material.Load().certificate.Leaf
	return leaf == nil || len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) == 0 || slices.ContainsFunc(leaf.ExtKeyUsage, func(usage x509.ExtKeyUsage) bool {
		return usage == x509.ExtKeyUsageAny || usage == x509.ExtKeyUsageClientAuth
	})
}
