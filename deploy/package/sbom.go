package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeBOM writes NAME-VERSION-linux-ARCH.cdx.json, a CycloneDX list of the modules
// that are linked into the binary, as the binary itself names them.
func writeBOM(p product, b *versionedBinary, _, folder string) error {
	main := newComponent(cdx.ComponentTypeApplication, b.Info.Main.Path, b.Info.Main.Version, "")
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(b.Content))}}
	main.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
	main.Properties = &[]cdx.Property{
		{Name: "binary", Value: p.command},
		{Name: "platform", Value: "linux/" + b.Arch},
		{Name: "commit", Value: b.Commit},
	}
	std := newComponent(cdx.ComponentTypeLibrary, "std", strings.TrimPrefix(b.Info.GoVersion, "go"), "")
	components, refs := []cdx.Component{std}, []string{std.BOMRef}
	for _, module := range b.Info.Deps {
		c := componentOf(module)
		components, refs = append(components, c), append(refs, c.BOMRef)
	}
	bom := cdx.NewBOM() // without a serial number, as that would be another each time
	bom.Metadata = &cdx.Metadata{Timestamp: b.Time.Format(time.RFC3339), Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	var text bytes.Buffer
	if err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%s-linux-%s.cdx.json", p.name, b.version, b.Arch)
	return os.WriteFile(filepath.Join(folder, name), text.Bytes(), public)
}

// componentOf returns a module as it was linked: the one that replaces it, if any.
func componentOf(module *debug.Module) cdx.Component {
	if module.Replace != nil {
		module = module.Replace
	}
	return newComponent(cdx.ComponentTypeLibrary, module.Path, module.Version, module.Sum)
}

// newComponent returns a module. The sum is that of go.sum, of the files of the module.
func newComponent(kind cdx.ComponentType, path, version, sum string) cdx.Component {
	// https://github.com/package-url/purl-spec/blob/main/types/golang-definition.json
	purl := "pkg:golang/" + strings.ToLower(path) + "@" + strings.ReplaceAll(version, "+", "%2B")
	c := cdx.Component{Type: kind, BOMRef: purl, Name: path, Version: version, PackageURL: purl}
	if hash, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:")); err == nil && len(hash) == sha256.Size {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(hash)}}
	}
	return c
}
