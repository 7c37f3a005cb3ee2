// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	source "github.com/wanfed/wanfed/internal/version"
)

// writeChart packs the Helm chart, as "helm package" does, with the version of
// the release as its version and as the tag of the image.
func (r *release) writeChart() error {
	f, err := os.Create(r.file("_chart.tgz"))
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f) // without a name and a time
	w := tar.NewWriter(z)
	dir := filepath.Join(r.root, "contrib", "helm", "wanfed")
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
		if name == "Chart.yaml" {
			old, version := "ersion: "+source.Version+"\n", "ersion: "+r.version().text+"\n"
			if n := strings.Count(string(data), old); n != 2 {
				return fmt.Errorf("%s has %d versions %s, want version and appVersion", path, n, source.Version)
			}
			data = []byte(strings.ReplaceAll(string(data), old, version))
		}
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: "wanfed/" + filepath.ToSlash(name), Mode: 0o644, Size: int64(len(data)),
			ModTime: r.version().time,
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	return errors.Join(err, w.Close(), z.Close(), f.Close())
}
