// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestStreamHeader_Vectors(t *testing.T) {
	for _, tt := range []struct {
		hex  string
		want streamHeader
	}{
		{"51 01 04 08 73727631 737276322e646332", streamHeader{PoolWAN, "srv1", "srv2.dc2"}},
		{"51 02 00 05 612e646331", streamHeader{PoolLAN, "", "a.dc1"}},
		{"51 03 00 08 737276322e646332", streamHeader{poolGRPC, "", "srv2.dc2"}},
	} {
		t.Run(tt.hex, func(t *testing.T) {
			checkInSpec(t, tt.hex)
			b := unhex(t, tt.hex)
			if got := tt.want.append(nil); !bytes.Equal(got, b) {
				t.Errorf("append() = %x, want %x", got, b)
			}
			// The bytes that follow belong to the user of the stream.
			r := bytes.NewReader(append(b, "user"...))
			if got, err := readStreamHeader(r); err != nil || got != tt.want || r.Len() != len("user") {
				t.Errorf("readStreamHeader() = %+v, %v, leaves %d bytes; want %+v, leaves 4", got, err,
					r.Len(), tt.want)
			}
		})
	}
}

func TestStreamHeader_Invalid(t *testing.T) {
	for _, tt := range []struct {
		name string
		hex  string
		want error
	}{
		{"other version", "52 01 04 08 73727631 737276322e646332", errStreamVersion},
		{"pool 0", "51 00 04 08 73727631 737276322e646332", errFramePool},
		{"pool 4", "51 04 04 08 73727631 737276322e646332", errFramePool},
		{"target too long", "51 01 40 08 00", errStreamName},
		{"source too long", "51 01 00 80 00", errStreamName},
		{"no source", "51 01 04 00 73727631", errStreamName},
		{"source without a datacenter", "51 01 00 04 73727631", errStreamName},
		{"source with two dots", "51 01 00 05 612e622e63", errStreamName},
		{"target is not a label", "51 01 01 05 2e 612e646331", errStreamName},
		{"cut in the names", "51 01 04 08 737276", io.ErrUnexpectedEOF},
		{"cut before the names", "51 01 04 08", io.EOF},
		{"empty", "", io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := readStreamHeader(bytes.NewReader(unhex(t, tt.hex))); !errors.Is(err, tt.want) {
				t.Errorf("readStreamHeader() = %+v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

func TestStreamHeader_Longest(t *testing.T) {
	want := streamHeader{PoolWAN, strings.Repeat("t", MaxName),
		strings.Repeat("s", MaxName) + "." + strings.Repeat("d", MaxName)}
	b := want.append(nil)
	if got, err := readStreamHeader(bytes.NewReader(b)); err != nil || got != want || len(b) != maxStreamHead {
		t.Errorf("readStreamHeader() of %d bytes = %+v, %v, want %+v of %d bytes", len(b), got, err, want,
			maxStreamHead)
	}
}

// A header that readStreamHeader accepts encodes to the bytes that were read.
func FuzzStreamHeader(f *testing.F) {
	f.Add(streamHeader{PoolWAN, "srv1", "srv2.dc2"}.append(nil))
	f.Add(streamHeader{PoolLAN, "", "a.b"}.append(nil))
	f.Add([]byte{streamVersion, 1, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		h, err := readStreamHeader(r)
		if read := b[:len(b)-r.Len()]; err == nil && !bytes.Equal(read, h.append(nil)) {
			t.Fatalf("readStreamHeader() of %x = %+v, want the header of these bytes", read, h)
		}
	})
}

func TestRefusedError_Text(t *testing.T) {
	for s := streamOK; s <= streamUnreachable; s++ {
		if streamStatusText[s] == "" {
			t.Errorf("streamStatusText[%d] is empty, want a text", s)
		}
	}
	if got := (&refusedError{99, "srv1.dc1"}).Error(); !strings.Contains(got, "srv1.dc1") ||
		!strings.Contains(got, "99") {
		t.Errorf("Error() of status 99 = %q, want the target and the status", got)
	}
}
