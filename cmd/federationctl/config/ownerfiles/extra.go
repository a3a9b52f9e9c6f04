package ownerfiles

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/internal/file"
)

// Extra has the services of sources that cannot be read here, such as clusters.
type Extra struct {
	services []*wire.Encoded // of different names
	given    bool
}

// ReadExtra reads services from files of limit bytes at most: catalog files, and what
// 'federationctl watch --once -o json' has printed. Of several with one name the first
// counts. It fails with a [*MistakesError].
func ReadExtra(files []string, limit int64) (*Extra, error) {
	e := &Extra{given: len(files) > 0}
	var o Owner
	names := make(map[string]bool)
	for _, opened := range files {
		data, _, err := file.Read(opened, limit)
		if err == nil && isWatched(data) {
			data, err = catalogOf(data)
		}
		if errors.Is(err, file.ErrTooLarge) {
			err = fmt.Errorf("%w; --max-catalog raises it", err)
		}
		for _, s := range o.parse(opened, data, err, wire.AnyAddress()) { // what a cluster publishes is not refused for its addresses either
			if !names[s.Name()] {
				names[s.Name()] = true
				e.services = append(e.services, s)
			}
		}
	}
	return e, o.mistakes.Err()
}

// of parts services into those of a source, which their names tell, and the others.
func (e *Extra) of(s *config.Source, services []*wire.Encoded) (its, others []*wire.Encoded) {
	for _, service := range services {
		if strings.HasPrefix(service.Name(), s.Prefix()) {
			its = append(its, service)
		} else {
			others = append(others, service)
		}
	}
	return its, others
}

// watched is a line that 'federationctl watch -o json' prints.
type watched struct {
	Op      string          `json:"op"`
	Name    string          `json:"name"`
	Service json.RawMessage `json:"service"`
}

// isWatched reports whether the text begins with such a line. A catalog in JSON has no
// such key.
func isWatched(data []byte) bool {
	var first watched
	return json.NewDecoder(bytes.NewReader(data)).Decode(&first) == nil && first.Op != ""
}

// catalogOf returns a catalog file with the services that were there when the last line
// was printed. Each is on the line on which it was printed.
func catalogOf(data []byte) ([]byte, error) {
	latest := make(map[string]int)
	var services [][]byte // by line, from 0
	decoder := json.NewDecoder(bytes.NewReader(data))
	for line := 0; ; line++ {
		var w watched
		if err := decoder.Decode(&w); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("line %d: %s", line+1, federation.Printable(err.Error()))
		}
		if w.Op != "upsert" && w.Op != "delete" {
			w.Service = nil // the end, or what is not in the catalog
		} else if before, ok := latest[w.Name]; ok {
			services[before] = nil
		}
		latest[w.Name] = line
		services = append(services, w.Service)
	}
	var text bytes.Buffer
	text.WriteString(`{"services": [`)
	separator := ""
	for _, service := range services {
		if service != nil {
			text.WriteString(separator)
			text.Write(service)
			separator = ","
		}
		text.WriteByte('\n')
	}
	text.WriteString("]}\n")
	return text.Bytes(), nil
}
