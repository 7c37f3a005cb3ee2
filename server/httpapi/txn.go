// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/wanfed/wanfed/kv"
)

// maxTxn is how many operations a transaction may have: Consul's limit.
const maxTxn = 128

// txnOp is one operation in the body of /v1/txn: an object with one member.
type txnOp struct {
	KV *struct {
		Verb                          kv.Verb
		Key                           string
		Value                         []byte
		Flags, Index                  uint64
		Session, Namespace, Partition string
	}
	Node, Service, Check, Session, Intention json.RawMessage
}

// txnAnswer is the answer's body. Results is null where there are Errors, and Errors where there are none.
type txnAnswer struct {
	Results []txnResult
	Errors  []txnError
}

type (
	txnResult struct{ KV json.RawMessage }
	txnError  struct {
		OpIndex int
		What    string
	}
)

func (h *handler) txn(r *http.Request, q query) (answer, error) {
	ops, err := decodeTxn(q)
	if err != nil {
		return answer{}, err
	}
	c, err := q.consistency()
	if err != nil {
		return answer{}, err
	}
	var entries []kv.Entry
	var failed []kv.Failure
	err = held(r.Context(), func(ctx context.Context) (err error) {
		entries, failed, err = h.kv.Txn(ctx, c, ops)
		return err
	})
	if err != nil {
		return answer{}, err
	}
	if failed != nil {
		a := txnAnswer{}
		for _, f := range failed {
			a.Errors = append(a.Errors, txnError{f.Op, f.Reason})
		}
		return answer{status: http.StatusConflict, body: a}, nil
	}
	a := txnAnswer{Results: make([]txnResult, len(entries))}
	for i := range entries {
		a.Results[i].KV = appendEntry(nil, &entries[i])
	}
	return answer{body: a}, nil
}

func decodeTxn(q query) ([]kv.Op, error) {
	if err := q.unknown("ns", "partition"); err != nil {
		return nil, err
	}
	var body []txnOp
	dec := json.NewDecoder(bytes.NewReader(q.body))
	if err := dec.Decode(&body); err != nil {
		return nil, badRequest{fmt.Errorf("request decode failed: %w", err)}
	}
	if dec.More() {
		return nil, badRequest{errors.New("request decode failed: there is something after the list")}
	}
	if n := len(body); n > maxTxn {
		return nil, statusError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the transaction has %d operations: must be at most %d", n, maxTxn)}
	}
	ops := make([]kv.Op, len(body))
	for i, b := range body {
		if b.KV == nil || !isEmpty(b.Node) || !isEmpty(b.Service) || !isEmpty(b.Check) || !isEmpty(b.Session) || !isEmpty(b.Intention) {
			return nil, badRequest{fmt.Errorf("operation %d: must be one of KV, and nothing else: the catalog is written by /v1/catalog/register", i)}
		}
		switch o := b.KV; {
		case o.Session != "" || o.Verb == "lock" || o.Verb == "unlock" || o.Verb == "check-session":
			return nil, badRequest{fmt.Errorf("operation %d: %s", i, noLocks)}
		case o.Namespace != "" || o.Partition != "":
			return nil, badRequest{fmt.Errorf("operation %d: Namespace and Partition are not supported: leave them out", i)}
		case len(o.Value) > kv.MaxValue:
			return nil, tooLarge(len(o.Value))
		}
		ops[i] = kv.Op{Verb: b.KV.Verb, Key: b.KV.Key, Value: b.KV.Value, Flags: b.KV.Flags, Index: b.KV.Index}
	}
	return ops, nil
}
