// Package ownerfile lets an owner follow files: [OpenCatalog] keeps an
// [owner.Registry] as a catalog file says, and [OpenAllow] those who may subscribe
// as another one says.
//
// Both are read when they are opened, and a file that is broken then is an error.
// Later, while [File.Run] runs, a broken file is reported and changes nothing: a
// file that is gone, empty or half written withdraws no service, turns nobody away
// and lets nobody in. Only regular files are read, and none that is larger than its
// limit.
//
// A catalog is read service by service where its form allows that, and of a new
// version the services whose text has changed. Whatever is in a file, the work is in
// proportion to its size, and what is said of it is short and printable.
package ownerfile
