package corefile

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	parsing "github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// Check returns all mistakes in the shape of a Corefile and in its federation blocks, and
// what is probably not meant. Other plugins are not known here. It opens no file but those
// that the Corefile imports. Usable, where it is not nil, returns why files of certificates
// cannot be used, which is a mistake here: for a CoreDNS it is a state of the owner.
func Check(name string, input io.Reader, usable func(mtls.Files) error) (mistakes, warnings []*MistakeError) {
	// What the Corefile imports is found beside it.
	servers, err := caddyfile.Parse(filepath.Clean(name), input, nil)
	if err != nil {
		return []*MistakeError{shapeMistake(name, err)}, nil
	}
	var all []Block
	served := make(map[string]bool)
	for _, s := range servers {
		mistakes = append(mistakes, checkKeys(name, s, served)...)
		root := ""
		for d := caddyfile.NewDispenserTokens(name, s.Tokens["root"]); d.Next() && d.NextArg(); { // as the plugin root does
			root = d.Val()
		}
		start := caddyfile.NewDispenserTokens(name, s.Tokens[Directive])
		r := readBlocks(start, Server{Keys: s.Keys, Root: root, usable: usable})
		mistakes, warnings = append(mistakes, r.mistakes...), append(warnings, r.warnings...)
		for i := range r.blocks {
			if other := slices.IndexFunc(all, func(b Block) bool { return r.blocks[i].StatusConflict(&b) != nil }); other >= 0 {
				start.Next()
				mistakes = append(mistakes, newMistake(start, "%v in the block at %s", r.blocks[i].StatusConflict(&all[other]), all[other].Position))
			}
		}
		all = append(all, r.blocks...)
	}
	if len(all) == 0 && len(mistakes) == 0 {
		warnings = append(warnings, &MistakeError{File: name, Text: "there is no federation block"})
	}
	byPlace := func(a, b *MistakeError) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) }
	slices.SortStableFunc(mistakes, byPlace)
	slices.SortStableFunc(warnings, byPlace)
	return mistakes, warnings
}

// placed matches the errors of the parser of Corefiles.
var placed = regexp.MustCompile(`(?s)^(.*):(\d+) - (?:Error during parsing: )?(.*)$`)

// shapeMistake returns the mistake in an error of the parser of Corefiles.
func shapeMistake(name string, err error) *MistakeError {
	match := placed.FindStringSubmatch(err.Error())
	if match == nil {
		return &MistakeError{File: name, Text: err.Error()}
	}
	line, _ := strconv.Atoi(match[2]) // digits
	return &MistakeError{File: match[1], Line: line, Text: match[3]}
}

// checkKeys returns what is wrong with the zones and ports of a server block. Served has those of
// the server blocks before it.
func checkKeys(name string, s caddyfile.ServerBlock, served map[string]bool) []*MistakeError {
	var found []*MistakeError
	add := func(text string) {
		m := &MistakeError{File: name, Text: text}
		for _, tokens := range s.Tokens { // keys have no line; the first directive is near
			if line := tokens[0].Line; tokens[0].File == "" && (m.Line == 0 || line < m.Line) {
				m.Line = line
			}
		}
		found = append(found, m)
	}
	for _, key := range s.Keys {
		if strings.ContainsAny(key, "{}") {
			add(fmt.Sprintf("unexpected %q between server blocks", key))
			continue
		}
		scheme, rest := parsing.Transport(key)
		hosts, port, err := plugin.SplitHostPort(rest)
		if err != nil {
			add(err.Error())
			continue
		}
		for _, host := range hosts {
			address := scheme + "://" + plugin.Name(host).Normalize() + ":" + cmp.Or(port, ports[scheme])
			// With bind or view, several server blocks may share a port.
			if _, bound := s.Tokens["bind"]; !bound && s.Tokens["view"] == nil {
				if served[address] {
					add("the server block for " + address + " is there twice")
				}
				served[address] = true
			}
		}
	}
	return found
}

// ports are those of keys without one.
var ports = map[string]string{
	transport.DNS: transport.Port, transport.TLS: transport.TLSPort, transport.QUIC: transport.QUICPort,
	transport.GRPC: transport.GRPCPort, transport.HTTPS: transport.HTTPSPort, transport.HTTPS3: transport.HTTPSPort,
}
