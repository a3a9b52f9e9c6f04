package config

import (
	"path"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// Consul is a datacenter of Consul.
type Consul struct {
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

	withdrawLimits

	TLS mtls.Files `yaml:"tls" doc:"Files for https, by default the authorities of the system and no certificate."`
}

// checkConsul checks what the source of a path has in the file, beyond each key.
func (r *configReader) checkConsul(path string, c *Consul) {
	plain := strings.HasPrefix(c.Address, "http:")
	r.addProblemIf(plain && r.HasValue(path+".tls"), path+".tls", "has no effect, as the address is of http")
	r.addProblemIf(r.HasValue(path+".tls.cert") != r.HasValue(path+".tls.key"), path+".tls", "needs both of cert and key, or none of them")
	r.addProblemIf(isPlainElsewhere(c.Address), path+".address", "is of http and of another machine: whoever is between could read the token, and say anything; use https")
}

// isPattern reports whether a text is a pattern of services of Consul.
func isPattern(text string) bool {
	_, err := path.Match(text, "")
	return err == nil && isWord(text)
}
