package history

import (
	"cmp"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/stream"
)

// maxShown is how many refusals a report has.
const maxShown = 20

// ReportOwner returns the report of an owner, without Conflicts and what AddCertificates says.
// Retention is how long services of a lost owner are kept; negative: without limit.
func ReportOwner(id string, s *consumer.Status, retention time.Duration, log *ServiceLog, now time.Time) status.FollowedOwner {
	u := status.FollowedOwner{
		ID:          id,
		State:       s.StateName(),
		Since:       s.Since.UTC(),
		Known:       s.Known,
		Restored:    s.Restored.UTC(),
		LastAttempt: s.LastAttempt.UTC(),
		NextAttempt: s.NextAttempt.UTC(),
		LastSync:    s.LastSync.UTC(),
		Lost:        s.Lost.UTC(),
		Retention:   max(retention, 0).Seconds(),
		Services:    s.Services,
		Instances:   s.Instances,
		Octets:      s.Octets,
		Stale:       s.Stale,
		Paused:      s.Paused,
		NotAdmitted: s.Refused,
		NotImported: s.NotImported,
		Hops:        s.Hops(),
		Path:        s.Path,
		Resumes:     s.Resumes,
		Updates:     log.UpdateRate(now),
		Refusals:    log.Refusals(),
	}
	if s.Damage != nil {
		u.Damage = s.Damage.Error()
	}
	if s.Unsaved != nil {
		u.Unsaved = s.Unsaved.Error()
	}
	if s.Stale > 0 {
		u.Expires = s.Expires.UTC()
	}
	if s.Failure != nil {
		u.Failure, u.Remedy = s.Failure.Error(), stream.RemedyOf(s.Failure)
	}
	u.Refusals = u.Refusals[:min(len(u.Refusals), maxShown)]
	return u
}

// AddCertificates adds to a report where the certificates of this side come from, when they expire, and the trouble
// with them. Without a certificate the trouble is why there is no stream, whatever the last attempt says.
func AddCertificates(u *status.FollowedOwner, origin mtls.Origin, source *mtls.Source) {
	u.CertificateFile, u.AuthorityFile = cmp.Or(origin.SPIFFE.Socket, origin.Files.Cert), cmp.Or(origin.SPIFFE.Socket, origin.Files.CA)
	u.Certificates = ReportCertificates(source)
	if u.CertificateError != "" && u.Certificate.IsZero() {
		u.Failure, u.Remedy = u.CertificateError, u.CertificateRemedy
	}
}

// ReportCertificates returns when the certificates of a source expire, and the trouble with them.
func ReportCertificates(source *mtls.Source) (c status.Certificates) {
	certificate, authority := source.Expiry()
	c.Certificate, c.Authority = certificate.UTC(), authority.UTC()
	if trouble := source.Trouble(); trouble != nil {
		c.CertificateError, c.CertificateRemedy = trouble.Error(), stream.RemedyOf(trouble)
	}
	return c
}
