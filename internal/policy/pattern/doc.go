// Package pattern holds the patterns by which a configuration chooses services,
// consumers and labels: in an export policy, and in the filters of what is imported.
//
// There are no regular expressions. A '*' stays within one label of a host name, one
// segment of a SPIFFE ID or one key; the exceptions are "*" alone, "*." before the name of
// a service, and "**". A match takes time that is linear in the lengths of pattern and
// text. Patterns are values that never change. The zero value of each matches nothing.
package pattern
