package realserver

var nsm = program{"nsm", "nsm", "github.com/networkservicemesh/sdk", "e2e-nsm"}

// FindNSM returns the path of the command in test/peers/tools/nsm: a registry of Network
// Service Mesh, its clients and its resolver.
func FindNSM() (string, error) { return nsm.findHere() }
