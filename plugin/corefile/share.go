package corefile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
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
		name, _ := p.Zone()
		if p.IsEvery() {
			continue
		}
		if of, err := federation.ParseFQDN(name); err != nil || !slices.ContainsFunc(b.Zone.Origins, overlaps(of)) {
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

// sharingConflict returns why two blocks of one server block cannot share names, or nil.
func (b *Block) sharingConflict(other *Block) error {
	x, y := &b.Zone.Sharing, &other.Zone.Sharing
	if x.Min == y.Min && x.Hold == y.Hold {
		return nil
	}
	for _, p := range x.Names {
		for _, q := range y.Names {
			if !p.Covers(q) && !q.Covers(p) {
				continue
			}
			property, mine, others := "min", strconv.Itoa(x.Min), strconv.Itoa(y.Min)
			if x.Min == y.Min {
				property, mine, others = "hold", x.Hold.String(), y.Hold.String()
			}
			return fmt.Errorf("%s: is %s, and %s for what %s and %s share,", property, mine, others, p, q)
		}
	}
	return nil
}
