// Package owner is the server side of federated service discovery: a Registry
// holds what the owner publishes, a FileSource fills it from a catalog file, and
// a Server sends it to every consumer that subscribes, first whole and then
// change by change.
package owner
