// Package trie is the index of a zone: a map from names to values, every version
// of which is immutable and shares its structure with the versions before it.
//
// A [Writer] collects changes and publishes them as a [Map]. Publishing costs
// time and memory in proportion to the changes, and readers of a Map need no
// lock. The package knows nothing of DNS: to it, a name is a string.
//
// The trie branches on the bits of a name's hash and ends in lists of names. In
// a large catalog almost all the time of a lookup goes into reading memory that
// is in no cache. Here that is one list and the item it leads to: the branches
// above the lists of a million names take two megabytes.
//
// It is written by hand because no library that was measured is as fast to read.
package trie
