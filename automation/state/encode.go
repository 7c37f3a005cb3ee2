// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"compress/gzip"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/resource"
)

// MaxSize bounds a state, in bytes.
const MaxSize = 64 << 20

// header has the fields of Terraform's state that the Store interprets.
type header struct {
	Serial  *uint64 `json:"serial"`
	Lineage string  `json:"lineage"`
}

// parseHeader returns the serial and the lineage of a state, or an ErrInvalid,
// which has no part of the state.
func parseHeader(data []byte) (serial uint64, lineage string, err error) {
	var h header
	switch {
	case len(data) > MaxSize:
		return 0, "", fmt.Errorf("%w size of a state, %d bytes: must be at most %d", resource.ErrInvalid, len(data), MaxSize)
	case json.Unmarshal(data, &h) != nil || h.Serial == nil || h.Lineage == "" || len(h.Lineage) > 256:
		return 0, "", fmt.Errorf("%w state of Terraform: must be a JSON object with a serial and a lineage", resource.ErrInvalid)
	}
	return *h.Serial, h.Lineage, nil
}

// withLineage returns a state with a lineage. Equal states get equal lineages.
// Data that is not a state is returned as it is.
func withLineage(data []byte) []byte {
	var lineage struct{ Lineage *string }
	var state map[string]json.RawMessage
	if len(data) > MaxSize || json.Unmarshal(data, &lineage) != nil || lineage.Lineage == nil || *lineage.Lineage != "" ||
		json.Unmarshal(data, &state) != nil {
		return data
	}
	state["lineage"], _ = json.Marshal(uuid.NewSHA1(uuid.NameSpaceOID, data)) // a UUID can be encoded
	out, err := json.Marshal(state)
	if err != nil {
		return data
	}
	return out
}

// additional returns the additional data that authenticates the position of a
// chunk. The name of a task has no "/".
func additional(name string, number uint64, index, count int) []byte {
	return fmt.Appendf(nil, "wanfed state/%s/%d/%d/%d", name, number, index, count)
}

// encode compresses and encrypts a state, and divides it into chunks. The
// version has all fields except those of its storage: chunks, stored_at and run.
func (k key) encode(name string, number uint64, data []byte) (*pb.TaskStateVersion, [][]byte, error) {
	serial, lineage, err := parseHeader(data)
	if err != nil {
		return nil, nil, err
	}
	var compressed bytes.Buffer
	w, err := gzip.NewWriterLevel(&compressed, gzip.BestSpeed)
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, nil, err
	}
	part := task.MaxChunk - k.aead.Overhead()
	count := (compressed.Len() + part - 1) / part
	chunks := make([][]byte, count)
	for i := range chunks {
		plain := compressed.Next(part)
		chunks[i] = k.aead.Seal(make([]byte, 0, len(plain)+k.aead.Overhead()), nil, plain, additional(name, number, i, count))
	}
	return &pb.TaskStateVersion{
		Number: number, Serial: serial, Lineage: lineage, Size: uint64(len(data)), Digest: k.digest(data), Key: k.id,
	}, chunks, nil
}

// decode is the inverse of encode. chunk returns the content of the chunk with
// an index.
func (k *Keys) decode(name string, v *pb.TaskStateVersion, count int, chunk func(i int) ([]byte, error)) ([]byte, error) {
	fail := func(why, remedy string) ([]byte, error) {
		return nil, fmt.Errorf("read version %d of the state of task %s, encrypted with key %s: %s: %s", v.Number, name, v.Key, why, remedy)
	}
	restore := "restore another version: wanfed task state restore " + name
	key, ok := k.find(v.Key)
	if !ok {
		return fail("the key file does not have this key", "add its line from the key file of the daemon that stored the version")
	}
	var compressed []byte
	for i := range count {
		content, err := chunk(i)
		if damaged, ok := errors.AsType[damagedError](err); ok {
			return fail(fmt.Sprintf("chunk %d of %d %v", i+1, count, damaged), restore)
		}
		if err != nil {
			return nil, err
		}
		compressed, err = key.aead.Open(compressed, nil, content, additional(name, v.Number, i, count))
		if err != nil {
			return fail(fmt.Sprintf("chunk %d of %d does not belong to it, or the key file has another key with this id", i+1, count),
				"compare the key files of the daemons, or "+restore)
		}
	}
	data, err := decompress(compressed, v.Size)
	if err != nil || !hmac.Equal(key.digest(data), v.Digest) {
		return fail("the content does not match the size and the digest of the version", restore)
	}
	return data, nil
}

// decompress returns the first size bytes of the content of a gzip stream.
func decompress(compressed []byte, size uint64) ([]byte, error) {
	if size > MaxSize {
		return nil, fmt.Errorf("%d bytes: at most %d", size, MaxSize)
	}
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, err
	}
	data := make([]byte, size)
	_, err = io.ReadFull(r, data)
	return data, err
}

// damagedError is the reason why a chunk cannot be read any more.
type damagedError string

func (e damagedError) Error() string { return string(e) }

// chunkName returns the name of the chunk with a content.
func chunkName(name string, content []byte) string {
	sum := sha256.Sum256(content)
	return name + "." + hex.EncodeToString(sum[:])
}

// checkChunk returns a damagedError unless the content belongs to the name.
func checkChunk(name string, content []byte) error {
	owner, _, _ := strings.Cut(name, ".")
	if chunkName(owner, content) != name {
		return damagedError("is damaged")
	}
	return nil
}

// DigestKey returns a key for digests of secrets that are stored at the servers.
// It belongs to the key with the lowest id, wherever it is in the file. Ids of
// GenerateKey are ordered by time, so a new key does not change the digests.
func (k *Keys) DigestKey() []byte {
	return slices.MinFunc(k.keys, func(a, b key) int { return strings.Compare(a.id, b.id) }).mac
}
