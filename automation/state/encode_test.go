// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
)

// tfstate returns a state with a serial and an output.
func tfstate(serial int, output string) []byte {
	return fmt.Appendf(nil, `{"version":4,"serial":%d,"lineage":"l1","outputs":{"a":{"value":%q,"type":"string"}}}`, serial, output)
}

// noise returns a text of n bytes that is compressed to three quarters.
func noise(n int) string {
	random := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	return base64.StdEncoding.EncodeToString(random)[:n]
}

func mustKeys(t testing.TB, content string) *Keys {
	t.Helper()
	k, err := parseKeys([]byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestEncode_Chunks(t *testing.T) {
	k := mustKeys(t, line("a", 'x'))
	for _, size := range []int{1, 3 << 20} {
		data := tfstate(7, noise(size))
		v, chunks, err := k.keys[0].encode("web", 3, data)
		if err != nil || v.Number != 3 || v.Serial != 7 || v.Lineage != "l1" || v.Key != "a" || v.Size != uint64(len(data)) {
			t.Fatalf("encode() = %v, %v, want the header of the state", v, err)
		}
		if (len(chunks) > 1) != (size > 1) {
			t.Errorf("encode(%d bytes) has %d chunks", size, len(chunks))
		}
		for i, c := range chunks {
			if len(c) > task.MaxChunk || i < len(chunks)-1 && len(c) != task.MaxChunk {
				t.Errorf("chunk %d of %d has %d bytes, want %d", i, len(chunks), len(c), task.MaxChunk)
			}
			if bytes.Contains(c, []byte("lineage")) {
				t.Errorf("chunk %d has plain text", i)
			}
		}
		got, err := k.decode("web", v, len(chunks), func(i int) ([]byte, error) { return chunks[i], nil })
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("decode() = %d bytes, %v, want the state", len(got), err)
		}
	}
}

func TestDecode_Damaged(t *testing.T) {
	k := mustKeys(t, line("a", 'x')+line("b", 'y'))
	data := tfstate(7, noise(3<<20))
	v, chunks, err := k.keys[0].encode("web", 3, data)
	if err != nil || len(chunks) != 3 {
		t.Fatalf("encode() = %d chunks, %v, want 3", len(chunks), err)
	}
	_, other, err := k.keys[0].encode("web", 4, data)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(chunks[1])
	flipped[len(flipped)/2] ^= 1
	with := func(change func(v *pb.TaskStateVersion)) *pb.TaskStateVersion {
		v := proto.CloneOf(v)
		change(v)
		return v
	}
	for name, test := range map[string]struct {
		task   string
		v      *pb.TaskStateVersion
		chunks [][]byte
		want   string
	}{
		"flipped bit":    {"web", v, [][]byte{chunks[0], flipped, chunks[2]}, "chunk 2 of 3 does not belong to it"},
		"truncated":      {"web", v, [][]byte{chunks[0], chunks[1], chunks[2][:100]}, "chunk 3 of 3 does not belong"},
		"empty chunk":    {"web", v, [][]byte{{}, chunks[1], chunks[2]}, "chunk 1 of 3 does not belong"},
		"exchanged":      {"web", v, [][]byte{chunks[1], chunks[0], chunks[2]}, "chunk 1 of 3 does not belong"},
		"fewer":          {"web", v, chunks[:2], "chunk 1 of 2 does not belong"},
		"other version":  {"web", v, [][]byte{other[0], chunks[1], chunks[2]}, "chunk 1 of 3 does not belong"},
		"other task":     {"db", v, chunks, "chunk 1 of 3 does not belong"},
		"no chunks":      {"web", v, nil, "does not match the size"},
		"wrong key":      {"web", with(func(v *pb.TaskStateVersion) { v.Key = "b" }), chunks, "another key with this id"},
		"missing key":    {"web", with(func(v *pb.TaskStateVersion) { v.Key = "c" }), chunks, "does not have this key: add its line"},
		"smaller":        {"web", with(func(v *pb.TaskStateVersion) { v.Size-- }), chunks, "does not match the size"},
		"larger":         {"web", with(func(v *pb.TaskStateVersion) { v.Size++ }), chunks, "does not match the size"},
		"size of memory": {"web", with(func(v *pb.TaskStateVersion) { v.Size = 1 << 60 }), chunks, "does not match the size"},
		"other digest":   {"web", with(func(v *pb.TaskStateVersion) { v.Digest = nil }), chunks, "and the digest"},
	} {
		got, err := k.decode(test.task, test.v, len(test.chunks), func(i int) ([]byte, error) { return test.chunks[i], nil })
		head := fmt.Sprintf("read version 3 of the state of task %s, encrypted with key %s: ", test.task, test.v.Key)
		if got != nil || err == nil || !strings.HasPrefix(err.Error(), head) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: decode() = %d bytes, %v, want %q", name, len(got), err, test.want)
		}
	}
}

func TestParseHeader_Invalid(t *testing.T) {
	for _, data := range []string{"", "{}", "[]", "null", `{"serial":1}`, `{"lineage":"a"}`, `{"serial":-1,"lineage":"a"}`,
		`{"serial":1,"lineage":"a"`, `{"serial":"secret","lineage":"a"}`, `{"serial":1,"lineage":"` + noise(257) + `"}`} {
		if _, _, err := parseHeader([]byte(data)); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("parseHeader(%.40s) = %v, want an error without content", data, err)
		}
	}
	if _, _, err := parseHeader(make([]byte, MaxSize+1)); err == nil {
		t.Error("parseHeader() of a large state = nil, want an error")
	}
}

// FuzzDecode changes one chunk of a state. The result is the state or an error.
func FuzzDecode(f *testing.F) {
	k := mustKeys(f, line("a", 'x'))
	data := tfstate(7, "secret")
	v, chunks, err := k.keys[0].encode("web", 1, data)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(chunks[0], v.Size)
	f.Add(chunks[0][:20], v.Size)
	f.Fuzz(func(t *testing.T, chunk []byte, size uint64) {
		v := proto.CloneOf(v)
		v.Size = size
		got, err := k.decode("web", v, 1, func(int) ([]byte, error) { return chunk, nil })
		if err == nil && !bytes.Equal(got, data) {
			t.Errorf("decode() = %q, want the state or an error", got)
		}
		_, _ = decompress(chunk, size%(1<<20))
	})
}
