// Package owner is the server side of federated service discovery: a Registry
// holds what the owner publishes, and a Server sends it to every consumer that
// subscribes, first whole and then change by change.
package owner
