package faultowner

import (
	"strconv"
	"strings"
)

// Identity says which certificate an owner has.
type Identity string

// The identities.
const (
	Right   Identity = ""        // what the consumer expects
	Other   Identity = "other"   // of the right authority, for another name
	Foreign Identity = "foreign" // for the right name, of an authority that the consumer does not know
	Expired Identity = "expired" // right, but no longer valid
	Early   Identity = "early"   // right, but valid only in 15 seconds: one of the two clocks is wrong
	Strict  Identity = "strict"  // right, but the owner does not know the consumer's authority
	Nobody  Identity = "nobody"  // there is no owner at the address
)

// Behaviour is one way in which an owner may act. Most of them break the protocol;
// some are within it, and only unusual.
type Behaviour struct {
	Name     string
	Identity Identity
	Text     string // the script, with the words that the method Script replaces
}

// Script returns the script of the behaviour for a catalog of n services s<i> and
// the services web, deep and moved in the zone. other is the zone of another owner.
func (b Behaviour) Script(zone, other string, n int) (Script, error) {
	return Parse(strings.NewReplacer("OTHER", other, "ZONE", zone,
		"HALF", strconv.Itoa(n/2), "MORE", strconv.Itoa(n+3), "ALL", strconv.Itoa(n),
	).Replace(strings.ReplaceAll(b.Text, "WHOLE", Catalog)))
}

// Catalog is the whole catalog, as Text of a Behaviour.
const Catalog = `
services 0 ALL ZONE
upsert web web.ZONE 192.0.2.1
upsert deep deep.x.y.ZONE 192.0.2.2
upsert moved before.ZONE 192.0.2.3
`

// Behaviours are the ways in which owners are known to fail, and some that are valid.
var Behaviours = []Behaviour{
	// Nothing is published.
	{Name: "nobody", Identity: Nobody},
	{Name: "mute", Text: "mute"},
	{Name: "close", Text: "mute\nreset"},
	{Name: "plain", Text: "plain"},
	{Name: "plain-then-whole", Text: "plain\n---\nplain\n---\nannounce\nWHOLE\nend"},
	{Name: "other-identity", Identity: Other, Text: "WHOLE"},
	{Name: "foreign-authority", Identity: Foreign, Text: "WHOLE"},
	{Name: "expired", Identity: Expired, Text: "WHOLE"},
	{Name: "early", Identity: Early, Text: "announce\nWHOLE\nend"},
	{Name: "strict", Identity: Strict, Text: "WHOLE"},
	{Name: "tls-only", Text: "tls"},
	{Name: "settings-only", Text: "frames"},
	{Name: "goaway-at-once", Text: "frames\ngoaway 0"},
	{Name: "goaway-unseen", Text: "frames\nstream\ngoaway 0"},
	{Name: "rst-stream", Text: "frames\nstream\nrst"},
	{Name: "http-503", Text: "frames\nstream\nhttp 503"},
	{Name: "http-502-html", Text: "frames\nstream\nwait 3s\nhttp 502"},
	{Name: "silent", Text: "hang"},
	{Name: "silent-then-reset", Text: "wait 7s\nreset"},
	{Name: "header-only", Text: "header"},
	{Name: "marked-header-only", Text: "announce\nheader"},
	{Name: "heartbeats", Text: "heartbeats 3s"},
	{Name: "one-heartbeat", Text: "end\nwait 20s\nreset"},
	{Name: "ping-flood", Text: "frames\nstream\npings 1s 40"},
	{Name: "ping-flood-at-once", Text: "frames\npings 1s 40"},
	{Name: "settings-flood", Text: "frames\nstream\nsettings 1s 40"},
	{Name: "dripping", Text: "frames\nstream\ndrip 1s web web.ZONE 192.0.2.1"},
	{Name: "ended-at-once", Text: "status OK"},
	{Name: "unavailable", Text: "status Unavailable"},
	{Name: "internal", Text: "wait 2s\nstatus Internal"},
	{Name: "exhausted", Text: "status ResourceExhausted"},
	{Name: "unauthenticated", Text: "status Unauthenticated"},
	{Name: "unauthenticated-late", Text: "wait 4s\nstatus Unauthenticated"},
	{Name: "invalid", Text: "status InvalidArgument"},

	// A part of the catalog is published.
	{Name: "half-cut", Text: "services 0 HALF ZONE\ncut\nupsert web web.ZONE 192.0.2.4"},
	{Name: "half-reset", Text: "services 0 HALF ZONE\nwait 2s\nreset"},
	{Name: "half-hang", Text: "services 0 HALF ZONE\nhang"},
	{Name: "half-marked-hang", Text: "announce\nservices 0 HALF ZONE\nhang"},
	{Name: "half-marked-reset", Text: "announce\nservices 0 HALF ZONE\nwait 20s\nreset"},
	{Name: "half-unauthenticated", Text: "services 0 HALF ZONE\nstatus Unauthenticated"},
	{Name: "half-heartbeats", Text: "announce\nservices 0 HALF ZONE\nnonce empty\nwait 2s\ncontext none\nupsert web web.ZONE 192.0.2.5\nhang"},
	{Name: "half-goaway", Text: "frames\nstream\nannounce\nupsert web web.ZONE 192.0.2.4\ngoaway 1\nwait 3s\nupsert deep deep.x.y.ZONE 192.0.2.5\nhang"},
	{Name: "half-goaway-unseen", Text: "frames\nstream\nupsert web web.ZONE 192.0.2.4\nwait 2s\ngoaway 0"},
	{Name: "half-ping-flood", Text: "frames\nstream\nupsert web web.ZONE 192.0.2.4\npings 1s 40"},
	{Name: "one-and-slow", Text: "slowly 1m 0 ALL ZONE"},
	{Name: "marked-and-slow", Text: "announce\nslowly 30s 0 ALL ZONE\nend"},
	{Name: "flapping", Text: "WHOLE\nwait 3s\nreset"},
	{Name: "flapping-marked", Text: "announce\nWHOLE\nend\nwait 3s\nreset"},
	{Name: "flapping-half", Text: "services 0 HALF ZONE\nwait 1s\nstatus Unavailable"},
	{Name: "first-half-then-other", Text: "services 0 HALF ZONE\nwait 1s\nreset\n---\nservices HALF ALL ZONE\nhang"},

	// The catalog, or a part of it, is refused.
	{Name: "refused-all", Text: "services 0 ALL OTHER.invalid\nhang"},
	{Name: "refused-address", Text: "WHOLE\nupsert web web.ZONE 127.0.0.1\nupsert deep deep.x.y.ZONE 169.254.169.254\nhang"},
	{Name: "truncated", Text: "announce\ntruncated web web.ZONE 192.0.2.4\nservices 0 ALL ZONE\nend"},
	{Name: "foreign-type", Text: "foreign web web.ZONE 192.0.2.4\nservices 0 HALF ZONE\nhang"},
	{Name: "unknown-operation", Text: "operation 7 web web.ZONE 192.0.2.4\nservices 0 HALF ZONE\nhang"},
	{Name: "wrong-context", Text: "context wrong\nWHOLE\nhang"},
	{Name: "wrong-context-later", Text: "announce\nWHOLE\nend\nwait 5s\ncontext wrong\nupsert web web.ZONE 192.0.2.4\ndelete s0"},
	{Name: "same-nonce", Text: "nonce same\nWHOLE\nhang"},
	{Name: "oversized", Text: "services 0 HALF ZONE\noversized 17000000 web web.ZONE 192.0.2.4\nservices HALF ALL ZONE\nhang"},
	{Name: "thief", Text: "announce\nWHOLE\n" +
		"upsert t1 n0.OTHER 192.0.2.66\nupsert t2 v1.n0.OTHER 192.0.2.66\nupsert t3 n1.OTHER 192.0.2.66\n" +
		"upsert t4 ns.dns.ZONE 192.0.2.66\nupsert t5 x.v1.n1.OTHER 192.0.2.66\nend"},

	// The whole catalog is published, sometimes in unusual ways.
	{Name: "whole", Text: "WHOLE"},
	{Name: "whole-marked", Text: "announce\nWHOLE\nend"},
	{Name: "emptied-marked", Text: "announce\nend"},
	{Name: "changed", Text: "announce\nservices 0 HALF ZONE\nservices ALL MORE ZONE\nupsert web web.ZONE 192.0.2.4\n" +
		"upsert deep deep.x.y.ZONE 192.0.2.5\nend"},
	{Name: "duplicates", Text: "WHOLE\nWHOLE\nupsert twin web.ZONE 192.0.2.6\nflood 200 web web.ZONE 192.0.2.7\nhang"},
	{Name: "moving", Text: "announce\nWHOLE\nend\nwait 5s\nupsert moved after.ZONE 192.0.2.4\nwait 5s\nupsert moved web.ZONE 192.0.2.5\n" +
		"wait 5s\nupsert moved before.ZONE 192.0.2.6"},
	{Name: "updates-for-ever", Text: "WHOLE\nupdates 700ms web web.ZONE"},
	{Name: "updates-only", Text: "updates 2s web web.ZONE"},
	{Name: "new-for-ever", Text: "slowly 3s 0 MORE ZONE"},
	{Name: "deletes", Text: "announce\nWHOLE\nend\nwait 4s\ndelete s0\nwait 4s\ndelete web\ndelete deep\ndelete nope\nwait 4s\nupsert web web.ZONE 192.0.2.4"},
	{Name: "deletes-only", Text: "delete s1\nwait 2s\ndelete web\nhang"},
	{Name: "deletes-then-reset", Text: "delete s1\ndelete deep\nwait 2s\nreset"},
	{Name: "named", Text: "announce\nnamed id-1 web web.ZONE 192.0.2.4\nservices 0 ALL ZONE\nend\nwait 3s\ndelete id-1\nwait 3s\nnamed id-2 deep deep.x.y.ZONE 192.0.2.5"},
}
