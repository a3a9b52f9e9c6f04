package config

import (
	"path"
	"strings"

	"github.com/hamlet-federation/coredns-federation/internal/source/consul"
)

// Consul is a datacenter of Consul.
type Consul struct {
	consul.Config
	withdrawLimits
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
