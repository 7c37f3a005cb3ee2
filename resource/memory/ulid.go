// SPDX-License-Identifier: MPL-2.0

package memory

import "encoding/binary"

// A uid or generation of resource.NewUID is 26 digits of 5 bits, the first of which has 3: 128 bits.

const ulidLen = 26

const ulidDigits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// ulidValues has each digit's value, and 0xff for what is none.
var ulidValues = func() (v [256]byte) {
	for i := range v {
		v[i] = 0xff
	}
	for i := range ulidDigits {
		v[ulidDigits[i]] = byte(i)
	}
	return v
}()

// pack puts text into 16 bytes from which unpack makes the same again, if there are such.
func pack(to *[16]byte, text string) bool {
	if len(text) != ulidLen || text[0] > '7' {
		return false
	}
	var hi, lo uint64
	for i := range ulidLen {
		v := ulidValues[text[i]]
		if v == 0xff {
			return false
		}
		hi = hi<<5 | lo>>59
		lo = lo<<5 | uint64(v)
	}
	binary.BigEndian.PutUint64(to[:8], hi)
	binary.BigEndian.PutUint64(to[8:], lo)
	return true
}

// unpack appends what was packed to 16 bytes.
func unpack(buf []byte, packed string) []byte {
	var hi, lo uint64
	for i := range 8 {
		hi, lo = hi<<8|uint64(packed[i]), lo<<8|uint64(packed[8+i])
	}
	var out [ulidLen]byte
	for i := ulidLen - 1; i >= 0; i-- {
		out[i] = ulidDigits[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return append(buf, out[:]...)
}
