// Package gate serves gRPC services to peers that may be anyone who reaches a port.
//
// A [Gate] serves every [Port] of a process, because the ports share what its [Limits] bound, which are the
// files that the process may have open. On every port it bounds what one connection can cost:
// handshakes, idle time, streams, pings, headers and messages. It answers the health
// service of gRPC, and ends a port so that peers learn why. [TurnedAway] is a peer that it did not let in.
//
// A connection has at most eight streams, and ends after a minute without any. gRPC
// bounds the rest: the answers to frames such as PING and SETTINGS that a peer does not
// read, and the streams that it resets before they are served.
package gate
