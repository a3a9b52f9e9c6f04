package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
)

// sharedName is a Corefile with two owners that share a name. Its arguments are the address of its
// status, and those of the owners.
const sharedName = `
a.fed.example:PORT {
    bind 127.0.0.1
    errors
    metadata
    log . "asked for {name} of {/federation/instance}"
    transfer {
        to *
    }
    federation {
        name one
        status %s
        owner %s
        share web.a.fed.example
        TLS
        settle 1s
    }
    federation {
        name two
        owner %s
        share web.a.fed.example
        TLS
        settle 1s
    }
}
`

var sharedAttacks = []attack{
	{"two owners share a name, with 501 endpoints each", together(501, 1, 0)},
	{"two owners share a name, with 501 instances and 64 labels of an endpoint each", together(2, 501, 64)},
}

// together has two owners say of a name that they share what one service may, which is more
// together. Clients ask for it, why, and for the zone.
func together(endpoints, instances, labels int) func(context.Context, *arena) (damage, error) {
	return func(ctx context.Context, a *arena) (damage, error) {
		status, err := loopback.FreeAddress()
		if err != nil {
			return damage{}, err
		}
		var owners [2]*hostileOwner
		var sent [2]atomic.Int64
		for i := range owners {
			if owners[i], err = a.serveOwner(ctx, sendAll(1, &sent[i], func(int) *typespb.FederatedService { return member(i, endpoints, instances, labels) })); err != nil {
				return damage{}, err
			}
		}
		s, err := a.serveDNS(ctx, fmt.Sprintf(sharedName, status, owners[0].address, owners[1].address))
		if err != nil {
			return damage{}, err
		}
		d := damage{victim: s.process}
		last := func(i int) string { return instanceOf(i, instances-1, instances) + ".web.a.fed.example." }
		synced := func() bool {
			for i := range owners {
				if m := s.ask(last(i), dns.TypeTXT); m == nil || m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
					return !s.running()
				}
			}
			return true
		}
		if _, err := until(ctx, time.Minute, synced); err != nil {
			d.require(false, "a text of an instance is not answered")
		}
		began, records := time.Now(), 0
		if _, err := until(ctx, 20*time.Second, func() bool { // until both catalogs are complete
			records, err = s.transfer("a.fed.example.")
			return err == nil || !s.running()
		}); err != nil {
			d.require(false, "the zone is not transferred")
		}
		for range 3 { // as a secondary that comes back
			if records, err = s.transfer("a.fed.example."); err != nil {
				d.require(false, "the zone cannot be transferred: "+err.Error())
			}
		}
		d.effect = fmt.Sprintf("%d records transferred three times in %.1f s", records, time.Since(began).Seconds())
		for i := range owners {
			n, err := explained(ctx, status, last(i))
			d.require(err == nil && n >= endpoints, fmt.Sprintf("%d of %d addresses are explained: %v", n, endpoints, err))
			d.require(s.count(fmt.Sprintf("asked for %s of %s", last(i), instanceOf(i, instances-1, instances))) > 0, "an instance is not in the metadata")
		}
		d.require(s.running(), "CoreDNS has ended")
		d.limit("panics", float64(s.count("Recovered from panic")+s.count("a panic was recovered")), 0)
		return d, nil
	}
}

// instanceOf returns the ID of an instance of an owner. Both have the same if there is one: the
// texts of a service with one instance are made for each answer.
func instanceOf(owner, i, of int) string {
	if of == 1 {
		return "v1"
	}
	return fmt.Sprintf("v%d-%d", owner, i)
}

// member returns what an owner says of a shared name, by its index.
func member(owner, endpoints, instances, labels int) *typespb.FederatedService {
	all := make([]string, labels)
	for i := range all {
		all[i] = fmt.Sprint("l", i)
	}
	m := wide("web", "a.fed.example", endpoints, func(i int, e *typespb.FederatedService_Endpoint) {
		e.Address, e.Labels = fmt.Sprintf("10.%d.%d.%d", owner, i/250, i%250+1), all
	})
	m.Instances = make([]*typespb.FederatedService_Instance, instances)
	for i := range m.Instances {
		m.Instances[i] = &typespb.FederatedService_Instance{Id: instanceOf(owner, i, instances), Protocol: "TCP", EndpointSelector: all}
	}
	return m
}

// transfer returns how many records a zone has.
func (s *server) transfer(zone string) (records int, err error) {
	query := new(dns.Msg)
	query.SetAxfr(zone)
	messages, err := (&dns.Transfer{ReadTimeout: time.Minute}).In(query, s.address)
	if err != nil {
		return 0, err
	}
	for m := range messages {
		if records += len(m.RR); m.Error != nil {
			err = m.Error
		}
	}
	return records, err
}

// explained asks the status why a name has its addresses, and returns how many there are.
func explained(ctx context.Context, status, name string) (addresses int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+status+"/v1/why?name="+strings.TrimSuffix(name, "."), http.NoBody)
	if err != nil {
		return 0, err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer reply.Body.Close()
	var why struct {
		Answers []struct {
			Records []string `json:"records"`
		} `json:"answers"`
	}
	err = json.NewDecoder(reply.Body).Decode(&why)
	for _, answer := range why.Answers {
		addresses += len(answer.Records)
	}
	return addresses, err
}
