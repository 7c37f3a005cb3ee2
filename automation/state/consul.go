// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/md5"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/wanfed/wanfed/api"
)

// ConsulPath is the default path of CTS's states in Consul.
const ConsulPath = "consul-terraform-sync/terraform"

// Bounds of a state in Consul.
const (
	maxConsulState  = 64 << 20 // bytes
	maxConsulChunks = 4096
)

// chunkIndex is the value of a key whose state is in several keys.
type chunkIndex struct {
	Hash   string   `json:"current-hash"`
	Chunks []string `json:"chunks"`
}

// ReadConsul reads the state that Terraform's backend "consul" has stored at a
// path for a workspace. The workspace of a task of CTS is the name of the task.
// The state may be compressed, and it may be in several keys. ReadConsul returns
// an error if the state is locked, because its holder may be changing it.
func ReadConsul(ctx context.Context, c *api.Client, path, workspace string) ([]byte, error) {
	key := path + "-env:" + workspace
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("read the state at %s in Consul: %w", key, err)
	}
	lock, _, err := c.ReadKey(ctx, key+"/.lock", api.QueryOptions{})
	if err != nil {
		return fail(err)
	}
	if lock != nil && lock.Session != "" {
		return fail(errors.New("it is locked: stop Consul-Terraform-Sync, and wait for the end of its run"))
	}
	k, _, err := c.ReadKey(ctx, key, api.QueryOptions{})
	switch {
	case err != nil:
		return fail(err)
	case k == nil:
		return fail(errors.New("the key does not exist: check the path, which is that of the block backend"))
	}
	data := k.Value
	index, chunked := parseChunkIndex(data)
	if chunked {
		if data, err = readConsulChunks(ctx, c, key, index); err != nil {
			return fail(err)
		}
	}
	if data, err = gunzip(data); err != nil {
		return fail(err)
	}
	if sum := fmt.Sprintf("%x", md5.Sum(data)); chunked && sum != index.Hash {
		return fail(fmt.Errorf("its hash is %s, and the index of its keys has %s: a run has changed it at the same time, or it is damaged",
			sum, index.Hash))
	}
	return data, nil
}

// parseChunkIndex returns the index of a state in several keys. It returns false
// for a state in one key.
func parseChunkIndex(data []byte) (index chunkIndex, ok bool) {
	err := json.Unmarshal(data, &index)
	return index, err == nil && index.Hash != ""
}

func readConsulChunks(ctx context.Context, c *api.Client, key string, index chunkIndex) ([]byte, error) {
	if len(index.Chunks) > maxConsulChunks {
		return nil, fmt.Errorf("it has %d parts: at most %d are supported", len(index.Chunks), maxConsulChunks)
	}
	var data []byte
	for _, name := range index.Chunks {
		if !strings.HasPrefix(name, key+"/") {
			return nil, fmt.Errorf("its index names %q, which is not below the key", name)
		}
		k, _, err := c.ReadKey(ctx, name, api.QueryOptions{})
		switch {
		case err != nil:
			return nil, err
		case k == nil:
			return nil, fmt.Errorf("its part %s does not exist", name)
		case len(data)+len(k.Value) > maxConsulState:
			return nil, fmt.Errorf("it has more than %d bytes", maxConsulState)
		}
		data = append(data, k.Value...)
	}
	return data, nil
}

// gunzip decompresses data that gzip has compressed, and returns other data.
func gunzip(data []byte) ([]byte, error) {
	if len(data) == 0 || data[0] != 0x1f {
		return data, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	out, err := io.ReadAll(io.LimitReader(r, maxConsulState+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("decompress: %w", err)
	case len(out) > maxConsulState:
		return nil, fmt.Errorf("it has more than %d bytes", maxConsulState)
	}
	return out, nil
}
