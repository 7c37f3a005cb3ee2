// SPDX-License-Identifier: MPL-2.0

package server

import (
	"testing"

	consul "github.com/hashicorp/consul/api"
)

// testConsulTxn proves that a transaction writes all its keys with one index,
// or no key.
func testConsulTxn(t *testing.T, lab *consulLab, dc string) {
	o := &consul.QueryOptions{Datacenter: dc}
	run := func(c *consul.Client, ops ...*consul.KVTxnOp) (ok bool, resp *consul.TxnResponse, err error) {
		var txn consul.TxnOps
		for _, op := range ops {
			txn = append(txn, &consul.TxnOp{KV: op})
		}
		ok, resp, meta, err := c.Txn().Txn(txn, o)
		if err == nil && !meta.KnownLeader {
			t.Errorf("Txn() has metadata %+v, want a known leader", meta)
		}
		return ok, resp, err
	}

	ok, resp, err := run(lab.writer,
		&consul.KVTxnOp{Verb: consul.KVSet, Key: "txn/a", Value: []byte("1"), Flags: 3},
		&consul.KVTxnOp{Verb: consul.KVSet, Key: "txn/b", Value: []byte("1")},
		&consul.KVTxnOp{Verb: consul.KVGetTree, Key: "txn/"})
	if err != nil || !ok || len(resp.Results) != 4 || resp.Errors != nil {
		t.Fatalf("Txn() = %t, %+v, %v, want true and 4 results", ok, resp, err)
	}
	a, b := resp.Results[2].KV, resp.Results[3].KV
	if a.Key != "txn/a" || a.Flags != 3 || string(a.Value) != "1" || a.ModifyIndex == 0 ||
		a.ModifyIndex != b.ModifyIndex ||
		resp.Results[0].KV.Value != nil {
		t.Errorf("results of get-tree = %+v, %+v, want both keys with one index", a, b)
	}
	if p, _, err := lab.reader.KV().Get("txn/b", o); err != nil || p.ModifyIndex != b.ModifyIndex {
		t.Errorf("Get(txn/b) = %+v, %v, want index %d", p, err, b.ModifyIndex)
	}

	ok, resp, err = run(lab.writer,
		&consul.KVTxnOp{Verb: consul.KVDelete, Key: "txn/b"},
		&consul.KVTxnOp{Verb: consul.KVCheckIndex, Key: "txn/a", Index: a.ModifyIndex + 1000})
	if err != nil || ok || len(resp.Errors) != 1 || resp.Errors[0].OpIndex != 1 || resp.Errors[0].What == "" ||
		resp.Results != nil {
		t.Errorf("Txn() with a wrong index = %t, %+v, %v, want false and one error of operation 1", ok, resp, err)
	}

	ok, resp, err = run(lab.writer,
		&consul.KVTxnOp{Verb: consul.KVCheckIndex, Key: "txn/a", Index: a.ModifyIndex},
		&consul.KVTxnOp{Verb: consul.KVDeleteTree, Key: "txn/"},
		&consul.KVTxnOp{Verb: consul.KVCheckNotExists, Key: "txn/b"})
	if err != nil || !ok {
		t.Errorf("Txn() with a deletion = %t, %+v, %v, want true", ok, resp, err)
	}
	if keys, _, err := lab.reader.KV().Keys("txn/", "", o); err != nil || keys != nil {
		t.Errorf("Keys(txn/) = %q, %v, want none", keys, err)
	}

	if ok, _, err := run(lab.writer, &consul.KVTxnOp{Verb: consul.KVLock, Key: "x", Session: "s"}); err != nil || ok {
		t.Errorf("Txn() with a lock for no session = %t, %v, want false, nil", ok, err)
	}
	if ok, _, err := run(lab.reader, &consul.KVTxnOp{Verb: consul.KVSet, Key: "x"}); err == nil {
		t.Errorf("Txn() without a certificate = %t, nil, want an error", ok)
	}
}
