package status

import (
	"slices"
	"strings"
	"time"
)

// NameExplanation says how a process comes to its answer for a name. It is the answer to GET /v1/why.
// A consumer fills Answers, an owner Catalogs, and an importer Imports and Refused.
type NameExplanation struct {
	Role ProcessRole `json:"role"`
	Now  time.Time   `json:"now"`
	Name string      `json:"name"` // lower case, absolute
	Type string      `json:"type"` // such as A; an owner looks at names only

	// Answers has one for each server block that has the name in one of its zones. It is
	// empty when none has.
	Answers []BlockAnswer `json:"answers,omitempty"`

	// Refused has the owners that have been refused the name although no server block of
	// Answers has them: because the name is in none of the zones that they were given.
	Refused []OwnerPart `json:"refused,omitempty"`

	// Catalogs has those of an owner, in which the name is looked for as an fqdn, as the
	// name of a service, and as a name below an fqdn.
	Catalogs []CatalogPublication `json:"catalogs,omitempty"`

	// Imports has the services of an importer that are called so: by an fqdn, or by the name of
	// a service or of its objects. Refused has all owners of the importer then.
	Imports []ImportedService `json:"imports,omitempty"`
}

// BlockAnswer is what one server block answers, and why.
type BlockAnswer struct {
	Servers []string `json:"servers"` // the keys of the server block, such as dns://.:53
	Zone    string   `json:"zone"`    // the longest of its zones that contains the name
	Serial  uint32   `json:"serial,omitempty"`

	// The reply that a client with EDNS gets over TCP.
	Rcode   string   `json:"rcode"`            // as dig shows it
	Records []string `json:"records"`          // of the answer section, in presentation form
	Errors  []string `json:"errors,omitempty"` // extended errors (RFC 8914), as CODE (NAME): TEXT
	Passed  bool     `json:"passed,omitempty"` // the query goes to the next plugin (fallthrough), which has not been asked

	// Is says what the name is: "service", "instance", "protocol" (service labels before a
	// name), "address", "zone" (its apex), "name server", "empty" (an empty non-terminal),
	// or "missing".
	Is string `json:"is"`

	// Verdict is why the answer is what it is, in one word: see the constants.
	Verdict AnswerVerdict `json:"verdict"`

	// Nearest are names of services that may be meant by a name that does not exist, the nearest
	// first, 3 at most.
	Nearest []string `json:"nearest,omitempty"`

	Holder *NameHolder    `json:"holder,omitempty"` // the service that has the name; nil when none has
	Hosts  []HostEndpoint `json:"hosts,omitempty"`  // endpoints that are host names, and how they were resolved
	Circle string         `json:"circle,omitempty"` // a host that its endpoints lead to, and that leads back to itself: it has no address

	// Rivals are the other services that want the name, in order of precedence, and do not
	// have it.
	Rivals     []RivalService `json:"rivals,omitempty"`     // 100 at most
	MoreRivals int            `json:"moreRivals,omitempty"` // how many there are beside

	// Owners has every owner that may publish in the zone, the first wins, with what it
	// says of the name.
	Owners []OwnerPart `json:"owners"`
}

// AnswerVerdict is why a consumer answers as it does.
type AnswerVerdict string

// The verdicts.
const (
	Live        AnswerVerdict = "live"         // from a service whose owner vouches for it
	Stale       AnswerVerdict = "stale"        // from a service of an owner that is lost
	OwnData     AnswerVerdict = "zone"         // a name of the zone itself
	NoData      AnswerVerdict = "no-data"      // the name exists and has no records of the type
	NoName      AnswerVerdict = "no-name"      // nobody publishes the name, and all owners are known
	NoNameLost  AnswerVerdict = "no-name-lost" // nobody publishes the name now, and an owner that may is lost
	NotKnownYet AnswerVerdict = "not-known"    // an owner that may publish the name has not sent a complete catalog yet
	Refused     AnswerVerdict = "refused"      // nobody publishes the name, and a service that an owner has for it is refused
	Unresolved  AnswerVerdict = "unresolved"   // an endpoint's host cannot be resolved
	Denied      AnswerVerdict = "denied"       // every address of the endpoints' hosts is one that the owner may not publish
	PassedOn    AnswerVerdict = "passed-on"    // the next plugin answers
)

// AddRefused completes an explanation with the owners that have been refused the name although
// no server block of Answers has them, and makes Refused the verdict on a name that nobody
// publishes if it is one that has been refused.
func (w *NameExplanation) AddRefused(elsewhere []OwnerPart) {
	w.Refused = elsewhere
	for i := range w.Answers {
		a := &w.Answers[i]
		_, _, refused := w.firstRefusal(a.Owners)
		if refused && a.Holder == nil && slices.Contains([]AnswerVerdict{NoData, NoName, NoNameLost, PassedOn}, a.Verdict) {
			a.Verdict = Refused
		}
	}
}

// firstRefusal returns the refusal to name first of those that the owners have met, or the ones
// elsewhere: the newest of the name itself, else the newest of what is above it.
func (w *NameExplanation) firstRefusal(owners []OwnerPart) (owner string, first RefusedService, ok bool) {
	exact := func(r *RefusedService) bool { return strings.EqualFold(r.FQDN, w.Name) }
	for _, p := range slices.Concat(owners, w.Refused) {
		for _, r := range p.Refusals {
			if better := exact(&r) && !exact(&first); !ok || better || exact(&r) == exact(&first) && r.At.After(first.At) {
				owner, first, ok = p.ID, r, true
			}
		}
	}
	return owner, first, ok
}

// NameHolder is the service that has a name.
type NameHolder struct {
	Owner     string    `json:"owner"`
	Service   string    `json:"service"`
	FQDN      string    `json:"fqdn"`               // where it is published
	Original  string    `json:"original,omitempty"` // as the owner says it, where rename has changed it
	Instance  string    `json:"instance,omitempty"` // the ID of the instance that has the name
	Updated   time.Time `json:"updated,omitzero"`   // when this version came; zero: it was restored from a file
	Stale     bool      `json:"stale,omitempty"`
	StaleFrom time.Time `json:"staleSince,omitzero"`
	Expires   time.Time `json:"expires,omitzero"` // when it goes, if stale; zero: it stays

	// Faults are records and names of the service that are not published, by reason, as
	// in the metric coredns_federation_conflicts.
	Faults map[string]int `json:"faults,omitempty"`

	// Shared are the endpoints of a name that owners share, the best first. Owner and Service are
	// those of the first of these owners then, and Owners has those that have a part in the answer.
	Shared []SharedEndpoint `json:"shared,omitempty"`
	Owners []string         `json:"owners,omitempty"`
	Alone  bool             `json:"alone,omitempty"` // whether only one block shares the name
}

// SharedEndpoint is an endpoint of a name that owners share.
type SharedEndpoint struct {
	Endpoint string    `json:"endpoint"` // ADDRESS:PORT or HOST:PORT
	Owners   []string  `json:"owners"`   // that say it
	Tier     int       `json:"tier"`
	Answered bool      `json:"answered,omitempty"` // for the type of the query
	Rule     string    `json:"rule"`               // why, a clause such as "better endpoints are enough"
	Expires  time.Time `json:"expires,omitzero"`   // when it goes, if its owners are lost; zero: it stays
}

// HostEndpoint is an endpoint that is looked up.
type HostEndpoint struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses,omitempty"`
	Stale     bool     `json:"stale,omitempty"`   // they are the last ones that were known
	Failure   string   `json:"failure,omitempty"` // why there are none
}

// RivalService is a service that wants a name and does not have it.
type RivalService struct {
	Owner   string `json:"owner"`
	Service string `json:"service"`
	FQDN    string `json:"fqdn"`
	Rule    string `json:"rule"` // why it does not have it, a clause such as "its owner comes later in the Corefile"
}

// OwnerPart is what one owner has to do with a name.
type OwnerPart struct {
	ID      string    `json:"id"`
	State   string    `json:"state"`           // as FollowedOwner.State
	Known   bool      `json:"known,omitempty"` // as FollowedOwner.Known
	Since   time.Time `json:"since,omitzero"`
	Expires time.Time `json:"expires,omitzero"` // as FollowedOwner.Expires
	Failure string    `json:"failure,omitempty"`
	Remedy  string    `json:"remedy,omitempty"` // as FollowedOwner.Remedy

	NextAttempt time.Time `json:"nextAttempt,omitzero"` // as FollowedOwner.NextAttempt

	// NotImported says which import filter leaves services of this name out, if one does.
	NotImported string `json:"notImported,omitempty"`

	// NotAdmitted says which rule of the configuration refuses services of this name from this
	// owner, such as that the name is reserved; empty where none does.
	NotAdmitted string `json:"notAdmitted,omitempty"`

	Refusals []RefusedService `json:"refusals,omitempty"` // of services with this name, newest first
	Gone     []GoneService    `json:"gone,omitempty"`     // services that had this name, newest first
}

// IsCalled reports whether a name of DNS is that of the service.
func IsCalled(service, name string) bool {
	return strings.EqualFold(strings.TrimSuffix(service, "."), strings.TrimSuffix(name, "."))
}

// GoneService is a service that was there, and is no more.
type GoneService struct {
	At      time.Time `json:"at"`
	Service string    `json:"service"`
	FQDN    string    `json:"fqdn"`
	Cause   string    `json:"cause"` // withdrawn, absent (from a catalog that was complete), expired, excluded (by this side's rules), unproven (a file that was not read to its end), or moved (to another fqdn)
}

// CatalogPublication is what one catalog of an owner has under a name.
type CatalogPublication struct {
	Catalog     string           `json:"catalog"`               // the server name; empty for the default
	Unavailable string           `json:"unavailable,omitempty"` // why consumers cannot have it
	Services    []OfferedService `json:"services,omitempty"`    // those with the name; none: nobody publishes it
	Sources     []CatalogSource  `json:"sources"`
}

// OfferedService is a service of a source of an owner.
type OfferedService struct {
	Name      string      `json:"name"`
	FQDN      string      `json:"fqdn"`
	Source    string      `json:"source"`
	Hidden    string      `json:"hidden,omitempty"`   // why it is not published: which source before has the name or the fqdn
	Paused    bool        `json:"paused,omitempty"`   // whether its origin has lost it, and max_withdraw keeps it
	Withheld  string      `json:"withheld,omitempty"` // from which version of the API, with the reason
	Audience  []ToldClass `json:"told,omitempty"`     // to whom; empty where it is hidden
	Endpoints int         `json:"endpoints"`
	Instances int         `json:"instances"`
}

// ToldClass is what a class of consumers is told of a service.
type ToldClass struct {
	Class     string `json:"class"`            // as ConsumerClass.Name; "everybody" without exports
	Consumers int    `json:"consumers"`        // open streams
	Rule      int    `json:"rule,omitempty"`   // of exports, that decides; 0: none does
	As        string `json:"as,omitempty"`     // the fqdn, where a rule renames it
	Hidden    bool   `json:"hidden,omitempty"` // they are not told
}
