// Package corefile reads the federation blocks of a Corefile. It turns tokens into
// the configuration of the packages that use it, and does nothing else: no file
// is opened, no name is looked up and nothing is started.
//
// To add a property: give it a line in setting.Properties, with its default, and a case in
// setProperty.
//
// Only packages of this module import it: it is not a stable API.
package corefile

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/fall"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/removed"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/setting"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Directive is the name of the plugin in a Corefile.
const Directive = "federation"

// Block is one federation block: an owner, and what it may publish.
type Block struct {
	// Position is where the block begins, as FILE:LINE.
	Position string

	// Owner is the connection to the owner, complete and in the documented
	// ranges. It has one address at least, and each once: host:port, where a host
	// name is in lower case and without its final dot, and an IPv6 address in
	// brackets. Relative paths of files are joined to the root of the server
	// block; whether the files exist is not known yet.
	Owner agent.OwnerConfig

	// Zone is what the owner may publish, without the fields that are derived
	// from Owner: ID, Retention and Admits. Its origins are in Corefile order:
	// one at least, each once, none below in-addr.arpa or ip6.arpa. Of its
	// renames, each From is there once, and the first that fits a name is the
	// most specific one.
	Zone zone.Owner

	// Fall holds the zones whose NXDOMAIN goes to the next plugin.
	Fall fall.F

	// Status is where the process serves its status; the zero value is nowhere. Paths are
	// joined to the root as those of Owner. All blocks of a server block that have one have
	// the same; those of the other server blocks are not known here.
	Status page.Config
}

// alternatives are the properties that exclude each other.
var alternatives = map[string][]string{"tls": {"spiffe"}, "spiffe": {"tls"}}

// defaultBlock returns a block with what holds by default.
func defaultBlock() (b Block) {
	for _, p := range setting.Properties {
		if p.Default != "" {
			_ = b.setProperty(p.Name, []string{p.Default}) // a test looks at each
		}
	}
	return b
}

// Server is what a federation block takes from the server block around it.
type Server struct {
	Keys []string // of the server block, such as dns://fed.example.:53
	Root string   // the directory that relative paths begin at

	usable func(mtls.Files) error // of Check
}

// Parse returns the federation blocks of one server block, in Corefile order, and what is
// probably not meant. Its error joins one *MistakeError for each mistake, in the order of the
// blocks: it names the property, its value and the rule.
func Parse(tokens caddyfile.Dispenser, server Server) ([]Block, []*MistakeError, error) {
	r := readBlocks(tokens, server)
	var all []error
	for _, m := range r.mistakes {
		all = append(all, m)
	}
	return r.blocks, r.warnings, errors.Join(all...)
}

// readBlocks returns the reader of a server block that has read all of its federation blocks. With
// mistakes it has neither blocks nor warnings.
func readBlocks(tokens caddyfile.Dispenser, server Server) *blockReader {
	r := &blockReader{Dispenser: tokens, server: server}
	for r.Next() {
		known := len(r.mistakes)
		b, at, whole := r.readBlock()
		if !whole {
			break
		}
		if len(r.mistakes) > known {
			continue // what is wrong with it is not compared with others
		}
		r.compareBlock(&b, at)
		r.checkFiles("tls", b.Owner.Identity.Files, at)
		r.checkFiles("status", b.Status.Files, at)
		r.blocks, r.places = append(r.blocks, b), append(r.places, at)
	}
	if len(r.mistakes) > 0 {
		r.blocks, r.warnings = nil, nil
	}
	r.warnUnshared()
	return r
}

// blockReader reads the blocks of a server block, and keeps their mistakes.
type blockReader struct {
	caddyfile.Dispenser

	server   Server
	blocks   []Block // those without mistakes
	places   []propertyLines
	mistakes []*MistakeError
	warnings []*MistakeError
}

// propertyLines are the first line of each property of a block, and under Directive the line where
// the block begins.
type propertyLines map[string]caddyfile.Dispenser

// addMistakef adds a mistake at the token that d is at.
func (r *blockReader) addMistakef(d caddyfile.Dispenser, format string, args ...any) {
	r.mistakes = append(r.mistakes, newMistake(d, format, args...))
}

// checkFiles adds a mistake if the files of a property of a block cannot be used.
func (r *blockReader) checkFiles(property string, files mtls.Files, at propertyLines) {
	if r.server.usable == nil || files == (mtls.Files{}) {
		return
	}
	if err := r.server.usable(files); err != nil {
		r.addMistakef(at[property], "%s: %v", property, err)
	}
}

// compareBlock adds a mistake for each conflict of a block with those before it.
func (r *blockReader) compareBlock(b *Block, at propertyLines) {
	start := at[Directive]
	for i := range r.blocks {
		if err := b.conflictWith(&r.blocks[i]); err != nil {
			r.addMistakef(start, "%v in the block at %s", err, r.blocks[i].Position)
		}
		r.compareMin(b, &r.blocks[i], at, r.places[i])
	}
	if err := checkNested(append(slices.Clip(r.blocks), *b)); err != nil {
		r.addMistakef(start, "zones: %v", err)
	}
	zones := zonesOf(r.server.Keys)
	var around []federation.FQDN
	for _, zone := range zones {
		if origin, err := parseOrigin(zone); err == nil {
			around = append(around, origin)
		}
	}
	for _, origin := range b.Zone.Origins {
		if !slices.ContainsFunc(around, origin.Within) {
			r.warnings = append(r.warnings, newMistake(start, "zones: %s is not within its server block, %s; queries for names outside of that do not arrive here",
				origin, strings.Join(zones, " ")))
		}
	}
}

// readBlock returns a block. It reports whether the tokens behind the block can be read.
func (r *blockReader) readBlock() (b Block, at propertyLines, whole bool) {
	start := r.Dispenser // stays on the first line of the block
	if r.Val() != Directive {
		r.addMistakef(start, "unexpected %q", r.Val()) // for example after one brace too many
		return Block{}, nil, false
	}
	b = defaultBlock()
	b.Position = positionOf(start)
	var err error
	if b.Zone.Origins, err = parseOrigins(r.RemainingArgs(), r.server.Keys); err != nil {
		r.addMistakef(start, "zones: %v", err)
	}
	at = propertyLines{Directive: start}
	for r.NextBlock() {
		property, line := r.Val(), r.Dispenser
		args := r.RemainingArgs()
		if r.NextArg() { // RemainingArgs stops before nothing but a brace
			r.addMistakef(r.Dispenser, "%s: takes no block in braces", property)
			return Block{}, nil, false
		}
		if err := b.addProperty(property, args, at); err != nil {
			r.addMistakef(line, "%s: %v", property, err)
		}
		if _, twice := at[property]; !twice {
			at[property] = line
		}
	}
	if missing := b.missingProperty(at); missing != "" {
		r.addMistakef(start, "%s", missing)
	}
	b.joinPaths(r.server.Root)
	if len(b.Owner.Subscription.Addresses) > 0 {
		b.Owner.Name = cmp.Or(b.Owner.Name, b.Owner.Consumer.OwnerName(b.Owner.Subscription.Addresses))
	}
	if overwritten := b.overwrittenProperty(); overwritten != "" {
		r.addMistakef(start, "persist: %q is a file of %s and would be overwritten", b.Owner.Subscription.File, overwritten)
	}
	return b, at, true
}

// addProperty sets a property, unless one that is set before excludes it.
func (b *Block) addProperty(property string, args []string, set propertyLines) error {
	known, _ := setting.PropertyOf(property)
	if at, ok := set[property]; ok && !known.Adds {
		return fmt.Errorf("is already set at %s", positionOf(at))
	}
	for _, other := range alternatives[property] {
		if at, ok := set[other]; ok {
			return fmt.Errorf("%s is set at %s, and a block takes one of tls and spiffe", other, positionOf(at))
		}
	}
	return b.setProperty(property, args)
}

// missingProperty returns which property a block lacks, or "".
func (b *Block) missingProperty(set propertyLines) string {
	_, named := set["owner"]
	_, files := set["tls"]
	_, agent := set["spiffe"]
	_, ids := set["owner_id"]
	switch {
	case !named:
		return "owner: is missing; it takes the owner's address as HOST:PORT"
	case !files && !agent:
		return "tls: is missing, and so is spiffe; there is no unsecured mode: " +
			"tls takes the files CERT KEY CA, and spiffe takes SOCKET [TRUST_DOMAIN...]"
	case agent && !files && (!ids || len(b.Owner.Consumer.IDs) > 0) && !slices.ContainsFunc(b.Owner.Consumer.IDs, federation.ID.IsSPIFFE):
		return "owner_id: with spiffe, one SPIFFE ID at least is needed, such as spiffe://owner.example/hamlet; " +
			"a host name is no identity in SPIFFE"
	}
	if _, shared := set["share"]; !shared {
		for _, property := range ofSharing {
			if at, ok := set[property]; ok {
				return fmt.Sprintf("share: is missing, and %s at %s is about the names that it shares", property, positionOf(at))
			}
		}
	}
	return ""
}

// joinPaths joins relative paths to the root.
func (b *Block) joinPaths(root string) {
	files, page := &b.Owner.Identity.Files, &b.Status.Files
	for _, file := range []*string{&files.Cert, &files.Key, &files.CA, &page.Cert, &page.Key, &page.CA, &b.Owner.Subscription.File} {
		if *file != "" && !filepath.IsAbs(*file) {
			*file = filepath.Join(root, *file)
		}
	}
}

// overwrittenProperty returns the property that names the file of persist as well, or "".
func (b *Block) overwrittenProperty() string {
	for _, other := range []struct {
		property string
		files    mtls.Files
	}{{"tls", b.Owner.Identity.Files}, {"status", b.Status.Files}} {
		if slices.ContainsFunc([]string{other.files.Cert, other.files.Key, other.files.CA}, sameFile(b.Owner.Subscription.File)) {
			return other.property
		}
	}
	return ""
}

// positionOf returns the position in the Corefile of the token that d is at.
func positionOf(d caddyfile.Dispenser) string { return d.File() + ":" + strconv.Itoa(d.Line()) }

// setProperty sets one property. The caller puts the name of the property before its errors.
func (b *Block) setProperty(property string, args []string) (err error) {
	owner := &b.Owner
	switch known, ok := setting.PropertyOf(property); {
	case !ok:
		return fmt.Errorf("is not a property of federation%s", cmp.Or(removed.Properties.RemedyFor(property), didYouMean(property), ofOldPlugin(property, args)))
	case !known.Accepts(len(args)):
		return fmt.Errorf("takes %s, not %s", known.Takes, status.CountNoun(len(args), "argument"))
	}
	switch property {
	case "name":
		owner.Name, err = limits.ParseOwnerName(args[0])
	case "owner":
		owner.Subscription.Addresses, err = parseList(nil, args, setting.ParseAddress)
	case "tls":
		owner.Identity.Files, err = parseFiles(args)
	case "spiffe":
		owner.Identity.SPIFFE, err = parseSPIFFE(args)
	case "tls_servername":
		owner.Consumer.ServerName, err = setting.ParseHost(args[0])
	case "owner_id":
		owner.Consumer.IDs, err = parseList(nil, args, federation.ParseID)
	case "api":
		owner.Subscription.Version, err = wire.ParseVersion(args[0])
	case "ttl":
		b.Zone.TTL, err = parseTTL(args[0])
	case "negative_ttl":
		b.Zone.NegativeTTL, err = parseTTL(args[0])
	case "retention":
		owner.Rules.Retention, err = setting.ParseDurationOr(args[0], "forever", catalog.Forever)
	case "settle":
		owner.Rules.Settle, err = setting.ParseDurationIn(args[0], minSettle, maxSettle)
	case "persist":
		owner.Subscription.File, err = parseFile(args[0])
	case "rename":
		err = b.addRename(args)
	case "max_catalog":
		owner.Rules.MaxCatalog, err = setting.ParseSizeIn(args[0], minMaxCatalog, maxMaxCatalog)
	case "allow_addresses":
		owner.Policy.AllowAddresses, err = parseList(owner.Policy.AllowAddresses, args, setting.ParsePrefix)
	case "import_names":
		// Not just import: Caddy takes that for its directive to include a file.
		b.Zone.Import, err = parseList(b.Zone.Import, args, pattern.ParseName)
	case "share":
		err = b.shareNames(args)
	case "tier":
		err = b.addTier(args)
	case "min":
		b.Zone.Sharing.Min, err = parseCount(args[0])
	case "fallthrough":
		err = b.fallThrough(args)
	case "status":
		b.Status, err = parseStatus(args)
	}
	return err
}

// addRename sets a rename from its arguments FROM TO.
func (b *Block) addRename(args []string) error {
	from, err := parseOrigin(args[0])
	if err != nil {
		return err
	}
	to, err := parseOrigin(args[1])
	switch {
	case err != nil:
		return err
	case from == to:
		return fmt.Errorf("%q is renamed to itself", args[0])
	case slices.ContainsFunc(b.Zone.Renames, func(r zone.Rename) bool { return r.From == from }):
		return fmt.Errorf("%q is renamed twice", args[0])
	case !slices.ContainsFunc(b.Zone.Origins, overlapsZone(to)):
		return fmt.Errorf("%q is outside the zones of the block, so no name could be published", args[1])
	}
	b.Zone.Renames = append(b.Zone.Renames, zone.Rename{From: from, To: to})
	// Of two names that one name is below, the longer is the more specific.
	slices.SortStableFunc(b.Zone.Renames, func(x, y zone.Rename) int {
		return cmp.Compare(len(y.From.String()), len(x.From.String()))
	})
	return nil
}

// fallThrough sets the zones that fall through from its arguments [ZONES...].
func (b *Block) fallThrough(args []string) error {
	if len(args) == 0 {
		b.Fall.SetZonesFromArgs(nil) // every zone
		return nil
	}
	origins, err := parseList(nil, args, parseOrigin)
	if err != nil {
		return err
	}
	for i, origin := range origins {
		if !slices.ContainsFunc(b.Zone.Origins, overlapsZone(origin)) {
			return fmt.Errorf("%q is outside the zones of the block", args[i])
		}
		b.Fall.Zones = append(b.Fall.Zones, origin.String())
	}
	return nil
}

// parseOrigins returns the zones in args, or those of the server block when args are empty.
func parseOrigins(args, serverBlock []string) ([]federation.FQDN, error) {
	if len(args) == 0 {
		args = zonesOf(serverBlock)
	}
	if len(args) == 0 {
		return nil, errors.New("the server block has none; name those that the owner may publish in, behind federation")
	}
	return parseList(nil, args, func(s string) (federation.FQDN, error) {
		origin, err := parseOrigin(s)
		if n := len(origin.String()); n > zone.MaxOrigin {
			return origin, fmt.Errorf("%s has %d characters with its final dot, and a zone may have %d: its SOA names hostmaster.ZONE; take a shorter zone",
				safetext.Quote(s), n, zone.MaxOrigin)
		}
		return origin, err
	})
}

// zonesOf returns the zones of the keys of a server block, sorted.
func zonesOf(keys []string) []string {
	zones := plugin.OriginsFromArgsOrServerBlock(nil, keys)
	// There, a zone stands once for each port and transport.
	slices.Sort(zones)
	return slices.Compact(zones)
}

// checkNested returns an error if a zone contains the name of another zone's name server, dns.ZONE
// or a name below it. The owner of that zone could publish there, and clients of the other zone
// would not find the name server.
func checkNested(blocks []Block) error {
	var origins []federation.FQDN
	for i := range blocks {
		origins = append(origins, blocks[i].Zone.Origins...)
	}
	for _, outer := range origins {
		reserved, _ := federation.ParseOrigin("dns." + strings.TrimPrefix(outer.String(), ".")) // no zone is too long for that
		if i := slices.IndexFunc(origins, func(o federation.FQDN) bool { return o.Within(reserved) }); i >= 0 {
			return fmt.Errorf("%s is within %s, which holds the name server of the zone %s", origins[i], reserved, outer)
		}
	}
	return nil
}

// conflictWith returns why one server block cannot have both blocks, or nil. The caller appends the
// position of the other block.
func (b *Block) conflictWith(other *Block) error {
	if err := b.StatusConflict(other); err != nil {
		return err
	}
	id := b.Owner.Name
	if id != other.Owner.Name {
		if sameFile(b.Owner.Subscription.File)(other.Owner.Subscription.File) {
			return fmt.Errorf("persist: %q is the file of another owner", b.Owner.Subscription.File)
		}
		// Behind one address, different server names are different owners.
		shared := slices.IndexFunc(b.Owner.Subscription.Addresses, func(address string) bool {
			return slices.Contains(other.Owner.Subscription.Addresses, address) && b.Owner.Consumer.ServerNameAt(address) == other.Owner.Consumer.ServerNameAt(address)
		})
		if shared < 0 {
			return nil
		}
		id = b.Owner.Subscription.Addresses[shared]
	}
	for _, origin := range b.Zone.Origins {
		if i := slices.IndexFunc(other.Zone.Origins, overlapsZone(origin)); i >= 0 {
			return fmt.Errorf("owner: zone %s of %s overlaps its zone %s", origin, id, other.Zone.Origins[i])
		}
	}
	return nil
}

// StatusConflict returns why one process cannot have the status of both blocks, of any server
// blocks, or nil. The caller appends the position of the other block.
func (b *Block) StatusConflict(other *Block) error {
	if b.Status == (page.Config{}) || other.Status == (page.Config{}) || b.Status == other.Status {
		return nil
	}
	if b.Status.Address == other.Status.Address {
		return fmt.Errorf("status: %s has other files, and a process has one status,", b.Status.Address)
	}
	return fmt.Errorf("status: %s is not %s, and a process has one status,", b.Status.Address, other.Status.Address)
}

// sameFile returns a function that reports whether a path leads to a file, as far
// as paths alone can say: the agent looks at links.
func sameFile(file string) func(string) bool {
	return func(path string) bool { return file != "" && filepath.Clean(file) == filepath.Clean(path) }
}

// overlapsZone returns a function that reports whether a zone has names in common
// with a.
func overlapsZone(a federation.FQDN) func(federation.FQDN) bool {
	return func(b federation.FQDN) bool { return a.Within(b) || b.Within(a) }
}
