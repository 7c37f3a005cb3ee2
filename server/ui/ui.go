// SPDX-License-Identifier: MPL-2.0

package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"time"
)

// Path is the path of the page. Handler serves the paths below it.
const Path = "/ui/"

// policy permits only what the page needs.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// types are the content types by extension. Package mime would also read files
// of the system.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

//go:embed dist
var dist embed.FS

// asset is one file of the page.
type asset struct {
	body []byte
	etag string
}

// Handler returns the handler of GET and HEAD requests of the paths below Path.
// The response to an unknown path is 404.
func Handler() http.Handler {
	assets := map[string]asset{}
	err := fs.WalkDir(dist, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := dist.ReadFile(name)
		sum := sha256.Sum256(body)
		assets[Path+path.Base(name)] = asset{body, `"` + hex.EncodeToString(sum[:16]) + `"`}
		return err
	})
	if err != nil {
		panic("ui: " + err.Error()) // the files are part of the program
	}
	assets[Path] = assets[Path+"index.html"]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, ok := assets[r.URL.Path]
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		if !ok {
			http.Error(w, "no such file", http.StatusNotFound)
			return
		}
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", a.etag)
		typ := types[path.Ext(r.URL.Path)]
		if r.URL.Path == Path {
			typ = types[".html"]
		}
		h.Set("Content-Type", typ)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.body))
	})
}
