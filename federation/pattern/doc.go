// Package pattern holds the patterns by which a configuration chooses services,
// consumers and labels: in an export policy, and in the filters of what is imported.
//
// There are no regular expressions. A '*' never stands for more than one part of a
// name or an identity, but for the two forms that say so, and every match takes time
// that is linear in the lengths of pattern and text. All patterns are values that
// never change. The zero value of each matches nothing.
package pattern
