package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hamlet-federation/coredns-federation/deploy/internal/program"
)

// The types of the statement:
// https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md and
// https://slsa.dev/spec/v1.0/provenance
const (
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://slsa.dev/provenance/v1"
)

type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

type predicate struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		ResolvedDependencies []resource        `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// statement returns what the files in a folder, and the images, were made of. It has no
// time and no name of a machine, which would be others each time. Nobody has signed it: who
// signs the checksums, which are of this file as well, vouches for it.
func (r release) statement(folder string, digests map[string]v1.Hash, b *program.Binary) ([]byte, error) {
	page := program.Source + "/blob/" + r.version + "/CONTRIBUTING.md#releases"
	s := statement{Type: statementType, PredicateType: predicateType}
	entries, err := os.ReadDir(folder) // by name
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		s.Subject = append(s.Subject, resource{Name: entry.Name(), Digest: map[string]string{"sha256": fmt.Sprintf("%x", sha256.Sum256(content))}})
	}
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		s.Subject = append(s.Subject, resource{Name: r.registry + "/" + name, Digest: map[string]string{"sha256": digests[name].Hex}})
	}
	definition := &s.Predicate.BuildDefinition
	definition.BuildType = page
	definition.ExternalParameters = map[string]string{"version": r.version, "registry": r.registry}
	definition.ResolvedDependencies = []resource{
		{URI: "git+" + program.Source + "@refs/tags/" + r.version, Digest: map[string]string{"gitCommit": b.Commit}},
		{URI: "pkg:golang/std@" + strings.TrimPrefix(b.Info.GoVersion, "go")},
	}
	s.Predicate.RunDetails.Builder.ID = page
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	err = encoder.Encode(s)
	return text.Bytes(), err
}
