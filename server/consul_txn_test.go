// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"testing"

	consul "github.com/hashicorp/consul/api"
)

// consulTxn writes several keys in one step, or none.
func consulTxn(t *testing.T, lab *consulLab, dc string) {
	o := &consul.QueryOptions{Datacenter: dc}
	do := func(want bool, ops ...*consul.KVTxnOp) *consul.TxnResponse {
		t.Helper()
		var all consul.TxnOps
		for _, op := range ops {
			all = append(all, &consul.TxnOp{KV: op})
		}
		ok, resp, meta, err := lab.writer.Txn().Txn(all, o)
		if err != nil || ok != want || !meta.KnownLeader {
			t.Fatalf("Txn() = %t, %+v, %+v, %v, want %t", ok, resp, meta, err, want)
		}
		return resp
	}
	resp := do(true, &consul.KVTxnOp{Verb: consul.KVSet, Key: "txn/a", Value: []byte("1"), Flags: 3}, &consul.KVTxnOp{Verb: consul.KVSet, Key: "txn/b", Value: []byte("1")},
		&consul.KVTxnOp{Verb: consul.KVGetTree, Key: "txn/"})
	if len(resp.Results) != 4 || resp.Errors != nil {
		t.Fatalf("Txn() = %+v, want four results", resp)
	}
	a, b := resp.Results[2].KV, resp.Results[3].KV
	if a.Key != "txn/a" || a.Flags != 3 || !bytes.Equal(a.Value, []byte("1")) || a.ModifyIndex != b.ModifyIndex || a.ModifyIndex == 0 || resp.Results[0].KV.Value != nil {
		t.Errorf("results = %+v, %+v, want both keys with one index", a, b)
	}
	if p, _, err := lab.reader.KV().Get("txn/b", o); err != nil || p.ModifyIndex != b.ModifyIndex {
		t.Errorf("Get() = %+v, %v, want index %d", p, err, b.ModifyIndex)
	}
	resp = do(false, &consul.KVTxnOp{Verb: consul.KVDelete, Key: "txn/b"}, &consul.KVTxnOp{Verb: consul.KVCheckIndex, Key: "txn/a", Index: a.ModifyIndex + 1000})
	if len(resp.Errors) != 1 || resp.Errors[0].OpIndex != 1 || resp.Errors[0].What == "" || resp.Results != nil {
		t.Errorf("Txn() = %+v, want one error of operation 1", resp)
	}
	do(true, &consul.KVTxnOp{Verb: consul.KVCheckIndex, Key: "txn/a", Index: a.ModifyIndex}, &consul.KVTxnOp{Verb: consul.KVDeleteTree, Key: "txn/"},
		&consul.KVTxnOp{Verb: consul.KVCheckNotExists, Key: "txn/b"})
	if keys, _, err := lab.reader.KV().Keys("txn/", "", o); err != nil || keys != nil {
		t.Errorf("Keys() = %q, %v, want none", keys, err)
	}
	if _, _, _, err := lab.writer.Txn().Txn(consul.TxnOps{{KV: &consul.KVTxnOp{Verb: consul.KVLock, Key: "x", Session: "s"}}}, o); err == nil {
		t.Error("a transaction with a lock was accepted")
	}
	if _, _, _, err := lab.reader.Txn().Txn(consul.TxnOps{{KV: &consul.KVTxnOp{Verb: consul.KVSet, Key: "x"}}}, o); err == nil {
		t.Error("a transaction without a certificate was accepted")
	}
}
