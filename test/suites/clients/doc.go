// Package clients shows what real programs make of the answers: how soon they leave an endpoint
// that was withdrawn, what fails meanwhile, and how many queries they send. `make e2e-clients`
// runs it by hand, and shows lines for the table of docs/clients.md.
//
// Each client has a host of its own, a network namespace with a resolv.conf. A program in
// testdata connects to a name, five times a second, and prints a line for each attempt: the
// address, or ! and the error. One owner and one CoreDNS serve all, and all clients run at the
// same time.
package clients
