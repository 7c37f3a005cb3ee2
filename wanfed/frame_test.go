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
		{"00000011 04 04 73727632 08 737276312e646332 0001", poolRelayed, "srv2", "\x08srv1.dc2\x00\x01"},
		{"0000000a 00 00 00000000000003e8", poolEcho, "", "\x00\x00\x00\x00\x00\x00\x03\xe8"},
	} {
		t.Run(tt.hex, func(t *testing.T) {
			checkInSpec(t, tt.hex)
			want := unhex(t, tt.hex)
			if got := appendFrame(nil, tt.pool, tt.name, []byte(tt.packet)); !bytes.Equal(got, want) {
				t.Errorf("appendFrame() = %x, want %x", got, want)
			}
			f, err := decodeFrame(append(want, "the next frame"...))
			if err != nil {
				t.Fatalf("decodeFrame() = %v, want nil", err)
			}
			if f.pool != tt.pool || string(f.name) != tt.name || string(f.packet) != tt.packet || f.size != len(want) {
				t.Errorf("decodeFrame() = %+v, want pool %v, name %q, packet %q, size %d", f, tt.pool, tt.name,
					tt.packet, len(want))
			}
		})
	}
	if got, want := appendEcho(nil, 1000), unhex(t, "0000000a 00 00 00000000000003e8"); !bytes.Equal(got, want) {
		t.Errorf("appendEcho(1000) = %x, want %x", got, want)
	}
}

func TestFrame_Invalid(t *testing.T) {
	for _, tt := range []struct {
		name string
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
		t.Run(tt.name, func(t *testing.T) {
			if _, err := decodeFrame(unhex(t, tt.hex)); !errors.Is(err, tt.want) {
				t.Errorf("decodeFrame(%s) = %v, want %v", tt.hex, err, tt.want)
			}
		})
	}
	largest := appendFrame(nil, PoolWAN, strings.Repeat("n", MaxName), make([]byte, MaxPacket))
	if _, err := decodeFrame(largest); err != nil {
		t.Errorf("decodeFrame() of the largest frame = %v, want nil", err)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(appendFrame(nil, PoolWAN, "srv1", []byte{0, 1}))
	f.Add(appendFrame(nil, PoolLAN, "", []byte("x")))
	f.Add(appendEcho(nil, 1<<63))
	f.Add([]byte{0, 1, 0, 3, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		decoded, err := decodeFrame(b)
		if err != nil {
			return
		}
		const maxFrame = frameHeadLen + MaxName + MaxPacket
		name, packet, size := len(decoded.name), len(decoded.packet), decoded.size
		if packet == 0 || packet > MaxPacket || name > MaxName || size > maxFrame || size > len(b) {
			t.Fatalf(
				"decodeFrame() = name of %d, packet of %d, frame of %d bytes; want at most %d, 1 to %d, at most %d",
				name, packet, size, MaxName, MaxPacket, min(maxFrame, len(b)))
		}
		if got := appendFrame(nil, decoded.pool, string(decoded.name), decoded.packet); !bytes.Equal(got, b[:size]) {
			t.Fatalf("appendFrame() of the decoded frame = %x, want %x", got, b[:size])
		}
	})
}

// TestConsulFrames converts a sequence of frames to Consul's framing, which
// lacks echoes and packets of the LAN pool.
func TestConsulFrames(t *testing.T) {
	frames := appendFrame(nil, PoolWAN, "srv1", []byte("ab"))
	frames = appendEcho(frames, 7)
	frames = appendFrame(frames, PoolLAN, "srv1", []byte("no"))
	frames = appendFrame(frames, PoolWAN, "srv1", []byte("c"))
	const vector = "00000002 6162"
	checkInSpec(t, vector)
	if got, want := appendConsulFrames(nil, frames), unhex(t, vector+"00000001 63"); !bytes.Equal(got, want) {
		t.Errorf("appendConsulFrames() = %x, want %x", got, want)
	}
}

func FuzzConsulLength(f *testing.F) {
	f.Add(uint32(0))
	f.Add(uint32(1))
	f.Add(uint32(maxConsulPacket))
	f.Add(uint32(maxConsulPacket + 1))
	f.Fuzz(func(t *testing.T, n uint32) {
		got, err := parseConsulLength([lengthLen]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		if valid := n >= 1 && n <= maxConsulPacket; valid != (err == nil) || valid && got != int(n) {
			t.Fatalf("parseConsulLength(%d) = %d, %v; want %d, or an error outside of 1 to 64 KiB", n, got, err, n)
		}
	})
}

// A server of an earlier version receives relayed frames without their senders.
func TestWithoutSources(t *testing.T) {
	relayed := appendFrame(nil, poolRelayed, "srv2", relayedPacket("srv1.dc2", []byte("one")))
	in := appendFrame(appendEcho(relayed, 7), PoolLAN, "srv2", []byte("two"))
	want := appendFrame(appendEcho(appendFrame(nil, PoolWAN, "srv2", []byte("one")), 7), PoolLAN, "srv2", []byte("two"))
	if got := withoutSources(in); !bytes.Equal(got, want) {
		t.Errorf("withoutSources() = %x, want %x", got, want)
	}
}

func FuzzSplitRelayed(f *testing.F) {
	f.Add(relayedPacket("srv1.dc2", []byte("x")))
	f.Add([]byte{0, 1})
	f.Add([]byte{255})
	f.Fuzz(func(t *testing.T, b []byte) {
		source, packet, err := splitRelayed(b)
		if err == nil && !bytes.Equal(relayedPacket(source, packet), b) {
			t.Errorf("splitRelayed(%x) = %q, %x, which is encoded differently", b, source, packet)
		}
	})
}
