package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Level is how bad something is.
type Level int

// The levels. Each is the exit code of 'federationctl status --check'.
const (
	Well Level = iota // nothing to do
	Look              // look at it by day: names are still answered
	Act               // act now: names are missing, or will be
)

// String returns the word for a level.
func (l Level) String() string { return [...]string{"well", "look", "act"}[l] }

// Condition is a condition of an owner, a source, a registration, a catalog or a process:
// its level, the sentence for it, and what to do about it. Whatever shows a status takes these
// from here.
type Condition struct {
	Of       string // what is in it
	State    string
	Level    Level
	Sentence string // a format of fmt
	Remedy   string
	Runbook  string // the section that says more: of docs/runbook.md, or of the page before a colon
}

// ManualSection is a section of a page in docs, which says more of a condition.
type ManualSection struct{ Page, Title string }

// ManualBase is where the pages of docs are read without a checkout, as in runbook_url of the alerts.
const ManualBase = "https://github.com/hamlet-federation/coredns-federation/blob/main/docs/"

// URL returns the address of the section on the web.
func (s ManualSection) URL() string {
	return ManualBase + s.Page + "#" + strings.ReplaceAll(strings.ToLower(s.Title), " ", "-")
}

// Manual returns the section of docs about the condition.
func (c *Condition) Manual() ManualSection {
	if page, title, elsewhere := strings.Cut(c.Runbook, ": "); elsewhere {
		return ManualSection{page, title}
	}
	return ManualSection{"runbook.md", c.Runbook}
}

// The remedies for an owner that is followed, whether by a CoreDNS or by a relay.
const (
	awaitCatalog   = "wait; if the owner stays syncing, it sends nothing or nothing valid: 'federationctl watch' shows what it sends"
	findReason     = "check the network, the address in owner and the certificates in tls"
	winTime        = "repair the owner or the network before the records are removed; to gain time, raise retention and reload"
	correctRetry   = "the owner refuses this consumer: correct tls, owner_id or api here, or the owner's allow list; the next attempt is within minutes, or at once with 'federationctl retry'"
	correctReload  = "the owner refuses this consumer: correct tls, owner_id or api here, or the owner's allow list, and then reload or run 'federationctl retry'"
	repairSource   = "repair the source: until then its services stay as they were, and changes are not published"
	confirmPaused  = "to withdraw them, run 'federationctl confirm'; to keep them, repair the origin of the source"
	correctService = "have the owner correct the service"
	shareOrRename  = "to answer both owners, list the name in share of both blocks; otherwise rename one of the services (at its owner, or here with rename), or change the order of the blocks; a lost owner keeps a name until its retention ends"
	nothing        = "nothing"

	winObjects   = "repair the owner or the network before the objects are removed; to gain time, raise retention and restart"
	retryImport  = "the owner refuses this importer: correct identity, owner_ids or api here, or the owner's allow list; the next attempt is within minutes, or at once with 'federationctl retry'"
	parkedImport = "the owner refuses this importer: correct identity, owner_ids or api here, or the owner's allow list, and then restart or run 'federationctl retry'"
)

// The conditions.
var (
	ownerSynced     = Condition{"owner", "synced", Well, "The owner is connected, and its catalog is complete.", nothing, "Owner states"}
	ownerComparing  = Condition{"owner", "syncing", Look, "The owner is connected, and its catalog is being compared. Known names are still answered.", awaitCatalog, "FederationConsumerOwnerStale"}
	ownerSyncing    = Condition{"owner", "syncing", Act, "The owner is connected, but its first catalog is not complete yet. Unknown names get SERVFAIL.", awaitCatalog, "Owner states"}
	ownerConnecting = Condition{"owner", "connecting", Act, "There is no connection yet, so the owner's catalog is unknown. Names that only this owner could publish get SERVFAIL.", findReason, "FederationConsumerOwnerUnknown"}
	ownerStale      = Condition{"owner", "stale", Look, "The connection is lost. The owner's last records are still answered, with a TTL of 30 s at most.", winTime, "FederationConsumerOwnerStale"}
	ownerNearExpiry = Condition{"owner", "stale", Act, "The connection is lost. The owner's last records are still answered, with a TTL of 30 s at most.", winTime, "FederationConsumerRetentionHalfGone"}
	ownerExpired    = Condition{"owner", "expired", Act, "The owner was lost for longer than its retention, so its records are removed.", "repair the owner or the network; its records come back with it", "FederationConsumerOwnerExpired"}
	ownerRetried    = Condition{"owner", "parked", Act, "The owner has turned this consumer away. The next attempt is within minutes.%s", correctRetry, "FederationConsumerOwnerParked"}
	ownerParked     = Condition{"owner", "parked", Act, "The owner has turned this consumer away. There is no attempt until the certificates change or the configuration is reloaded.%s", correctReload, "FederationConsumerOwnerParked"}
	ownerUnknown    = Condition{"owner", "unknown", Look, "This page does not know the state.", "compare the versions of both programs", "Owner states"}
	ownerDamaged    = Condition{"owner", "damaged", Act, "The file of persist could not be used, so unknown names get SERVFAIL until the owner's catalog is complete: %s", "repair the owner or the network, and the disk if it damaged the file: the next complete catalog replaces the file", "operating.md: Persistence"}
	ownerPaused     = Condition{"owner", "paused", Look, "The owner came back without %s and did not withdraw them, so they are answered until the retention ends.", "ask the owner whether these services are gone; if they are, have the owner delete them", "Names that are missing or wrong"}
	ownerRefused    = Condition{"owner", "refused", Look, "This consumer refuses the newest version of %s.%s", "have the owner correct the services, or permit here what is right", "FederationConsumerRefusals"}
	ownerConflicts  = Condition{"owner", "conflicts", Look, "Conflicts or rules keep %s of its names and records from being published.", shareOrRename, "FederationConsumerConflicts"}
	ownerUnshared   = Condition{"owner", "unshared", Look, "Its block shares %s, but no other block of the server block does.", "list the names in share of the other owner's block as well, or remove share here", "Conflicts"}

	ownerEmpty = Condition{"owner", "empty", Well, "The owner publishes no service for this consumer.", "publish a first service at the owner, or have a rule of its exports show one to this consumer; 'federationctl why NAME' there says who is told", "Names that are missing or wrong"}

	ownerRestored   = Condition{"owner", "restored", Look, "The records are from the file of persist, as they were %s: services that the owner has withdrawn since are still answered.", "repair the owner or the network; if these records must go, stop this process, delete the file and start again", "operating.md: Persistence"}
	ownerUnsaved    = Condition{"owner", "unsaved", Look, "The catalog cannot be saved, so a restart would lose it: %s", "make room on the disk, or let this process write to the folder of the file of persist; it tries again every minute. Do not restart this process while the owner is away", "FederationConsumerPersistFailing"}
	ownerAllRefused = Condition{"owner", "refused", Act, "Nothing of the owner is used: this consumer refuses all of its services (%s).%s", "have the owner correct the services, or permit here what is right", "Names that are missing or wrong"}

	relayedSyncing    = Condition{"relayed owner", "syncing", Act, "The owner is connected, but its catalog is not complete yet.", awaitCatalog, "FederationOwnerCatalogUnavailable"}
	relayedConnecting = Condition{"relayed owner", "connecting", Act, "There is no connection yet, so the owner's catalog is unknown.", findReason, "FederationOwnerCatalogUnavailable"}
	relayedRetried    = Condition{"relayed owner", "parked", Act, "The owner has turned this consumer away. The next attempt is within minutes.", correctRetry, "FederationOwnerCatalogUnavailable"}
	relayedParked     = Condition{"relayed owner", "parked", Act, "The owner has turned this consumer away. There is no attempt until the certificates change or the configuration is reloaded.", correctReload, "FederationOwnerCatalogUnavailable"}
	relayedLost       = Condition{"relayed owner", "lost", Look, "The connection is lost. Consumers count their own retention, or the lifetime of the source runs.", winTime, "FederationOwnerSourceAway"}

	importedSyncing    = Condition{"imported owner", "syncing", Look, "The owner is connected, but its catalog is not complete yet. Until it is, objects of services that it has not sent yet stay as they are.", awaitCatalog, "FederationImportOwnerLost"}
	importedConnecting = Condition{"imported owner", "connecting", Look, "There is no connection yet, so the owner's catalog is unknown. Objects from before the start stay until the retention ends, and no new ones are written.", "check the network, the addresses of the owner and the certificates in identity", "FederationImportOwnerLost"}
	importedStale      = Condition{"imported owner", "stale", Look, "The connection is lost. The owner's objects stay as they are until its retention ends.", winObjects, "FederationImportOwnerLost"}
	importedNearExpiry = Condition{"imported owner", "stale", Act, "The connection is lost. The owner's objects stay as they are until its retention ends.", winObjects, "FederationImportRetentionHalfGone"}
	importedExpired    = Condition{"imported owner", "expired", Act, "The owner was lost for longer than its retention, so its objects are removed.", "repair the owner or the network; its objects come back with it", "FederationImportOwnerExpired"}
	importedRetried    = Condition{"imported owner", "parked", Look, "The owner has turned this importer away. The next attempt is within minutes. Its objects stay until its retention ends.", retryImport, "FederationImportOwnerLost"}
	importedParked     = Condition{"imported owner", "parked", Look, "The owner has turned this importer away. There is no attempt until the certificates change or this process is restarted. Its objects stay until its retention ends.", parkedImport, "FederationImportOwnerLost"}
	importedDamaged    = Condition{"imported owner", "damaged", Look, "The file of persist could not be used, so some of the owner's services are unknown until its catalog is complete: %s", "repair the owner or the network, and the disk if it damaged the file: the next complete catalog replaces the file", "operating.md: Persistence"}

	certificateExpired  = Condition{"certificate", "expired", Act, "%s has expired.", "replace the file, or repair what renews it; this process reads the file again by itself", "FederationConsumerCertificateExpiring"}
	certificateAging    = Condition{"certificate", "expires soon", Look, "%s expires in %s.", "renew it, unless renewal is automatic", "FederationConsumerCertificateAging"}
	certificateUnusable = Condition{"certificate", "unusable", Act, "No connection can be made without a valid certificate: %s.", "repair the files or the SPIFFE agent; the certificate is used as soon as it is there", "FederationConsumerCertificateExpiring"}
	certificateKept     = Condition{"certificate", "not replaced", Look, "The certificate files cannot be used now, so the old certificate stays in use until it expires: %s.", "repair the files; this process reads them again by itself", "FederationConsumerCertificateAging"}

	sourceCurrent   = Condition{"source", "current", Well, "It is published as its origin has it.", nothing, "At an owner"}
	sourceAway      = Condition{"source", "away", Look, "The source cannot be asked: %s", repairSource, "FederationOwnerSourceAway"}
	sourceKept      = Condition{"source", "away", Look, "Its last services stay published for its lifetime, %s.", repairSource, "FederationOwnerSourceAway"}
	sourceNearLapse = Condition{"source", "away", Act, "Its last services stay published for its lifetime, %s.", repairSource, "FederationOwnerSourceLifetimeHalfGone"}
	sourceLapsed    = Condition{"source", "lapsed", Act, "The source has been away for its whole lifetime, %s, so its services are withdrawn: %s", repairSource, "FederationOwnerSourceLifetimeHalfGone"}
	sourceWaiting   = Condition{"source", "waiting", Look, "The source has not yet said what it has, so the end of the catalog waits, and so do the names that the source may have.", "wait; if this lasts, repair the origin of the source", "FederationOwnerSourceAway"}
	sourcePaused    = Condition{"source", "paused", Act, "The withdrawal of %s is paused: its origin lost too many at once.", confirmPaused, "FederationOwnerWithdrawalsPaused"}
	sourceWithdraws = Condition{"source", "paused", Act, "The first of them are withdrawn %s unless they come back.", confirmPaused, "FederationOwnerWithdrawalsPaused"}
	sourceRefused   = Condition{"source", "refused", Look, "Some of its entries are not valid services.", "correct them in the source; the log names entries that it refuses", "At an owner"}
	sourceRelays    = Condition{"source", "relayed owner", Look, "Look at the owner that it relays.", "see what is said of that owner", "operating.md: When something is lost"}

	registrationStoreAway = Condition{"registration", "store away", Act, "The store cannot be asked, so new registrations are not stored.", "repair the store; programs register again by themselves", "FederationOwnerStoreAway"}
	registrationConverges = Condition{"registration", "converging", Look, "The registration converges for another %s, while programs register again.", "wait; if this lasts, find out why programs do not come back", "FederationOwnerConvergenceStuck"}

	catalogServed      = Condition{"catalog", "in order", Well, "Consumers have it as it is.", nothing, "At an owner"}
	catalogUnavailable = Condition{"catalog", "unavailable", Act, "The catalog is not served to consumers: %s.", "repair the source that is waited for; consumers keep what they have meanwhile", "FederationOwnerCatalogUnavailable"}
	catalogBehind      = Condition{"catalog", "behind", Look, "A consumer is behind: it has not acknowledged a change for %s.", "look at the consumer that is behind for the longest, and find out what keeps the consumer busy or cut off", "FederationOwnerConsumerLag"}
	catalogEmpty       = Condition{"catalog", "empty", Well, "The catalog has no service.", "add a first service to a source of the catalog", "At an owner"}
	catalogUnread      = Condition{"catalog", "no consumers", Well, "No consumer is connected.", "name this owner in a federation block of a CoreDNS, and allow the identity of its certificate here", "At an owner"}

	importWritten    = Condition{"import", "written", Well, "The objects are as they should be.", nothing, "At an importer"}
	importStandby    = Condition{"import", "standby", Well, "Another replica writes the objects. This one takes over when that one ends.", nothing, "At an importer"}
	importAway       = Condition{"import", "cluster away", Act, "The API server cannot be asked, so objects stay as they are: %s", "repair the API server, or the way and the credentials of this process; all objects are compared when it answers again", "FederationImportClusterAway"}
	importLeaderless = Condition{"import", "no leader", Act, "No replica writes objects, because none has the lease federation-import.", "look for the lease in the logs of the replicas; their service account must be allowed to get, create and update it", "FederationImportNoLeader"}
	importRefused    = Condition{"import", "not written", Look, "The objects of %s are not as they should be (%s).%s", "look at 'federationctl why NAME' for the reason of each name", "FederationImportNotWritten"}
	importPending    = Condition{"import", "pending", Look, "%s waiting to be written for %s.", "wait; if this lasts, the API server is slow or limits requests: its metric apiserver_request_total counts the answers by code", "FederationImportNotWritten"}

	processFileBroken = Condition{"process", "broken", Look, "%s broken, so what was read before stays in force.", "correct the file; the reason names the line", "FederationOwnerFileBroken"}
	processRestart    = Condition{"process", "restart to apply", Look, "Restart to apply: %s.", "restart the owner; its consumers resume", "At an owner"}
	processTurnedAway = Condition{"process", "turned away", Look, "%s %s turned away within the last hour.", "look at the reason of each peer that should be let in", "At an owner"}
	processWaits      = Condition{"process", "not ready", Act, "It waits for %s.", "repair what it waits for", "FederationOwnerNotReady"}
)

// Finding is a condition that was found, with its sentence filled in.
type Finding struct {
	Condition

	Says string
}

// Judgement is a level, and the findings that led to it.
type Judgement struct {
	Level    Level
	Findings []Finding // none where nothing is to do
}

// addCondition adds the finding of a condition, whose sentence takes args.
func (v *Judgement) addCondition(c Condition, args ...any) {
	if c.Remedy != nothing {
		v.AddFinding(Finding{c, fmt.Sprintf(c.Sentence, args...)})
	}
}

// AddFinding adds a finding, whose sentence it makes printable, and raises the level to that of the finding.
func (v *Judgement) AddFinding(f Finding) {
	f.Says = safetext.Printable(f.Says)
	v.Findings = append(v.Findings, f)
	v.Level = max(v.Level, f.Level)
}

// Advice returns the remedy of finding i, or "" when a later finding has the same remedy.
func (v *Judgement) Advice(i int) string {
	remedy := v.Findings[i].Remedy
	if slices.ContainsFunc(v.Findings[i+1:], func(f Finding) bool { return f.Remedy == remedy }) {
		return ""
	}
	return remedy
}

// withRemedy returns the condition with what to do in this case, if that is known.
func (c *Condition) withRemedy(remedy string) Condition {
	in := *c
	in.Remedy = cmp.Or(remedy, c.Remedy)
	return in
}

// Judge says how an owner is, for a process that follows it: a CoreDNS, an importer, or an owner that
// relays it.
func (u *FollowedOwner) Judge(now time.Time, as ProcessRole) (v Judgement) {
	if u.Failure != "" {
		v.AddFinding(Finding{Condition{Remedy: u.Remedy, Runbook: "Why there is no stream"}, "No stream: " + u.Failure})
	}
	switch {
	case u.Damage == "" || as == Owner:
	case as == Importer:
		v.addCondition(importedDamaged, u.Damage)
	default:
		v.addCondition(ownerDamaged, u.Damage)
	}
	u.judgeState(&v, now, as)
	if u.Stale > 0 && !u.Restored.IsZero() && as != Owner {
		v.addCondition(ownerRestored, FormatAge(now, u.Restored))
	}
	if u.Stale > 0 && u.State == "synced" {
		v.addCondition(ownerPaused, CountNoun(u.Stale, "service"))
	}
	u.judgeRefusals(&v)
	if n := sumCounts(u.Conflicts); n > 0 {
		v.addCondition(ownerConflicts, FormatNumber(n))
	}
	if len(u.Unshared) > 0 {
		v.addCondition(ownerUnshared, joinWords(u.Unshared))
	}
	if u.Unsaved != "" {
		v.addCondition(ownerUnsaved, u.Unsaved)
	}
	v.judgeCertificates(now, u.Certificates)
	if u.State == "synced" && u.Services+u.NotAdmitted+u.NotImported == 0 {
		v.addCondition(ownerEmpty)
	}
	return v
}

// sumCounts returns the sum of counts.
func sumCounts(of map[string]int) (n int) {
	for _, count := range of {
		n += count
	}
	return n
}

// judgeState adds the condition of the owner's state.
func (u *FollowedOwner) judgeState(v *Judgement, now time.Time, as ProcessRole) {
	which := conditionIn(as, u.State, u.Known, u.NextAttempt)
	_, percent := u.RemainingRetention(now)
	var has []any // of what it had
	switch near := percent > 0 && percent < 50; {
	case near && which == ownerStale:
		which = ownerNearExpiry
	case near && as == Importer: // also one that is parked, say
		which = importedNearExpiry
	case which != ownerParked && which != ownerRetried:
	case u.Services > 0:
		has = []any{" Its last records are still answered, with a TTL of 30 s at most."}
	default:
		has = []any{" It has no records here."}
	}
	if which != ownerSynced {
		v.addCondition(which.withRemedy(u.Remedy), has...) // the remedy for the reason, and no general one
	}
}

// judgeRefusals adds what this side refuses of the owner: some services, or all of them, which
// mostly is a mistake in the configuration of this side.
func (u *FollowedOwner) judgeRefusals(v *Judgement) {
	which, refused, newest := ownerRefused, CountNoun(u.NotAdmitted, "service"), ""
	switch {
	case u.NotAdmitted == 0:
		return
	case u.Services == 0:
		which, refused = ownerAllRefused, FormatNumber(u.NotAdmitted)
	}
	if len(u.Refusals) > 0 {
		newest = " The newest: " + describeRefusal(u.ID, &u.Refusals[0])
		which = which.withRemedy(u.Refusals[0].Remedy())
	}
	v.addCondition(which, refused, newest)
}

// ownerConditions are the conditions of an owner by its state, for each role of a process that follows the
// owner: "comparing" is syncing while an earlier catalog is known, and "retried" is parked until the next attempt.
var ownerConditions = map[ProcessRole]map[string]Condition{
	Consumer: {
		"synced": ownerSynced, "comparing": ownerComparing, "syncing": ownerSyncing, "connecting": ownerConnecting,
		"stale": ownerStale, "expired": ownerExpired, "parked": ownerParked, "retried": ownerRetried,
	},
	Owner: {
		"synced": ownerSynced, "comparing": relayedSyncing, "syncing": relayedSyncing, "connecting": relayedConnecting,
		"stale": relayedLost, "expired": relayedLost, "parked": relayedParked, "retried": relayedRetried,
	},
	Importer: {
		"synced": ownerSynced, "comparing": importedSyncing, "syncing": importedSyncing, "connecting": importedConnecting,
		"stale": importedStale, "expired": importedExpired, "parked": importedParked, "retried": importedRetried,
	},
}

// conditionIn returns the condition of an owner in a state, for a process of that role that follows
// the owner.
func conditionIn(as ProcessRole, state string, known bool, next time.Time) Condition {
	switch {
	case state == "syncing" && known:
		state = "comparing"
	case state == "parked" && !next.IsZero():
		state = "retried"
	}
	if c, ok := ownerConditions[as][state]; ok {
		return c
	}
	return ownerUnknown
}

// RemainingRetention returns how much of the retention is left, and how much that is in percent.
// Both are 0 while the retention does not count.
func (u *FollowedOwner) RemainingRetention(now time.Time) (left time.Duration, percent int) {
	left, whole := u.Expires.Sub(now), u.Expires.Sub(u.Lost)
	if u.Lost.IsZero() || u.State == "synced" || u.Expires.IsZero() || left <= 0 {
		return 0, 0
	}
	if whole > 0 {
		percent = max(1, min(100, int(100*left/whole)))
	}
	return left, percent
}

// soon is how long before its end a certificate is to be looked at: one of an agent that
// renews it every hour is always near its end.
const soon = 7 * 24 * time.Hour

// judgeCertificates adds when two certificates expire, and the trouble with their files.
func (v *Judgement) judgeCertificates(now time.Time, of Certificates) {
	if of.CertificateError != "" {
		which := certificateKept
		if !now.Before(of.Certificate) {
			which, of.Certificate = certificateUnusable, time.Time{} // which says all of it
		}
		v.addCondition(which.withRemedy(of.CertificateRemedy), of.CertificateError)
	}
	judge := func(what string, when time.Time) {
		switch {
		case when.IsZero():
		case !now.Before(when):
			v.addCondition(certificateExpired, what)
		case when.Sub(now) < soon:
			v.addCondition(certificateAging, what, FormatSpan(when.Sub(now)))
		}
	}
	judge("The certificate of this side", of.Certificate)
	judge("An authority of the CA", of.Authority)
}

// Judge says how a source is, with the programs that register in it and the owner that it
// relays.
func (s *CatalogSource) Judge(now time.Time) (v Judgement) {
	away := cmp.Or(s.Away, "the reason is not known")
	switch s.State {
	case "lapsed":
		v.addCondition(sourceLapsed, FormatSeconds(s.Lifetime), away)
	case "away":
		v.addCondition(sourceAway, away)
		if s.Lifetime >= 0 {
			which := sourceKept
			if s.Lifetime > 0 && !s.Since.IsZero() && now.Sub(s.Since).Seconds() > s.Lifetime/2 {
				which = sourceNearLapse
			}
			v.addCondition(which, FormatSeconds(s.Lifetime))
		}
	case "waiting":
		v.addCondition(sourceWaiting)
		if s.Away != "" {
			v.addCondition(sourceAway, away)
		}
	}
	if r := s.Registration; r != nil {
		if r.StoreAway {
			v.addCondition(registrationStoreAway)
		}
		if r.Convergence > 0 {
			v.addCondition(registrationConverges, FormatSpan(time.Duration(r.Convergence*float64(time.Second))))
		}
	}
	if s.Paused > 0 {
		v.addCondition(sourcePaused, CountNoun(s.Paused, "service"))
		if !s.WithdrawAt.IsZero() {
			v.addCondition(sourceWithdraws, FormatAge(now, s.WithdrawAt))
		}
	}
	if len(s.Refused) > 0 {
		v.addCondition(sourceRefused)
	}
	if s.Relay != nil {
		v.addRelayed(s.Relay.Judge(now, Owner))
	}
	return v
}

// addRelayed adds the judgement of the owner that a source relays. The remedy of the owner takes
// the place of the general one of the source.
func (v *Judgement) addRelayed(of Judgement) {
	if of.Level == Well {
		return
	}
	remedy := slices.MaxFunc(of.Findings, func(a, b Finding) int { return cmp.Compare(a.Level, b.Level) }).Remedy
	for i := range v.Findings {
		if v.Findings[i].Remedy == repairSource {
			v.Findings[i].Remedy = remedy
		}
	}
	if of.Level > v.Level {
		relays := sourceRelays.withRemedy(remedy)
		relays.Level = of.Level
		v.addCondition(relays)
	}
}

// Streams returns how many streams of consumers are open.
func (c *Catalog) Streams() (n int) {
	for _, of := range c.Consumers {
		n += of
	}
	return n
}

// late is how long a consumer may take to acknowledge a change.
const late = time.Minute

// Judge says how a catalog is for its consumers, in a word as well. Its sources are judged
// apart.
func (c *Catalog) Judge(now time.Time) (v Judgement, state string) {
	if c.Unavailable != "" {
		v.addCondition(catalogUnavailable, c.Unavailable)
	}
	if !c.Oldest.IsZero() && now.Sub(c.Oldest) > late {
		v.addCondition(catalogBehind, FormatSpan(now.Sub(c.Oldest)))
	}
	if c.Services == 0 && c.Unavailable == "" {
		v.addCondition(catalogEmpty)
	}
	if c.Streams() == 0 {
		v.addCondition(catalogUnread)
	}
	if len(v.Findings) == 0 {
		return v, catalogServed.State
	}
	return v, v.Findings[0].State // they are in this order, the worst first
}

// lately is for how long somebody who was turned away is worth a look.
const lately = time.Hour

// Judge says how an owner as a whole is.
func (p *PublishingOwner) Judge(now time.Time) (v Judgement) {
	if n := len(p.Broken); n > 0 {
		v.addCondition(processFileBroken, CountNoun(n, "file")+" "+wordFor(n, "is", "are"))
	}
	if len(p.Restart) > 0 {
		v.addCondition(processRestart, joinWords(p.Restart))
	}
	v.judgeCertificates(now, p.Certificates)
	away := slices.DeleteFunc(slices.Clone(p.TurnedAway), func(t TurnedAway) bool { return now.Sub(t.At) >= lately })
	if n := len(away); n > 0 {
		which := processTurnedAway
		if !slices.ContainsFunc(away, func(t TurnedAway) bool { return t.Remedy != away[0].Remedy }) {
			which = which.withRemedy(away[0].Remedy)
		}
		v.addCondition(which, CountNoun(n, "peer"), wordFor(n, "was", "were"))
	}
	return v
}

// Judge says how the objects of an importer are, in a word as well.
func (i *Imports) Judge(now time.Time) (v Judgement, state string) {
	switch {
	case i.Failure != "":
		v.addCondition(importAway, i.Failure)
	case !i.Leads && i.Leader == "":
		v.addCondition(importLeaderless)
	}
	if n := sumCounts(i.Refused); n > 0 {
		newest, remedy := "", ""
		if len(i.Problems) > 0 {
			newest, remedy = " The newest: "+i.Problems[0].describe()+".", i.Problems[0].Remedy()
		}
		v.addCondition(importRefused.withRemedy(remedy), CountNoun(n, "service"), joinCounts(i.Refused), newest)
	}
	if waits, n := now.Sub(i.PendingSince), i.Services[ImportPending]; n > 0 && waits > late {
		v.addCondition(importPending, CountNoun(n, "service")+" "+wordFor(n, "has", "have")+" been", FormatSpan(waits))
	}
	switch {
	case len(v.Findings) > 0:
		return v, v.Findings[0].State
	case i.Leads:
		return v, importWritten.State
	}
	return v, importStandby.State
}

// Judge says how a process is with all that it consists of, in a few sentences, the worst
// first.
func (s *Status) Judge() (v Judgement) {
	if !s.Ready {
		v.addCondition(processWaits, strings.Join(s.Waiting, ", "))
	}
	rows := s.Rows()
	v.addWorst(rows)
	v.sumOwners(rows)
	switch i := s.Imports; {
	case s.Role == Importer:
		slices.SortStableFunc(v.Findings, func(a, b Finding) int { return cmp.Compare(b.Level, a.Level) })
		if i != nil && v.Level == Well {
			v.addSentencef(Well, "%s.", capitalize(i.describeWriter()))
		}
	case s.Role != Consumer:
		s.sumCatalogs(&v)
	}
	return v
}

// worstState returns the state in the first finding about the owner that has the level of the
// judgement, or in, which is the state of the owner: a synced owner may have another trouble.
func (v *Judgement) worstState(in string) string {
	for _, f := range v.Findings {
		if strings.HasSuffix(f.Of, "owner") && f.Level == v.Level && v.Level > Well {
			return f.State
		}
	}
	return in
}

// addSentencef adds a finding that consists of a sentence which sums something up.
func (v *Judgement) addSentencef(level Level, format string, args ...any) {
	v.AddFinding(Finding{Condition{Level: level}, fmt.Sprintf(format, args...)})
}

// sumOwners adds the sentences about the owners that a process follows.
func (v *Judgement) sumOwners(rows []TableRow) {
	var states [Act + 1][]string // of those at each level
	owners, services := 0, 0
	for i := range rows {
		if of := &rows[i]; of.Owner != nil {
			owners, services = owners+1, services+of.Services
			states[of.Level] = append(states[of.Level], of.worstState(of.State))
		}
	}
	if owners > 0 && len(states[Well]) == owners {
		v.addSentencef(Well, "%s synced, %s.", CountNoun(owners, "owner"), CountNoun(services, "service"))
	}
	for level := Act; level > Well; level-- {
		in := make(map[string]int)
		for _, state := range states[level] {
			in[state]++
		}
		var words []string
		for _, state := range slices.Sorted(maps.Keys(in)) {
			words = append(words, FormatNumber(in[state])+" "+state)
		}
		if len(words) > 0 {
			v.addSentencef(level, "%s %s of %s: %s.", [...]string{"", "Look at", "Act on"}[level], FormatNumber(len(states[level])), CountNoun(owners, "owner"), strings.Join(words, ", "))
		}
	}
}

// addWorst adds what is worst of the first rows that are not well, and are not those of owners.
func (v *Judgement) addWorst(rows []TableRow) {
	const most = 3
	bad := 0
	for i := range rows {
		if of := &rows[i]; of.Owner == nil && of.Level > Well {
			if bad++; bad <= most {
				worst := slices.MaxFunc(of.Findings, func(a, b Finding) int { return cmp.Compare(a.Level, b.Level) })
				v.addSentencef(of.Level, "%s: %s", capitalize(of.Name), worst.Says)
			}
		}
	}
	if more := bad - most; more > 0 {
		v.addSentencef(Well, "%s more to look at.", FormatNumber(more))
	}
}

// capitalize returns a text that begins with a capital.
func capitalize(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// sumCatalogs adds the sentences about the catalogs of an owner.
func (s *Status) sumCatalogs(v *Judgement) {
	services, consumers := 0, 0
	for i := range s.Catalogs {
		services, consumers = services+s.Catalogs[i].Services, consumers+s.Catalogs[i].Streams()
	}
	switch {
	case v.Level > Well:
	case services == 0:
		v.addSentencef(Well, "No service is published yet.")
	case consumers == 0:
		v.addSentencef(Well, "%s, and no consumer is connected yet.", CountNoun(services, "service"))
	default:
		v.addSentencef(Well, "%s, %s.", CountNoun(services, "service"), CountNoun(consumers, "consumer"))
	}
}

// TableRow is a part of a process in a table: an owner that is followed, the cluster of an importer or, at
// an owner, a catalog, one of its sources or, if there is something to say of it, the process. Its
// texts are printable.
type TableRow struct {
	Judgement

	Name     string
	State    string
	Since    time.Time // of the state, if that is known
	Services int
	Note     string // a few words

	// The part: one of these, or a source and its catalog.
	Owner     *FollowedOwner
	Imports   *Imports
	Publisher *PublishingOwner
	Catalog   *Catalog
	Source    *CatalogSource
}

// Rows returns the rows of a process, the worst first.
func (s *Status) Rows() (rows []TableRow) {
	add := func(r TableRow) {
		if len(r.Findings) > 0 {
			r.Note = cmp.Or(r.Note, r.Findings[0].Says)
		}
		r.State = safetext.Printable(r.State)
		rows = append(rows, r)
	}
	for i := range s.Owners {
		u := &s.Owners[i]
		note := ""
		if left, _ := u.RemainingRetention(s.Now); left > 0 && u.CertificateError == "" { // which is to be mended first
			note = s.Role.Results() + " go in " + FormatSpan(left)
		}
		add(TableRow{Judgement: u.Judge(s.Now, s.Role), Name: PrintableWord(u.ID), State: u.State, Since: u.Since, Services: u.Services, Note: note, Owner: u})
	}
	if i := s.Imports; i != nil {
		v, state := i.Judge(s.Now)
		note := ""
		if len(v.Findings) == 0 {
			note = i.describeWriter()
		}
		add(TableRow{Judgement: v, Name: "cluster " + PrintableWord(i.Cluster), State: state, Services: sumCounts(i.Services), Note: note, Imports: i})
	}
	if s.Publisher != nil {
		if v := s.Publisher.Judge(s.Now); v.Level > Well {
			add(TableRow{Judgement: v, Name: "this owner", State: v.Findings[0].State, Publisher: s.Publisher})
		}
	}
	for i := range s.Catalogs {
		c := &s.Catalogs[i]
		v, state := c.Judge(s.Now)
		note, of := "", ""
		if len(v.Findings) == 0 {
			note = CountNoun(c.Streams(), "consumer")
		}
		add(TableRow{Judgement: v, Name: "catalog " + CatalogName(c.Name), State: state, Services: c.Services, Note: note, Catalog: c})
		if len(s.Catalogs) > 1 {
			of = " of " + CatalogName(c.Name)
		}
		for j := range c.Sources {
			from := &c.Sources[j]
			add(TableRow{
				Judgement: from.Judge(s.Now), Name: "source " + PrintableWord(from.Name) + of, State: from.State, Since: from.Since, Services: from.Services,
				Catalog: c, Source: from,
			})
		}
	}
	slices.SortStableFunc(rows, func(a, b TableRow) int { return cmp.Compare(b.Level, a.Level) })
	return rows
}

// FormatNumber returns a number with commas between thousands.
func FormatNumber(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// CountNoun returns a number with commas, and the noun in singular or plural.
func CountNoun(n int, noun string) string { return FormatNumber(n) + " " + nounFor(n, noun) }

// nounFor returns the noun in singular or plural, as n needs it.
func nounFor(n int, noun string) string {
	if strings.HasSuffix(noun, "s") {
		return wordFor(n, noun, noun+"es")
	}
	return wordFor(n, noun, noun+"s")
}

// wordFor returns one for 1, and others for any other number.
func wordFor(n int, one, others string) string {
	if n == 1 {
		return one
	}
	return others
}

// FormatAge returns how long ago when was, or how soon it will be.
func FormatAge(now, when time.Time) string {
	if d := now.Sub(when); d < 0 {
		return "in " + FormatSpan(-d)
	}
	return FormatSpan(now.Sub(when)) + " ago"
}

// FormatSeconds returns a duration of a configuration, in seconds, as people write it; 0 is for ever.
func FormatSeconds(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d <= 0 {
		return "forever"
	}
	var parts []string
	for _, unit := range []struct {
		time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "min"}} {
		if n := d / unit.Duration; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, unit.name))
		}
		d %= unit.Duration
	}
	if d > 0 || len(parts) == 0 {
		parts = append(parts, fmt.Sprintf("%g s", d.Seconds()))
	}
	return strings.Join(parts, " ")
}
