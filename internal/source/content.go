package source

import (
	"github.com/hamlet-federation/coredns-federation/internal/source/internal/claim"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// partItem is a service of a part, with what decides whether it is published.
type partItem struct {
	part     *catalogPart
	service  *wire.EncodedService
	hiddenBy string       // what hides the service, as an OutcomeListener is told
	awaits   *catalogPart // the part that may come to hide the service; nil when there is none
}

func (i *partItem) serviceName() string { return i.service.Name() }

// isPublished reports whether the item, which may be nil, is published.
func (i *partItem) isPublished() bool { return i.hidesOthers() && i.awaits == nil }

// hidesOthers reports whether the item, which may be nil, hides items behind it. An item that waits
// does, because the others would have to go when it is published.
func (i *partItem) hidesOthers() bool { return i != nil && i.hiddenBy == "" && !i.part.lapsed }

// Rank is the place of the item among those with its fqdn.
func (i *partItem) Rank() claim.Rank {
	return claim.Rank{Source: i.part.level, Service: i.serviceName()}
}

// setHiddenBy records what hides the item, or with an empty by that nothing does.
func (i *partItem) setHiddenBy(by string) {
	if i.hiddenBy == by {
		return
	}
	if i.hiddenBy != "" {
		i.part.hidden--
	}
	if by != "" {
		i.part.hidden++
	}
	i.hiddenBy = by
	i.part.hiddenNews[i.serviceName()] = struct{}{}
	i.part.catalog.wakeRun()
}

// publishedService returns the item of that name that is published, or nil.
func (c *Catalog) publishedService(name string) *partItem {
	for _, p := range c.parts {
		if it := p.items[name]; it.isPublished() {
			return it
		}
	}
	return nil
}
