// Package status describes a CoreDNS with the plugin, an owner or an importer, for the
// person on call: its state, its services, and why a name is answered as it is. The types
// are the JSON of the status endpoint, whose paths begin with /v1: package page
// serves them, and federationctl reads them.
//
// Version 1 stays as it is, but for fields that are added: readers ignore those that they
// do not know. Times are in UTC, as RFC 3339 has them. Text that peers have chosen is as
// they sent it, and whoever shows it has to escape it.
package status

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// ProcessRole says whether a process is a consumer, an owner or an importer.
type ProcessRole string

// The roles.
const (
	Consumer ProcessRole = "consumer" // a CoreDNS with the plugin
	Owner    ProcessRole = "owner"    // federationctl serve
	Importer ProcessRole = "importer" // federationctl import
)

// Results returns what a process makes of the services that it follows, in a word.
func (r ProcessRole) Results() string {
	if r == Importer {
		return "objects"
	}
	return "records"
}

// Status is a process at a glance. It is the answer to GET /v1/status.
type Status struct {
	Role    ProcessRole `json:"role"`
	Version string      `json:"version"`
	Host    string      `json:"host,omitempty"` // the name of the machine, or of the pod
	PID     int         `json:"pid,omitempty"`  // of the process
	Now     time.Time   `json:"now"`
	Began   time.Time   `json:"began"` // when the process was started

	Ready   bool     `json:"ready"`
	Waiting []string `json:"waiting,omitempty"` // what it waits for before it is ready

	Owners    []FollowedOwner  `json:"owners,omitempty"`   // of a consumer or an importer: the owners that it follows, by ID
	Zones     []Zone           `json:"zones,omitempty"`    // of a consumer, by name
	Publisher *PublishingOwner `json:"publish,omitempty"`  // of an owner
	Catalogs  []Catalog        `json:"catalogs,omitempty"` // of an owner, by server name
	Imports   *Imports         `json:"imports,omitempty"`  // of an importer
}

// Hostname returns the name of this machine or pod, or "" when it is not known.
func Hostname() string {
	name, _ := os.Hostname()
	return name
}

// FollowedOwner is an owner that is followed: one that a Corefile names, or the one of a relay.
type FollowedOwner struct {
	ID    string    `json:"id"`
	State string    `json:"state"`           // connecting, syncing, synced, stale, expired or parked
	Since time.Time `json:"since,omitzero"`  // of the state
	Known bool      `json:"known,omitempty"` // a catalog was complete once, or was restored

	Failure     string    `json:"failure,omitempty"` // why there is no stream
	Remedy      string    `json:"remedy,omitempty"`  // what can be done about it here
	Damage      string    `json:"damage,omitempty"`  // of the file that the catalog was restored from, as long as it is not known otherwise
	Restored    time.Time `json:"restored,omitzero"` // of a catalog from the file of persist, until one is complete: when the owner was last up
	Unsaved     string    `json:"unsaved,omitempty"` // why the catalog cannot be written to its file
	LastAttempt time.Time `json:"lastAttempt,omitzero"`
	NextAttempt time.Time `json:"nextAttempt,omitzero"` // zero while there is a stream, and where nothing is tried before something changes; past while it is under way
	LastSync    time.Time `json:"lastSync,omitzero"`
	Lost        time.Time `json:"lost,omitzero"`              // when the retention began to count
	Expires     time.Time `json:"expires,omitzero"`           // when stale records go; zero while none are, and where they stay without limit
	Retention   float64   `json:"retentionSeconds,omitempty"` // how long what it had is kept once it is lost; 0: for ever

	Services    int    `json:"services"`
	Instances   int    `json:"instances"`
	Octets      int64  `json:"octets"` // of the catalog
	Stale       int    `json:"stale,omitempty"`
	Paused      int    `json:"paused,omitempty"`      // of those, what a complete catalog left out: too many for the guard to remove at once
	NotAdmitted int    `json:"notAdmitted,omitempty"` // services whose newest version this side refuses
	NotImported int    `json:"notImported,omitempty"` // updates of services that the import filter leaves out, since the stream was opened
	Hops        int    `json:"hops,omitempty"`        // owners that the services come through; 0: not known
	Path        string `json:"path,omitempty"`
	Resumes     uint64 `json:"resumes,omitempty"`

	Updates   EventRate        `json:"updates"`             // updates that were accepted
	Refusals  []RefusedService `json:"refusals,omitempty"`  // the newest, newest first, 20 at most
	Conflicts map[string]int   `json:"conflicts,omitempty"` // what is not published, by reason
	Unshared  []string         `json:"unshared,omitempty"`  // patterns of names that its block shares, and no other block does

	Certificates // of this side, for this owner

	CertificateFile string `json:"certificateFile,omitempty"` // or the socket of the agent
	AuthorityFile   string `json:"authorityFile,omitempty"`

	Retry func() `json:"-"` // tries at once to open a stream where there is none
}

// Certificates say when the certificate of a process expires, and the next of the authorities that it trusts, and
// what is wrong with their files.
type Certificates struct {
	Certificate time.Time `json:"certificateExpires,omitzero"`
	Authority   time.Time `json:"authorityExpires,omitzero"`

	CertificateError  string `json:"certificateError,omitempty"` // why the files cannot be used; without a certificate nothing can connect
	CertificateRemedy string `json:"certificateRemedy,omitempty"`
}

// CatalogNames returns the names of the catalogs of a process: the IDs of the owners that it follows, or the
// server names of an owner.
func (s *Status) CatalogNames() (names []string) {
	for i := range s.Owners {
		names = append(names, s.Owners[i].ID)
	}
	for i := range s.Catalogs {
		names = append(names, s.Catalogs[i].Name)
	}
	return names
}

// unknownError returns the error that there is no owner or no catalog with that name.
func unknownError(of string, known []string) error {
	switch {
	case len(known) > 0:
		return fmt.Errorf("there is no owner or catalog %q; there are %q", of, known)
	case of == "":
		return errors.New("no owner is followed here")
	}
	return fmt.Errorf("there is no owner or catalog %q: there is none", of)
}

// CheckCatalog returns an error unless the process has a catalog with that name.
func (s *Status) CheckCatalog(of string) error {
	if names := s.CatalogNames(); !slices.Contains(names, of) {
		return unknownError(of, names)
	}
	return nil
}

// FindOwner returns the owner with an ID, or the owner whose catalog is relayed under that server
// name.
func (s *Status) FindOwner(of string) (*FollowedOwner, error) {
	var known []string
	for i := range s.Owners {
		if s.Owners[i].ID == of {
			return &s.Owners[i], nil
		}
		known = append(known, s.Owners[i].ID)
	}
	for _, c := range s.Catalogs {
		for _, source := range c.Sources {
			if source.Relay == nil {
				continue
			}
			if c.Name == of {
				return source.Relay, nil
			}
			known = append(known, c.Name)
		}
	}
	return nil, unknownError(of, known)
}

// FindPaused returns the source of a catalog with paused withdrawals. Without a name it returns the
// only such source. It returns nil if no source has paused any.
func (s *Status) FindPaused(of, name string) (paused *CatalogSource, err error) {
	for i := range s.Catalogs {
		if c := &s.Catalogs[i]; c.Name == of {
			return c.findPaused(name)
		}
	}
	return nil, unknownError(of, s.CatalogNames())
}

func (c *Catalog) findPaused(name string) (paused *CatalogSource, err error) {
	var known, several []string
	for i := range c.Sources {
		source := &c.Sources[i]
		known = append(known, source.Name)
		if source.Paused > 0 && (name == "" || source.Name == name) {
			paused, several = source, append(several, source.Name)
		}
	}
	switch {
	case name != "" && !slices.Contains(known, name):
		return nil, fmt.Errorf("there is no source %q; there are %q", name, known)
	case len(several) > 1:
		return nil, fmt.Errorf("withdrawals of several sources are paused; name one of %q", several)
	}
	return paused, nil
}

// EventRate is how often something happened.
type EventRate struct {
	LastMinute int       `json:"lastMinute"`
	LastHour   int       `json:"lastHour"`
	Last       time.Time `json:"last,omitzero"` // when it happened last
}

// RefusedService is a service that a consumer has refused.
type RefusedService struct {
	At      time.Time `json:"at"`
	Service string    `json:"service,omitempty"`
	FQDN    string    `json:"fqdn,omitempty"`
	Field   string    `json:"field,omitempty"`
	Reason  string    `json:"reason,omitempty"` // the kind of rule, as in metrics
	Rule    string    `json:"rule"`             // with the value that breaks it
}

// Zone is a zone that a consumer answers.
type Zone struct {
	Name    string   `json:"name"`
	Servers []string `json:"servers"`          // server blocks of the Corefile that have it
	Serial  uint32   `json:"serial,omitempty"` // of its SOA
	Owners  []string `json:"owners"`           // which may publish in it, the first wins
}

// PublishingOwner is the status of an owner as a whole.
type PublishingOwner struct {
	Config  string            `json:"config,omitempty"` // the file
	Applied time.Time         `json:"applied,omitzero"` // when what is in effect was applied
	Restart []string          `json:"restart,omitempty"`
	Broken  map[string]string `json:"broken,omitempty"` // files that are not used as they are now, and why

	Listen      string `json:"listen"`
	Connections int    `json:"connections"`

	Certificates

	TurnedAway []TurnedAway `json:"turnedAway,omitempty"` // newest first, 20 at most of each reason
}

// TurnedAway is a peer that an owner has not let in.
type TurnedAway struct {
	At         time.Time `json:"at"`                   // the last time
	Times      int       `json:"times"`                // how often, since it was first remembered
	Role       string    `json:"role"`                 // consumer or provider, by the port
	Address    string    `json:"address"`              // that it came from, the last time
	Identities string    `json:"identities,omitempty"` // of the certificate that it has shown, with commas between; with the reason "certificate" nothing vouches for them
	Reason     string    `json:"reason"`               // certificate, identity (not allowed), server_name (there is no such catalog), limit (of connections or handshakes) or queue (told to come back later)
	Rule       string    `json:"rule"`                 // why, as a clause
	Remedy     string    `json:"remedy,omitempty"`     // what to do if it is to be let in
}

// Catalog is what an owner publishes under one server name.
type Catalog struct {
	Name        string          `json:"name"` // the server name; empty for the default
	Unavailable string          `json:"unavailable,omitempty"`
	Services    int             `json:"services"`
	Consumers   map[string]int  `json:"consumers,omitempty"` // open streams, by version of the API
	Withheld    map[string]int  `json:"withheld,omitempty"`  // services that a consumer may be told of and that its version of the API, or a message, has no room for
	Classes     []ConsumerClass `json:"classes,omitempty"`
	Unsent      int             `json:"unsent,omitempty"`      // services that consumers have yet to be sent
	InFlight    int             `json:"inFlight,omitempty"`    // responses that are not acknowledged
	Oldest      time.Time       `json:"oldest,omitzero"`       // of the changes that some consumer has not acknowledged
	Behind      int             `json:"behind,omitempty"`      // streams whose consumers have not acknowledged everything
	Lost        int             `json:"lost,omitempty"`        // consumers that have lost their last stream within a week, as far as the owner remembers
	Subscribers []Subscriber    `json:"subscribers,omitempty"` // who is behind the longest, and is lost the longest, first; 100 at most
	Sources     []CatalogSource `json:"sources"`
}

// Subscriber is a stream of a consumer that is open, or a consumer that has lost its last one.
type Subscriber struct {
	Consumer string    `json:"consumer"`          // its identity
	Address  string    `json:"address,omitempty"` // that it is connected from
	State    string    `json:"state"`             // current (it has acknowledged everything), behind or lost
	Behind   int       `json:"behind,omitempty"`  // services, and the end of the catalog, that it has not acknowledged
	Since    time.Time `json:"since,omitzero"`    // of the oldest of them, or of the loss
}

// DescribeState returns the state of the consumer as a clause.
func (s Subscriber) DescribeState(now time.Time) string {
	since := ""
	if !s.Since.IsZero() {
		since = FormatSpan(now.Sub(s.Since))
	}
	switch {
	case s.State == "lost":
		return "lost for " + since
	case s.State == "current":
		return "has acknowledged everything"
	case since == "":
		return "behind by " + FormatNumber(s.Behind)
	}
	return "behind by " + FormatNumber(s.Behind) + " for " + since
}

// ConsumerClass is the consumers to which the same rules of exports apply.
type ConsumerClass struct {
	Name      string `json:"name"` // the numbers of the rules, or none
	Consumers int    `json:"consumers"`
	Services  int    `json:"services"`
}

// CatalogSource is what fills a catalog.
type CatalogSource struct {
	Name       string         `json:"name"`
	State      string         `json:"state"` // current, away, lapsed, or waiting: it has yet to say what it has, and may be away
	Away       string         `json:"away,omitempty"`
	Since      time.Time      `json:"since,omitzero"`            // when it went away
	Lifetime   float64        `json:"lifetimeSeconds,omitempty"` // how long its services stay while it is away; 0: for ever; below 0: not at all
	Services   int            `json:"services"`
	Paused     int            `json:"paused,omitempty"`    // of those, what its origin has lost: more at once than max_withdraw lets go
	WithdrawAt time.Time      `json:"withdrawAt,omitzero"` // when the first of them are withdrawn unless they come back; zero: when somebody confirms it
	Hidden     int            `json:"hidden,omitempty"`
	Refused    map[string]int `json:"refused,omitempty"` // entries that are no services, by rule

	Confirm func() int `json:"-"` // withdraws what is paused, and returns how many services that are

	Registration *RegistrationSource `json:"registration,omitempty"`
	Relay        *FollowedOwner      `json:"relay,omitempty"`
}

// RegistrationSource is a source in which programs register.
type RegistrationSource struct {
	Address     string  `json:"address"`
	Nodes       int     `json:"nodes"`
	Providers   int     `json:"providers"`
	Old         int     `json:"old,omitempty"` // nodes whose providers are not back yet
	Pending     int     `json:"pending,omitempty"`
	Convergence float64 `json:"convergenceSeconds,omitempty"` // that are left
	StoreAway   bool    `json:"storeAway,omitempty"`
}
