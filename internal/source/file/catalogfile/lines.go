package catalogfile

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"regexp"

	"github.com/hamlet-federation/coredns-federation/internal/source/file/internal/catalogentry"
)

// firstKey matches the start of a JSON object, up to its first key.
var firstKey = regexp.MustCompile(`^\s*\{\s*"((?:[^"\\]|\\.)*)"`)

// isLines reports whether a text that begins with start is JSON lines: it begins with an object
// whose first key is not services.
func isLines(start []byte) bool {
	match := firstKey.FindSubmatch(start)
	return match != nil && string(match[1]) != "services"
}

// readJSONLines reads a catalog of JSON lines: one service a line, and empty lines.
func (p *versionReader) readJSONLines(source *bufio.Reader) error {
	var text bytes.Buffer // of the line
	for line := 1; ; line++ {
		text.Reset()
		size, full, ended := 0, true, false
		for full {
			part, err := source.ReadSlice('\n')
			full, ended = errors.Is(err, bufio.ErrBufferFull), errors.Is(err, io.EOF)
			if err != nil && !full && !ended {
				return err //nolint:wrapcheck // the caller's own source
			}
			if size += len(part); size <= maxPiece {
				text.Write(part)
			}
		}
		if service := bytes.TrimSpace(text.Bytes()); len(service) > 0 {
			if done, err := p.mustStop(); done {
				return err
			}
			p.addJSON(service, size, line)
		}
		if ended {
			return nil
		}
	}
}

// addJSON adds the service in text, which has size bytes and begins on the line. A service that is
// too large becomes a problem.
func (p *versionReader) addJSON(text []byte, size, line int) {
	if size > maxPiece {
		p.addService(tooLarge(line, size))
	} else {
		p.addService(catalogentry.FromJSON(text, line))
	}
}
