package catalogfile

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"regexp"

	"github.com/hamlet-federation/coredns-federation/internal/source/file/internal/catalogentry"
)

// firstKey finds the first key of an object in JSON.
var firstKey = regexp.MustCompile(`^\s*\{\s*"((?:[^"\\]|\\.)*)"`)

// isLines reports whether a text that begins with start is JSON lines: an object that is
// no catalog, as its first key is not services.
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

// addJSON reads a service of so many bytes, which begins on the line.
func (p *versionReader) addJSON(text []byte, size, line int) {
	if size > maxPiece {
		p.addService(tooLarge(line, size))
	} else {
		p.addService(catalogentry.FromJSON(text, line))
	}
}
