// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// Content types of records (RFC 8446, section 5.1, and RFC 6520), and how much longer than plain text an encrypted record may be.
const (
	recordFirst      = 20 // change_cipher_spec
	recordLast       = 24 // heartbeat
	recordProtection = 256
)

var errHungUp = errors.New("it closed the connection")

// answer is the first that an upstream said: a whole TLS record and what came with it.
type answer struct {
	b     []byte
	small *[helloBuffer]byte // lent from helloBuffers; b may be in it
}

// free gives the buffer back; a is empty then.
func (a *answer) free() {
	if a.small != nil {
		helloBuffers.Put(a.small)
	}
	*a = answer{}
}

// readAnswer waits for the first TLS record, whatever it says: an alert is an answer too. The deadline is c's.
func readAnswer(c net.Conn) (answer, error) {
	a := answer{small: helloBuffers.Get().(*[helloBuffer]byte)}
	a.b = a.small[:0]
	for {
		n, readErr := c.Read(a.b[len(a.b):cap(a.b)])
		a.b = a.b[:len(a.b)+n]
		size, err := recordSize(a.b)
		if err == nil && len(a.b) >= max(size, recordHeader) {
			return a, nil
		}
		if err == nil && readErr == io.EOF {
			err = errHungUp
		} else if err == nil {
			err = readErr
		}
		if err != nil {
			a.free()
			return a, err
		}
		if size > cap(a.b) {
			a.b = append(make([]byte, 0, size), a.b...)
		}
	}
}

// recordSize returns the size of the TLS record that b begins, with its header; zero while the header is not complete. It
// is at most recordHeader+maxRecord+recordProtection.
func recordSize(b []byte) (int, error) {
	if len(b) >= 1 && (b[0] < recordFirst || b[0] > recordLast) || len(b) >= 2 && b[1] != 3 {
		return 0, errors.New("it does not speak TLS but " + looksLike(b))
	}
	if len(b) < recordHeader {
		return 0, nil
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	if n == 0 || n > maxRecord+recordProtection {
		return 0, fmt.Errorf("its first TLS record has %d bytes", n)
	}
	return recordHeader + n, nil
}
