// Package faultowner is an owner that misbehaves as it is told. It speaks the
// messages of the protocol without the library, which could not lie.
//
// What it does is a [Script], written as text with one step a line:
//
//	upsert web web.fed.example 192.0.2.1
//	end
//	await
//	status Unavailable
//	---
//	upsert web web.fed.example 192.0.2.2
//	hang
//
// The first stream gets what stands above the line of dashes, the second what
// stands below it, and all later ones that as well.
//
// These steps send responses, and wait for the answer to each:
//
//	upsert NAME FQDN ADDRESS      a good service with the instance v1
//	delete NAME
//	end                           an empty response
//	operation N NAME FQDN ADDRESS a good service with that operation
//	foreign NAME FQDN ADDRESS     a good service as a resource of another type
//	truncated NAME FQDN ADDRESS   a good service, cut in the middle
//	resend NAME FQDN ADDRESS      a good service again and again, for ever
//	named ID NAME FQDN ADDRESS    a good service whose resource_id is not its name
//	oversized N NAME FQDN ADDRESS a good service with a description of N octets
//	heartbeats DURATION           empty responses for ever, one every DURATION
//	updates DURATION NAME FQDN    a good service for ever, each time with the next address of 10.255.0.0/24
//	slowly DURATION FROM TO ZONE  as services, but one every DURATION
//
// These send as fast as the connection takes it, and then wait for the answers:
//
//	services FROM TO ZONE         good services s<i>, with the fqdn s<i>.ZONE and 10.x.x.x
//	flood N NAME FQDN ADDRESS     a good service N times
//
// These change how the following responses look:
//
//	announce                      the header says that the end is marked
//	nonce counted|empty|same
//	context right|wrong|none
//
// And these end it, or let it wait:
//
//	header                        sends the header now, not with the first response
//	await                         until Owner.Go is called
//	wait DURATION
//	hang                          until the consumer goes
//	status CODE                   ends the stream; OK is a clean end
//	cut                           the next write to the connection is cut in the middle, and the connection with it
//	reset                         ends the connection at once
//
// A session that begins with one of these gets a whole connection, and the script
// stands where TLS, HTTP/2 and gRPC do elsewhere:
//
//	mute                          neither reads nor writes
//	plain                         answers in plain text as a load balancer without an owner does
//	tls                           the handshake, and nothing of HTTP/2
//	frames                        the handshake, and HTTP/2 frame by frame
//
// Behind frames there are these, and of those above all that make one response:
//
//	stream                        waits for the consumer's stream
//	drip DURATION NAME FQDN ADDRESS  a good service, one octet every DURATION
//	pings DURATION N              N pings every DURATION, for ever
//	settings DURATION N           N SETTINGS frames every DURATION, for ever
//	goaway N                      GOAWAY; N is the last stream that was seen
//	rst                           RST_STREAM
//	http N                        an answer of HTTP with the status N, which is none of gRPC
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

// Script is what an owner does on its first stream, on its second, and so on.
// The last session is for all streams that follow.
type Script []Session

// Session is what an owner does on one stream.
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

// verbs are the verbs with their arguments.
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
	"await":      "",
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

// below are the verbs with which a session gets a whole connection.
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

// parseCode returns the code with the name that metrics and logs show.
func parseCode(name string) (codes.Code, error) {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if code.String() == name {
			return code, nil
		}
	}
	return 0, fmt.Errorf("no code has the name %q", name)
}
