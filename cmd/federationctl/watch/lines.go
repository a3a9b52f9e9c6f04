package watch

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/stream"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// linePrinter shows every change in a line of its own. Its methods may be called from several
// goroutines.
type linePrinter struct {
	// Read-only.
	address string
	stdout  io.Writer
	stderr  io.Writer
	format  func(e lineEntry) (string, error)

	// Guarded by mu, which is held while a line is written.
	mu        sync.Mutex
	complete  bool // the catalog
	connected bool // the owner has responded at some time
	lost      bool // and that was reported
}

// lineEntry is what a line says.
type lineEntry struct {
	wire.Event

	// Of the end of the catalog.
	hops    int  // how many owners the services come through; 0: it is not known
	resumed bool // only what differs was sent
}

func newLines(address string, stdout, stderr io.Writer) *linePrinter {
	return &linePrinter{address: address, stdout: stdout, stderr: stderr, format: tableLine}
}

// printChanges writes a line for each change, and one when the catalog becomes complete.
func (l *linePrinter) printChanges(c consumer.Changes) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Status.Failure != nil {
		l.reportLost(c.Status.Failure)
	}
	synced := c.Status.State == catalog.Synced
	if len(c.Services) > 0 || synced {
		l.noteConnected()
	}
	for i := range c.Services {
		change := &c.Services[i]
		event := wire.Event{Operation: wire.Delete, Name: change.Name}
		switch change.Kind() {
		case catalog.Confirmed:
			continue
		case catalog.Offered:
			event.Operation, event.Service = wire.Upsert, change.Packed.Unpack()
		}
		if err := l.writeEntry(lineEntry{Event: event}); err != nil {
			return err
		}
	}
	if synced && !l.complete {
		end := lineEntry{
			Event: wire.Event{Operation: wire.End},
			hops:  c.Status.Hops(), resumed: c.Status.Resumed,
		}
		if err := l.writeEntry(end); err != nil {
			return err
		}
	}
	l.complete = synced
	return nil
}

// noteResponse notes that the owner is there: an empty response is not in the changes.
func (l *linePrinter) noteResponse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteConnected()
}

// noteConnected notes that the owner is there, and reports it if the owner was lost. l.mu is
// held.
func (l *linePrinter) noteConnected() {
	l.connected = true
	if l.lost {
		l.lost = false
		fmt.Fprintf(l.stderr, "federationctl: connected to %s again\n", l.address)
	}
}

// writeEntry writes a line. l.mu is held.
func (l *linePrinter) writeEntry(e lineEntry) error {
	line, err := l.format(e)
	if err != nil {
		return err
	}
	_, err = io.WriteString(l.stdout, line)
	return err
}

// reportLost writes why there is no stream, once until there is one again. l.mu is held.
func (l *linePrinter) reportLost(err error) {
	if l.lost {
		return
	}
	l.lost = true
	todo := ""
	if text := stream.RemedyOf(err); text != "" && !l.connected {
		todo = text + "; "
	}
	fmt.Fprintf(l.stderr, "federationctl: owner %s: %v; %strying again\n", l.address, err, todo)
}

// row is the format of a line: operation, name, fqdn, instances, endpoints.
const row = "%-6s  %-20s  %-32s  %-28s  %s"

// tableLine formats an entry as a line.
func tableLine(e lineEntry) (string, error) {
	if e.Operation == wire.End {
		text := "the catalog is complete"
		if e.resumed {
			text += ", resumed"
		}
		if e.hops > 1 {
			text += fmt.Sprintf(", and comes through %d owners", e.hops)
		}
		return "end     (" + text + ")\n", nil
	}
	name := printable.QuoteText(e.Name)
	var fqdn, instances, endpoints string
	if e.Service != nil {
		_, fqdn, instances, endpoints = printable.ServiceCells(e.Service)
	}
	line := fmt.Sprintf(row, e.Operation, name, fqdn, instances, endpoints)
	return strings.TrimRight(line, " ") + "\n", nil
}

// jsonLine formats an entry as a JSON object in one line. The service is in the
// protobuf JSON mapping, as in a catalog file.
func jsonLine(e lineEntry) (string, error) {
	object := struct {
		Op      string                 `json:"op"`
		Name    string                 `json:"name,omitempty"`
		Service *printable.JSONService `json:"service,omitempty"`
		Hops    int                    `json:"hops,omitempty"`
		Resumed bool                   `json:"resumed,omitempty"`
	}{Op: e.Operation.String(), Name: e.Name, Resumed: e.resumed}
	if e.hops > 1 {
		object.Hops = e.hops
	}
	if e.Service != nil {
		object.Service = &printable.JSONService{Service: e.Service}
	}
	return printable.JSON(object)
}
