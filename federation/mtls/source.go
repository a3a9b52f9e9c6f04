package mtls

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/hamlet-federation/coredns-federation/federation/filewatch"
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

// Source is the certificate, the key and the CA bundle of a party, as the files
// hold them now. It is safe for concurrent use.
type Source struct {
	// read-only after Load
	files  Files
	logger *slog.Logger
	watch  *filewatch.Watch

	material    atomic.Pointer[material] // in use; replaced by Reload
	connections connections

	mu     sync.Mutex // held by Reload
	broken string     // why the files cannot be used, as logged; guarded by mu
}

// Load reads and checks the files. Its errors name the file and what is wrong:
// it cannot be read, holds no PEM certificate, the key does not belong to the
// certificate, the certificate or the whole CA bundle is expired or not valid
// yet. Without a logger nothing is logged.
func Load(files Files, logger *slog.Logger) (*Source, error) {
	m, err := files.read(time.Now())
	if err != nil {
		return nil, err
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	s := &Source{files: files, logger: logger}
	s.material.Store(m)
	s.watch = s.newWatch(nil)
	return s, nil
}

// newWatch returns what follows the files. In tests, events take the place of the
// system's notifications.
func (s *Source) newWatch(events <-chan fsnotify.Event) *filewatch.Watch {
	return filewatch.New(filewatch.Config{
		Paths:    []string{s.files.Cert, s.files.Key, s.files.CA},
		Interval: pollInterval,
		Quiet:    burst,
		Patience: burst,
		Reload:   func(context.Context) { s.Reload() },
		Trouble:  s.logWatching,
		Events:   events,
	})
}

// Run follows changes of the files until ctx ends, and returns nil then. What
// they hold newly is used from the next handshake on. Open connections are left
// alone, but for those of peers whose authority is no longer in the CA bundle,
// which end: within a second where the file system sends notifications, and within
// a minute or so where it does not. Files that Load would refuse leave the old
// material in use.
//
// It may run several times at once, as a consumer and an owner of one process may
// share a Source: the files are followed until the last of the Runs ends.
func (s *Source) Run(ctx context.Context) error { return s.watch.Run(ctx) }

// logWatching logs that a directory cannot be watched, or that all of them are
// watched again.
func (s *Source) logWatching(err error) {
	if err != nil {
		s.logger.Error("certificate files cannot be watched; they are read every "+pollInterval.String()+" instead", "error", err)
	} else {
		s.logger.Info("certificate files can be watched again")
	}
}

// Reload reads the files now, as Run does when they change. What they hold takes
// the place of the material in use if it is new and good.
func (s *Source) Reload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.files.read(time.Now())
	s.logReading(err)
	if err != nil || m.sum == s.material.Load().sum {
		return
	}
	old := s.material.Swap(m)
	s.logger.Info("certificates changed; the new ones are used from the next handshake on",
		"certificate", s.files.Cert, "expires", m.expiry)
	close(old.replaced) // after the swap: whoever waits for it finds the new material
	if sameCertificates(old.authorities, m.authorities) {
		return
	}
	if n := s.connections.judge(m.authorities); n > 0 {
		s.logger.Warn("connections end: the CA file has no authority of their peers' certificates any more",
			"ca", s.files.CA, "connections", n)
	}
}

// logReading logs why the files cannot be used, once for each reason, and that
// they can be used again.
func (s *Source) logReading(err error) {
	switch {
	case err != nil && err.Error() != s.broken:
		s.broken = err.Error()
		s.logger.Error("certificate files cannot be used; the old certificates stay in use", "error", err)
	case err == nil && s.broken != "":
		s.broken = ""
		s.logger.Info("certificate files are in order again")
	}
}

// Changed returns a channel that is closed when the material in use now has been
// replaced.
func (s *Source) Changed() <-chan struct{} { return s.material.Load().replaced }

// Expiry returns when the certificate in use expires, or the first of its chain
// to do so, and when the next authority of the CA bundle does.
func (s *Source) Expiry() (certificate, ca time.Time) {
	m := s.material.Load()
	return m.expiry, m.authorityExpiry(time.Now())
}
