// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/gateway/proxycfg/consultest"
)

// compressed returns data as Terraform compresses it.
func compressed(t *testing.T, data string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(data)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// chunks returns the keys of a state in several keys of at most size bytes.
func chunks(t *testing.T, key, data, stored string, size int) map[string]string {
	t.Helper()
	hash := fmt.Sprintf("%x", md5.Sum([]byte(data)))
	keys, names := map[string]string{}, []string{}
	for i := 0; len(stored) > 0; i++ {
		name := fmt.Sprintf("%s/tfstate.%s/%d", key, hash, i)
		n := min(size, len(stored))
		keys[name], stored = stored[:n], stored[n:]
		names = append(names, name)
	}
	index, err := json.Marshal(map[string]any{"current-hash": hash, "chunks": names})
	if err != nil {
		t.Fatal(err)
	}
	keys[key] = string(index)
	return keys
}

// TestReadConsul has the forms in which Terraform stores a state. The test
// TestImport_Terraform of package syncd has a state of a real Terraform.
func TestReadConsul(t *testing.T) {
	const key, want = state.ConsulPath + "-env:t", `{"version":4,"serial":3,"lineage":"a"}`
	without := func(keys map[string]string, suffix string) map[string]string {
		for k := range keys {
			if strings.HasSuffix(k, suffix) {
				delete(keys, k)
			}
		}
		return keys
	}
	with := func(keys map[string]string, k, v string) map[string]string { keys[k] = v; return keys }
	for name, tt := range map[string]struct {
		keys map[string]string
		want string // of the error
	}{
		"plain":            {map[string]string{key: want}, ""},
		"compressed":       {map[string]string{key: compressed(t, want)}, ""},
		"chunks":           {chunks(t, key, want, want, 10), ""},
		"compressed parts": {chunks(t, key, want, compressed(t, want), 10), ""},
		"free lock":        {map[string]string{key: want, key + "/.lock": ""}, ""},
		"locked":           {map[string]string{key: want, key + "/.lock": "session"}, "it is locked"},
		"absent":           {map[string]string{state.ConsulPath + "-env:other": want}, "the key does not exist"},
		"chunk absent":     {without(chunks(t, key, want, want, 10), "/2"), "/2 does not exist"},
		"chunk changed":    {with(chunks(t, key, want, want, 100), fmt.Sprintf("%s/tfstate.%x/0", key, md5.Sum([]byte(want))), "{}"), "its hash is"},
		"damaged gzip":     {map[string]string{key: compressed(t, want)[:20]}, "decompress"},
		"other key":        {map[string]string{key: `{"current-hash":"x","chunks":["secret"]}`, "secret": "s"}, "not below the key"},
	} {
		t.Run(name, func(t *testing.T) {
			agent := consultest.NewAgent(t, "dc1")
			agent.SetKeys(tt.keys)
			c, err := api.NewClient(api.ClientConfig{Addr: agent.URL()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			got, err := state.ReadConsul(t.Context(), c, state.ConsulPath, "t")
			switch {
			case tt.want == "" && (err != nil || string(got) != want):
				t.Errorf("ReadConsul() = %s, %v, want %s", got, err, want)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("ReadConsul() = %s, %v, want an error with %q", got, err, tt.want)
			}
		})
	}
}

func FuzzReadConsul(f *testing.F) {
	f.Add([]byte(`{"current-hash":"x","chunks":["a"]}`))
	f.Add([]byte("\x1f\x8b\x08"))
	f.Fuzz(func(_ *testing.T, data []byte) { state.ParseConsul(data) })
}
