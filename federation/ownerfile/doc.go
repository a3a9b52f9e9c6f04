// Package ownerfile lets an owner follow files: [OpenCatalog] keeps an
// [owner.Registry] equal to a catalog file, and [OpenAllow] the list of consumers that
// may subscribe equal to a file of identities.
//
// Both files are read when they are opened; a file that is broken then is an error.
// While [File.Run] runs, a broken file is reported and changes nothing, as package
// livefile says.
package ownerfile
