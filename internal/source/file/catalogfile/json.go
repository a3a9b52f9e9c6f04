package catalogfile

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// readJSON reads a catalog in valid JSON that is one object, service by service.
func (p *versionReader) readJSON(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	counted, lines := int64(0), 1
	line := func(offset int64) int { // offsets must not fall
		lines += bytes.Count(data[counted:offset], []byte("\n"))
		counted = offset
		return lines
	}
	if token, _ := decoder.Token(); token != json.Delim('{') {
		return unreadableError{Line: line(decoder.InputOffset()), Rule: expectServices}
	}
	found := false
	for decoder.More() {
		token, _ := decoder.Token()
		key, _ := token.(string)
		at := line(decoder.InputOffset())
		switch {
		case key != "services":
			return unreadableError{Line: at, Rule: "unknown key " + safetext.Quote(key) + "; " + expectServices}
		case found:
			return unreadableError{Line: at, Rule: "services is there twice"}
		}
		if token, _ := decoder.Token(); token != json.Delim('[') {
			return unreadableError{Line: at, Rule: "services must be a list; an empty one is []"}
		}
		found = true
		for decoder.More() {
			if done, err := p.mustStop(); done {
				return err
			}
			var raw json.RawMessage
			if err := decoder.Decode(&raw); err != nil {
				return unreadableError{Line: at, Service: placeName(p.count), Rule: err.Error()}
			}
			p.addJSON(raw, len(raw), line(decoder.InputOffset()-int64(len(raw))))
		}
		if _, err := decoder.Token(); err != nil {
			return unreadableError{Line: at, Rule: err.Error()}
		}
	}
	if !found {
		return unreadableError{Rule: expectServices}
	}
	return nil
}

// brokenJSON returns the first problem of data that is not valid JSON.
func brokenJSON(data []byte) problem.Problem {
	err := json.Unmarshal(data, new(json.RawMessage))
	wrong := problem.Problem{Rule: err.Error()}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		wrong.Line = 1 + bytes.Count(data[:min(syntax.Offset, int64(len(data)))], []byte("\n"))
	}
	return wrong
}
