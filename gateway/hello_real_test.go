// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
)

// recorded returns the ClientHellos of real clients by file name.
// testdata/hello/README.md describes how they were recorded.
func recorded(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/hello/*.bin")
	if err != nil || len(files) < 20 {
		t.Fatalf("Glob() = %d files, %v; want at least 20", len(files), err)
	}
	all := map[string][]byte{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(f), ".bin")] = b
	}
	return all
}

// body returns the handshake message of a ClientHello without record headers.
func body(hello []byte) []byte {
	var msg []byte
	for len(hello) > 0 {
		n := recordHeader + int(hello[3])<<8 + int(hello[4])
		msg = append(msg, hello[recordHeader:n]...)
		hello = hello[n:]
	}
	return msg
}

// Each ClientHello is parsed in every division into segments and records that a
// network or another TLS library could produce.
func TestParse_Recorded(t *testing.T) {
	names := map[string]string{ // by file, if the name is not srv1.server.dc1.wanfed
		"curl-7.88-ip-address": "", "openssl-3.0-no-sni": "", "go-1.26-no-sni": "",
		"wget-1.21-gnutls": "localhost", "go-1.26-ech": "public.wanfed.example",
	}
	for file, hello := range recorded(t) {
		t.Run(file, func(t *testing.T) {
			if strings.HasSuffix(file, "trailing-dot") { // RFC 6066 forbids it, and crypto/tls refuses it
				if got, err := parse(hello, len(hello)); err != nil || got.SNI != "srv1.server.dc1.wanfed" {
					t.Errorf("Parse() = %+v, %v; want SNI srv1.server.dc1.wanfed", got, err)
				}
				return
			}
			want := checkHello(t, hello)
			sni, ok := names[file]
			if !ok {
				sni = "srv1.server.dc1.wanfed"
			}
			if want.SNI != sni || want.EarlyData != strings.HasSuffix(file, "early-data") ||
				strings.Contains(file, "alpn") && !slices.Contains(want.ALPN, "wanfed/gossip/1") {
				t.Errorf("content of %s = %+v, want SNI %q, and the ALPN and EarlyData of the file name",
					file, want, sni)
			}
			testDivided(t, hello, want)
		})
	}
}

// testDivided parses hello in many divisions into segments and records, and
// compares the results with want.
func testDivided(t *testing.T, hello []byte, want content) {
	check := func(division string, n int, got content, err error) {
		if err != nil || got.SNI != want.SNI || got.EarlyData != want.EarlyData || !slices.Equal(got.ALPN, want.ALPN) {
			t.Fatalf("%s %d = %+v, %v; want %+v", division, n, got, err, want)
		}
	}
	for n := 1; n < len(hello); n++ {
		got, err := parse(hello, n)
		check("Parse() in segments of", n, got, err)
	}
	msg := body(hello)
	for n := 1; n < len(msg); n++ {
		two := append(records(msg[:n], tlsrecord.MaxPayload), records(msg[n:], tlsrecord.MaxPayload)...)
		got, err := parse(two, len(two))
		check("Parse() in two records, the first of", n, got, err)
		if n%97 == 0 { // crypto/tls is slow
			got, ok := cryptoHello(two)
			if !ok {
				t.Errorf("crypto/tls refuses two records, the first of %d bytes", n)
			}
			check("crypto/tls in two records, the first of", n, got, nil)
		}
	}
	for _, n := range []int{1, 2, 3, 4, 5, 100, 512} {
		got, err := parse(records(msg, n), 13)
		check("Parse() in segments of 13 bytes and records of", n, got, err)
	}
}
