// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"fmt"
	"strings"
)

// beginnings are what clients that speak no TLS, or put something before it, send first.
var beginnings = []struct{ prefix, is string }{
	{"GET ", httpRequest}, {"HEAD ", httpRequest}, {"POST ", httpRequest}, {"PUT ", httpRequest}, {"DELETE ", httpRequest},
	{"OPTIONS ", httpRequest}, {"PATCH ", httpRequest}, {"TRACE ", httpRequest},
	{"CONNECT ", "an HTTP proxy request (CONNECT); gateways are no HTTP proxies"},
	{"PRI * HTTP/2.0", "HTTP/2 without TLS"},
	{"PROXY ", aProxyHeader}, {"\r\n\r\n\x00\r\nQUIT\n", aProxyHeader},
	{"SSH-", "an SSH client"},
	{"EHLO ", "an SMTP client"}, {"HELO ", "an SMTP client"},
	{"\x15\x03", "a TLS alert"},
	{"\x16\x03", "a TLS hello"},
	{"\x17\x03", "TLS application data: the connection did not begin with a handshake"},
}

const (
	httpRequest  = "a plain HTTP request"
	aProxyHeader = "a PROXY protocol header: name its sender in proxy_protocol (version 2 only), or switch it off there"
)

// looksLike says in words what the first bytes of a connection are. It may see as few as one.
func looksLike(b []byte) string {
	s := string(b[:min(len(b), 16)])
	for _, k := range beginnings {
		if strings.HasPrefix(s, k.prefix) {
			return k.is
		}
	}
	switch {
	case len(b) > 2 && b[0]&0x80 != 0 && b[2] == 1:
		return "an SSL 2.0 hello; the client is too old"
	case strings.IndexFunc(s, func(r rune) bool { return r < ' ' && r != '\r' && r != '\n' && r != '\t' || r > '~' }) < 0:
		return fmt.Sprintf("text: %q", s)
	}
	return fmt.Sprintf("binary data: % x", s)
}
