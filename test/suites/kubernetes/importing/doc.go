// Package importing holds the tests of federationctl import against real control planes of
// Kubernetes, with a CoreDNS whose names are those of the cluster's own plugin, and with
// kube-proxy. `make e2e-import` builds what they need and runs them; without
// REAL_SERVERS=required in the environment they are skipped.
//
// Where this is root, all of it happens in network, mount and process namespaces of its own: there
// kube-proxy may write its rules. They end with the test, however it ends.
package importing
