// Package domain is the naming scheme of a zone: which names stand for what, at
// an apex and at and below the fqdn of a service, and how names are cut and put
// together. Packages subtree and zone compile and look up by it.
//
//	<origin>                         SOA and NS; a service may be here too
//	ns.dns.<origin>                  the name server
//	<fqdn>                           a service
//	<id>.<fqdn>                      an instance, whose ID may be several labels
//	_<protocol>._tcp[.<id>].<fqdn>   what speaks a protocol
//	<ip>.addr.<fqdn>                 an address, the target of SRV records
//
// A name is a string here, in lower case and absolute. It is no federation.FQDN,
// because a query may ask for any name. Labels in front of a name are relative
// and have no final dot.
package domain
