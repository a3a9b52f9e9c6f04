// Package faultowner is an owner that misbehaves according to a script. It does not
// use package owner, which sends only what is valid, but the messages of the
// protocol themselves.
//
// A [Script] is text with one step a line:
//
//	upsert web web.fed.example 192.0.2.1
//	end
//	status Unavailable
//	---
//	upsert web web.fed.example 192.0.2.2
//	hang
//
// Lines of dashes divide it into sessions. The first stream gets the first session,
// the second stream the second one, and so on. All further streams get the last one.
//
// These steps send responses, and wait for the answer to each:
//
//	upsert NAME FQDN ADDRESS      a good service with the instance v1
//	delete NAME
//	end                           an empty response
//	operation N NAME FQDN ADDRESS a good service with that operation
//	foreign NAME FQDN ADDRESS     a good service as a resource of another type
//	truncated NAME FQDN ADDRESS   a good service, without its last octet
//	resend NAME FQDN ADDRESS      the same good service, for ever
//	named ID NAME FQDN ADDRESS    a good service whose resource_id is not its name
//	oversized N NAME FQDN ADDRESS a good service with a description of N octets
//	heartbeats DURATION           empty responses for ever, one every DURATION
//	updates DURATION NAME FQDN    a good service every DURATION, for ever, each time with the next address of 10.255.0.0/24
//	slowly DURATION FROM TO ZONE  the same as services, one every DURATION
//
// These send without waiting, as fast as the connection takes it; the answers are
// received meanwhile:
//
//	services FROM TO ZONE         good services s<i> for i from FROM up to, but not including, TO, with the fqdn s<i>.ZONE and the address 10.x.x.x
//	flood N NAME FQDN ADDRESS     a good service N times
//
// These change how the following responses look:
//
//	announce                      the header announces that the end of the catalog is marked
//	nonce counted|empty|same
//	context right|wrong|none
//
// These let the session wait, or end it:
//
//	header                        sends the header now, not with the first response
//	wait DURATION
//	hang                          until the consumer ends the stream
//	status CODE                   ends the stream; OK is a clean end
//	cut                           the next write to the connection is cut in the middle, and the connection with it
//	reset                         ends the connection at once
//
// A session that begins with one of these gets a whole connection. The script takes
// the place of TLS, HTTP/2 and gRPC:
//
//	mute                          neither reads nor writes
//	plain                         answers in plain text, as a load balancer does that has no owner to connect to
//	tls                           completes the TLS handshake, and sends nothing
//	frames                        completes the TLS handshake, and speaks HTTP/2 frame by frame
//
// After frames there may be these, and those of the steps above that send one
// response:
//
//	stream                        waits until the consumer opens a stream
//	drip DURATION NAME FQDN ADDRESS  a good service, one octet every DURATION
//	pings DURATION N              N pings every DURATION, for ever
//	settings DURATION N           N SETTINGS frames every DURATION, for ever
//	goaway N                      GOAWAY with the last stream ID N
//	rst                           RST_STREAM
//	http N                        an answer of plain HTTP with the status N, without gRPC
//
// A session that comes to its end hangs.
package faultowner

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// Script has the sessions of an owner: for its first stream, its second, and so on.
// The last session is for all further streams.
type Script []Session

// Session has the steps of an owner on one stream.
type Session []Step

// Step is one line of a script. The fields that its verb does not take are zero.
type Step struct {
	Verb    string
	From    int    // services
	N       int    // services (to, not included), operation, flood, and others that count
	ID      string // the resource_id, where it is not the name
	Name    string // of a service
	FQDN    string // of a service; of services the zone
	Address string // of an endpoint
	Word    string // nonce, context
	Wait    time.Duration
	Code    codes.Code
}

// verbs has the arguments of each verb.
var verbs = map[string]string{
	"upsert":     "NAME FQDN ADDRESS",
	"delete":     "NAME",
	"end":        "",
	"services":   "FROM N FQDN",
	"operation":  "N NAME FQDN ADDRESS",
	"foreign":    "NAME FQDN ADDRESS",
	"truncated":  "NAME FQDN ADDRESS",
	"resend":     "NAME FQDN ADDRESS",
	"named":      "ID NAME FQDN ADDRESS",
	"oversized":  "N NAME FQDN ADDRESS",
	"heartbeats": "DURATION",
	"updates":    "DURATION NAME FQDN",
	"slowly":     "DURATION FROM N FQDN",
	"flood":      "N NAME FQDN ADDRESS",
	"announce":   "",
	"nonce":      "counted|empty|same",
	"context":    "right|wrong|none",
	"header":     "",
	"wait":       "DURATION",
	"hang":       "",
	"status":     "CODE",
	"cut":        "",
	"reset":      "",
	"mute":       "",
	"plain":      "",
	"tls":        "",
	"frames":     "",
	"stream":     "",
	"drip":       "DURATION NAME FQDN ADDRESS",
	"pings":      "DURATION N",
	"settings":   "DURATION N",
	"goaway":     "N",
	"rst":        "",
	"http":       "N",
}

// below has the first verbs of sessions that get a whole connection.
var below = []string{"mute", "plain", "tls", "frames"}

// below reports whether the session gets a whole connection.
func (s Session) below() bool { return len(s) > 0 && slices.Contains(below, s[0].Verb) }

// Parse reads a script. Blank lines, and lines that begin with #, are skipped.
// Its errors name the line.
func Parse(text string) (Script, error) {
	script := Script{nil}
	number := 0
	for line := range strings.Lines(text) {
		number++
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		case words[0] == "---":
			script = append(script, nil)
		default:
			step, err := parse(words[0], words[1:])
			if err != nil {
				return nil, fmt.Errorf("line %d: %s: %w", number, words[0], err)
			}
			last := len(script) - 1
			script[last] = append(script[last], step)
		}
	}
	return script, nil
}

// parse returns the step of one line.
func parse(verb string, words []string) (Step, error) {
	arguments, ok := verbs[verb]
	if !ok {
		return Step{}, errors.New("no such step")
	}
	names := strings.Fields(arguments)
	if len(words) != len(names) {
		return Step{}, fmt.Errorf("takes %q, not %q", arguments, strings.Join(words, " "))
	}
	step := Step{Verb: verb}
	for i, word := range words {
		var err error
		switch names[i] {
		case "ID":
			step.ID = word
		case "NAME":
			step.Name = word
		case "FQDN":
			step.FQDN = word
		case "ADDRESS":
			step.Address = word
		case "FROM":
			step.From, err = strconv.Atoi(word)
		case "N":
			step.N, err = strconv.Atoi(word)
		case "DURATION":
			step.Wait, err = time.ParseDuration(word)
		case "CODE":
			step.Code, err = parseCode(word)
		default:
			if step.Word = word; !slices.Contains(strings.Split(names[i], "|"), word) {
				err = fmt.Errorf("%q is not one of %s", word, names[i])
			}
		}
		if err != nil {
			return Step{}, err
		}
	}
	return step, nil
}

// parseCode returns the code with a name such as ResourceExhausted.
func parseCode(name string) (codes.Code, error) {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if code.String() == name {
			return code, nil
		}
	}
	return 0, fmt.Errorf("no code has the name %q", name)
}
