// Package monitoring tests deploy/monitoring: that rules, their tests, the runbook and the
// dashboard fit together, and, with a real Prometheus, that each alert fires for a fault
// that was produced in real processes and ends with it, while every query of the dashboard
// has data. `make e2e-monitoring` runs all of it; without the Debian package prometheus the
// tests that need it are skipped.
package monitoring
