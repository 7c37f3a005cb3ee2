// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"os"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// writeSBOM writes a bill of materials in the format CycloneDX: the modules that
// are linked into a program, as the Go toolchain has recorded them.
func (r *release) writeSBOM(p program, data []byte, path string) error {
	v := r.version()
	sum := sha256.Sum256(data)
	bom := cdx.NewBOM()
	bom.SerialNumber = uuid.NewSHA1(uuid.Nil, sum[:]).URN()
	main := component(debug.Module{Path: p.info.Main.Path, Version: v.text})
	main.Type = cdx.ComponentTypeApplication
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	main.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "MPL-2.0"}}}
	bom.Metadata = &cdx.Metadata{Timestamp: v.time.UTC().Format(time.RFC3339), Component: &main}
	list := []cdx.Component{component(debug.Module{Path: "std", Version: p.info.GoVersion})}
	refs := []string{list[0].BOMRef}
	for _, m := range p.info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		list = append(list, component(*m))
		refs = append(refs, list[len(list)-1].BOMRef)
	}
	bom.Components = &list
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	var b bytes.Buffer
	if err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// component describes a module. Its hash is the SHA-256 of go.sum, which is over
// the names and hashes of its files.
func component(m debug.Module) cdx.Component {
	purl := "pkg:golang/" + m.Path + "@" + strings.TrimPrefix(m.Version, "go")
	c := cdx.Component{
		Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: m.Path, Version: m.Version, PackageURL: purl,
	}
	if b, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(b) > 0 {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(b)}}
	}
	return c
}
