package federationplugin

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/fall"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// directive is the name of the plugin in a Corefile.
const directive = "federation"

// The ranges of the values in a block.
const (
	minTTL        = 1    // seconds: with 0, resolvers ask anew for every lookup
	maxTTL        = 3600 // seconds
	minRetention  = time.Second
	minSettle     = 100 * time.Millisecond
	maxSettle     = 10 * time.Minute
	minKeepalive  = 10 * time.Second // the least that gRPC takes
	maxKeepalive  = 24 * time.Hour
	minMaxMessage = 64 << 10 // bytes
	maxMaxMessage = 1 << 30  // bytes
	minMaxCatalog = 1 << 20  // octets
	maxMaxCatalog = 1 << 40  // octets
)

// Config is one federation block: an owner, and what it may publish.
type Config struct {
	// Position is where the block begins, as FILE:LINE.
	Position string

	// Zones are the zones that the owner may publish in: at least one, each
	// once, in Corefile order, none below in-addr.arpa or ip6.arpa.
	Zones []federation.FQDN

	// Addresses are host:port of the owner's replicas, in the order in which
	// they are tried: at least one, each once. A host name is in lower case and
	// without its final dot, an IPv6 address in brackets.
	Addresses []string

	// TLS names the PEM files of the consumer's certificate and key and of the
	// owner's CA. They are there, but nobody has looked whether they exist.
	TLS mtls.Files

	// ServerName is the name to verify in the owner's certificate. When it is
	// empty, that is the host of the address.
	ServerName string

	// OwnerIDs are the identities of which the owner's certificate must carry
	// one. When there is none, the server name is the identity.
	OwnerIDs []mtls.ID

	API         wire.Version
	TTL         uint32        // of answers, in seconds, 1 to 3600
	NegativeTTL uint32        // TTL and MINIMUM of the SOA, in seconds, 1 to 3600
	Retention   time.Duration // how long records outlive the connection, from 1s; 0 is without end
	Settle      time.Duration // silence that ends a catalog without an end marker, 100ms to 10m
	Keepalive   time.Duration // HTTP/2 ping interval, 10s to 24h
	Persist     string        // file of the last good catalog, or empty
	Renames     []Rename      // each From once; where several fit a name, the first of them is the most specific
	MaxServices int           // from 1
	MaxCatalog  int64         // octets, as the catalog counts them, 1 MiB to 1 TiB
	MaxMessage  int           // bytes, 64 KiB to 1 GiB

	// AllowAddresses are the prefixes of endpoint addresses that are taken even
	// though their range is refused by default.
	AllowAddresses []netip.Prefix

	// Fall holds the zones whose NXDOMAIN goes to the next plugin.
	Fall fall.F
}

// Rename publishes the names at and below From as the same names under To.
type Rename struct{ From, To federation.FQDN }

func defaults() Config {
	return Config{
		API:         wire.V1Alpha2,
		TTL:         30,
		NegativeTTL: 5,
		Retention:   24 * time.Hour,
		Settle:      5 * time.Second,
		Keepalive:   time.Minute,
		MaxServices: 1_000_000,
		MaxCatalog:  1 << 30,
		MaxMessage:  16 << 20,
	}
}

// parse returns the federation blocks of one server block, in Corefile order.
// It reads tokens and does nothing else: no file is opened and no name looked
// up. Errors carry file and line and name the property, its value and the rule.
func parse(c *caddy.Controller) ([]Config, error) {
	var configs []Config
	for c.Next() {
		start := c.Dispenser
		cfg, err := parseBlock(c)
		if err != nil {
			return nil, err
		}
		for _, other := range configs {
			if err := cfg.clash(other); err != nil {
				return nil, start.Errf("%v in the block at %s", err, other.Position)
			}
		}
		configs = append(configs, cfg)
		if err := checkNested(configs); err != nil {
			return nil, start.Errf("zones: %v", err)
		}
	}
	return configs, nil
}

// checkNested refuses a zone that has the names of another one's name server:
// they would be its owner's to publish, and not there for clients of the other.
func checkNested(configs []Config) error {
	var zones []federation.FQDN
	for _, c := range configs {
		zones = append(zones, c.Zones...)
	}
	for _, outer := range zones {
		reserved, err := federation.ParseOrigin("dns." + strings.TrimPrefix(outer.String(), "."))
		if err != nil {
			continue // too long, so nothing is below
		}
		if i := slices.IndexFunc(zones, func(z federation.FQDN) bool { return z.Within(reserved) }); i >= 0 {
			return fmt.Errorf("%s is within %s, which holds the name server of the zone %s", zones[i], reserved, outer)
		}
	}
	return nil
}

func parseBlock(c *caddy.Controller) (Config, error) {
	start := c.Dispenser // stays on the first line of the block
	if c.Val() != directive {
		return Config{}, c.Errf("unexpected %q", c.Val()) // behind a brace too many
	}
	cfg := defaults()
	cfg.Position = position(start)
	var err error
	if cfg.Zones, err = parseZones(c.RemainingArgs(), c.ServerBlockKeys); err != nil {
		return Config{}, c.Errf("zones: %v", err)
	}
	set := make(map[string]string) // property to position
	for c.NextBlock() {
		property := c.Val()
		if at, ok := set[property]; ok && property != "rename" && property != "allow_addresses" {
			return Config{}, c.Errf("%s: is already set at %s", property, at)
		}
		set[property] = position(c.Dispenser)
		args := c.RemainingArgs()
		if c.NextArg() { // RemainingArgs stops before nothing but a brace
			return Config{}, c.Errf("%s: takes no block in braces", property)
		}
		if err := cfg.set(property, args); err != nil {
			return Config{}, c.Errf("%s: %v", property, err)
		}
	}
	switch {
	case len(cfg.Addresses) == 0:
		return Config{}, start.Err("owner: is missing; it takes the owner's address as HOST:PORT")
	case cfg.TLS == mtls.Files{}:
		return Config{}, start.Err("tls: is missing; there is no unsecured mode, and it takes the files CERT KEY CA")
	}
	root := dnsserver.GetConfig(c).Root
	for _, file := range []*string{&cfg.TLS.Cert, &cfg.TLS.Key, &cfg.TLS.CA, &cfg.Persist} {
		if *file != "" && !filepath.IsAbs(*file) {
			*file = filepath.Join(root, *file)
		}
	}
	if slices.ContainsFunc([]string{cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.CA}, sameFile(cfg.Persist)) {
		return Config{}, start.Errf("persist: %q is a file of tls and would be written over", cfg.Persist)
	}
	return cfg, nil
}

// position is where the token that d stands at is in the Corefile.
func position(d caddyfile.Dispenser) string { return d.File() + ":" + strconv.Itoa(d.Line()) }

// clash tells why two blocks cannot stand in one server block. Its errors end
// before the place of the other block.
func (cfg *Config) clash(other Config) error {
	// Behind one address, different server names are different owners.
	shared := slices.IndexFunc(cfg.Addresses, func(address string) bool {
		return slices.Contains(other.Addresses, address) && cfg.serverName(address) == other.serverName(address)
	})
	if shared < 0 {
		if sameFile(cfg.Persist)(other.Persist) {
			return fmt.Errorf("persist: %q is the file of another owner", cfg.Persist)
		}
		return nil
	}
	for _, zone := range cfg.Zones {
		if i := slices.IndexFunc(other.Zones, overlapping(zone)); i >= 0 {
			return fmt.Errorf("owner: zone %s of %s overlaps its zone %s", zone, cfg.Addresses[shared], other.Zones[i])
		}
	}
	return nil
}

// sameFile returns what tells whether a path is that of a file, as far as this can
// be said without the disk: the agent knows of links.
func sameFile(file string) func(string) bool {
	return func(path string) bool { return file != "" && filepath.Clean(file) == filepath.Clean(path) }
}

// serverName is the name to verify in the certificate of one replica.
func (cfg *Config) serverName(address string) string {
	host, _, _ := net.SplitHostPort(address) // parseAddress joined them
	return cmp.Or(cfg.ServerName, host)
}

// set takes one line of a block. Its errors go behind the property's name.
func (cfg *Config) set(property string, args []string) (err error) {
	switch property {
	case "owner":
		cfg.Addresses, err = list(nil, args, parseAddress)
	case "tls":
		cfg.TLS, err = parseFiles(args)
	case "tls_servername":
		cfg.ServerName, err = single(args, parseHost)
	case "owner_id":
		cfg.OwnerIDs, err = list(nil, args, mtls.ParseID)
	case "api":
		cfg.API, err = single(args, wire.ParseVersion)
	case "ttl":
		cfg.TTL, err = single(args, parseTTL)
	case "negative_ttl":
		cfg.NegativeTTL, err = single(args, parseTTL)
	case "retention":
		cfg.Retention, err = single(args, parseRetention)
	case "settle":
		cfg.Settle, err = single(args, durationFrom(minSettle, maxSettle))
	case "keepalive":
		cfg.Keepalive, err = single(args, durationFrom(minKeepalive, maxKeepalive))
	case "persist":
		cfg.Persist, err = single(args, parseFile)
	case "rename":
		err = cfg.rename(args)
	case "max_services":
		cfg.MaxServices, err = single(args, parseCount)
	case "max_catalog":
		cfg.MaxCatalog, err = single(args, sizeFrom[int64](minMaxCatalog, maxMaxCatalog, "1MiB to 1TiB"))
	case "max_message":
		cfg.MaxMessage, err = single(args, sizeFrom[int](minMaxMessage, maxMaxMessage, "64KiB to 1GiB"))
	case "allow_addresses":
		cfg.AllowAddresses, err = list(cfg.AllowAddresses, args, parsePrefix)
	case "fallthrough":
		err = cfg.fallThrough(args)
	default:
		err = errors.New("is not a property of federation")
	}
	return err
}

// rename takes FROM TO.
func (cfg *Config) rename(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("takes two arguments, FROM TO, not %d", len(args))
	}
	from, err := parseZone(args[0])
	if err != nil {
		return err
	}
	to, err := parseZone(args[1])
	switch {
	case err != nil:
		return err
	case from == to:
		return fmt.Errorf("%q is renamed to itself", args[0])
	case slices.ContainsFunc(cfg.Renames, func(r Rename) bool { return r.From == from }):
		return fmt.Errorf("%q is renamed twice", args[0])
	case !slices.ContainsFunc(cfg.Zones, overlapping(to)):
		return fmt.Errorf("%q is outside the zones of the block, so no name could be published", args[1])
	}
	cfg.Renames = append(cfg.Renames, Rename{From: from, To: to})
	// Of two names that one name is below, the longer is the more specific.
	slices.SortStableFunc(cfg.Renames, func(a, b Rename) int {
		return cmp.Compare(len(b.From.String()), len(a.From.String()))
	})
	return nil
}

// fallThrough takes [ZONES...].
func (cfg *Config) fallThrough(args []string) error {
	if len(args) == 0 {
		cfg.Fall.SetZonesFromArgs(nil) // every zone
		return nil
	}
	zones, err := list(nil, args, parseZone)
	if err != nil {
		return err
	}
	for i, zone := range zones {
		if !slices.ContainsFunc(cfg.Zones, overlapping(zone)) {
			return fmt.Errorf("%q is outside the zones of the block", args[i])
		}
		cfg.Fall.Zones = append(cfg.Fall.Zones, zone.String())
	}
	return nil
}

// overlapping returns a function that tells whether a zone has names in common
// with a.
func overlapping(a federation.FQDN) func(federation.FQDN) bool {
	return func(b federation.FQDN) bool { return a.Within(b) || b.Within(a) }
}

// parseZones returns the zones of args, or those of the server block when there
// are none.
func parseZones(args, serverBlock []string) ([]federation.FQDN, error) {
	if len(args) == 0 {
		args = plugin.OriginsFromArgsOrServerBlock(nil, serverBlock)
		// There, a zone stands once for each port and transport.
		slices.Sort(args)
		args = slices.Compact(args)
	}
	return list(nil, args, parseZone)
}

// single is the value of the only argument.
func single[T any](args []string, parse func(string) (T, error)) (T, error) {
	if len(args) != 1 {
		var none T
		return none, fmt.Errorf("takes one argument, not %d", len(args))
	}
	return parse(args[0])
}

// list is have and the values of the arguments, each once.
func list[T comparable](have []T, args []string, parse func(string) (T, error)) ([]T, error) {
	if len(args) == 0 {
		return nil, errors.New("takes at least one argument")
	}
	for _, arg := range args {
		value, err := parse(arg)
		if err != nil {
			return nil, err
		}
		if slices.Contains(have, value) {
			return nil, fmt.Errorf("%q is given twice", arg)
		}
		have = append(have, value)
	}
	return have, nil
}

func parseZone(s string) (federation.FQDN, error) {
	zone, err := federation.ParseOrigin(s)
	_, cidrErr := netip.ParsePrefix(s)
	switch name := "." + zone.String(); {
	case cidrErr == nil, strings.HasSuffix(name, ".in-addr.arpa."), strings.HasSuffix(name, ".ip6.arpa."):
		return federation.FQDN{}, fmt.Errorf("%q is a reverse zone, and services are published by name only", s)
	case err != nil:
		return federation.FQDN{}, fmt.Errorf("%q: %w", s, err)
	}
	return zone, nil
}

// parseAddress takes https://host:port as well, the form of the specification.
func parseAddress(s string) (string, error) {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(s, "https://"))
	if err != nil || host == "" {
		return "", fmt.Errorf("%q is not HOST:PORT or https://HOST:PORT", s)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return "", fmt.Errorf("%q has no port from 1 to 65535", s)
	}
	if host, err = parseHost(host); err != nil {
		return "", err
	}
	return net.JoinHostPort(host, strconv.FormatUint(number, 10)), nil
}

func parseHost(s string) (string, error) {
	address, err := federation.ParseAddress(s)
	if err != nil {
		return "", fmt.Errorf("%q: %w", s, err)
	}
	return strings.TrimSuffix(address.String(), "."), nil
}

func parseFiles(args []string) (mtls.Files, error) {
	if len(args) != 3 {
		return mtls.Files{}, fmt.Errorf("takes three arguments, CERT KEY CA, not %d", len(args))
	}
	for _, arg := range args {
		if _, err := parseFile(arg); err != nil {
			return mtls.Files{}, err
		}
	}
	return mtls.Files{Cert: args[0], Key: args[1], CA: args[2]}, nil
}

func parseFile(s string) (string, error) {
	if s == "" {
		return "", errors.New("the name of the file is empty")
	}
	return s, nil
}

func parseTTL(s string) (uint32, error) {
	seconds, err := strconv.ParseUint(s, 10, 32)
	if err != nil || seconds < minTTL || seconds > maxTTL {
		return 0, fmt.Errorf("%q is not a whole number of seconds from %d to %d", s, minTTL, maxTTL)
	}
	return uint32(seconds), nil
}

func parseRetention(s string) (time.Duration, error) {
	if s == "forever" {
		return 0, nil
	}
	retention, err := parseDuration(s)
	if err != nil || retention != 0 && retention < minRetention {
		return 0, fmt.Errorf("%q is not a duration from %v, 0, or forever", s, minRetention)
	}
	return retention, nil
}

func durationFrom(least, most time.Duration) func(string) (time.Duration, error) {
	return func(s string) (time.Duration, error) {
		duration, err := parseDuration(s)
		if err != nil || duration < least || duration > most {
			return 0, fmt.Errorf("%q is not a duration from %v to %v", s, least, most)
		}
		return duration, nil
	}
}

// parseDuration takes a bare number for seconds.
func parseDuration(s string) (time.Duration, error) {
	if _, err := strconv.ParseUint(s, 10, 64); err == nil {
		s += "s"
	}
	return time.ParseDuration(s)
}

func parseCount(s string) (int, error) {
	count, err := strconv.Atoi(s)
	if err != nil || count < 1 {
		return 0, fmt.Errorf("%q is not a whole number from 1", s)
	}
	return count, nil
}

// sizeFrom returns a function that takes bytes, or a number with one of the units
// of 1024, in the range that is said in words as well.
func sizeFrom[T int | int64](least, most int64, inWords string) func(string) (T, error) {
	return func(s string) (T, error) {
		digits := strings.TrimRight(s, "BGKMTibgkmt")
		shifts := map[string]uint{"": 0, "b": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30, "t": 40, "tib": 40}
		shift, ok := shifts[strings.ToLower(s[len(digits):])]
		number, err := strconv.ParseInt(digits, 10, 64)
		if ok && err == nil && number <= most>>shift && number >= 0 && least <= number<<shift {
			return T(number << shift), nil
		}
		return 0, fmt.Errorf("%q is not a size from %s", s, inWords)
	}
}

func parsePrefix(s string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(s)
	switch {
	case err != nil, prefix.Addr().Is4In6(): // endpoints have the IPv4 address instead
		return netip.Prefix{}, fmt.Errorf("%q is not a prefix such as 127.0.0.0/8 or fe80::/10", s)
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Errorf("%q has host bits set; its prefix is %s", s, prefix.Masked())
	}
	return prefix, nil
}
