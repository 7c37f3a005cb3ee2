// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/wanfed/wanfed/kv"
)

// maxTxn is the maximum number of operations in a transaction: Consul's limit.
const maxTxn = 128

// txnOp is one operation in the body of /v1/txn. wanfed supports only KV.
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

// txnResponse is the body of the response. Either Results or Errors is null.
type txnResponse struct {
	Results []txnResult
	Errors  []txnError
}

type txnResult struct{ KV kvEntry }

type txnError struct {
	OpIndex int
	What    string
}

func (h *handler) txn(r *http.Request, q query) (response, error) {
	ops, err := decodeTxn(q)
	if err != nil {
		return response{}, err
	}
	c, err := q.consistency()
	if err != nil {
		return response{}, err
	}
	var entries []kv.Entry
	var failed []kv.Failure
	err = untilLeader(r.Context(), func(ctx context.Context) (err error) {
		entries, failed, err = h.kv.Txn(ctx, c, ops)
		return err
	})
	if err != nil {
		return response{}, err
	}
	if failed != nil {
		out := txnResponse{}
		for _, f := range failed {
			out.Errors = append(out.Errors, txnError{f.Op, f.Reason})
		}
		return response{status: http.StatusConflict, body: out}, nil
	}
	out := txnResponse{Results: make([]txnResult, len(entries))}
	for i := range entries {
		out.Results[i].KV = kvEntryOf(&entries[i])
	}
	return response{body: out}, nil
}

// decodeTxn returns the operations in the body of a request, or an error if one
// of them is not supported.
func decodeTxn(q query) ([]kv.Op, error) {
	if err := q.reject("ns", "partition"); err != nil {
		return nil, err
	}
	var body []txnOp
	if err := decodeBody(q.body, &body, "list"); err != nil {
		return nil, err
	}
	if n := len(body); n > maxTxn {
		return nil, statusError{http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the transaction has %d operations: must be at most %d", n, maxTxn)}
	}
	ops := make([]kv.Op, len(body))
	for i, b := range body {
		if b.KV == nil || !isEmpty(b.Node) || !isEmpty(b.Service) || !isEmpty(b.Check) ||
			!isEmpty(b.Session) || !isEmpty(b.Intention) {
			return nil, badRequest{fmt.Errorf(
				"operation %d: must be one of KV: the catalog is written by /v1/catalog/register", i)}
		}
		switch o := b.KV; {
		case o.Namespace != "" || o.Partition != "":
			return nil, badRequest{fmt.Errorf("operation %d: Namespace and Partition are not supported: leave them out",
				i)}
		case len(o.Value) > kv.MaxValue:
			return nil, errValueTooLarge(len(o.Value))
		}
		ops[i] = kv.Op{
			Verb: b.KV.Verb, Key: b.KV.Key, Value: b.KV.Value, Flags: b.KV.Flags, Index: b.KV.Index,
			Session: b.KV.Session,
		}
	}
	return ops, nil
}
