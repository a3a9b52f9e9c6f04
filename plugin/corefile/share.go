package corefile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/coredns/caddy/caddyfile"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
)

// ofSharing are the properties that say how names are shared. Without share they have no effect.
var ofSharing = []string{"tier", "min"}

// shareNames sets the shared names from its arguments NAME...
func (b *Block) shareNames(args []string) (err error) {
	s := &b.Zone.Sharing
	known := len(s.Names)
	if s.Names, err = parseList(s.Names, args, pattern.ParseName); err != nil {
		return err
	}
	for _, p := range s.Names[known:] {
		if !slices.ContainsFunc(b.Zone.Origins, zone.HasNames(p)) {
			return fmt.Errorf("%q is outside the zones of the block, so there is nothing to share", p)
		}
	}
	return nil
}

// addTier adds a tier from its arguments N [LABEL].
func (b *Block) addTier(args []string) error {
	s := &b.Zone.Sharing
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 0 || n > zone.MaxTier {
		return fmt.Errorf("%q is not a whole number from 0 to %d", args[0], zone.MaxTier)
	}
	t := zone.TierRule{N: n}
	if len(args) == 2 {
		if t.Label = args[1]; t.Label == "" {
			return errors.New("the label is empty; leave it out to mean the other endpoints")
		}
	}
	for _, other := range s.Tiers {
		switch {
		case other.Label == t.Label && t.Label == "":
			return errors.New("a line before it is for all other endpoints already")
		case other.Label == t.Label:
			return fmt.Errorf("%q is in tier %d already", t.Label, other.N)
		case other.Label == "":
			return errors.New("no endpoint is left for it: a line before it, without a label, is for all others")
		}
	}
	s.Tiers = append(s.Tiers, t)
	return nil
}

// compareMin adds a mistake where two blocks that share a name have a different min.
func (r *blockReader) compareMin(b, other *Block, at, others propertyLines) {
	what, both := b.Zone.SharesWith(&other.Zone)
	if mine, its := b.Zone.Sharing.Min, other.Zone.Sharing.Min; both && mine != its {
		line, here := at.minLine(mine)
		there, words := others.minLine(its)
		r.addMistakef(line, "min: is %s here and %s at %s, in blocks that share %s", here, words, positionOf(there), what)
	}
}

// minLine returns the line with the value of min, and words for the value. For a default, it is the
// line of share.
func (p propertyLines) minLine(value int) (line caddyfile.Dispenser, words string) {
	if line, ok := p["min"]; ok {
		return line, strconv.Itoa(value)
	}
	return p["share"], strconv.Itoa(value) + " by default"
}

// warnUnshared adds a warning for each pattern of names that no other block shares.
func (r *blockReader) warnUnshared() {
	var config zone.Config
	for i := range r.blocks {
		config.Owners = append(config.Owners, r.blocks[i].Zone)
	}
	for i := range r.blocks {
		for _, p := range config.UnsharedPatterns(i) {
			r.warnings = append(r.warnings, newMistake(r.places[i]["share"], "share: no other block with the same zone shares %s, so nothing is shared; it takes both sides", p))
		}
	}
}
