package register

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation/provider"
)

// progressLog says what happens, one line for each change.
type progressLog struct {
	stderr io.Writer

	// guarded by mu, which is held while a line is written
	mu             sync.Mutex
	registered     bool            // or lost, so that clients may know of it
	unregisteredAt time.Time       // when it was registered last, where it is not; zero: never
	ever           bool            // it was registered at some time
	waits          bool            // it is registered, and nobody is told of it yet
	reportedKinds  map[string]bool // the kinds of failures that were reported since it was registered
}

func newProgress(stderr io.Writer) *progressLog {
	return &progressLog{stderr: stderr, reportedKinds: make(map[string]bool)}
}

// noteWithdrawal says that the node is withdrawn for good, and returns what is left of the drain:
// nothing where no client can know of the node. One that is not registered any more, as after
// a check that failed, may be in their caches still.
func (j *progressLog) noteWithdrawal(service string, drain time.Duration) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	what := "withdrawing " + service + ", and"
	if !j.registered {
		ago := time.Since(j.unregisteredAt)
		if drain -= ago; j.unregisteredAt.IsZero() || drain <= 0 {
			return 0
		}
		drain = drain.Round(100 * time.Millisecond)
		what = fmt.Sprintf("%s was withdrawn %v ago;", service, ago.Round(100*time.Millisecond))
	}
	j.markUnregistered()
	if drain > 0 {
		j.writeLinef("%s waiting %v for the caches of its clients", what, drain)
	} else {
		j.writeLinef("withdrawing %s", service)
	}
	return drain
}

// markUnregistered notes that the node is not registered. j.mu is held.
func (j *progressLog) markUnregistered() {
	if j.registered {
		j.unregisteredAt = time.Now()
	}
	j.registered = false
}

// noteStatus says what has become of the node. It is the OnChange of a provider.
func (j *progressLog) noteStatus(s provider.Status) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch s.State {
	case provider.Registered:
		again := ""
		if j.ever && len(j.reportedKinds) > 0 {
			again = " again"
		}
		waited := j.registered && j.waits && len(j.reportedKinds) == 0
		j.registered, j.ever, j.waits = true, true, s.Waits
		clear(j.reportedKinds)
		switch {
		case s.Waits:
			j.writeLinef("stored%s, and not published yet: %s at %s, with owner %s, ttl %v; clients get it once the catalog of the owner is available",
				again, s.Node.Service, printable.QuoteWord(s.URI), s.Owner, s.TTL)
		case waited:
			j.writeLinef("published: %s at %s, with owner %s", s.Node.Service, printable.QuoteWord(s.URI), s.Owner)
		default:
			j.writeLinef("registered%s: %s at %s, with owner %s, ttl %v", again, s.Node.Service, printable.QuoteWord(s.URI), s.Owner, s.TTL)
		}
	case provider.Refused:
		j.markUnregistered()
		clear(j.reportedKinds)
		j.writeLinef("refused by owner %s: %s at %s: rule %s: %s; asking the owner again",
			s.Owner, s.Node.Service, s.Node.URI, printable.QuoteWord(s.Rule), printable.QuoteWord(s.Reason))
	case provider.Lost:
		if j.isNewKind(s.Err) {
			j.writeLinef("owner %s is lost: %v; registered until %s at least, trying again", s.Owner, s.Err, s.Until.Format(time.TimeOnly))
		}
	case provider.Pending:
		j.markUnregistered()
		if s.Err != nil && j.isNewKind(s.Err) {
			j.writeLinef("not registered with owner %s: %v; %s; trying again", s.Owner, s.Err, remedyFor(s.Err))
		}
	}
}

// noteUnhealthy says that the program is not healthy.
func (j *progressLog) noteUnhealthy(failure error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.registered {
		j.writeLinef("check fails: %v; withdrawn until it succeeds", failure)
	} else {
		j.writeLinef("check fails: %v; not registered until it succeeds", failure)
	}
	j.markUnregistered()
	clear(j.reportedKinds)
}

// noteHealthy says that the program is healthy.
func (j *progressLog) noteHealthy() { j.printLinef("check succeeds; registering") }

// printLinef writes a line.
func (j *progressLog) printLinef(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writeLinef(format, args...)
}

// writeLinef writes a line. j.mu is held.
func (j *progressLog) writeLinef(format string, args ...any) {
	fmt.Fprintf(j.stderr, "federationctl: "+format+"\n", args...)
}

// maxKinds bounds the kinds of failures that are reported until the node is registered.
const maxKinds = 20

// isNewKind reports whether a failure is of a kind that was not reported since the node was
// registered. j.mu is held.
func (j *progressLog) isNewKind(err error) bool {
	kind := kindOf(err)
	if j.reportedKinds[kind] || len(j.reportedKinds) >= maxKinds {
		return false
	}
	j.reportedKinds[kind] = true
	return true
}

// kindOf returns the same text for failures that are the same to a reader. It leaves out
// what changes from one attempt to the next, such as a port.
func kindOf(err error) string {
	if network, ok := errors.AsType[*net.OpError](err); ok {
		return network.Err.Error()
	}
	if s, ok := status.FromError(err); ok {
		return s.Code().String()
	}
	return err.Error()
}

// remedyFor returns what can be done about a failure.
func remedyFor(err error) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "check --ca and --owner-id, or the host in --server"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "check --server: what answers there does not speak TLS"
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "check the host in --server"
	}
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated:
		return "check --cert, or have the owner's rules name its identity"
	case codes.Unimplemented:
		return "check --server and --server-name: no programs register there"
	default:
		return "check --server, and that the owner is up and has the authority of --cert in its CA file"
	}
}
