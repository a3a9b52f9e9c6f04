package mtls

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settleTime is how long a burst of file events may go on before the files
	// are read: a certificate and its key are replaced one after the other.
	settleTime = 200 * time.Millisecond

	// pollInterval is how often the files are read without any event: not every
	// file system sends them, and none does for the target of a symbolic link in
	// another directory.
	pollInterval = time.Minute
)

// Source is the certificate, the key and the CA bundle of a party, as the files
// hold them now. It is safe for concurrent use.
type Source struct {
	// read-only after Load
	files  Files
	logger *slog.Logger

	// replaced by Run
	material atomic.Pointer[material]

	connections connections

	// owned by Run
	broken    string // why the files cannot be used, as logged
	unwatched string // why a directory cannot be watched, as logged
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
	return s, nil
}

// Run follows changes of the files until ctx ends, and returns nil then. What
// they hold newly is used from the next handshake on. Running connections are not
// touched, but for those of peers whose authority has left the CA bundle, which
// end: within a second where the file system sends events, and else within a
// minute. Files that Load would refuse leave the old material in use. It must run
// only once at a time.
func (s *Source) Run(ctx context.Context) error {
	// Directories are watched, not files: replacing a file, or swapping the
	// ..data link of a Kubernetes volume, ends the watch of a file.
	var events <-chan fsnotify.Event
	var failures <-chan error
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		events, failures = watcher.Events, watcher.Errors
	}
	watch := func() {
		if watcher != nil {
			err = s.watch(watcher)
		}
		s.report(&s.unwatched, err, "certificate files cannot be watched; they are read every "+pollInterval.String()+" instead",
			"certificate files can be watched again")
	}

	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	var settled <-chan time.Time // fires once after the first event of a burst
	watch()
	s.Reload() // what changed since Load
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events:
		case <-failures: // events were lost
		case <-settled:
			settled = nil
			s.Reload()
			continue
		case <-poll.C:
			watch() // a directory may have been replaced
			s.Reload()
			continue
		}
		// Later events do not push the moment back: a busy directory must not
		// keep a new certificate from being seen.
		if settled == nil {
			settled = time.NewTimer(settleTime).C
		}
	}
}

// watch adds the directories of the files; one that is watched already stays so.
func (s *Source) watch(watcher *fsnotify.Watcher) (err error) {
	for _, path := range []string{s.files.Cert, s.files.Key, s.files.CA} {
		err = cmp.Or(err, watcher.Add(filepath.Dir(path)))
	}
	return err
}

// Reload reads the files now: what they hold takes the place of the old material,
// if it is new and good. It must not be called while Run runs, which does that
// when they change.
func (s *Source) Reload() {
	m, err := s.files.read(time.Now())
	s.report(&s.broken, err, "certificate files cannot be used; the old certificates stay in use",
		"certificate files are in order again")
	if err != nil || m.sum == s.material.Load().sum {
		return
	}
	old := s.material.Swap(m)
	s.logger.Info("certificates changed; the new ones are used from the next handshake on",
		"certificate", s.files.Cert, "expires", m.expiry)
	close(old.replaced) // after the swap: who waits finds the new material
	if sameCertificates(old.authorities, m.authorities) {
		return
	}
	if n := s.connections.judge(m.authorities); n > 0 {
		s.logger.Warn("connections end: the CA file has no authority of their peers' certificates any more",
			"ca", s.files.CA, "connections", n)
	}
}

// report logs a trouble when it is not the one logged last, and its end.
func (s *Source) report(logged *string, err error, trouble, over string) {
	switch {
	case err != nil && err.Error() != *logged:
		*logged = err.Error()
		s.logger.Error(trouble, "error", err)
	case err == nil && *logged != "":
		*logged = ""
		s.logger.Info(over)
	}
}

// Changed returns a channel that is closed when the material in use at this
// moment has been replaced.
func (s *Source) Changed() <-chan struct{} { return s.material.Load().replaced }

// Expiry returns when the certificate in use expires, or the first of its chain
// to do so, and when the next authority of the CA bundle does.
func (s *Source) Expiry() (certificate, ca time.Time) {
	m := s.material.Load()
	return m.expiry, m.authorityExpiry(time.Now())
}
