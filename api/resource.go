// SPDX-License-Identifier: MPL-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api/pb"
)

// Paths of the resource API.
const (
	// ResourcePath precedes group/version/kind of a type, or
	// group/version/kind/name of a resource.
	ResourcePath      = "/api/"
	ResourceTypesPath = "/api/types"
	OpenAPIPath       = "/api/openapi.json"
)

// Resource is a resource in the HTTP API. Its JSON is the JSON of the protobuf
// message: 64-bit numbers are strings, and zero values are absent. Only the
// data differs: it has no "@type".
type Resource struct {
	ID    ResourceID  `json:"id"`
	Owner *ResourceID `json:"owner,omitempty"`
	// Version changes with every write, and Generation with every write of
	// data.
	Version            string                    `json:"version,omitempty"`
	Generation         string                    `json:"generation,omitempty"`
	Metadata           map[string]string         `json:"metadata,omitempty"`
	Status             map[string]ResourceStatus `json:"status,omitempty"`
	Data               json.RawMessage           `json:"data"` // the JSON of the type's message
	CreateIndex        uint64                    `json:"create_index,omitempty,string"`
	ModifyIndex        uint64                    `json:"modify_index,omitempty,string"`
	PrimaryModifyIndex uint64                    `json:"primary_modify_index,omitempty,string"`
	// PrimaryEpoch is the epoch of the primary that stored this version of a
	// federated resource.
	PrimaryEpoch uint64 `json:"primary_epoch,omitempty,string"`
}

// ResourceID names a resource.
type ResourceID struct {
	UID     string           `json:"uid,omitempty"`
	Name    string           `json:"name"`
	Type    ResourceTypeName `json:"type"`
	Tenancy Tenancy          `json:"tenancy,omitzero"`
}

// ResourceTypeName names a type of resource.
type ResourceTypeName struct {
	Group        string `json:"group"`
	GroupVersion string `json:"group_version"`
	Kind         string `json:"kind"`
}

// String returns group/version/Kind.
func (t ResourceTypeName) String() string { return t.Group + "/" + t.GroupVersion + "/" + t.Kind }

// ParseResourceType parses group/version/kind. The type need not exist.
func ParseResourceType(s string) (ResourceTypeName, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return ResourceTypeName{}, fmt.Errorf("type %q is not group/version/Kind, such as catalog/v1/Node", s)
	}
	return ResourceTypeName{parts[0], parts[1], parts[2]}, nil
}

// ErrNoType reports that FindResourceType found no type.
var ErrNoType = errors.New("no type has the kind")

// FindResourceType returns the one of types whose kind is kind, in upper or lower
// case.
func FindResourceType(types []ResourceType, kind string) (ResourceTypeName, error) {
	var found []ResourceTypeName
	var names, all []string
	for _, t := range types {
		all = append(all, t.Type.String())
		if strings.EqualFold(t.Type.Kind, kind) {
			found, names = append(found, t.Type), append(names, t.Type.String())
		}
	}
	switch len(found) {
	case 0:
		return ResourceTypeName{}, fmt.Errorf("%w %q; the types are %s", ErrNoType, kind, strings.Join(all, ", "))
	case 1:
		return found[0], nil
	}
	return ResourceTypeName{}, fmt.Errorf("kind %q is ambiguous; write %s", kind, strings.Join(names, " or "))
}

// Tenancy is the partition and namespace of a resource. An empty field is the
// default, or is not part of the type's scope.
type Tenancy struct {
	Partition string `json:"partition,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// ResourceStatus is the status that one controller has written for a resource.
type ResourceStatus struct {
	ObservedGeneration string              `json:"observed_generation"`
	Conditions         []ResourceCondition `json:"conditions,omitempty"`
	UpdatedAt          time.Time           `json:"updated_at,omitzero"`
}

// ResourceCondition is one observation of a controller.
type ResourceCondition struct {
	Type    string `json:"type"`
	State   string `json:"state"` // STATE_TRUE, STATE_FALSE or STATE_UNKNOWN
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Resource is the subject of the condition, if it is another resource.
	Resource *ResourceReference `json:"resource,omitempty"`
}

// ResourceReference refers to a resource or a part of it.
type ResourceReference struct {
	Type    ResourceTypeName `json:"type"`
	Tenancy Tenancy          `json:"tenancy,omitzero"`
	Name    string           `json:"name"`
	Section string           `json:"section,omitempty"`
}

// ResourceType is a registered type.
type ResourceType struct {
	Type      ResourceTypeName `json:"type"`
	Scope     string           `json:"scope"` // namespace, partition or cluster
	Federated bool             `json:"federated"`
	Message   string           `json:"message"` // full name of the protobuf message of data
	Path      string           `json:"path"`    // of its resources
}

// ResourceEvent is one event of a watch.
type ResourceEvent struct {
	// Type is EventUpsert, EventDelete or EventEndOfSnapshot. An
	// EventEndOfSnapshot has no resource. It follows the resources that existed
	// when the watch began.
	Type     string   `json:"event"`
	Resource Resource `json:"resource,omitzero"`
	// Index is the index of the snapshot, of an EventEndOfSnapshot. It is not
	// below that of a deletion before the snapshot. 0: unknown.
	Index uint64 `json:"index,omitzero"`
}

// Events of a watch. A server ends a watch with EventEnd, if it can still send
// data. The data of EventEnd has the reason.
const (
	EventUpsert        = "upsert"
	EventDelete        = "delete"
	EventEndOfSnapshot = "end-of-snapshot"
	EventEnd           = "end"
	// EventStatus has a Status. It is the event of a watch of StatusPath.
	EventStatus = "status"
)

// FromResource converts r. data is the JSON of its data.
func FromResource(r *pb.Resource, data json.RawMessage) Resource {
	out := Resource{
		ID: FromResourceID(r.GetId()), Version: r.GetVersion(), Generation: r.GetGeneration(),
		Metadata: r.GetMetadata(), Data: data,
		CreateIndex: r.GetCreateIndex(), ModifyIndex: r.GetModifyIndex(), PrimaryModifyIndex: r.GetPrimaryModifyIndex(),
		PrimaryEpoch: r.GetPrimaryEpoch(),
	}
	if r.GetOwner() != nil {
		out.Owner = new(FromResourceID(r.GetOwner()))
	}
	if len(r.GetStatus()) > 0 {
		out.Status = make(map[string]ResourceStatus, len(r.GetStatus()))
	}
	for key, s := range r.GetStatus() {
		out.Status[key] = fromStatus(s)
	}
	return out
}

// FromResourceID converts id.
func FromResourceID(id *pb.ID) ResourceID {
	return ResourceID{
		UID: id.GetUid(), Name: id.GetName(), Type: FromResourceType(id.GetType()),
		Tenancy: fromTenancy(id.GetTenancy()),
	}
}

// FromResourceType converts t.
func FromResourceType(t *pb.Type) ResourceTypeName {
	return ResourceTypeName{Group: t.GetGroup(), GroupVersion: t.GetGroupVersion(), Kind: t.GetKind()}
}

func fromTenancy(t *pb.Tenancy) Tenancy {
	return Tenancy{Partition: t.GetPartition(), Namespace: t.GetNamespace()}
}

func fromStatus(s *pb.Status) ResourceStatus {
	out := ResourceStatus{ObservedGeneration: s.GetObservedGeneration()}
	if s.GetUpdatedAt() != nil {
		out.UpdatedAt = s.GetUpdatedAt().AsTime()
	}
	for _, c := range s.GetConditions() {
		condition := ResourceCondition{
			Type: c.GetType(), State: c.GetState().String(), Reason: c.GetReason(), Message: c.GetMessage(),
		}
		if ref := c.GetResource(); ref != nil {
			condition.Resource = &ResourceReference{
				Type: FromResourceType(ref.GetType()), Tenancy: fromTenancy(ref.GetTenancy()), Name: ref.GetName(),
				Section: ref.GetSection(),
			}
		}
		out.Conditions = append(out.Conditions, condition)
	}
	return out
}

// ToPB returns the protobuf message of id.
func (id ResourceID) ToPB() *pb.ID {
	return &pb.ID{
		Uid: id.UID, Name: id.Name, Type: id.Type.ToPB(),
		Tenancy: &pb.Tenancy{Partition: id.Tenancy.Partition, Namespace: id.Tenancy.Namespace},
	}
}

// ToPB returns the protobuf message of t.
func (t ResourceTypeName) ToPB() *pb.Type {
	return &pb.Type{Group: t.Group, GroupVersion: t.GroupVersion, Kind: t.Kind}
}
