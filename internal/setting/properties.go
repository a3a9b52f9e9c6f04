package setting

import (
	"slices"
	"strings"
)

// Property is a property of a federation block.
type Property struct {
	Name    string
	Takes   string // its arguments: those in brackets may be left out together, and the last one with ... repeats
	Default string // the arguments that hold where the property is missing; "" for none
	Adds    bool   // whether each further line adds to what an earlier one says
	Doc     string // plain text; the README has all of it, or its first sentences
}

// Properties are all that a block takes, in the order of the README.
var Properties = []Property{
	{"owner", "ADDRESS...", "", false, "The owner, as host:port. Several addresses are replicas of one owner, which are tried in turn."},
	{"tls", "CERT KEY CA", "", false, "The certificate and the key of this consumer, and the authorities of the owner, as PEM files. Renewed files are used without a reload. A block needs tls or spiffe, because there is no unsecured mode."},
	{"owner_id", "ID...", "", false, "SPIFFE IDs or DNS names, of which the owner's certificate must have one. Set it if the authority signs others."},
	{"persist", "FILE", "", false, "A file that keeps the last good catalog, so that names survive a restart while the owner is away. Each owner needs a file of its own, in a writable folder."},
	{"status", "ADDRESS [CERT KEY CA]", "", false, "Where the status page and federationctl why are served, such as localhost:9154, which everybody on the machine can read. Addresses that are not loopback need PEM files, and every certificate of CA may read there. If several blocks set status, the values must match."},

	{"name", "NAME", "", false, "What the owner is called in metrics, logs and the file of persist, by default the only owner_id or the first address. Blocks with one name are one owner with one stream: give them different zones, rename, imports or TTLs. Set it before you change an address, so that the owner keeps its catalog."},
	{"rename", "FROM TO", "", true, "Moves names at and below FROM to TO. The most specific FROM applies, and zones are checked afterwards. Use it if two owners publish the same names."},
	{"share", "NAME...", "", true, "Names, or patterns of them, that this owner answers together with others. Every block must list the name. Without share, the owner that comes first in the Corefile has the name, and the next only when the first withdraws it or its retention ends."},
	{"tier", "N [LABEL]", "", true, "Puts the shared endpoints with this label, or all others, into tier N, 0 to 9. 1 means that they are answered when tier 0 has fewer than min live endpoints. Use it to prefer a near site."},
	{"min", "N", "1", false, "How many live endpoints of a shared name are enough. 3 means that the next tier is answered as well while fewer than three live. Raise it to what carries your load; blocks that share a name must agree."},

	{"spiffe", "SOCKET [TRUST_DOMAIN...]", "", false, "The SPIFFE agent at SOCKET issues certificate, key and authorities instead of tls. Owners of its trust domain and of each TRUST_DOMAIN are accepted. It needs a SPIFFE ID in owner_id."},
	{"tls_servername", "NAME", "", false, "The name that is asked for in the TLS handshake, by default the host of ADDRESS. An owner with several catalogs chooses one by it. Without owner_id the certificate must have this name."},
	{"import_names", "PATTERN...", "", true, "The fqdns to import, before rename, by default all: *.pay.example is every name below it, and * every name. Other services are acknowledged and forgotten. Set it to save memory if you need few services of a large catalog."},
	{"allow_addresses", "CIDR...", "", true, "Refused addresses to accept all the same, such as 127.0.0.0/8. Set it only if this owner is meant to publish addresses inside your own machine or link."},
	{"max_catalog", "SIZE", "1GiB", false, "The memory that the owner's services may take, at most 1TiB; further ones are refused. 1GiB means about 1.5 million services with one endpoint, as each counts 700 octets. Raise it before an owner grows there."},

	{"retention", "DURATION|forever", "24h", false, "How long records outlive a lost owner. 24h means that CoreDNS answers them for a day, marked as stale, and then NXDOMAIN. Set it to the longest outage that you want to bridge; forever sets no end."},
	{"ttl", "SECONDS", "30", false, "The TTL of answers, 1 to 3600 seconds, never longer than retention. 30 means that clients may use an endpoint for half a minute after it was withdrawn. Lower it for faster changes, at the price of more queries."},
	{"negative_ttl", "SECONDS", "5", false, "How long resolvers remember that a name is missing, 1 to 3600 seconds. 5 means that a client that asked too early finds a new service within five seconds. Raise it if clients often ask for names that do not exist."},
	{"settle", "DURATION", "5s", false, "After which silence the catalog of an owner that does not mark its end is complete. 5s means after five seconds without a message. Raise it, up to 10m, if such an owner pauses within its catalog."},
	{"api", "v1alpha2|v1alpha1", "v1alpha2", false, "The version of the protocol. v1alpha1 has no IDs of instances. Set it only for an owner that speaks nothing newer."},
	{"fallthrough", "[ZONES...]", "", false, "Passes queries for unknown names to the next plugin, in all zones or in these. Such zones cannot be transferred. Use it if another plugin serves a part of the zone."},
}

// PropertyOf returns the property with a name, and whether there is one.
func PropertyOf(name string) (Property, bool) {
	i := slices.IndexFunc(Properties, func(p Property) bool { return p.Name == name })
	if i < 0 {
		return Property{}, false
	}
	return Properties[i], true
}

// Accepts reports whether the property takes so many arguments.
func (p Property) Accepts(args int) bool {
	required, optional, _ := strings.Cut(p.Takes, "[")
	least := len(strings.Fields(required))
	most := least + len(strings.Fields(optional))
	return args == least || args == most || args > least && strings.Contains(p.Takes, "...")
}
