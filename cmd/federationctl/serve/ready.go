package serve

import (
	"fmt"
	"maps"
	"slices"
)

// WaitingFor returns what the owner waits for before it is ready: it must have a certificate,
// one catalog must have been available once, and consumers be served: a catalog that cannot
// be served must not take the others with it. An owner that was ready stays so until it ends.
func (p *Publisher) WaitingFor() (waiting []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.serving {
		if p.ready {
			return []string{"the owner is ending"}
		}
		waiting = append(waiting, "consumers are not served yet")
	}
	if p.ready {
		return waiting
	}
	if missing := p.identity.Missing(); missing != nil && p.config.Identity.SPIFFE.Socket != "" {
		waiting = append(waiting, "there is no certificate yet from the SPIFFE agent at "+p.config.Identity.SPIFFE.Socket)
	} else if missing != nil {
		waiting = append(waiting, missing.Error())
	}
	var incomplete []string
	for _, name := range slices.Sorted(maps.Keys(p.catalogs)) {
		select {
		case <-p.catalogs[name].sources.Published():
		default:
			incomplete = append(incomplete, fmt.Sprintf("catalog %s: %s", catalogLabel(name), p.catalogs[name].sources.Status().Unavailable))
		}
	}
	if len(incomplete) == len(p.catalogs) {
		waiting = append(waiting, incomplete...)
	}
	p.ready = len(waiting) == 0
	return waiting
}

// catalogLabel returns the server name of a catalog as people read it.
func catalogLabel(serverName string) string {
	if serverName == "" {
		return "(default)"
	}
	return serverName
}
