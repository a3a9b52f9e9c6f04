package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Relay is another owner, whose catalog is the whole of this one.
type Relay struct {
	Name       string          // of the owner; the default where the file gives it none
	Addresses  []string        // host:port of the owner's replicas, at least one; tried in turn
	IDs        []federation.ID // of which the owner must have one; empty for the server name
	ServerName string          // that the owner is asked for; empty for the host of each address
	Version    wire.Version    // of the API

	Zones       []federation.FQDN // that the owner may publish in; empty for everywhere
	Settle      time.Duration     // how long an owner is silent that does not mark the end of its catalog
	Keepalive   time.Duration     // between two pings
	MaxMessage  int               // octets
	MaxServices int
	MaxCatalog  int64  // octets; see catalog.Size
	Persist     string // path of the file that keeps the catalog through a restart; empty for none
}

// newRelay returns what holds where the file says nothing, as in a Corefile.
func newRelay() *Relay {
	return &Relay{
		Version: wire.V1Alpha2, Settle: 5 * time.Second, Keepalive: time.Minute,
		MaxMessage: 16 << 20, MaxServices: 1_000_000, MaxCatalog: 1 << 30,
	}
}

// The bounds of what a relay may say, which are those of a Corefile.
const (
	minSettle     = 100 * time.Millisecond
	maxSettle     = 10 * time.Minute
	minKeepalive  = 10 * time.Second
	maxKeepalive  = 24 * time.Hour
	minMaxMessage = 64 << 10
	maxMaxMessage = 1 << 30
	minMaxCatalog = 1 << 20
	maxMaxCatalog = 1 << 40
	mostServices  = 1 << 30
)

// key is Source.Key for a relay.
func (l *Relay) key() string { return fmt.Sprintf("relay %q %q", l.Addresses, fmt.Sprint(*l)) }

// owner returns what names the owner where the file does not.
func (l *Relay) owner() mtls.Consumer { return mtls.Consumer{ServerName: l.ServerName, IDs: l.IDs} }

// FormerNames are others that the file of the relay may have; see [mtls.Consumer.FormerNames].
func (l *Relay) FormerNames() []string { return l.owner().FormerNames(l.Addresses) }

// placedRelay is a relay at its place in the file.
type placedRelay struct {
	value

	relay *Relay
}

// relay reads the relay of a catalog, which is its only source then.
func (r *reader) relay(v value, sources *[]Source) {
	l := newRelay()
	r.relays = append(r.relays, placedRelay{v, l})
	lines, ok := r.mapping(v, map[string]func(v value){
		"name":           parsed(r, &l.Name, "a name", mtls.ParseOwnerName),
		"addresses":      r.placed(func(v value) { r.words(v, &l.Addresses, "none", parseOwner) }),
		"owner_ids":      func(v value) { r.ids(v, &l.IDs) },
		"tls_servername": parsed(r, &l.ServerName, "a host name", parseHost),
		"api":            parsed(r, &l.Version, "a version", wire.ParseVersion),
		"zones":          func(v value) { r.zones(v, &l.Zones) },
		"settle":         parsed(r, &l.Settle, "a duration", durationOf(minSettle, maxSettle, "5s")),
		"keepalive":      parsed(r, &l.Keepalive, "a duration", durationOf(minKeepalive, maxKeepalive, "1m")),
		"max_message":    parsed(r, &l.MaxMessage, "a size", sizeOf[int](minMaxMessage, maxMaxMessage)),
		"max_services":   parsed(r, &l.MaxServices, "a whole number", wholeNumber(mostServices)),
		"max_catalog":    parsed(r, &l.MaxCatalog, "a size", sizeOf[int64](minMaxCatalog, maxMaxCatalog)),
		"persist":        r.placed(r.store(&l.Persist)),
	})
	if !ok {
		return
	}
	r.require(v, lines, "addresses")
	if line := lines["owner_ids"]; line > 0 && len(l.IDs) == 0 {
		r.wrongf(value{field: v.field + ".owner_ids", line: line}, "names no identity; leave it out where the server name is that of the certificate")
	}
	if len(l.Addresses) > 0 {
		l.Name = cmp.Or(l.Name, l.owner().OwnerName(l.Addresses))
		*sources = append(*sources, Source{Name: "relay:" + l.Name, Lifetime: source.NoLifetime, Relay: l})
	}
}

// zones reads a list of different zones.
func (r *reader) zones(v value, zones *[]federation.FQDN) {
	var names []string
	r.words(v, &names, "all", func(text string) (string, error) {
		zone, err := federation.ParseOrigin(text)
		if err != nil {
			return "", fmt.Errorf("%s is no zone: %w", federation.Quote(text), err)
		}
		return zone.String(), nil
	})
	for _, name := range names {
		zone, err := federation.ParseOrigin(name)
		if err == nil { // always
			*zones = append(*zones, zone)
		}
	}
}

// parseOwner takes the address of an owner.
func parseOwner(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	number, failure := strconv.ParseUint(port, 10, 16)
	if err != nil || failure != nil || number == 0 || host == "" {
		return "", fmt.Errorf("%s is not host:port, such as owner.example:8008", federation.Quote(text))
	}
	if host, err = parseHost(host); err != nil {
		return "", err
	}
	return net.JoinHostPort(host, port), nil
}

// parseHost takes a host name or an IP address.
func parseHost(text string) (string, error) {
	address, err := federation.ParseAddress(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", federation.Quote(text), err)
	}
	return strings.TrimSuffix(address.String(), "."), nil
}

// sizeOf returns a function that takes a size within bounds.
func sizeOf[T int | int64](least, most int64) func(text string) (T, error) {
	return func(text string) (T, error) {
		size, err := ParseSize(text)
		if err == nil && (size < least || size > most) {
			err = fmt.Errorf("%s is not a size of %s to %s", federation.Quote(text), FormatSize(least), FormatSize(most))
		}
		return T(size), err
	}
}

// checkRelays notes what a relay needs in this configuration.
func (r *reader) checkRelays(c Config) {
	for _, at := range r.relays {
		if c.Identity.SPIFFE.Socket != "" && !slices.ContainsFunc(at.relay.IDs, federation.ID.IsSPIFFE) {
			r.wrongf(at.value, "needs a SPIFFE ID in owner_ids: where identities come from a SPIFFE agent the owner is known by that")
		}
	}
}

// isUnnamed reports whether an owner of a relay is only known by an IP address, which few
// certificates have.
func (l *Relay) isUnnamed() bool {
	return len(l.IDs) == 0 && l.ServerName == "" && slices.ContainsFunc(l.Addresses, func(address string) bool {
		host, _, err := net.SplitHostPort(address)
		_, failure := netip.ParseAddr(host)
		return err == nil && failure == nil
	})
}
