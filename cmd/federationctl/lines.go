package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/board"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// lines shows every event in a line of its own. It is an eventSink.
type lines struct {
	// read-only
	address string
	stdout  io.Writer
	stderr  io.Writer
	format  func(federation.Event) (string, error)

	// owned by the consumer
	header    string          // what is shown before the first event
	connected bool            // an event has come at some time
	lost      map[string]bool // the losses that were told since then, by their kind
}

func (l *lines) Opened(context.Context) error                            { return nil }
func (l *lines) Marked(context.Context) error                            { return nil }
func (l *lines) Refused(context.Context, *federation.InvalidError) error { return nil } // the watcher tells of it

// Apply shows an event.
func (l *lines) Apply(_ context.Context, event federation.Event) error {
	l.connected = true
	if len(l.lost) > 0 {
		clear(l.lost)
		fmt.Fprintf(l.stderr, "federationctl: connected to %s again\n", l.address)
	}
	if event.Operation == federation.Alive {
		return nil
	}
	line, err := l.format(event)
	if err != nil {
		return err
	}
	_, err = io.WriteString(l.stdout, l.header+line)
	l.header = ""
	return err
}

// Lost tells why there is no stream: each kind of reason once, until there is
// one again.
func (l *lines) Lost(_ context.Context, err error, _ bool) {
	kind := lossKind(err)
	if l.lost[kind] {
		return
	}
	if l.lost == nil {
		l.lost = make(map[string]bool)
	}
	l.lost[kind] = true
	if l.connected {
		fmt.Fprintf(l.stderr, "federationctl: owner %s: %v; trying again\n", l.address, err)
		return
	}
	fmt.Fprintf(l.stderr, "federationctl: owner %s: %v; %s; trying again\n", l.address, err, remedy(err))
}

// row is the format of a table: operation, name, fqdn, instances, endpoints.
const row = "%-6s  %-20s  %-32s  %-28s  %s"

// table formats an event as a row.
func table(event federation.Event) (string, error) {
	if event.Operation == federation.End {
		return "end     (the catalog is complete)\n", nil
	}
	name := board.Plain(event.Name)
	var fqdn, instances, endpoints string
	if event.Service != nil {
		_, fqdn, instances, endpoints = board.Cells(event.Service)
	}
	line := fmt.Sprintf(row, event.Operation, name, fqdn, instances, endpoints)
	return strings.TrimRight(line, " ") + "\n", nil
}

// jsonLine formats an event as a JSON object in one line. The service is in the
// protobuf JSON mapping, as in a catalog file.
func jsonLine(event federation.Event) (string, error) {
	object := struct {
		Op      string          `json:"op"`
		Name    string          `json:"name,omitempty"`
		Service json.RawMessage `json:"service,omitempty"`
	}{Op: event.Operation.String(), Name: event.Name}
	if event.Service != nil {
		var err error
		if object.Service, err = protojson.Marshal(wire.EncodeService(event.Service)); err != nil {
			return "", err
		}
	}
	var line bytes.Buffer
	encoder := json.NewEncoder(&line) // compacts the service, whose space protojson varies
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(object)
	return escapeControls(line.String()), err
}

// escapeControls returns a line of JSON that says the same without what a terminal
// obeys, or what makes it show something in another place than where it stands.
// encoding/json escapes the controls of ASCII but DEL.
func escapeControls(line string) string {
	if !strings.ContainsFunc(line, controls) {
		return line
	}
	var safe strings.Builder
	for _, r := range line {
		if controls(r) {
			fmt.Fprintf(&safe, `\u%04x`, r) // none of them is beyond U+FFFF
		} else {
			safe.WriteRune(r)
		}
	}
	return safe.String()
}

// controls reports whether a line of JSON escapes a character: C1 controls, DEL,
// line and paragraph separators, and those that change the direction of text
// (Unicode Standard Annex #9, section 2).
func controls(r rune) bool {
	return r != '\n' && unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}
