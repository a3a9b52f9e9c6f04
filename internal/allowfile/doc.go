// Package allowfile keeps the list of consumers that may subscribe to an owner equal to
// a file of identities.
//
// The file is read when it is opened; one that is broken then is an error. While it is
// followed, a broken file is reported and changes nothing, as package file says.
package allowfile
