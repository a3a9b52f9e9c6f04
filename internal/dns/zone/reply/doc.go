// Package reply makes the records of replies and zone transfers from a zone.Result: a [Message] is a
// reply, and [FullTransfer] and [IncrementalTransfer] return the records of a transfer.
// The package decides nothing about names, owners or time; it knows how large
// a reply can be. Every record is made for one call and belongs to the caller.
// Response codes are the plugin's business.
package reply
