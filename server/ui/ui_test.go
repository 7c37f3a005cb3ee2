// SPDX-License-Identifier: MPL-2.0

package ui

import (
	"bytes"
	"compress/gzip"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

// maxCompressed bounds the size of all files after gzip, in bytes.
const maxCompressed = 250_000

func get(target string, header http.Header) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", target, nil)
	r.Header = header
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w
}

func TestHandler_Files(t *testing.T) {
	external := regexp.MustCompile(`(src|href|action)="(https?:)?//|@import|url\(['"]?[^#'"]`)
	total := 0
	entries, err := fs.ReadDir(dist, "dist")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		w := get(Path+e.Name(), nil)
		if w.Code != 200 || w.Header().Get("Content-Type") != types[path.Ext(e.Name())] || w.Body.Len() == 0 {
			t.Errorf("GET %s = %d %q with %d bytes, want 200 with the content type and the file",
				e.Name(), w.Code, w.Header().Get("Content-Type"), w.Body.Len())
		}
		if m := external.FindString(w.Body.String()); m != "" && !strings.HasSuffix(e.Name(), ".txt") {
			t.Errorf("%s has %q, want no reference to another server", e.Name(), m)
		}
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		z.Write(w.Body.Bytes())
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		total += b.Len()
	}
	if t.Logf("%d bytes compressed", total); total == 0 || total >= maxCompressed {
		t.Errorf("all files have %d bytes compressed, want fewer than %d", total, maxCompressed)
	}
}

func TestHandler_Policy(t *testing.T) {
	page := get(Path, nil)
	if page.Code != 200 || page.Header().Get("Content-Type") != types[".html"] {
		t.Errorf("GET %s = %d %q, want the page", Path, page.Code, page.Header().Get("Content-Type"))
	}
	// The browser refuses inline scripts and styles.
	if m := regexp.MustCompile(`(?i)<script>|<style|\sstyle=|\son\w+=`).FindString(page.Body.String()); m != "" {
		t.Errorf("the page has %q, which its policy refuses", m)
	}
	for _, target := range []string{Path, Path + "app.js", Path + "none", Path + "../v1/kv/a"} {
		policy := get(target, nil).Header().Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
			"frame-ancestors 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("policy of %s = %q, want %q in it", target, policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") {
			t.Errorf("policy of %s = %q, want nothing unsafe", target, policy)
		}
	}
	if w := get(Path+"none", nil); w.Code != 404 {
		t.Errorf("GET of an unknown file = %d, want 404", w.Code)
	}
}

func TestHandler_ETag(t *testing.T) {
	etag := get(Path, nil).Header().Get("ETag")
	if w := get(Path, http.Header{"If-None-Match": {etag}}); etag == "" || w.Code != 304 || w.Body.Len() > 0 {
		t.Errorf("GET with ETag %s = %d with %d bytes, want 304 without a body", etag, w.Code, w.Body.Len())
	}
}
