// Package indexbench compares what could stand behind a DNS zone: a map from an
// absolute domain name to a value, whose every change is a new immutable version
// that readers load through one atomic pointer. The candidate trie is package
// federation/zone/trie itself, with its writer, as the zone uses it.
//
// The package holds no code but tests and benchmarks. It is a module of its own
// so that the other candidates are no dependencies of the plugin.
//
//	go test -run '^$' -bench . -benchtime 100ms
//
// At a million names on a 2-core Xeon with Go 1.26, the best of three runs beside
// other work on the machine: a hit and a miss read by one goroutine, one update
// published and its garbage, the heap that the index adds to a name and its value,
// and the time of a full collection. The built-in map's update is a clone.
//
//	                hit ns  miss ns  update µs  garbage B  heap B/name  gc ms
//	built-in map       492      116      78638   55784224           56    608
//	trie               693      250        5.6       2648           18    113
//	immutable.Map      879      365        4.6       2398           70    419
//	btree.Map         1759     2206       10.1       6701           37    389
//	iradix.Tree       1987     1080        8.7       3937          440   2795
//	part.Tree         1166     1197       21.3       1489          134    744
//
// The zone keeps a trie of its own for the sake of queries: of all that have cheap
// versions, it is the fastest to read, and it leaves the garbage collector least
// to do. immutable.Map has somewhat cheaper updates, but needs four times the
// heap. part.Tree of cilium/statedb leaves the least garbage for each update; its
// hits take more than half as long again, its updates four times as long, and its
// watch channels are of no use here.
//
// A lookup costs about ten times as much among a million names as among a
// thousand in every candidate and in the built-in map: a thousand names fit in
// the processor's caches. What a candidate adds to the built-in map is what it
// can be chosen by. Ordered trees compare or descend once for every few bytes
// of a name; hash tries hash it once.
package indexbench
