// Package browser drives the status page in a real browser, against real processes of
// CoreDNS and of owners, each of whose states is produced by the fault that causes it.
// axe looks for what keeps people from reading it. It is a module of its own, with the
// browser's driver, and `make e2e-browser` runs it.
package browser
