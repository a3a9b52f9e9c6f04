package corefile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/coredns/caddy/caddyfile"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
)

// ofSharing are the properties that say how names are shared: without share they say nothing.
var ofSharing = []string{"tier", "weight", "min", "hold", "demote"}

const maxHold = 24 * time.Hour

func defaultSharing() zone.Sharing {
	return zone.Sharing{Weight: 100, Min: 1, Hold: 30 * time.Second, Demote: time.Minute}
}

// share takes NAME...
func (b *Block) share(args []string) (err error) {
	s := &b.Zone.Sharing
	known := len(s.Names)
	if s.Names, err = list(s.Names, args, pattern.ParseName); err != nil {
		return err
	}
	for _, p := range s.Names[known:] {
		if !slices.ContainsFunc(b.Zone.Origins, zone.HasNames(p)) {
			return fmt.Errorf("%q is outside the zones of the block, so there is nothing to share", p)
		}
	}
	return nil
}

// tier takes N [LABEL].
func (b *Block) tier(args []string) error {
	s := &b.Zone.Sharing
	if len(args) < 1 || len(args) > 2 {
		return fmt.Errorf("takes N [LABEL], not %d arguments", len(args))
	}
	n, err := numberUpTo(zone.MaxTier)(args[0])
	if err != nil {
		return err
	}
	t := zone.Tier{N: n}
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

func numberUpTo(most int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > most {
			return 0, fmt.Errorf("%q is not a whole number from 0 to %d", s, most)
		}
		return n, nil
	}
}

func parseDemote(s string) (time.Duration, error) {
	if s == "never" {
		return -1, nil
	}
	demote, err := parseDuration(s)
	if err != nil || demote < 0 {
		return 0, fmt.Errorf("%q is not a duration from 0s, or never", s)
	}
	return demote, nil
}

// compareSharing keeps in which properties two blocks differ that must be the same in blocks
// that share a name.
func (r *reader) compareSharing(b, other *Block, at, others places) {
	what, both := b.Zone.SharesWith(&other.Zone)
	if !both {
		return
	}
	x, y := &b.Zone.Sharing, &other.Zone.Sharing
	for _, must := range []struct{ property, mine, its string }{
		{"min", strconv.Itoa(x.Min), strconv.Itoa(y.Min)},
		{"hold", x.Hold.String(), y.Hold.String()},
	} {
		if must.mine != must.its {
			line, mine := at.said(must.property, must.mine)
			there, its := others.said(must.property, must.its)
			r.wrongf(line, "%s: is %s here and %s at %s, in blocks that share %s", must.property, mine, its, position(there), what)
		}
	}
}

// said returns the line that says the value of a property, and the words for it. A default stands
// where the block has share.
func (p places) said(property, value string) (line caddyfile.Dispenser, words string) {
	if line, ok := p[property]; ok {
		return line, value
	}
	return p["share"], value + " by default"
}

// warnUnshared warns of each pattern of names that no other block shares.
func (r *reader) warnUnshared() {
	var config zone.Config
	for i := range r.blocks {
		config.Owners = append(config.Owners, r.blocks[i].Zone)
	}
	for i := range r.blocks {
		for _, p := range config.Unshared(i) {
			r.warnings = append(r.warnings, mistake(r.places[i]["share"], "share: no other block with the same zone shares %s, so nothing is shared; it takes both sides", p))
		}
	}
}
