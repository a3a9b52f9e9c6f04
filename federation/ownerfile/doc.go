// Package ownerfile lets an owner follow files: [OpenCatalog] keeps an
// [owner.Registry] as a catalog file says, and [OpenAllow] those who may subscribe
// as another one says.
//
// Both are read when they are opened, and a file that is broken then is an error.
// Later, while [File.Run] runs, a broken file is reported and changes nothing: a
// file that is gone, empty or half written withdraws no service, turns nobody away
// and lets nobody in.
package ownerfile
