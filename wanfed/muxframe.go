// SPDX-License-Identifier: MPL-2.0

package wanfed

import "encoding/binary"

const (
	frameHeader = 12      // of yamux, in bytes: version, type, flags, stream, length
	frameData   = 0       // type of a frame with a body
	frameKept   = 4 << 10 // what is kept of frames' memory between two, in bytes
)

// frames puts the header of a yamux frame, which yamux writes by itself, before its body, which is the next it writes: in a record
// of its own it would cost a system call, and a wake-up at every hop. It is for yamux's sender, the one writer.
type frames struct {
	header []byte // whose body comes next
}

// write writes b by w, or keeps it until the next call.
func (f *frames) write(b []byte, w func([]byte) (int, error)) (int, error) {
	if len(f.header) == 0 {
		if bodyFollows(b) {
			f.header = append(f.header, b...)
			return len(b), nil
		}
		return w(b)
	}
	all := append(f.header, b...)
	if f.header = all[:0]; cap(all) > frameKept {
		f.header = nil
	}
	n, err := w(all)
	return max(0, n-frameHeader), err
}

// bodyFollows says whether b is a header whose body is not empty, and fits into a record with it.
func bodyFollows(b []byte) bool {
	if len(b) != frameHeader || b[1] != frameData {
		return false
	}
	n := binary.BigEndian.Uint32(b[8:])
	return n > 0 && n <= maxRecord-frameHeader
}
