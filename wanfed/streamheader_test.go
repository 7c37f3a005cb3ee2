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
				t.Errorf("append = %x, want %x", got, b)
			}
			if got, err := decodeStreamHeader(b); err != nil || got != tt.want {
				t.Errorf("decodeStreamHeader = %+v, %v", got, err)
			}
			// The bytes that follow belong to the user of the stream.
			r := bytes.NewReader(append(b, "user"...))
			if got, err := readStreamHeader(r); err != nil || got != tt.want || r.Len() != len("user") {
				t.Errorf("readStreamHeader = %+v, %v, leaves %d bytes", got, err, r.Len())
			}
		})
	}
}

func TestStreamHeader_Invalid(t *testing.T) {
	for _, tt := range []struct {
		why  string
		hex  string
		want error
	}{
		{"other version", "52 01 04 08 73727631 737276322e646332", errStreamVersion},
		{"unknown pool", "51 00 04 08 73727631 737276322e646332", errFramePool},
		{"unknown pool", "51 04 04 08 73727631 737276322e646332", errFramePool},
		{"target too long", "51 01 40 08 00", errStreamName},
		{"source too long", "51 01 00 80 00", errStreamName},
		{"no source", "51 01 04 00 73727631", errStreamName},
		{"source without a datacenter", "51 01 00 04 73727631", errStreamName},
		{"source with two dots", "51 01 00 05 612e622e63", errStreamName},
		{"target is not a label", "51 01 01 05 2e 612e646331", errStreamName},
		{"cut", "51 01 04 08 737276", errFrameShort},
		{"empty", "", errFrameShort},
	} {
		t.Run(tt.why, func(t *testing.T) {
			b := unhex(t, tt.hex)
			if _, err := decodeStreamHeader(b); !errors.Is(err, tt.want) {
				t.Errorf("decodeStreamHeader = %v, want %v", err, tt.want)
			}
			if _, err := readStreamHeader(bytes.NewReader(b)); err == nil {
				t.Error("readStreamHeader succeeds, want an error")
			} else if tt.want == errFrameShort && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("readStreamHeader = %v, want an EOF", err)
			}
		})
	}
	long := streamHeader{PoolWAN, strings.Repeat("t", MaxName),
		strings.Repeat("s", MaxName) + "." + strings.Repeat("d", MaxName)}
	b := long.append(nil)
	if got, err := decodeStreamHeader(b); err != nil || got != long || len(b) != maxStreamHead {
		t.Errorf("the longest header: %v, %d bytes", err, len(b))
	}
}

func FuzzStreamHeader(f *testing.F) {
	f.Add(streamHeader{PoolWAN, "srv1", "srv2.dc2"}.append(nil))
	f.Add(streamHeader{PoolLAN, "", "a.b"}.append(nil))
	f.Add([]byte{streamVersion, 1, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeStreamHeader(b)
		r, rerr := readStreamHeader(bytes.NewReader(b))
		if (err == nil) != (rerr == nil) || h != r {
			t.Fatalf("decode: %+v, %v; read: %+v, %v", h, err, r, rerr)
		}
		if err == nil && !bytes.HasPrefix(b, h.append(nil)) {
			t.Fatalf("%x decodes as %+v", b, h)
		}
	})
}

func TestRefusedError_Text(t *testing.T) {
	for s := streamOK; s <= streamUnreachable; s++ {
		if streamStatusText[s] == "" {
			t.Errorf("status %d has no text", s)
		}
	}
	if got := (&refusedError{99, "srv1.dc1"}).Error(); !strings.Contains(got, "srv1.dc1") || !strings.Contains(got, "99") {
		t.Errorf("unknown status: %q", got)
	}
}
