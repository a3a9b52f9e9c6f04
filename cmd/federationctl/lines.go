package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/board"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/mirror"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// lines shows every change in a line of its own. It is a view.
type lines struct {
	// Read-only.
	address string
	stdout  io.Writer
	stderr  io.Writer
	format  func(op string, event federation.Event) (string, error)

	// Guarded by mu, which is held while a line is written.
	mu        sync.Mutex
	header    string          // to be written before the first line
	complete  bool            // the catalog
	connected bool            // the owner has responded at some time
	lost      map[string]bool // the kinds of losses that were reported since
}

func newLines(address string, stdout, stderr io.Writer) *lines {
	return &lines{address: address, stdout: stdout, stderr: stderr, format: table, lost: make(map[string]bool)}
}

// show writes a line for each change, and one when the catalog becomes complete.
func (l *lines) show(c mirror.Changes) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Status.Failure != nil {
		l.report(c.Status.Failure)
	}
	synced := c.Status.State == catalog.Synced
	if len(c.Services) > 0 || synced {
		l.heard()
	}
	for _, change := range c.Services {
		if change.Same {
			continue
		}
		event := federation.Event{Operation: federation.Upsert, Name: change.Name, Service: change.Service.Unpack()}
		if change.Service.IsZero() {
			event.Operation = federation.Delete
		}
		if err := l.write(event.Operation.String(), event); err != nil {
			return err
		}
	}
	if synced && !l.complete {
		if err := l.write(federation.End.String(), federation.Event{Operation: federation.End}); err != nil {
			return err
		}
	}
	l.complete = synced
	return nil
}

// responded notes that the owner is there: an empty response is not in the changes.
func (l *lines) responded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard()
}

func (*lines) refused() {} // the watcher names the service

// skipped writes a line for a service that is not imported.
func (l *lines) skipped(s *federation.Service) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard()
	return l.write("skip", federation.Event{Operation: federation.Upsert, Name: s.Name, Service: s})
}

// heard notes that the owner is there, and reports it if the owner was lost. l.mu is
// held.
func (l *lines) heard() {
	l.connected = true
	if len(l.lost) > 0 {
		clear(l.lost)
		fmt.Fprintf(l.stderr, "federationctl: connected to %s again\n", l.address)
	}
}

// write writes the line of an event. l.mu is held.
func (l *lines) write(op string, event federation.Event) error {
	line, err := l.format(op, event)
	if err != nil {
		return err
	}
	_, err = io.WriteString(l.stdout, l.header+line)
	l.header = ""
	return err
}

// report writes why there is no stream: each kind of reason once, until there is a
// stream again. l.mu is held.
func (l *lines) report(err error) {
	kind := lossKind(err)
	if l.lost[kind] {
		return
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
func table(op string, event federation.Event) (string, error) {
	if event.Operation == federation.End {
		return "end     (the catalog is complete)\n", nil
	}
	name := board.Plain(event.Name)
	var fqdn, instances, endpoints string
	if event.Service != nil {
		_, fqdn, instances, endpoints = board.Cells(event.Service)
	}
	line := fmt.Sprintf(row, op, name, fqdn, instances, endpoints)
	return strings.TrimRight(line, " ") + "\n", nil
}

// jsonLine formats an event as a JSON object in one line. The service is in the
// protobuf JSON mapping, as in a catalog file.
func jsonLine(op string, event federation.Event) (string, error) {
	object := struct {
		Op      string          `json:"op"`
		Name    string          `json:"name,omitempty"`
		Service json.RawMessage `json:"service,omitempty"`
	}{Op: op, Name: event.Name}
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
	return board.EscapeControls(line.String()), err
}
