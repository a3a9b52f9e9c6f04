// Package consul is the source of a datacenter of Consul: the services of its catalog are the
// part, with the instances that are healthy.
//
// A service of Consul becomes a service <name>/<service>, or <name>/<datacenter>/<service> where the
// configuration names the datacenter, with the fqdn <service>.<zone>. It is there while it has an
// instance that is published. Names that are no label in DNS are refused. Each address and
// port of its instances is an endpoint. One instance, "default", has all endpoints; where the
// configuration says so, each tag that is a label is another one, with the endpoints of the
// instances that have the tag. Tags stay tags; what all instances have in meta are labels below
// consul.meta/. Proxies and gateways of Consul's mesh are left out. Weights have no place.
//
// # How Consul is read
//
// By blocking queries of its HTTP API, which answer when something has changed: one for the list
// of services, and one for each service that is wanted, because the list does not say which service
// has changed, nor anything of health. So a change costs one request for the service, and one
// for the list if it is more than one of health. Over https HTTP/2 carries any number of
// queries on a few connections. Over http each of them is a connection, of which an agent takes 200 by
// default, so beyond mostPlain services each is read in its turn instead.
// The client library of Consul would bring a type for each answer, and nothing of this.
//
// After an error everything is asked for anew, because only a query without an index is
// answered with what there is now: one that waits for more than the index of a registry that was lost
// waits for as long as it may. The list comes first, and from a leader that has applied its whole log.
//
// # What is no emptiness
//
// Consul answers with an empty list as well when the token may read nothing, and when a
// server has begun anew without its data. A list that has not even Consul itself, and an answer without any
// instance of a service that is in the list, are those of a token: the source is away where that is so of
// all. A registry that began anew is noticed by an index that went back, or by a
// list without any of several services that there were before: then the source is away until agents have
// registered again what runs beside them, for the convergence period at most.
package consul

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/consul/internal/entry"
	"github.com/hamlet-federation/coredns-federation/internal/source/internal/reconnect"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Config says which datacenter is read, and how its services are called, with the keys that a file has for it.
type Config struct {
	Name       string          `yaml:"name" as:"label" default:"consul" doc:"What begins the names of its services: consul/SERVICE, or consul/DATACENTER/SERVICE."`
	Address    string          `yaml:"address" as:"agent" default:"http://127.0.0.1:8500" doc:"The URL of an agent of Consul: https, or http on this machine. Over http more than 128 services are read in turns, of a quarter of a minute or more; over https each is read as soon as it changes."`
	TokenFile  string          `yaml:"token_file" doc:"A file with the ACL token, which is followed. By default the token is that of CONSUL_HTTP_TOKEN in the environment, or none."`
	Datacenter string          `yaml:"datacenter" as:"datacenter" doc:"The datacenter to read, by default that of the agent. For several, list a source for each, with a zone of its own."`
	Zone       federation.FQDN `yaml:"zone" as:"fqdn" doc:"The zone of its names, SERVICE.ZONE."`
	Services   []string        `yaml:"services" as:"service" least:"one is required; leave it out for all" doc:"Names of services to publish, or patterns such as shop-*. By default all but consul itself."`
	Tags       []string        `yaml:"tags" as:"tag" least:"one is required; leave it out for all" doc:"Tags that an instance must have, all of them, to be published. By default none is needed."`
	AddressOf  string          `yaml:"address_of" as:"word" default:"lan" doc:"Which address consumers reach: lan is that of the instance, and any other one is a key of tagged addresses, such as wan. An instance without that is not published."`
	Warning    bool            `yaml:"health" as:"health" quoted:"true" doc:"passing publishes instances whose checks all pass, and warning those as well of which a check warns. By default passing."`
	ByTag      bool            `yaml:"instances" as:"instances" quoted:"true" doc:"tags makes each tag that can be a label in DNS a name of its own, TAG.SERVICE.ZONE. Leave it out for default.SERVICE.ZONE alone."`
	TLS        mtls.Files      `yaml:"tls" doc:"Files for https, by default the authorities of the system and no certificate."`

	Token  string             // where there is no TokenFile; empty for none
	Policy wire.AddressPolicy // of the consumers, as far as the owner knows it
	Logger *slog.Logger       // nil: nothing is logged
}

// Source is what a datacenter holds. It implements [source.Source].
type Source struct {
	// read-only after New
	Config
	rules entry.Rules
	dial  func(ctx context.Context, network, address string) (net.Conn, error) // other in tests

	// owned by Run
	published map[string]*wire.EncodedService // by the name in Consul
	index     uint64                          // of the list that was published last; 0 before
	converged time.Time                       // when what is missing is gone; zero where nothing was lost
}

var (
	_ source.Source      = (*Source)(nil)
	_ source.NameClaimer = (*Source)(nil)
)

// New returns a source that is not connected yet.
func New(c Config) *Source {
	c.Address, c.AddressOf = cmp.Or(c.Address, "http://127.0.0.1:8500"), cmp.Or(c.AddressOf, "lan")
	c.Logger = loglimit.NewLogger(c.Logger)
	return &Source{
		Config: c, dial: new(net.Dialer).DialContext, published: make(map[string]*wire.EncodedService),
		rules: entry.Rules{
			Prefix: path.Join(cmp.Or(c.Name, "consul"), c.Datacenter) + "/", Zone: c.Zone,
			AddressOf: c.AddressOf, Warning: c.Warning, Tags: c.Tags, ByTag: c.ByTag, Policy: c.Policy,
		},
	}
}

// MayClaim implements [source.NameClaimer].
func (s *Source) MayClaim(name string, fqdn federation.FQDN) bool {
	return strings.HasPrefix(name, s.rules.Prefix) || fqdn.Within(s.rules.Zone)
}

// isWanted reports whether the configuration wants a service of Consul, which has these tags on
// one instance or another.
func (s *Source) isWanted(service string, tags []string) bool {
	matches := func(pattern string) bool { ok, _ := path.Match(pattern, service); return ok }
	named := slices.ContainsFunc(s.Services, matches) || len(s.Services) == 0 && service != "consul"
	return named && s.rules.Wants(tags)
}

// Run implements [source.Source].
func (s *Source) Run(ctx context.Context, part source.Part) {
	reconnect.Loop(ctx, func(reason error) { part.SetAway(s.awayError(reason)) },
		func(ctx context.Context) (bool, error) { return s.followOnce(ctx, part) })
}

// awayError names the agent before the reason why Consul is away.
func (s *Source) awayError(reason error) error { return fmt.Errorf("consul %s: %w", s.Address, reason) }

// followOnce follows Consul until a request fails, and reports whether the state was whole.
func (s *Source) followOnce(ctx context.Context, part source.Part) (whole bool, err error) {
	config, err := file.TLS(s.TLS.Cert, s.TLS.Key, s.TLS.CA) // as the files are now
	if err != nil {
		return false, err
	}
	x := &session{Source: s, part: part, reports: make(chan report), reads: make(chan struct{}, maxReads), services: make(map[string]*service)}
	x.transport = &http.Transport{
		DialContext: s.dial, TLSClientConfig: config, TLSHandshakeTimeout: requestTime, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: mostPlain, IdleConnTimeout: time.Minute,
	}
	defer x.transport.CloseIdleConnections()
	err = x.followCatalog(ctx)
	return x.told, err
}
