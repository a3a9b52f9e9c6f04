// Package reply makes the records of replies and zone transfers from what package
// zone found. It decides nothing about names, owners or time; it knows how large
// a reply can be. Every record is made for one call and is the caller's.
// Response codes are the plugin's business.
package reply
