package federationplugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/transfer"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
)

// This file implements the interfaces of other plugins of the server block: ready, cache, transfer
// and metadata.

// Ready implements ready.Readiness. Once true, it stays true.
func (f *Federation) Ready() bool {
	if f.wasReady {
		return true // even before there is a block
	}
	b := f.block.Load()
	return b != nil && (*b).Ready()
}

// CacheBypassZones implements cache.ZoneBypasser: the cache would keep names
// that are gone, raise small TTLs and strip extended errors. Zones that fall
// through also hold names of other plugins, and are cached. A cache of CoreDNS before
// v1.15 does not ask. So no code may name the interface, for the plugin is built there too.
func (f *Federation) CacheBypassZones() []string {
	var zones []string
	for _, z := range f.zoneNames() {
		if !f.mayPassOn(z) {
			zones = append(zones, z)
		}
	}
	return zones
}

// zoneNames returns the zones of all owners, each once.
func (f *Federation) zoneNames() []string {
	zones := make([]string, len(f.origins))
	for i, o := range f.origins {
		zones[i] = o.name
	}
	return zones
}

// mayPassOn reports whether the next plugin may have names in the zone.
func (f *Federation) mayPassOn(zone string) bool {
	return slices.ContainsFunc(f.origins, func(o blockZone) bool {
		return o.name == zone && slices.ContainsFunc(o.through.Zones, func(through string) bool {
			return dns.IsSubDomain(through, zone) || dns.IsSubDomain(zone, through)
		})
	})
}

// errUnsynced makes a transfer fail that would send a part of the zone.
var errUnsynced = errors.New("catalog not received yet")

// Transfer implements transfer.Transferer.
func (f *Federation) Transfer(origin string, serial uint32) (<-chan []dns.RR, error) {
	z, now := f.newestZone(), time.Now()
	apex, synced := z.OriginSynced(origin, now)
	switch {
	case !apex || f.mayPassOn(origin):
		// A secondary would deny the names of the next plugin.
		return nil, transfer.ErrNotAuthoritative
	case !synced:
		return nil, errUnsynced
	}
	update := reply.IncrementalTransfer(z, origin, serial, now)
	records := make(chan []dns.RR)
	go func() {
		defer close(records) // also after a panic: without the second SOA, no secondary takes it
		defer func() {
			if cause := recover(); cause != nil {
				panics.reportPanic("transfer", cause)
			}
		}()
		pause, sent, began := (*f.block.Load()).Work(), 0, now
		for rrs := range update {
			records <- rrs
			if sent++; sent%pauseShare == 0 {
				pause(time.Since(began))
				began = time.Now()
			}
		}
	}()
	return records, nil
}

// pauseShare is how many RRsets a transfer sends before it checks whether queries want the
// processor.
const pauseShare = 64

// Metadata implements metadata.Provider, for names in our zones. The values of
// one query come from one version of the zone, which is looked at only when another
// plugin asks for a value. Plugins put them into lines of a log and into EDNS
// options unchanged, hence oneWord.
func (f *Federation) Metadata(ctx context.Context, state request.Request) context.Context {
	z := f.newestZone()
	if !z.HasName(state.Name()) {
		return ctx
	}
	lookup := sync.OnceValue(func() *zone.Result {
		r := z.Lookup(state.Name(), state.QType(), time.Now())
		return &r
	})
	set := func(label string, value func(*zone.Result) string) {
		metadata.SetValueFunc(ctx, corefile.Directive+"/"+label, func() string { return oneWord(value(lookup())) })
	}
	set("owner", func(r *zone.Result) string { return strings.Join(r.OwnerIDs(), ",") })
	set("service", (*zone.Result).ServiceName)
	set("fqdn", func(r *zone.Result) string { return strings.TrimSuffix(r.FQDN(), ".") })
	set("instance", func(r *zone.Result) string {
		if _, _, in := r.Source(); in != nil {
			return in.ID
		}
		return ""
	})
	set("protocol", func(r *zone.Result) string { return r.Protocol().String() })
	set("state", func(r *zone.Result) string {
		switch {
		case r.OwnerID() == "":
			return ""
		case r.IsStale():
			return "stale"
		}
		return "live"
	})
	return ctx
}

// maxWord is the greatest length of a metadata value, in bytes.
const maxWord = 256

// oneWord returns a value that cannot end a field or a line of a log, and on which
// a terminal does not act. All bytes other than printable ASCII, and space, quote
// and backslash, are escaped as \DDD, in decimal, as in a zone file (RFC 1035
// section 5.1). A value longer than maxWord is cut off and ends with \...
func oneWord(value string) string {
	var word []byte
	for i := 0; i < len(value) && len(word) <= maxWord; i++ {
		if c := value[i]; isPlain(c) {
			word = append(word, c)
		} else {
			word = fmt.Appendf(word, `\%03d`, c)
		}
	}
	if len(word) <= maxWord {
		return string(word)
	}
	const cut = `\...`
	word = word[:maxWord-len(cut)]
	if i := bytes.LastIndexByte(word, '\\'); i > len(word)-len(`\DDD`) {
		word = word[:i] // no part of an escape
	}
	return string(word) + cut
}

func isPlain(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '\\' }
