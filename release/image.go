// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageUser is the user and the group of the processes of the image.
const imageUser = 65532

// writeImage writes an OCI layout, as a tar file, with the image of each program
// for Linux. The image has no other layer than wanfed: no shell, no library, no
// CA certificate.
func (r *release) writeImage() error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range r.programs {
		if p.os != "linux" {
			continue
		}
		image, err := r.image(p)
		if err != nil {
			return err
		}
		platform := &v1.Platform{OS: p.os, Architecture: p.arch}
		if p.arm != "" {
			platform.Variant = "v" + p.arm
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: platform},
		})
	}
	dir := filepath.Join(r.work, "image")
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// The name is what "podman load" and "docker load" call the image.
	err = to.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name": "wanfed:" + r.version().text, "org.opencontainers.image.ref.name": r.version().text,
	}))
	if err != nil {
		return err
	}
	return r.tarDir(dir, r.file("_oci.tar"))
}

// image returns the image of a program.
func (r *release) image(p program) (v1.Image, error) {
	data, err := r.layer(p)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: r.version().time}
	history := v1.History{Created: created, CreatedBy: "make release"}
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: history})
	if err != nil {
		return nil, err
	}
	cfg, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.Created, cfg.OS, cfg.Architecture = created, p.os, p.arch
	if p.arm != "" {
		cfg.Variant = "v" + p.arm
	}
	cfg.Config = v1.Config{
		Entrypoint: []string{path}, User: "65532:65532", WorkingDir: dataDir,
		Labels: map[string]string{
			"org.opencontainers.image.source":   "https://github.com/wanfed/wanfed",
			"org.opencontainers.image.revision": r.version().commit,
			"org.opencontainers.image.version":  r.version().text,
			"org.opencontainers.image.licenses": "MPL-2.0",
		},
	}
	return mutate.ConfigFile(image, cfg)
}

// layer returns the files of an image as a tar file.
func (r *release) layer(p program) ([]byte, error) {
	program, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	const passwd = "root:x:0:0:root:/:/nonexistent\nwanfed:x:65532:65532:wanfed:/var/lib/wanfed:/nonexistent\n"
	const group = "root:x:0:\nwanfed:x:65532:\n"
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range []struct {
		name  string
		mode  int64
		owner int
		data  []byte // nil: a directory
	}{
		{"etc/", 0o755, 0, nil},
		{"etc/group", 0o644, 0, []byte(group)},
		{"etc/passwd", 0o644, 0, []byte(passwd)},
		{confDir[1:] + "/", 0o700, imageUser, nil},
		{"tmp/", 0o1777, 0, nil},
		{"usr/", 0o755, 0, nil},
		{"usr/bin/", 0o755, 0, nil},
		{path[1:], 0o755, 0, program},
		{"var/", 0o755, 0, nil},
		{"var/lib/", 0o755, 0, nil},
		{dataDir[1:] + "/", 0o700, imageUser, nil},
	} {
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(e.data)), Uid: e.owner, Gid: e.owner,
			ModTime: r.version().time, Format: tar.FormatPAX,
		}
		if e.data == nil {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

// tarDir writes the files of a directory to a tar file.
func (r *release) tarDir(dir, to string) error {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Mode: 0o644, Size: int64(len(data)), ModTime: r.version().time,
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	return errors.Join(err, w.Close(), f.Close())
}
