package realserver

var consul = program{"consul", "consul", "github.com/hashicorp/consul", "e2e-consul"}

// FindConsul returns the path of Consul.
func FindConsul() (string, error) { return consul.findHere() }
