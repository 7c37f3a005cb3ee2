// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"
)

// unhex decodes the notation of SPEC.md: hex digits with optional spaces.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkInSpec checks that SPEC.md lists the same vector.
func checkInSpec(t *testing.T, vector string) {
	t.Helper()
	spec, err := os.ReadFile("SPEC.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(spec, []byte("`"+vector+"`")) {
		t.Errorf("SPEC.md does not list the vector %s", vector)
	}
}

func TestFrame_Vectors(t *testing.T) {
	for _, tt := range []struct {
		hex    string
		pool   Pool
		name   string
		packet string
	}{
		{"00000008 01 04 73727631 0001", PoolWAN, "srv1", "\x00\x01"},
		{"00000007 02 04 73727632 ff", PoolLAN, "srv2", "\xff"},
		{"00000003 01 00 08", PoolWAN, "", "\x08"},
		{"0000000a 00 00 00000000000003e8", poolEcho, "", "\x00\x00\x00\x00\x00\x00\x03\xe8"},
	} {
		t.Run(tt.hex, func(t *testing.T) {
			checkInSpec(t, tt.hex)
			want := unhex(t, tt.hex)
			if got := appendFrame(nil, tt.pool, tt.name, []byte(tt.packet)); !bytes.Equal(got, want) {
				t.Errorf("appendFrame = %x, want %x", got, want)
			}
			f, err := decodeFrame(append(want, "the next frame"...))
			if err != nil {
				t.Fatal(err)
			}
			if f.pool != tt.pool || string(f.name) != tt.name || string(f.packet) != tt.packet || f.size != len(want) {
				t.Errorf("decodeFrame() = %+v, want the encoded frame", f)
			}
		})
	}
	if got := appendEcho(nil, 1000); !bytes.Equal(got, unhex(t, "0000000a 00 00 00000000000003e8")) {
		t.Errorf("appendEcho = %x", got)
	}
}

func TestFrame_Invalid(t *testing.T) {
	for _, tt := range []struct {
		why  string
		hex  string
		want error
	}{
		{"no packet", "00000006 01 04 73727631", errFrameLength},
		{"length below the head", "00000001 01 00", errFrameLength},
		{"length zero", "00000000 01 00", errFrameLength},
		{"length below the name", "00000004 01 04 73727631", errFrameLength},
		{"packet too large", "00010003 01 00 00", errFrameLength},
		{"length huge", "ffffffff 01 04 73727631", errFrameLength},
		{"unknown pool", "00000003 03 00 00", errFramePool},
		{"echo with a name", "0000000b 00 01 61 0000000000000000", errFrameLength},
		{"echo too short", "00000003 00 00 00", errFrameLength},
		{"name too long", "000000ff 01 40 00", errFrameName},
		{"name is not a label", "00000006 01 03 612e62 00", errFrameName},
		{"name in upper case", "00000004 01 01 41 00", errFrameName},
		{"cut in the head", "00000008 01", errFrameShort},
		{"cut in the name", "00000008 01 04 7372", errFrameShort},
		{"cut in the packet", "00000008 01 04 73727631 00", errFrameShort},
		{"plain HTTP", "47455420 2f 20 485454502f312e310d0a", errFramePool},
	} {
		t.Run(tt.why, func(t *testing.T) {
			if _, err := decodeFrame(unhex(t, tt.hex)); !errors.Is(err, tt.want) {
				t.Errorf("decodeFrame = %v, want %v", err, tt.want)
			}
		})
	}
	if _, err := decodeFrame(appendFrame(nil, PoolWAN, strings.Repeat("n", MaxName),
		make([]byte, MaxPacket))); err != nil {
		t.Errorf("decodeFrame() of the largest frame = %v, want nil", err)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(appendFrame(nil, PoolWAN, "srv1", []byte{0, 1}))
	f.Add(appendFrame(nil, PoolLAN, "", []byte("x")))
	f.Add(appendEcho(nil, 1<<63))
	f.Add([]byte{0, 1, 0, 3, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := decodeFrame(b)
		if err != nil {
			return
		}
		if len(fr.packet) == 0 || len(fr.packet) > MaxPacket || len(fr.name) > MaxName || fr.size > maxFrame ||
			fr.size > len(b) {
			t.Fatalf("out of bounds: %d %d %d", len(fr.packet), len(fr.name), fr.size)
		}
		if again := appendFrame(nil, fr.pool, string(fr.name), fr.packet); !bytes.Equal(again, b[:fr.size]) {
			t.Fatalf("%x encodes as %x", b[:fr.size], again)
		}
	})
}

func TestConsulFrames(t *testing.T) {
	frames := appendFrame(nil, PoolWAN, "srv1", []byte("ab"))
	frames = appendEcho(frames, 7)
	frames = appendFrame(frames, PoolLAN, "srv1", []byte("no"))
	frames = appendFrame(frames, PoolWAN, "srv1", []byte("c"))
	const vector = "00000002 6162"
	checkInSpec(t, vector)
	if got, want := appendConsulFrames(nil, frames), unhex(t, vector+"00000001 63"); !bytes.Equal(got, want) {
		t.Errorf("appendConsulFrames = %x, want %x", got, want)
	}
}

func FuzzConsulLength(f *testing.F) {
	f.Add(uint32(0))
	f.Add(uint32(1))
	f.Add(uint32(maxConsulPacket))
	f.Add(uint32(maxConsulPacket + 1))
	f.Fuzz(func(t *testing.T, n uint32) {
		got, err := parseConsulLength([lengthLen]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		if ok := n >= 1 && n <= 4<<20; ok != (err == nil) || ok && got != int(n) {
			t.Fatalf("length %d: %d, %v", n, got, err)
		}
	})
}
