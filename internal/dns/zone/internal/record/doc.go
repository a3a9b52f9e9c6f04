// Package record makes DNS records of plain values, and knows how large they are.
// Package subtree asks it what fits a message when it compiles a service, and package
// reply makes the records of a reply with it. Every record is made for one call
// and belongs to the caller.
package record
