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

func (q *request) write() error {
	body, err := q.body()
	if err != nil {
		return err
	}
	if q.q.status != "" {
		return q.writeStatus(body)
	}
	r, err := q.decode(body)
	if err != nil {
		return err
	}
	ctx, cancel := q.ctx()
	defer cancel()
	if q.q.dryRun {
		out, err := q.client.MutateAndValidate(ctx, &pb.MutateAndValidateRequest{Resource: r})
		if err != nil {
			return err
		}
		return answer(q.w, q.h.encode(out.GetResource()), q.q.pretty)
	}
	var at peer.Peer // stays empty if the call was not sent, or is of this process
	out, err := hold(ctx, q.client.Write, &pb.WriteRequest{Resource: r}, grpc.Peer(&at))
	if err != nil {
		return q.outcome(at.Addr, err)
	}
	return answer(q.w, q.h.encode(out.GetResource()), q.q.pretty)
}

func (q *request) writeStatus(body []byte) error {
	if q.q.dryRun {
		return badRequest("parameters status and dry-run: a status is not tried; leave one of them out")
	}
	status := &pb.Status{}
	if err := unmarshal(body, status); err != nil {
		return badRequest("status: %w", err)
	}
	ctx, cancel := q.ctx()
	defer cancel()
	var at peer.Peer
	out, err := hold(ctx, q.client.WriteStatus, &pb.WriteStatusRequest{Id: q.id(), Version: q.q.version, Key: q.q.status, Status: status}, grpc.Peer(&at))
	if err != nil {
		return q.outcome(at.Addr, err)
	}
	return answer(q.w, q.h.encode(out.GetResource()), q.q.pretty)
}

func (q *request) delete() error {
	ctx, cancel := q.ctx()
	defer cancel()
	var at peer.Peer
	if _, err := hold(ctx, q.client.Delete, &pb.DeleteRequest{Id: q.id(), Version: q.q.version}, grpc.Peer(&at)); err != nil {
		return q.outcome(at.Addr, err)
	}
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

// body reads the request's.
func (q *request) body() ([]byte, error) {
	rc := http.NewResponseController(q.w)
	_ = rc.SetReadDeadline(time.Now().Add(patience)) // refused only where there is no connection
	body, err := io.ReadAll(http.MaxBytesReader(q.w, q.r.Body, MaxBody))
	if err == nil {
		_ = rc.SetReadDeadline(time.Time{}) // else it would end the request
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, fmt.Errorf("%w: its body must be at most %d bytes", errTooLarge, MaxBody)
	}
	if err != nil {
		return nil, badRequest("body: it ended early: %w", err)
	}
	return body, nil
}

// decode reads the resource that a body has, and completes it from path and parameters.
func (q *request) decode(body []byte) (*pb.Resource, error) {
	var given struct {
		api.Resource
		ID *api.ResourceID `json:"id"` // may be left out
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&given); err != nil {
		return nil, badRequest("body: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, badRequest("body: there is more after the resource")
	}
	id, err := q.idWith(given.ID)
	if err != nil {
		return nil, err
	}
	version, err := agree("version", q.q.version, given.Version)
	if err != nil {
		return nil, err
	}
	r := &pb.Resource{Id: id, Version: version, Metadata: given.Metadata}
	if given.Owner != nil {
		r.Owner = given.Owner.ToPB()
	}
	r.Data, err = data(q.t.reg, given.Data)
	return r, err
}

// idWith returns the request's id. What the body says of it must be the same.
func (q *request) idWith(given *api.ResourceID) (*pb.ID, error) {
	id := q.id()
	if given == nil {
		return id, nil
	}
	if typ := given.Type.ToPB(); given.Type != (api.ResourceTypeName{}) && !resource.SameType(typ, id.Type) {
		return nil, badRequest("id.type %q: must be that of the path, %q, or left out", given.Type, resource.TypeString(id.Type))
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

// agree returns what two places say of a field.
func agree(field, request, body string) (string, error) {
	if request != "" && body != "" && request != body {
		return "", badRequest("%s %q: must be that of the request, %q, or left out", field, body, request)
	}
	return cmp.Or(request, body), nil
}

// data reads the JSON of a type's message. It may have the "@type" that protobuf's JSON has in its place.
func data(reg resource.Registration, raw json.RawMessage) (*anypb.Any, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, badRequest("data: it is missing; it is the JSON of a %s", reg.Message.ProtoReflect().Descriptor().FullName())
	}
	msg := newMessage(reg)
	raw, err := withoutType(raw, string(msg.ProtoReflect().Descriptor().FullName()))
	if err == nil {
		err = unmarshal(raw, msg)
	}
	if err != nil {
		return nil, badRequest("data: %w", err)
	}
	return anypb.New(msg)
}

// withoutType takes "@type" out of an object, which must be want.
func withoutType(raw json.RawMessage, want string) (json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if !bytes.Contains(raw, []byte(`"@type"`)) || json.Unmarshal(raw, &fields) != nil || fields["@type"] == nil {
		return raw, nil
	}
	var url string
	if err := json.Unmarshal(fields["@type"], &url); err != nil || url[strings.LastIndexByte(url, '/')+1:] != want {
		return nil, fmt.Errorf("@type %s: must be that of the type's message, %s, or left out", fields["@type"], want)
	}
	delete(fields, "@type")
	return json.Marshal(fields)
}

// protoPlace is what protojson writes before what is wrong. Its lines are not those of the request, and its space is not always the same.
var protoPlace = regexp.MustCompile(`^proto:[\s\p{Zs}]*(\(line \d+:\d+\):[\s\p{Zs}]*)?`)

func unmarshal(raw []byte, msg proto.Message) error {
	if err := protojson.Unmarshal(raw, msg); err != nil {
		return errors.New(protoPlace.ReplaceAllString(err.Error(), ""))
	}
	return nil
}
