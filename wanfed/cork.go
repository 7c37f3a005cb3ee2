// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"crypto/tls"
	"sync"
)

// cork gathers the records that TLS writes for one large Write, so that they go out by one system call.
type cork struct {
	mu  sync.Mutex // TLS may also write while it reads: an alert
	on  bool
	buf []byte
}

// maxRecord is what one TLS record holds, in bytes (RFC 8446 section 5.1).
const maxRecord = 16 << 10

// Write writes, or keeps b for writeAtOnce, which is under way.
func (p *pathConn) Write(b []byte) (int, error) {
	if p.cork.keep(b) {
		return len(b), nil
	}
	return p.Conn.Write(b)
}

func (k *cork) keep(b []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.on {
		k.buf = append(k.buf, b...)
	}
	return k.on
}

// writeAtOnce is c.Write, c being the TLS connection above p, with one system call for all its records.
func (p *pathConn) writeAtOnce(c *tls.Conn, b []byte) error {
	k := &p.cork
	if len(b) > maxRecord {
		k.mu.Lock()
		k.on = true
		k.mu.Unlock()
	}
	_, err := c.Write(b)
	k.mu.Lock()
	defer k.mu.Unlock() // what TLS writes meanwhile comes after
	k.on = false
	if len(k.buf) > 0 && err == nil {
		_, err = p.Conn.Write(k.buf)
	}
	k.buf = k.buf[:0]
	return err
}

// free gives back what a burst needed.
func (k *cork) free() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.buf = nil
}
