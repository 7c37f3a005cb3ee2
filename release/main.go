// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	out := flag.String("out", "", "empty or absent `directory` of the files (required)")
	only := flag.String("platforms", "", "comma-separated `list` of platforms, such as linux/amd64 (default: all)")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run("..", *out, *only); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run builds the release of the repository at root into a directory.
func run(root, out, only string) error {
	targets, err := selectPlatforms(only)
	if err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty; remove it first", out)
	}
	work, err := os.MkdirTemp("", "wanfed-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	r := release{root: root, out: out, work: work}
	for _, p := range targets {
		if err := r.addProgram(p); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	if err := r.writeDocs(); err != nil {
		return fmt.Errorf("manual pages and completion: %w", err)
	}
	if err := r.writePackages(); err != nil {
		return err
	}
	if err := r.writeImage(); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := r.writeChart(); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	if err := r.writeChecksums(); err != nil {
		return err
	}
	if key := os.Getenv(envKey); key != "" {
		return sign(filepath.Join(r.out, "SHA256SUMS"), key)
	}
	return nil
}

// release is a release under construction.
type release struct {
	root     string // directory of the repository
	out      string // directory of the result
	work     string // directory of temporary files
	programs []program
}

// file returns the path of a file of the result.
func (r *release) file(suffix string) string {
	return filepath.Join(r.out, "wanfed_"+r.version().String()+suffix)
}

// writeChecksums writes the SHA-256 of all files, for "sha256sum -c".
func (r *release) writeChecksums() error {
	entries, err := os.ReadDir(r.out) // sorted by name
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(data), e.Name())
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(b.String()), 0o644)
}
