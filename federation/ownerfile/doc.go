// Package ownerfile fills the registry of an owner from a catalog file.
package ownerfile
