// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// write performs a PUT: the write of a resource or of a status, or with dry-run
// only the check of a resource.
func (q *request) write() error {
	body, err := q.body()
	if err != nil {
		return err
	}
	if q.params.status != "" {
		return q.writeStatus(body)
	}
	r, err := q.decode(body)
	if err != nil {
		return err
	}
	ctx, cancel := q.ctx()
	defer cancel()
	if q.params.dryRun {
		out, err := q.client.MutateAndValidate(ctx, &pb.MutateAndValidateRequest{Resource: r})
		if err != nil {
			return err
		}
		return respond(q.w, q.h.encode(out.GetResource()), q.params.pretty)
	}
	var at peer.Peer // stays empty if the call was not sent, or was a call in this process
	out, err := withLeader(ctx, q.client.Write, &pb.WriteRequest{Resource: r}, grpc.Peer(&at))
	if err != nil {
		return outcome(at.Addr, err)
	}
	return respond(q.w, q.h.encode(out.GetResource()), q.params.pretty)
}

func (q *request) writeStatus(body []byte) error {
	if q.params.dryRun {
		return badRequest("parameters status and dry-run: a status has no dry run; leave one of them out")
	}
	status := &pb.Status{}
	if err := unmarshal(body, status); err != nil {
		return badRequest("status: %w", err)
	}
	ctx, cancel := q.ctx()
	defer cancel()
	var at peer.Peer
	req := &pb.WriteStatusRequest{Id: q.id(), Version: q.params.version, Key: q.params.status, Status: status}
	out, err := withLeader(ctx, q.client.WriteStatus, req, grpc.Peer(&at))
	if err != nil {
		return outcome(at.Addr, err)
	}
	return respond(q.w, q.h.encode(out.GetResource()), q.params.pretty)
}

func (q *request) delete() error {
	ctx, cancel := q.ctx()
	defer cancel()
	var at peer.Peer
	req := &pb.DeleteRequest{Id: q.id(), Version: q.params.version}
	if _, err := withLeader(ctx, q.client.Delete, req, grpc.Peer(&at)); err != nil {
		return outcome(at.Addr, err)
	}
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

// body reads the body of the request.
func (q *request) body() ([]byte, error) {
	rc := http.NewResponseController(q.w)
	_ = rc.SetReadDeadline(time.Now().Add(clientTimeout)) // fails only without a connection
	body, err := io.ReadAll(http.MaxBytesReader(q.w, q.r.Body, MaxBody))
	if err == nil {
		_ = rc.SetReadDeadline(time.Time{}) // the deadline would end the context of the request
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, fmt.Errorf("%w: its body must be at most %d bytes", errTooLarge, MaxBody)
	}
	if err != nil {
		return nil, badRequest("body: it ended early: %w", err)
	}
	return body, nil
}

// decode decodes the resource in a body, completed by path and parameters.
func (q *request) decode(body []byte) (*pb.Resource, error) {
	var given struct {
		api.Resource
		ID *api.ResourceID `json:"id"` // optional
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&given); err != nil {
		return nil, badRequest("body: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, badRequest("body: must end after the resource")
	}
	id, err := q.idWith(given.ID)
	if err != nil {
		return nil, err
	}
	version, err := agree("version", q.params.version, given.Version)
	if err != nil {
		return nil, err
	}
	r := &pb.Resource{Id: id, Version: version, Metadata: given.Metadata}
	if given.Owner != nil {
		r.Owner = given.Owner.ToPB()
	}
	r.Data, err = data(q.target.reg, given.Data)
	return r, err
}

// idWith returns the id of the request, completed by the id in the body. Values
// that the request and the body both have must be equal.
func (q *request) idWith(given *api.ResourceID) (*pb.ID, error) {
	id := q.id()
	if given == nil {
		return id, nil
	}
	if typ := given.Type.ToPB(); given.Type != (api.ResourceTypeName{}) && !resource.SameType(typ, id.Type) {
		return nil, badRequest("id.type %q: must be the type in the path, %q, or left out", given.Type,
			resource.TypeString(id.Type))
	}
	var errs []error
	for _, f := range []struct {
		field string
		path  *string
		body  string
	}{
		{"id.name", &id.Name, given.Name}, {"id.uid", &id.Uid, given.UID},
		{"id.tenancy.partition", &id.Tenancy.Partition, given.Tenancy.Partition},
		{"id.tenancy.namespace", &id.Tenancy.Namespace, given.Tenancy.Namespace},
	} {
		var err error
		*f.path, err = agree(f.field, *f.path, f.body)
		errs = append(errs, err)
	}
	return id, errors.Join(errs...)
}

// agree returns the value of a field that the request, the body or both may
// have.
func agree(field, request, body string) (string, error) {
	if request != "" && body != "" && request != body {
		return "", badRequest("%s %q: must be the value in the request, %q, or left out", field, body, request)
	}
	return cmp.Or(request, body), nil
}

// data decodes the JSON of a type's message. The JSON may have the field
// "@type", like an Any in protobuf's JSON.
func data(reg resource.Registration, raw json.RawMessage) (*anypb.Any, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, badRequest("data: it is missing; it is the JSON of a %s",
			reg.Message.ProtoReflect().Descriptor().FullName())
	}
	if reg.CheckJSON != nil {
		if err := reg.CheckJSON(raw); err != nil {
			return nil, badRequest("data: %w", err)
		}
	}
	msg := reg.NewMessage()
	raw, err := withoutType(raw, string(msg.ProtoReflect().Descriptor().FullName()))
	if err == nil {
		err = unmarshal(raw, msg)
	}
	if err != nil {
		return nil, badRequest("data: %w", err)
	}
	return anypb.New(msg)
}

// withoutType removes the field "@type" from a JSON object. Its value must be a
// URL of the type message.
func withoutType(raw json.RawMessage, message string) (json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if !bytes.Contains(raw, []byte(`"@type"`)) || json.Unmarshal(raw, &fields) != nil || fields["@type"] == nil {
		return raw, nil
	}
	var url string
	if err := json.Unmarshal(fields["@type"], &url); err != nil || url[strings.LastIndexByte(url, '/')+1:] != message {
		return nil, fmt.Errorf("@type %s: must be the type's message, %s, or left out", fields["@type"], message)
	}
	delete(fields, "@type")
	return json.Marshal(fields)
}

// protoPlace matches the prefix of protojson's errors. The prefix is removed,
// because its line numbers do not refer to the whole body of the request, and
// its spaces vary.
var protoPlace = regexp.MustCompile(`^proto:[\s\p{Zs}]*(\(line \d+:\d+\):[\s\p{Zs}]*)?`)

func unmarshal(raw []byte, msg proto.Message) error {
	if err := protojson.Unmarshal(raw, msg); err != nil {
		return errors.New(protoPlace.ReplaceAllString(err.Error(), ""))
	}
	return nil
}
